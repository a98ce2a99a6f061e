"""What a group may hold: each refusal is a sentence with the value, the bound and the remedy."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agdopt.core import Hyper
from agdopt.core.hyper import number
from agdopt.torch import executor
from agdopt.torch.gather import real


def state_dtype(p: Tensor, group: dict[str, Any]) -> torch.dtype:
    if p.dtype in (torch.float64, torch.complex128):
        return p.dtype
    wide = torch.complex64 if p.is_complex() else torch.float32
    return group["state_dtype"] or wide


def check_group(group: dict[str, Any]) -> None:
    """Every number of a group: a sentence with the value, the bound and the remedy."""
    lr, betas = group["lr"], group["betas"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    if not 0.0 <= (lr if isinstance(lr, Tensor) else number("lr", lr)) < math.inf:
        raise ValueError(f"lr must be a finite number >= 0, got {lr}; to climb, use maximize=True")
    if not isinstance(betas, Sequence) or len(betas) != 2:
        raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
    beta1, beta2 = betas
    Hyper(beta1, beta2, group["delta"], group["amsgrad"], group["standardize"], group["clip"])
    decay = number("weight_decay", group["weight_decay"])
    if not 0.0 <= decay < math.inf:
        raise ValueError(f"weight_decay must be a finite number >= 0, got {decay}; 0 switches it off")
    if group["state_dtype"] not in (None, torch.float32, torch.bfloat16):
        raise ValueError(
            f"state_dtype must be None, torch.float32 or torch.bfloat16, got {group['state_dtype']}: "
            "narrower or integer averages would round small changes away"
        )
    if not isinstance(group["seed"], int):
        raise ValueError(f"seed must be an integer, got {group['seed']!r}")
    if group["fused"] and group["foreach"]:
        raise RuntimeError("fused=True and foreach=True exclude each other: give one of them")
    if group["differentiable"] and (group["stochastic_rounding"] or group["state_dtype"] == torch.bfloat16):
        raise ValueError(
            "differentiable=True cannot round stochastically, which has no slope: leave state_dtype=None and "
            "stochastic_rounding=False"
        )
    if group["differentiable"] and (group["fused"] or group["foreach"]):
        raise RuntimeError("differentiable=True runs a body of its own: leave fused and foreach at None")


def check_params(groups: list[dict[str, Any]]) -> None:
    """The group added last, against its options and itself."""
    group = groups[-1]
    params = group["params"]
    if len(set(params)) != len(params):
        raise ValueError("a parameter is there twice in a group: it would be stepped twice; give each once")
    for p in params:
        if group["state_dtype"] is not None and (p.is_complex() or p.dtype == torch.float64):
            raise ValueError(
                f"state_dtype={group['state_dtype']} does not suit {p.dtype} parameters: leave None for those"
            )
        if group["fused"]:
            if not p.is_floating_point():
                raise RuntimeError(
                    f"fused=True takes real floating-point parameters, got {p.dtype}; leave fused=None"
                )
            executor.choose(real(p.detach()), group)
    if group["stochastic_rounding"] and not any(p.dtype == torch.bfloat16 for p in params):
        raise ValueError("stochastic_rounding=True is for bfloat16 parameters, and this group has none")
