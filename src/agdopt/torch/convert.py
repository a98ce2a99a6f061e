"""From torch's AdamW, Adam or SGD to AGDW or AGD, at the start of a run or in the middle of one.

The optimizer given is only read: parameters are shared with it, averages copied, hooks left behind.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam
from torch.optim.optimizer import Optimizer

from agdopt.torch.agdw import AGDW
from agdopt.torch.checks import state_dtype
from agdopt.torch.gather import real
from agdopt.torch.optimizer import AGD

__all__ = ["from_adamw", "from_sgd"]

_KEPT = ("lr", "weight_decay", "foreach", "maximize", "differentiable", "fused")
_ADAM = {*_KEPT, "betas", "eps", "amsgrad", "capturable", "decoupled_weight_decay"}
_SGD = {*_KEPT, "momentum", "dampening", "nesterov"}
_OWN = ("clip", "delta", "state_dtype", "stochastic_rounding", "seed")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")  # of a group, schedulers' marks included


@torch.no_grad()
def from_adamw(optimizer: Optimizer, **options: Any) -> AGDW:
    """An AGDW that goes on where a torch.optim.AdamW or Adam stands.

    Groups, their settings, steps and exp_avg are taken over; eps becomes delta. b starts as the square of
    AdamW's own denominator, so the next step is AdamW's, and what differs comes in slowly, over
    1 / (1 - beta2) steps: exp_avg_sq estimates the gradient's mean square, b only that of its noise. With
    amsgrad the maximum is taken over, and fed back from here on (Algorithm 2). A parameter without state
    yet starts as in any AGDW.

    A learning-rate scheduler goes on driving the old optimizer, of which a warning tells (ReduceLROnPlateau
    cannot be seen).

    Args:
        optimizer: is left as it is; its memory is free once it is deleted.
        options: clip, delta, state_dtype, stochastic_rounding, seed of AGDW, for all groups.
    """
    if not isinstance(optimizer, Adam):
        raise TypeError(_stranger("from_adamw", "torch.optim.AdamW or Adam", optimizer))
    _check_options("from_adamw", options, _OWN)

    def translated(old: Mapping[str, Any]) -> dict[str, Any]:
        eps = {} if "delta" in options or not old["eps"] else {"delta": old["eps"]}
        return {**_without(old, "eps"), **eps, "betas": tuple(map(float, old["betas"]))}

    new = AGDW(
        _groups(optimizer, _ADAM, translated), **{**translated(_only(optimizer.defaults, _ADAM)), **options}
    )
    for old, group, p, where in _places(optimizer, new):
        state = optimizer.state.get(p)
        if not state:
            continue
        step = _step(state, where)
        b = _copy(state, "max_exp_avg_sq" if old["amsgrad"] else "exp_avg_sq", p, where)
        c2 = 1 - group["betas"][1] ** step
        if step:
            real(b).div_(c2).sqrt_().add_(old["eps"]).square_().mul_(c2)
        _fill(new, p, group, step, _copy(state, "exp_avg", p, where), b)
    _warn_of_schedulers(optimizer, "scheduler.optimizer = new makes it drive this one")
    return new


@torch.no_grad()
def from_sgd(optimizer: Optimizer, delta: float, **options: Any) -> AGD:
    """An AGD that takes the steps of a torch.optim.SGD, but where bhat comes to exceed delta.

    There they are smaller than SGD's. lr becomes lr * delta / (1 - momentum), since torch's buffer is a sum
    of gradients and AGD's an average; beta1 is the momentum; the buffer is taken over. Steps count from where
    no bias correction is left, as SGD has none, and b from 0: nothing is adaptive at first.

    A learning-rate scheduler goes on driving the old optimizer, of which a warning tells (ReduceLROnPlateau
    cannot be seen).

    Args:
        optimizer: is left as it is; its memory is free once it is deleted.
        delta: the switch; agdopt.race.probe measures which share of the coordinates exceeds it.
        options: beta2, standardize, amsgrad, capturable, clip, state_dtype, stochastic_rounding, seed of AGD.
    """
    if not isinstance(optimizer, SGD):
        raise TypeError(_stranger("from_sgd", "torch.optim.SGD", optimizer))
    own = (*_OWN, "beta2", "standardize", "amsgrad", "capturable")
    _check_options("from_sgd", options, own)
    beta2 = options.pop("beta2", 0.999)
    for i, old in enumerate(optimizer.param_groups):
        for key in ("nesterov", "dampening"):
            if old[key]:
                raise ValueError(
                    f"param_groups[{i}] has {key}={old[key]}, and AGD has no {key}: set it to 0 first"
                )
        if not old["momentum"] < 1:
            raise ValueError(
                f"param_groups[{i}] has momentum={old['momentum']}: AGD's beta1 must be in [0, 1)"
            )

    def translated(old: Mapping[str, Any]) -> dict[str, Any]:
        factor = delta / (1 - old["momentum"])
        rates = {key: old[key] * factor for key in _RATES if key in old}
        changed = {"betas": (old["momentum"], beta2), "weight_decay": float(old["weight_decay"])}
        kept = _without(old, "momentum", "dampening", "nesterov")
        return {**kept, **rates, **changed, "delta": delta, "decoupled_weight_decay": False}

    new = AGD(
        _groups(optimizer, _SGD, translated), **{**translated(_only(optimizer.defaults, _SGD)), **options}
    )
    for old, group, p, where in _places(optimizer, new):
        state = optimizer.state.get(p) or {}
        if state.get("momentum_buffer") is not None:
            m = _copy(state, "momentum_buffer", p, where).mul_(1 - old["momentum"])
        elif p.requires_grad:
            m = torch.zeros_like(p, dtype=_wide(p))
        else:
            continue  # costs no memory unless it is unfrozen, and then starts as in any AGD
        _fill(new, p, group, _long_ago(group["betas"]), m, torch.zeros_like(m))
    _warn_of_schedulers(optimizer, "make one over this optimizer, whose rate is another")
    return new


def _stranger(name: str, wanted: str, optimizer: object) -> str:
    inside = " (give the optimizer that it wraps)" if hasattr(optimizer, "optimizer") else ""
    return f"{name} takes a {wanted}, got {type(optimizer).__name__}{inside}: other state has another meaning"


def _check_options(name: str, options: Mapping[str, Any], own: tuple[str, ...]) -> None:
    for key in options:
        if key not in own:
            raise TypeError(
                f"{name} takes {', '.join(own)}, not {key}: the rest comes from the old optimizer's groups; "
                "change it there, or in the groups of the new one"
            )


def _without(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def _only(table: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key in keys}


def _groups(optimizer: Optimizer, known: set[str], translated: Any) -> list[dict[str, Any]]:
    """The groups in AGD's words; what users and schedulers have put there comes along."""
    groups = []
    for i, old in enumerate(optimizer.param_groups):
        for key in optimizer.defaults.keys() - known:
            if old.get(key) not in (None, False, 0):
                raise ValueError(
                    f"param_groups[{i}] has {key}={old[key]}, and AGD has no {key}: "
                    "set it to None first, or make a new optimizer without the old one's state"
                )
        params = (
            zip(old["param_names"], old["params"], strict=True) if "param_names" in old else old["params"]
        )
        groups.append(translated({**_without(old, "param_names"), "params": list(params)}))
    return groups


def _places(optimizer: Optimizer, new: AGD) -> Iterator[tuple[dict[str, Any], dict[str, Any], Tensor, str]]:
    """Old group, new group, parameter, and how to call it."""
    count = 0
    for old, group in zip(optimizer.param_groups, new.param_groups, strict=True):
        names = old.get("param_names") or [""] * len(old["params"])
        for p, name in zip(old["params"], names, strict=True):
            yield old, group, p, f"parameter {count}" + (f" ({name})" if name else "")
            count += 1


def _step(state: Mapping[str, Any], where: str) -> float:
    value = state.get("step")
    step = float(value) if isinstance(value, Tensor | int | float) else math.nan
    if not (step >= 0 and step == int(step)):
        raise ValueError(
            f"step of {where} is {value}, not a count: its state is half made; take a step, or clear it"
        )
    return step


def _wide(p: Tensor) -> torch.dtype:
    return state_dtype(p, {"state_dtype": None})


def _copy(state: Mapping[str, Any], key: str, p: Tensor, where: str) -> Tensor:
    value = state.get(key)
    if not isinstance(value, Tensor) or value.shape != p.shape:
        told = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(
            f"{key} of {where} is {told}, for a parameter of shape {tuple(p.shape)}: its state is half made, "
            "or another model's; take a step, or clear it"
        )
    return value.to(_wide(p), copy=True)


def _fill(new: AGD, p: Tensor, group: dict[str, Any], step: float, m: Tensor, b: Tensor) -> None:
    dtype = state_dtype(p, group)
    new.state[p] = {
        "step": torch.tensor(step, dtype=torch.float32),
        "exp_avg": m.to(dtype),
        "exp_avg_sq": b.to(dtype),
    }


def _long_ago(betas: tuple[float, float]) -> float:
    """A step at which 1 - beta^t is 1 in double precision (and from which float32 can still count on)."""
    slowest = max(betas)
    return min(2.0**23, math.ceil(-37 / math.log(slowest))) if slowest > 0 else 1.0


def _warn_of_schedulers(optimizer: Optimizer, remedy: str) -> None:
    # The mark that torch's schedulers, all but ReduceLROnPlateau, leave on the step of what they drive.
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        warnings.warn(
            f"a learning-rate scheduler goes on driving the old {type(optimizer).__name__}: {remedy}",
            stacklevel=4,
        )
