"""For the ablation of the paper's two ideas only (row C2): what is squared, and what keeps it from zero.

    square      difference: s_t = mhat_t - mhat_{t-1}, as AGD;  gradient: g_t, as Adam
    denominator max: max(bhat_t, delta), as AGD;                add: bhat_t + delta, as Adam's eps

(difference, max) is agdopt.AGD and (gradient, add) is torch.optim.Adam. The other two are in no library:
AdaBelief's difference is g_t - m_t, another factor and without bias correction. Nothing else to train with.
"""

from typing import Any

import torch
from torch import Tensor

from agdopt.core import Hyper, Scalars
from agdopt.race.variant import Variant

SQUARES, DENOMINATORS = ("difference", "gradient"), ("max", "add")


class Ablation(Variant):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        delta: float = 1e-8,
        weight_decay: float = 0.0,  # coupled: added to the gradient
        square: str = "difference",
        denominator: str = "max",
        capturable: bool = False,
    ) -> None:
        if square not in SQUARES or denominator not in DENOMINATORS:
            raise ValueError(
                f"square must be one of {SQUARES} and denominator one of {DENOMINATORS}, "
                f"got {square!r}, {denominator!r}"
            )
        self.hyper = Hyper(*betas, delta)
        self.square, self.denominator = square, denominator
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "capturable": capturable})

    def update(self, p: Tensor, g: Tensor, m: Tensor, b: Tensor, k: Scalars, group: dict[str, Any]) -> None:
        g = g + group["weight_decay"] * p
        s = g if self.square == "gradient" else k.g * g + k.m * m
        m.add_(k.w1 * (g - m))
        b.add_(k.w2 * (s * s - b))
        # Both in the unit of sqrt(b), as the rule's scale expects.
        root, floor = b.sqrt(), torch.as_tensor(k.floor, dtype=b.dtype, device=b.device)
        root = torch.maximum(root, floor) if self.denominator == "max" else root + floor
        p.sub_(group["lr"] * k.scale * m / root)
