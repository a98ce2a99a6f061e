"""What only the Numba body can get wrong: addresses, threads, processes, and the cache of compiled code."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tolerances import OVERLAPPING, ROUNDED_ALIKE, TRAINED_ALIKE
from tests.twin import random_gradients, step_beside_reference
from torch import Tensor
from torch.nn import Parameter

from agdopt import AGD
from agdopt.torch import cpu, cpu_kernel

SRC = Path(__file__).parents[2] / "src"

# On both sides of a unit and of what one thread does alone, empty and odd ones between.
SIZES = (
    0,
    1,
    3,
    64,
    65,
    cpu_kernel.UNIT - 1,
    0,
    cpu_kernel.UNIT,
    cpu_kernel.UNIT + 1,
    7,
    5 * cpu_kernel.UNIT + 13,
    0,
)
DTYPES = [
    (torch.float32, None),
    (torch.float64, None),
    (torch.bfloat16, None),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
]


@pytest.fixture
def threads():
    """Set the number of threads, and learn with how many a step has run."""
    before, seen, run = torch.get_num_threads(), [], cpu._openmp()

    def spy(code, job, n, flags):
        seen.append(n)
        run(code, job, n, flags)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_openmp", lambda: spy)
        torch.set_num_threads(2)
        yield seen
    torch.set_num_threads(before)


class Guarded:
    """Tensors in larger buffers, at any byte, with a pattern around them that must not change."""

    PATTERN = 0xA5

    def __init__(self) -> None:
        self.buffers: list[tuple[Tensor, int, int]] = []

    def __call__(self, x: Tensor, offset: int) -> Tensor:
        raw = torch.full((x.nbytes + 512 + offset,), self.PATTERN, dtype=torch.uint8)
        start = 256 + offset - raw.data_ptr() % 64
        self.buffers.append((raw, start, x.nbytes))
        if not x.nbytes:
            return x
        inside = torch.frombuffer(raw.numpy(), dtype=x.dtype, count=x.numel(), offset=start)
        assert inside.data_ptr() % 64 == offset % 64
        return inside.view(x.shape).copy_(x)

    def intact(self) -> bool:
        around = (torch.cat((raw[:start], raw[start + n :])) for raw, start, n in self.buffers)
        return all(bool((x == self.PATTERN).all()) for x in around)


def mixed(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(dtype) for size in SIZES]


@pytest.mark.parametrize("offset", [0, 4, 8, 36, 1, 63])
@pytest.mark.parametrize(("dtype", "state_dtype"), DTYPES)
def test_nothing_around_the_tensors_is_touched(dtype, state_dtype, offset, threads):
    """... and they themselves go where the rule says, with two kinds of t among them, on two threads."""
    guard = Guarded()
    params = [Parameter(guard(x, offset)) for x in mixed(dtype)]
    optimizer = AGD(params, lr=0.05, weight_decay=0.1, state_dtype=state_dtype)
    for i, p in enumerate(params):
        average = torch.zeros_like(
            p, dtype=state_dtype or (dtype if dtype == torch.float64 else torch.float32)
        )
        optimizer.state[p] = {
            "step": guard(torch.tensor(float(i % 2)), 4 * i),
            "exp_avg": guard(average, offset),
            "exp_avg_sq": guard(average, offset + 4),
        }
    for t in range(2):
        for p, g in zip(params, mixed(dtype, seed=t + 1), strict=True):
            p.grad = guard(g, offset + 8 * t)
        step_beside_reference(optimizer)
    assert guard.intact()
    assert optimizer.executor == {"cpu": "one launch for all tensors"}
    assert threads == [2, 2]


def results(optimizer: AGD) -> list[Tensor]:
    state = optimizer.state
    return [x for p in state for x in (p.detach(), *state[p].values())]


def run(n_threads: int, state_dtype: torch.dtype | None = None, steps: int = 3) -> list[Tensor]:
    torch.set_num_threads(n_threads)
    params = [Parameter(x) for x in mixed(torch.float32)]
    optimizer = AGD(params, lr=0.05, state_dtype=state_dtype)
    for t in range(steps):
        random_gradients(params, seed=t)
        optimizer.step()
    return results(optimizer)


@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16])
def test_any_number_of_threads_gives_the_same_bits(threads, state_dtype):
    """Elements know nothing of each other; and the number is torch's, at every step."""
    alone = run(1, state_dtype)
    assert threads == []
    for n in (2, 3, 7):
        assert all(map(torch.equal, run(n, state_dtype), alone))
        assert threads == [n] * 3
        threads.clear()


def test_small_work_wakes_no_thread(threads):
    p = Parameter(torch.randn(cpu.SMALL))
    p.grad = torch.randn(cpu.SMALL)
    AGD([p]).step()
    assert threads == []


def test_a_thousand_tensors_share_units(threads):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(0, 400, (1000,), generator=generator).tolist()
    params = [Parameter(torch.randn(size, generator=generator)) for size in sizes]
    optimizer = AGD(params, lr=0.05)
    for t in range(3):
        random_gradients(params, seed=t)
        if t == 1:
            params[500].grad = None
        step_beside_reference(optimizer)
    assert threads == [2, 2, 2]


def test_overlapping_parameters_are_stepped_in_order(threads):
    """As the loop does; a thread at each would leave a mixture."""
    flat, n = torch.randn(300_000), 200_000
    views = {}
    for foreach in (None, False):
        memory = flat.clone()
        params = [Parameter(memory[:n]), Parameter(memory[n // 2 : n // 2 + n]), Parameter(memory[:n])]
        optimizer = AGD(params, lr=0.05, foreach=foreach)
        for t in range(3):
            random_gradients(params, seed=t)
            optimizer.step()
        views[foreach] = memory
    torch.testing.assert_close(views[None], views[False], rtol=0, atol=OVERLAPPING)
    assert threads == []


def test_neighbours_in_one_buffer_do_not_overlap(threads):
    memory = torch.randn(200_000)
    params = [Parameter(memory[50_000:]), Parameter(memory[:50_000])]
    optimizer = AGD(params, lr=0.05)
    random_gradients(params, seed=0)
    step_beside_reference(optimizer)
    assert threads == [2]


def laid_channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


STRIDES = {
    "contiguous": Tensor.contiguous,
    "channels_last": laid_channels_last,
    "padded": lambda x: torch.stack((x, x), dim=-1)[..., 0],
    "transposed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "expanded": lambda x: x[:1, :1, :1, :1].expand(x.shape),
}


@pytest.mark.parametrize("gradient", STRIDES)
@pytest.mark.parametrize("average", STRIDES)
@pytest.mark.parametrize("parameter", ["contiguous", "channels_last", "transposed"])
def test_averages_and_gradients_in_any_layout(parameter, average, gradient):
    """Averages may come from a file, or from before model.to(memory_format=...)."""
    p = Parameter(STRIDES[parameter](torch.randn(2, 3, 4, 5)))
    q = Parameter(torch.randn(3))
    optimizer = AGD([p, q], lr=0.05)
    optimizer.state[p] = {
        "step": torch.tensor(3.0),
        "exp_avg": STRIDES[average](torch.randn(2, 3, 4, 5)),
        "exp_avg_sq": STRIDES[average](torch.rand(2, 3, 4, 5)),
    }
    for t in range(3):
        random_gradients([q], seed=t)
        p.grad = STRIDES[gradient](torch.randn(2, 3, 4, 5))
        step_beside_reference(optimizer)
    assert "cpu" in optimizer.executor


def test_memory_format_changes_in_training():
    model = torch.nn.Conv2d(4, 8, 3)
    optimizer = AGD(model.parameters(), lr=0.05)
    for t in range(4):
        if t == 2:
            model.to(memory_format=torch.channels_last)
        random_gradients(list(model.parameters()), seed=t)
        step_beside_reference(optimizer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_steps_in_another_dtype(dtype):
    p = Parameter(torch.randn(5))
    optimizer = AGD([p], lr=0.05)
    random_gradients([p], seed=0)
    optimizer.step()
    optimizer.state[p]["step"] = optimizer.state[p]["step"].to(dtype)
    for _ in range(2):
        step_beside_reference(optimizer)


@pytest.mark.parametrize("size", [3, 0, 9])
def test_parameter_resized_in_place_is_refused(size):
    """Its address stays, its averages do not fit."""
    p = Parameter(torch.arange(9.0)[:6])
    optimizer = AGD([p])
    p.grad = torch.ones(6)
    optimizer.step()
    before = [x.clone() for x in results(optimizer)[1:]]
    p.data = torch.as_strided(p.data, (size,), (1,))
    whole = torch.as_strided(p.data, (9,), (1,)).clone()
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert all(map(torch.equal, results(optimizer)[1:], before))
    assert torch.equal(torch.as_strided(p.data, (9,), (1,)), whole)


def test_gradient_resized_in_place_is_refused():
    p = Parameter(torch.ones(6))
    optimizer = AGD([p])
    p.grad = torch.ones(6)
    optimizer.step()
    p.grad.data = torch.ones(3)
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert optimizer.state[p]["step"] == 1


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int16).int()


def test_stochastic_rounding_is_the_loops_in_every_unit(threads):
    """Two bodies differ where a float32 rounding error of 1e-7 meets the threshold: in a share of about
    2^-16 times the errors in units of the last place, of which there are a few; and by one bfloat16 then."""
    bodies = []
    for foreach in (None, False):
        params = [Parameter(x) for x in mixed(torch.bfloat16)]
        optimizer = AGD(
            params, lr=0.01, state_dtype=torch.bfloat16, stochastic_rounding=True, foreach=foreach, seed=5
        )
        for p, g in zip(params, mixed(torch.bfloat16, seed=9), strict=True):
            p.grad = g
        optimizer.step()
        bodies.append([x for x in results(optimizer) if x.dtype == torch.bfloat16])
    n = differ = 0
    for x, y in zip(*bodies, strict=True):
        apart = (bits(x) - bits(y)).abs()
        n, differ = n + apart.numel(), differ + int((apart > 0).sum())
        assert not (apart > 1).any()
    assert n > 300_000
    assert differ < ROUNDED_ALIKE * n
    assert threads == [2]


def test_nan_stays_nan():
    """The one of all ones too, which rounding would carry over into 0."""
    ones = torch.tensor([-1], dtype=torch.int32).view(torch.float32)
    for state_dtype in (None, torch.bfloat16):
        p = Parameter(torch.ones(40))
        p.grad = ones.repeat(40)
        optimizer = AGD([p], state_dtype=state_dtype, clip=1.0, weight_decay=0.1)
        optimizer.step()
        assert all(x.isnan().all() for x in results(optimizer) if x.dim())
    p = Parameter(torch.ones(40).bfloat16())
    p.grad = torch.full((40,), float("nan")).bfloat16()
    AGD([p]).step()
    assert p.isnan().all()


def work(n: int, out: list[Tensor], i: int, hooks: bool) -> None:
    p = Parameter(torch.linspace(-1, 1, n))
    optimizer = AGD([p], lr=0.05)
    if hooks:
        p.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for t in range(15):
        p.grad = None
        loss = (p * (t + 1.0)).cos().sum()
        loss.backward()
        if not hooks:
            optimizer.step()
    out[i] = p.detach()


@pytest.mark.parametrize("hooks", [False, True])
def test_python_threads_and_autograd_hooks_at_once(hooks):
    n = 3 * cpu.SMALL
    out = [torch.empty(0)] * 5
    work(n, out, 4, False)
    pool = [threading.Thread(target=work, args=(n, out, i, hooks)) for i in range(4)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert all(torch.equal(x, out[4]) for x in out)


def script(code: str, path: Path = SRC, **env: str) -> str:
    """What a fresh process prints. It may neither hang nor die."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(path), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_an_interrupt_leaves_whole_steps():
    """Wherever Ctrl-C comes: all counters agree, and everything is where that many steps lead."""
    armed: list[bool] = []

    def interrupt(*_):
        if armed:
            raise KeyboardInterrupt

    def start() -> tuple[list[Parameter], AGD]:
        params = [Parameter(x) for x in mixed(torch.float32)]
        random_gradients(params, seed=0)
        optimizer = AGD(params, lr=1e-3, state_dtype=torch.bfloat16)
        optimizer.step()
        return params, optimizer

    params, optimizer = start()
    before, interrupted = signal.signal(signal.SIGALRM, interrupt), 0
    for i in range(100):
        try:
            armed.append(True)
            signal.setitimer(signal.ITIMER_REAL, 5e-5 + 1e-5 * i)
            while True:
                optimizer.step()
        except KeyboardInterrupt:
            armed.clear()
            interrupted += 1
    signal.signal(signal.SIGALRM, before)
    torch.set_grad_enabled(True)  # torch's own switch is one that an interrupt may leave half turned
    assert interrupted == 100
    (t,) = {int(optimizer.state[p]["step"]) for p in params}
    assert t > 20
    _, again = start()
    for _ in range(t - 1):
        again.step()
    assert all(map(torch.equal, results(optimizer), results(again)))


def test_without_openmp_one_thread_does_it_all(monkeypatch):
    monkeypatch.setattr(cpu, "_openmp", lambda: None)
    params = [Parameter(x) for x in mixed(torch.float32)]
    optimizer = AGD(params, lr=0.05)
    random_gradients(params, seed=0)
    step_beside_reference(optimizer)
    assert set(optimizer.executor) == {"cpu"}


SHARED = """
import torch
from agdopt import AGD
runs = []
for foreach in (None, False):
    p = torch.nn.Parameter(torch.linspace(-1, 1, 50_000))
    optimizer = AGD([p], lr=0.05, foreach=foreach)
    for t in range(4):
        p.grad = (p.detach() * (t + 1)).cos()
        optimizer.step()
        for x in optimizer.state[p].values():
            x.share_memory_()
    runs.append([p.detach(), *optimizer.state[p].values()])
for x, y in zip(*runs):
    torch.testing.assert_close(x, y, **TRAINED_ALIKE)
print("alive")
"""


def test_averages_that_move_to_shared_memory_are_followed():
    """Tensor and storage stay the same objects, and the memory is another: the old one is no more."""
    assert script(SHARED.replace("TRAINED_ALIKE", repr(TRAINED_ALIKE))) == "alive\n"


# PyTorch's own operations hang in a forked child that runs them on several threads; ours must not.
FORK = """
import os, torch
from agdopt import AGD

class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return train(2)

def train(threads, n=200_000):
    torch.set_num_threads(1)
    p = torch.nn.Parameter(torch.linspace(-1, 1, n))
    optimizer = AGD([p], lr=0.05)
    p.grad = torch.linspace(1, -2, n)
    for n in (1, threads):  # the first step makes the averages, an operation of PyTorch's
        torch.set_num_threads(n)
        optimizer.step()
    torch.set_num_threads(1)
    assert "cpu" in optimizer.executor
    return p.detach()

expected = train(2)
child = os.fork()
if not child:
    os._exit(0 if torch.equal(train(2), expected) else 1)
assert os.waitpid(child, 0)[1] == 0
for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
    assert all(torch.equal(x, expected) for x in batch)
assert torch.equal(train(2), expected)
print("alive")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_children_step():
    assert script(FORK) == "alive\n"


# Prints where a step from 1.0 has gone with averages of each dtype, and of each kernel whether it is from the
# cache, else the width of its square root.
ONE_STEP = """
import json, re, sys, torch
from agdopt import AGD
from agdopt.torch import cpu, cpu_kernel
ps, kernels = [], []
for dtype in ({dtypes}):
    p = torch.nn.Parameter(torch.ones(100))
    p.grad = torch.ones(100)
    optimizer = AGD([p], lr=0.5, state_dtype=dtype)
    optimizer.step()
    assert "cpu" in optimizer.executor, optimizer.executor
    ps.append(p[0].item())
    kernel = cpu_kernel.compiled(torch.float32, dtype)
    code = "" if kernel.cache_hits else kernel._library.get_llvm_str()
    kernels.append(max(map(int, re.findall(r"@llvm.sqrt.v(\\d+)f32", code)), default=1) if code else "cached")
print(json.dumps([ps, kernels]))
"""


def one_step(path: Path, *, dtypes: str = "torch.bfloat16,", cwd: str = ".", **env: str) -> list:
    code = f"import os; os.chdir({cwd!r})\n{ONE_STEP.replace('{dtypes}', dtypes)}"
    return json.loads(script(code, path, **env))


def test_compiled_code_is_kept_and_knows_the_rule(tmp_path):
    """Numba alone would not notice an edit of core/rule.py and go on with the old rule."""
    path, cache = tmp_path / "src", tmp_path / "cache"
    shutil.copytree(SRC, path, ignore=shutil.ignore_patterns("__pycache__"))
    env = {"NUMBA_CACHE_DIR": str(cache)}
    before, kernels = one_step(path, **env)
    assert before == pytest.approx([0.5], abs=0.01)
    assert kernels != ["cached"]
    assert one_step(path, **env) == [before, ["cached"]]

    file = path / "agdopt/core/rule.py"
    text, edits = re.subn(r"d = k\.scale \* m /", "d = 0.5 * k.scale * m /", file.read_text())
    assert edits == 1
    file.write_text(text)
    after, kernels = one_step(path, **env)
    assert after == pytest.approx([0.75], abs=0.01)

    for data in cache.rglob("*.nb[ci]"):
        data.write_bytes(b"damaged")
    assert one_step(path, **env) == [after, kernels]


@pytest.mark.parametrize(("xdg", "dtype"), [("not a folder", "float32"), ("", "bfloat16")])
def test_without_a_folder_to_write_to(tmp_path, xdg, dtype):
    """No cache beside the module (a file is in the way: root may write everywhere) nor in the home folder: it
    compiles all the same. An empty XDG_CACHE_HOME means none, and not the current folder."""
    path, file = tmp_path / "src", tmp_path / "not a folder"
    shutil.copytree(SRC, path, ignore=shutil.ignore_patterns("__pycache__"))
    (path / "agdopt/torch/__pycache__").write_text("")
    file.write_text("")
    env = {"NUMBA_CACHE_DIR": "", "HOME": str(file), "XDG_CACHE_HOME": xdg and str(file)}
    p, (width,) = one_step(path, dtypes=f"torch.{dtype},", cwd=str(tmp_path), **env)
    assert p == pytest.approx([0.5], abs=0.01)
    assert width >= 4, "the loop is not vectorised"
    assert {x.name for x in tmp_path.iterdir()} == {"src", "not a folder"}


REASON = """
import torch
from agdopt import AGD
p = torch.nn.Parameter(torch.ones(3))
p.grad = torch.ones(3)
optimizer = AGD([p])
optimizer.step()
((name, reason),) = optimizer.executor.items()
print(name, reason)
try:
    AGD([p], fused=True)
except RuntimeError as refused:
    print(refused)
"""


OLD = """
from types import SimpleNamespace
__version__, version_info, config = "0.59.1", (0, 59, 1), SimpleNamespace(DISABLE_JIT=0)
"""


@pytest.mark.parametrize(
    ("module", "env", "reason"),
    [
        ("raise OSError('damaged')", {}, "numba cannot be imported: damaged"),
        (OLD, {}, "numba 0.59.1 is older than 0.60"),
        (None, {"NUMBA_DISABLE_JIT": "1"}, "NUMBA_DISABLE_JIT is set"),
    ],
)
def test_without_numba_foreach_steps_and_says_why(tmp_path, module, env, reason):
    shutil.copytree(SRC, tmp_path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    if module is not None:
        (tmp_path / "numba").mkdir()
        (tmp_path / "numba/__init__.py").write_text(module)
        (tmp_path / "numba/extending.py").write_text("")
    first, second = script(REASON, tmp_path, **env).splitlines()
    assert first == f"foreach {reason}"
    assert reason in second


def test_rows_hold_what_the_rule_needs():
    """The kernel takes the Scalars by position."""
    assert cpu_kernel.Scalars._fields == ("g", "m", "w1", "w2", "keep", "floor", "scale", "clip")
    assert len(cpu_kernel.Scalars._fields) + 4 == cpu_kernel.ROW
    assert np.dtype(np.int64).itemsize * cpu_kernel.NEXT % 64 == 0
