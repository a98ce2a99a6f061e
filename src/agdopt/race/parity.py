"""The gate before any figure of speed: every body against core.reference on this machine."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from agdopt import AGD
from agdopt.core.reference import Reference

SHAPES = ((), (1,), (0,), (5,), (33, 31), (4, 3, 3, 3), (2048,), (5000,))
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "amsgrad": {"amsgrad": True},
    "decoupled decay": {"weight_decay": 0.1},
    "coupled decay, maximize": {"weight_decay": 0.1, "decoupled_weight_decay": False, "maximize": True},
    "standardize, clip": {"standardize": True, "clip": 0.5, "delta": 1e-12},
}
STEPS, LR = 12, 0.05
# Largest error of a parameter in units of STEPS * LR, about the distance it travels. Narrow parameters are
# rounded once a step, which a walk of this length turns into a few of their own units.
BOUND = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.25, torch.float16: 0.03}


@dataclass
class Gate:
    """What was compared, and the worst of it; `failures` is empty when the gate is open."""

    compared: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def error(device: str, dtype: torch.dtype, options: dict[str, Any], seed: int, **how: Any) -> float:
    """Of AGD(**options, **how) after STEPS steps; one parameter joins late, and one is channels-last."""
    rng = torch.Generator().manual_seed(seed)
    start = [torch.randn(shape, generator=rng).to(dtype) for shape in SHAPES]
    params = [torch.nn.Parameter(x.to(device)) for x in start]
    params[5].data = params[5].data.to(memory_format=torch.channels_last)
    names = {"decoupled_weight_decay": "decoupled"}
    references = [
        Reference(x.double().numpy(), lr=LR, **{names.get(k, k): v for k, v in options.items()})
        for x in start
    ]
    optimizer = AGD(params, lr=LR, **options, **how)
    for t in range(STEPS):
        for i, (p, reference) in enumerate(zip(params, references, strict=True)):
            g = torch.randn(p.shape, generator=rng).to(dtype)
            if i == 1 and t < 4:
                continue
            p.grad = g.to(device)
            reference.step(g.double().numpy())
        optimizer.step()
    return max(
        float(np.abs(p.detach().cpu().double().numpy() - r.w).max(initial=0.0))
        for p, r in zip(params, references, strict=True)
    ) / (STEPS * LR)


def gate(device: str) -> Gate:
    """Each dtype of the device's bodies, each option, the automatic choice and foreach."""
    found = Gate()
    dtypes = [torch.float32, torch.bfloat16, torch.float16 if device == "cuda" else torch.float64]
    for how in ({}, {"foreach": True}):
        for dtype in dtypes:
            for name, options in OPTIONS.items():
                body = "foreach" if how else "automatic"
                e = error(device, dtype, options, seed=found.compared, **how)
                found.compared += 1
                key = f"{body} {str(dtype).removeprefix('torch.')}"
                found.worst[key] = max(found.worst.get(key, 0.0), e)
                if not e <= BOUND[dtype]:  # NaN fails too
                    found.failures.append(f"{key}, {name}: error {e:.2g} exceeds {BOUND[dtype]:g}")
    return found
