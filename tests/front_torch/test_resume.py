"""A run that was saved and loaded is the run that was not, bit for bit."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.cases import BODIES, DTYPES
from tests.twin import agd
from torch.nn import Parameter

from agdopt import AGD

HALF = 50
SOURCES = f"{Path(__file__).parents[2] / 'src'}:{Path(__file__).parents[2]}"


def parameters(dtype):
    generator = torch.Generator().manual_seed(0)
    wide = torch.complex64 if dtype.is_complex else torch.float32
    return [
        Parameter(torch.randn(shape, generator=generator, dtype=wide).to(dtype))
        for shape in ((3, 5), (), (0,), (70,))
    ]


def run(params, optimizer, first, last):
    """Steps first .. last - 1; the last parameter joins at step 7."""
    for t in range(first, last):
        generator = torch.Generator().manual_seed(t)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        if t < 7:
            params[-1].grad = None
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + t / 20)
        optimizer.step()


def through_a_file(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(params, optimizer, others, other):
    assert all(map(torch.equal, params, others))
    state, other_state = optimizer.state_dict(), other.state_dict()
    assert state["param_groups"] == other_state["param_groups"]
    assert state["state"].keys() == other_state["state"].keys()
    for i, values in state["state"].items():
        assert values.keys() == other_state["state"][i].keys()
        for key, x in values.items():
            y = other_state["state"][i][key]
            assert torch.equal(x, y)
            assert (x.dtype, x.device, x.stride()) == (y.dtype, y.device, y.stride())


# body, dtype, options
MIXES = [
    (body, dtype, {"state_dtype": state_dtype, "capturable": capturable})
    for body in BODIES
    for dtype in (*DTYPES[body], *([] if body == "gpu" else [torch.complex64]))
    for state_dtype in (None, torch.float32, *([] if body == "differentiable" else [torch.bfloat16]))
    for capturable in (False, True)
    if state_dtype is None or not (dtype == torch.float64 or dtype.is_complex)
]


@pytest.mark.parametrize(("body", "dtype", "options"), MIXES, indirect=["body"], ids=str)
def test_resumed_run_is_the_uninterrupted_run(body, dtype, options):
    half = 5 if body == "gpu" else HALF  # the interpreter is slow
    if dtype == torch.bfloat16 and body != "differentiable":
        options = {**options, "stochastic_rounding": True, "seed": 3}
    params, others = parameters(dtype), parameters(dtype)
    optimizer, first = agd(params, body, **options), agd(others, body, **options)
    run(params, optimizer, 0, 2 * half)
    run(others, first, 0, half)

    saved = through_a_file({"params": [p.detach() for p in others], "optimizer": first.state_dict()})
    others = [Parameter(p) for p in saved["params"]]
    second = agd(others, body)  # its options come from the file
    second.load_state_dict(saved["optimizer"])
    run(others, second, half, 2 * half)
    same(params, optimizer, others, second)
    for p in params:
        kept = optimizer.state[p]["exp_avg"].dtype
        assert kept == (options["state_dtype"] or {torch.float64: torch.float64}.get(dtype, kept))
        assert kept not in (torch.float16,)


def test_resumed_in_a_fresh_process(tmp_path):
    """Everything the run needs is in the file: nothing in the process."""
    mixes = [
        (body, dtype, options)
        for body, dtype, options in MIXES
        if body in ("foreach", "cpu") and not options["capturable"]
    ]
    files, expected = [], []
    for body, dtype, options in mixes:
        params = parameters(dtype)
        optimizer = agd(params, body, **options)
        run(params, optimizer, 0, HALF)
        files.append(
            (body, {"params": [p.detach().clone() for p in params], "optimizer": optimizer.state_dict()})
        )
        files[-1] = (body, through_a_file(files[-1][1]))
        run(params, optimizer, HALF, HALF + 10)
        expected.append((params, optimizer))
    torch.save(files, tmp_path / "half.pt")
    code = f"""
import torch
from tests.front_torch.test_resume import HALF, Parameter, agd, run
done = []
for body, saved in torch.load({str(tmp_path / "half.pt")!r}, weights_only=True):
    params = [Parameter(p) for p in saved["params"]]
    optimizer = agd(params, body)
    optimizer.load_state_dict(saved["optimizer"])
    run(params, optimizer, HALF, HALF + 10)
    done.append(([p.detach() for p in params], optimizer.state_dict()))
torch.save(done, {str(tmp_path / "whole.pt")!r})
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    for (params, optimizer), (values, state_dict) in zip(
        expected, torch.load(tmp_path / "whole.pt", weights_only=True), strict=True
    ):
        assert all(map(torch.equal, params, values))
        for i, state in optimizer.state_dict()["state"].items():
            assert all(torch.equal(x, state_dict["state"][i][key]) for key, x in state.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_state_keeps_its_dtype(dtype):
    """torch's loader would cast float32 averages to the parameter's dtype."""
    params = parameters(dtype)
    optimizer = AGD(params)
    run(params, optimizer, 0, 9)
    before = {p: {key: x.clone() for key, x in state.items()} for p, state in optimizer.state.items()}
    for _ in range(3):
        optimizer.load_state_dict(optimizer.state_dict())
    for p, state in before.items():
        for key, x in state.items():
            assert x.dtype == torch.float32
            assert torch.equal(optimizer.state[p][key], x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_dtype_changes_on_resume(dtype):
    """The file's option says how averages are kept: a checkpoint of bfloat16 averages goes on with those."""
    params = parameters(dtype)
    optimizer = AGD(params, state_dtype=torch.bfloat16)
    run(params, optimizer, 0, 9)
    other = AGD(params)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["state_dtype"] == torch.bfloat16
    assert {state["exp_avg"].dtype for state in other.state.values()} == {torch.bfloat16}


@pytest.mark.parametrize("saver", ["loop", "foreach", "cpu"])
@pytest.mark.parametrize("loader", ["loop", "foreach", "cpu"])
def test_another_body_may_go_on(saver, loader):
    """State has one form for all bodies."""
    params = parameters(torch.float32)
    first = agd(params, saver)
    run(params, first, 0, 9)
    state = first.state_dict()
    for group in state["param_groups"]:
        group.update(BODIES[loader])
    second = agd(params, loader)
    second.load_state_dict(through_a_file(state))
    run(params, second, 9, 12)
    assert all(s["step"] == 12 for s in list(second.state.values())[:3])
