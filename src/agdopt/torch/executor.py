"""Which body runs for a parameter, and why."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agdopt.torch import differentiable, foreach, loop
from agdopt.torch.bucket import Bucket, Options, dense


class Choice(NamedTuple):
    name: str
    reason: str


def choose(p: Tensor, group: dict[str, Any]) -> Choice:
    """The body for the (real, local) tensor p under its group's flags; raises where they cannot be kept."""
    if group["differentiable"]:
        return Choice("differentiable", "differentiable=True")
    if torch.compiler.is_compiling():
        return Choice("foreach", "torch.compile fuses it")
    why_not = "fused=False"
    if group["fused"] or (group["fused"] is None and group["foreach"] is None):
        name, why_not = _fused(p, group)
        if not why_not:
            return Choice(name, "one launch for all tensors")
        if group["fused"]:
            raise RuntimeError(
                f"fused=True cannot be kept: {why_not}; leave fused=None to take foreach there"
            )
    if group["foreach"] is False:
        return Choice("loop", "foreach=False")
    if group["foreach"]:
        return Choice("foreach", "foreach=True")
    if not _plain(p):
        return Choice("loop", f"{type(p).__name__} is a tensor subclass")
    return Choice("foreach", why_not)


def body(name: str) -> Callable[[Bucket, Options], None]:
    if name in ("cpu", "gpu"):  # they import Numba and Triton: only when used
        step: Callable[[Bucket, Options], None] = importlib.import_module(f"agdopt.torch.{name}").step
        return step
    bodies = {"loop": loop.step, "foreach": foreach.step, "differentiable": differentiable.step}
    return bodies[name]


def _fused(p: Tensor, group: dict[str, Any]) -> tuple[str, str]:
    """The name of the fused body for p, and why it cannot run (empty if it can)."""
    device = p.device.type
    name, library = {"cpu": ("cpu", "numba"), "cuda": ("gpu", "triton")}.get(device, ("", ""))
    dtypes = {"cpu": (torch.float32, torch.float64, torch.bfloat16)}.get(
        device, (torch.float32, torch.bfloat16, torch.float16)
    )
    if not name:
        return name, f"parameters on {device} have no fused kernel"
    if not _plain(p):
        return name, f"{type(p).__name__} is a tensor subclass"
    if p.dtype not in dtypes:
        return name, f"{str(p.dtype).removeprefix('torch.')} parameters on {device} have no fused kernel"
    if p.layout != torch.strided or not dense(p):
        return name, "a parameter is not dense in memory"
    if not _installed(library):
        return name, f"{library} is not installed"
    if name == "cpu":
        return name, str(importlib.import_module("agdopt.torch.cpu").unusable())
    return name, ""


def _plain(p: Tensor) -> bool:
    return type(p) in (Tensor, torch.nn.Parameter)


@cache
def _installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
