"""torch.compile(optimizer.step): one graph, the same numbers."""

import shutil

import pytest
import torch
from tests.twin import random_gradients, step_beside_reference
from torch.nn import Parameter

from agdopt import AGD

# torch.compile imports parts of torch that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Counting:
    """A backend that runs what it is given, and counts how often it is asked to compile."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled_steps(backend, n, schedule=lambda lr: lr, **options):
    params = [Parameter(torch.randn(shape)) for shape in ((3, 4), (), (7,))]
    optimizer = AGD(params, **{"lr": torch.tensor(0.05), **options})
    step = torch.compile(lambda: optimizer.step(), backend=backend)
    for t in range(n):
        random_gradients(params, seed=t)
        if 0 < t < 4 or t == n - 1:
            step_beside_reference(optimizer, step, on_device=True)
        else:
            step()
        optimizer.param_groups[0]["lr"].mul_(0.98)
    return optimizer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"foreach": True, "weight_decay": 0.1},
        {"capturable": True, "amsgrad": True},
        {"maximize": True, "standardize": True, "clip": 0.5, "delta": 0.3},
        {"weight_decay": 0.1, "decoupled_weight_decay": False},
        {"state_dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_one_compilation_over_100_scheduled_steps(options):
    backend = Counting()
    optimizer = compiled_steps(backend, 100, **options)
    assert backend.graphs == 1
    assert all(state["step"] == 100 for state in optimizer.state.values())


def test_scheduler_object_does_not_recompile():
    backend = Counting()
    p = Parameter(torch.randn(5))
    optimizer = AGD([p], lr=torch.tensor(0.05))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def train():
        optimizer.step()
        scheduler.step()

    # Recompilations are errors, not only counted, once the first steps have been seen.
    train_compiled = torch.compile(train, backend=backend)
    p.grad = torch.randn(5)
    train_compiled()
    first = backend.graphs
    for _ in range(20):
        train_compiled()
    assert backend.graphs - first <= 1  # the learning rate becomes a tensor of the scheduler's once
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.05 * 0.9**21, rel=1e-5)


def test_groups_and_dtypes():
    params = [Parameter(torch.randn(5).to(dtype)) for dtype in (torch.float32, torch.float64, torch.bfloat16)]
    optimizer = AGD([{"params": params[:2]}, {"params": params[2:], "delta": 0.3}], lr=torch.tensor(0.05))
    backend = Counting()
    step = torch.compile(lambda: optimizer.step(), backend=backend)
    for t in range(5):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer, step, on_device=True)
    assert backend.graphs == 1


def test_compiled_and_plain_steps_alternate():
    """State made by one is the other's: nothing that a graph holds goes stale."""
    params = [Parameter(torch.randn(5)) for _ in range(2)]
    optimizer = AGD(params, lr=torch.tensor(0.05))
    step = torch.compile(lambda: optimizer.step(), backend=Counting())
    for t in range(6):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer, step if t % 2 else optimizer.step, on_device=True)


@pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="inductor needs a C++ compiler")
def test_inductor():
    torch._dynamo.utils.counters.clear()
    compiled_steps("inductor", 100, weight_decay=0.1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
