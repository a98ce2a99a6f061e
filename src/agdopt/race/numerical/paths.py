"""Paths of real optimizers, the classes that people train with, in float64 from a function's start."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from agdopt.race.numerical.functions import Function

BOUNDS = (0.1, 1e-2, 1e-3)  # "at the optimum": closer to it than this
FAR = 1e6  # from the optimum: diverged

# Class and settings, the paper's where it states them. Imported when used: a list of cells needs no rival.
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "AGD": ("agdopt.AGD", {}),
    "AGD + AMSGrad": ("agdopt.AGD", {"amsgrad": True}),
    "SGD": ("torch.optim.SGD", {"momentum": 0.9}),
    "Adam": ("torch.optim.Adam", {}),
    "AdamW": ("torch.optim.AdamW", {"weight_decay": 1e-2}),
    "AdaBelief": ("pytorch_optimizer.AdaBelief", {"eps": 1e-8}),
    "AdaHessian": ("pytorch_optimizer.AdaHessian", {"eps": 1e-8}),
    "AdaBound": ("pytorch_optimizer.AdaBound", {"eps": 1e-8, "final_lr": 0.1}),
}
LR, SGD_LR = 1e-3, 1e-6


def build(name: str, w: Tensor, **settings: Any) -> Optimizer:
    path, ours = OPTIMIZERS[name]
    module, _, cls = path.rpartition(".")
    optimizer: Optimizer = getattr(import_module(module), cls)([w], **ours, **settings)
    return optimizer


@dataclass
class Path:
    points: list[tuple[float, float]]  # the start first, then one a step
    reached: list[int] = field(default_factory=list)  # the first step closer than each of BOUNDS
    diverged: bool = False

    @property
    def steps(self) -> int:
        return len(self.points) - 1


def walk(
    name: str,
    function: Function,
    lr: float,
    steps: int,
    *,
    go_on: bool = False,
    watch: Callable[[dict[str, Any], Tensor], None] | None = None,
) -> Path:
    """Until the last of BOUNDS (past it, with go_on), divergence, or so many steps.

    watch is called after every step with the optimizer's state of the point and the gradient it was given.
    AdaHessian gets the exact diagonal of the Hessian, not an estimate by random vectors.
    """
    w = torch.tensor(function.start, dtype=torch.float64)
    w.grad, hessian = torch.empty_like(w), torch.empty_like(w)
    optimizer = build(name, w, lr=lr)
    second_order = name == "AdaHessian"
    step: Callable[[], Any] = partial(optimizer.step, hessian=[hessian]) if second_order else optimizer.step
    at, gradient, diagonal = w.numpy(), w.grad.numpy(), hessian.numpy()  # the same memory
    path = Path([function.start])
    for t in range(1, steps + 1):
        x, y = path.points[-1]
        gradient[:] = function.gradient(x, y)
        if second_order:
            diagonal[:] = function.curvature(x, y)
        step()
        path.points.append((float(at[0]), float(at[1])))
        if watch is not None:
            watch(optimizer.state[w], w.grad)
        distance = math.dist(path.points[-1], function.optimum)
        while len(path.reached) < len(BOUNDS) and distance < BOUNDS[len(path.reached)]:
            path.reached.append(t)
        path.diverged = not distance < FAR
        if path.diverged or (len(path.reached) == len(BOUNDS) and not go_on):
            break
    return path


def default_lr(name: str) -> float:
    """The paper's: 1e-3 for whatever adapts."""
    return SGD_LR if name == "SGD" else LR


def thinned(path: Path, function: Function, grain: float = 0.006) -> list[list[float]]:
    """[t, x, y] for a picture: one point whenever it has moved by this share of the view, and the last."""
    left, right, bottom, top = function.view
    least = grain * math.hypot(right - left, top - bottom)
    kept = [0]
    for t, point in enumerate(path.points):
        if math.dist(point, path.points[kept[-1]]) > least:
            kept.append(t)
    if path.steps > kept[-1]:
        kept.append(path.steps)
    return [
        [t, *(float(f"{v:.5g}") for v in path.points[t])]
        for t in kept
        if math.dist(path.points[t], (0, 0)) < 100
    ]
