"""An optimizer beside the float64 rule: both step from the same state, and the difference is measured."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from tests.cases import BODIES
from tests.tolerances import tolerance
from torch import Tensor
from torch.optim import Optimizer

from agdopt import AGD
from agdopt.core.reference import Reference


def agd(params: Iterable[Any], body: str, cls: type[AGD] = AGD, **options: Any) -> AGD:
    optimizer = cls(params, **BODIES[body], **options)
    if body == "differentiable":  # as in torch, autograd cannot follow a step written into its own leaf
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.requires_grad_(False)
    return optimizer


def array(x: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    x = x.detach()
    return (torch.view_as_real(x) if x.is_complex() else x).double().numpy().copy()


def random_gradients(params: Iterable[Tensor], seed: int) -> None:
    """Gradients of all sizes between 1e-3 and 3, laid out as their parameters."""
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        size = 10 ** (torch.rand(p.shape, generator=generator) * 3.5 - 3)
        noise = torch.randn(p.shape, dtype=torch.complex64 if p.is_complex() else None, generator=generator)
        p.grad = torch.empty_like(p).copy_(noise * size)


def reference(group: dict[str, Any], p: Tensor, state: dict[str, Tensor]) -> Reference:
    """The rule in the state that an optimizer has for p."""
    r = Reference(
        array(p),
        lr=float(group["lr"]),
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        decoupled=group["decoupled_weight_decay"],
        **{
            key: group[key] for key in ("delta", "weight_decay", "maximize", "amsgrad", "standardize", "clip")
        },
    )
    if state:
        r.t = int(state["step"])
        r.m, r.b = array(state["exp_avg"]), array(state["exp_avg_sq"])
        r.kept = r.beta1**r.t
        r.c1 = 1 - r.kept
    return r


def step_beside_reference(optimizer: Optimizer, step: Any = None, **situation: bool) -> None:
    """Take a step; every parameter and average must be where the rule puts it, within tests/tolerances.py."""
    before = [
        (group, p, reference(group, p, optimizer.state.get(p, {})), p.grad.clone())
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    ]
    (step or optimizer.step)()
    for group, p, r, grad in before:
        assert torch.equal(p.grad.isnan(), grad.isnan())
        assert torch.equal(p.grad.nan_to_num(), grad.nan_to_num()), "the gradient was written to"
        state = optimizer.state[p]
        held = tolerance(
            p.dtype,
            state["exp_avg"].dtype,
            on_device=situation.get("on_device", group["capturable"]),
            stochastic=group["stochastic_rounding"],
            truncates=situation.get("truncates", False),
        )
        w, m, g = r.w, r.m, np.abs(array(grad)) + abs(r.weight_decay * r.w)
        mhat = np.abs(m) / (r.c1 or 1.0)
        r.step(array(grad))
        assert state["step"] == r.t
        # The sizes of what is added up: a rounding error is a share of these.
        c2 = 1 - r.beta2**r.t
        root, bhat = np.sqrt(r.b), np.maximum(np.sqrt(r.b / c2), r.delta)
        of_m = np.maximum(np.abs(m), g)
        of_s = np.sqrt(1 - r.beta2) * (g + mhat)
        of_b = r.b + of_s**2
        with np.errstate(divide="ignore", invalid="ignore"):
            of_step = of_m / r.c1 / bhat * (1 + np.where(of_s > 0, of_s / root, 0))
        of_p = np.abs(w) + (r.lr * of_step if r.lr else 0)
        close(array(p), r.w, held.p * of_p, f"p, {held.reason}")
        close(array(state["exp_avg"]), r.m, held.state * of_m, f"exp_avg, {held.reason}")
        close(array(state["exp_avg_sq"]), r.b, held.state * of_b, f"exp_avg_sq, {held.reason}")


def close(x: Any, expected: Any, allowed: Any, what: str) -> None:
    # Also false where either is NaN.
    wrong = ~(np.abs(x - expected) <= allowed)
    within = np.broadcast_to(allowed, x.shape)
    assert not wrong.any(), f"{what}: {x[wrong][:3]} is not {expected[wrong][:3]} within {within[wrong][:3]}"
