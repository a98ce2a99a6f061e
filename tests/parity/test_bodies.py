"""Every body x dtype x option does what core/reference.py says, one step at a time."""

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from tests.cases import BODIES, DTYPES, OPTIONS, SHAPES
from tests.twin import agd, random_gradients, step_beside_reference
from torch.nn import Parameter

BODY_DTYPES = [(body, dtype) for body in BODIES for dtype in DTYPES[body]]


def parameters(dtype: torch.dtype) -> list[Parameter]:
    return [Parameter((torch.randn(shape) * 0.3).to(dtype)) for shape in SHAPES]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("body", "dtype"), BODY_DTYPES, indirect=["body"], ids=str)
def test_body_is_the_rule(body, dtype, option):
    params = parameters(dtype)
    optimizer = agd(params, body, **{"lr": 0.05, **OPTIONS[option]})
    for t in range(4):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer, truncates=body == "gpu")
    assert set(optimizer.executor) == {body}
    for p in params:  # late in training, where the bias corrections are 1
        optimizer.state[p]["step"].fill_(200_000)
    step_beside_reference(optimizer, truncates=body == "gpu")


@pytest.mark.parametrize("option", ["default", "amsgrad", "all"])
@pytest.mark.parametrize(
    ("body", "dtype"),
    [(b, d) for b, d in BODY_DTYPES if b != "differentiable" and d != torch.float64],
    indirect=["body"],
    ids=str,
)
def test_bfloat16_averages_are_the_rule_but_for_one_rounding(body, dtype, option):
    params = parameters(dtype)
    optimizer = agd(params, body, **{"lr": 0.05, **OPTIONS[option]}, state_dtype=torch.bfloat16)
    for t in range(4):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer, truncates=body == "gpu")
        assert {optimizer.state[p]["exp_avg"].dtype for p in params} == {torch.bfloat16}
        assert {optimizer.state[p]["exp_avg_sq"].dtype for p in params} == {torch.bfloat16}


@pytest.mark.parametrize("option", ["default", "weight_decay", "clip", "all", "tensor_lr"])
@pytest.mark.parametrize(("body", "dtype"), BODY_DTYPES, indirect=["body"], ids=str)
def test_capturable(body, dtype, option):
    """The numbers of the step are made from a tensor; the same rule."""
    params = parameters(dtype)
    optimizer = agd(params, body, **{"lr": 0.05, **OPTIONS[option]}, capturable=True)
    for t in range(4):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer, truncates=body == "gpu")


def test_stochastically_rounded_parameters(trainer):
    params = parameters(torch.bfloat16)
    optimizer = agd(params, trainer, lr=0.05, stochastic_rounding=True)
    for t in range(6):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("body", ["loop", "foreach", "differentiable", "cpu"])
@hypothesis.given(data=st.data())
def test_any_hyper_any_state(body, dtype, data):
    number = st.floats(1e-2, 10.0)
    signed = number | number.map(lambda x: -x) | st.just(0.0)
    p = Parameter(torch.tensor([data.draw(signed) for _ in range(3)], dtype=dtype))
    optimizer = agd(
        [p],
        body,
        lr=data.draw(st.sampled_from([0.0, 1e-5, 1e-2, 1.0])),
        betas=(
            data.draw(st.sampled_from([0.0, 0.5, 0.9, 0.99])),
            data.draw(st.sampled_from([0.0, 0.9, 0.9999])),
        ),
        delta=data.draw(st.sampled_from([1e-12, 1e-8, 1e-2, 1.0, 1e3])),
        weight_decay=data.draw(st.sampled_from([0.0, 0.1])),
        decoupled_weight_decay=data.draw(st.booleans()),
        maximize=data.draw(st.booleans()),
        amsgrad=data.draw(st.booleans()),
        standardize=data.draw(st.booleans()),
        clip=data.draw(st.sampled_from([None, 0.1, 2.0])),
    )
    t = data.draw(st.integers(0, 10**6))
    if t:
        m = [data.draw(signed) for _ in range(3)]
        b = [data.draw(number) for _ in range(3)]
        optimizer.state[p] = {
            "step": torch.tensor(float(t)),
            "exp_avg": torch.tensor(m, dtype=dtype),
            "exp_avg_sq": torch.tensor(b, dtype=dtype),
        }
    for _ in range(2):
        p.grad = torch.tensor([data.draw(signed) for _ in range(3)], dtype=dtype)
        step_beside_reference(optimizer)


def test_the_yardstick_sees_an_error():
    """A relative change of 2e-6 in one element of one average is enough to fail."""
    params = parameters(torch.float32)
    optimizer = agd(params, "loop", lr=0.05)
    random_gradients(params, seed=0)
    optimizer.step()
    random_gradients(params, seed=1)

    def slightly_wrong():
        optimizer.step()
        optimizer.state[params[0]]["exp_avg_sq"][0, 0] *= 1 + 2e-6

    with pytest.raises(AssertionError, match="exp_avg_sq"):
        step_beside_reference(optimizer, slightly_wrong)


def test_unwritten_memory_is_nan_here():
    """tests/conftest.py sees to it, so that whoever reads before writing fails."""
    assert torch.empty(100).isnan().all()


def test_nan_stays_nan(body):
    """A gradient of NaN must show: a comparison that NaN fails would take a plain step instead."""
    p = Parameter(torch.ones(8))
    p.grad = torch.ones(8)
    p.grad[3] = np.nan
    optimizer = agd([p], body, clip=0.5)
    optimizer.step()
    for x in (p, *(optimizer.state[p][key] for key in ("exp_avg", "exp_avg_sq"))):
        assert x.isnan().nonzero().flatten().tolist() == [3]
