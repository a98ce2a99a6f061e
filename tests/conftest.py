"""Fixtures of all tests."""

import os

# Read when agdopt.torch.gpu is first imported: its kernels then run on the CPU, in Triton's interpreter.
os.environ["TRITON_INTERPRET"] = "1"

from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
import torch
from tests.cases import BODIES, DTYPES
from torch import Tensor

from agdopt.torch import executor

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("default")


@pytest.fixture(autouse=True)
def _same_numbers_every_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """A fixed seed; and, where PyTorch is tested, NaN in memory that nobody has written to."""
    torch.manual_seed(0)
    poison = bool({"parity", "front_torch"} & set(request.path.parts))
    torch.use_deterministic_algorithms(poison)
    yield
    torch.use_deterministic_algorithms(False)


def _on_cpu(p: Tensor, group: dict[str, object]) -> tuple[str, str]:
    takes = p.dtype in DTYPES["gpu"] and executor.dense(p)
    return "gpu", "" if takes else "the GPU body takes no such parameters"


@pytest.fixture
def lend_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the GPU body take CPU tensors."""
    monkeypatch.setattr(executor, "_fused", _on_cpu)
    # The interpreter computes in NumPy, which warns of what a GPU does in silence (rsqrt(0), inf * 0).
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        yield


@pytest.fixture(params=BODIES)
def body(request: pytest.FixtureRequest) -> str:
    """The test runs once for every body."""
    if request.param == "gpu":
        request.getfixturevalue("lend_gpu")
    return str(request.param)


@pytest.fixture(params=[name for name in BODIES if name != "differentiable"])
def trainer(request: pytest.FixtureRequest) -> str:
    """Once for every body that steps leaves in place."""
    if request.param == "gpu":
        request.getfixturevalue("lend_gpu")
    return str(request.param)
