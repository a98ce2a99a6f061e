"""What the tests run over, as data: options x dtypes x bodies x shapes."""

from typing import Any

import torch

# How to ask for a body. `cpu` and `gpu` are what AGD takes by itself (conftest.py lends `gpu` to the CPU).
BODIES: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "differentiable": {"differentiable": True},
    "cpu": {},
    "gpu": {},
}

DTYPES = {
    "loop": (torch.float64, torch.float32, torch.bfloat16, torch.float16),
    "foreach": (torch.float64, torch.float32, torch.bfloat16, torch.float16),
    "differentiable": (torch.float64, torch.float32, torch.bfloat16, torch.float16),
    "cpu": (torch.float64, torch.float32, torch.bfloat16),
    "gpu": (torch.float32, torch.bfloat16, torch.float16),
}

# Gradients are around 1, so delta = 0.3 puts some coordinates on each side of the switch.
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "switch": {"delta": 0.3},
    "other_betas": {"betas": (0.8, 0.95)},
    "no_momentum": {"betas": (0.0, 0.99)},
    "no_memory": {"betas": (0.9, 0.0)},
    "weight_decay": {"weight_decay": 0.1},
    "coupled": {"weight_decay": 0.1, "decoupled_weight_decay": False},
    "amsgrad": {"amsgrad": True, "betas": (0.9, 0.9)},
    "maximize": {"maximize": True},
    "standardize": {"standardize": True},
    "clip": {"clip": 0.5},
    "tensor_lr": {"lr": torch.tensor(0.05)},
    "all": {
        "delta": 0.3,
        "weight_decay": 0.1,
        "decoupled_weight_decay": False,
        "amsgrad": True,
        "maximize": True,
        "standardize": True,
        "clip": 0.7,
    },
}

# A scalar, one element, none, odd sizes, and a size that does not fill its last chunk of the GPU kernel.
SHAPES: tuple[tuple[int, ...], ...] = ((3, 5), (), (1,), (0,), (0, 4), (7,), (1, 1, 2), (1031,))
