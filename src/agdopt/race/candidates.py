"""What might make AGDW better, to be raced and for nothing else: none of it is in the rule until it has won.

    nesterov   numerator mhat + nesterov (g - mhat), which looks a step ahead
    cautious   only coordinates whose step agrees in sign with the gradient move; "mean" hands the step of the
               others to them (no bound of clip * lr then)
    floor      of bhat, times its root mean square over the tensor: a delta that needs no unit

With none of them this is agdopt.AGDW.
"""

from typing import Any

import torch
from torch import Tensor

from agdopt.core import Hyper, Scalars
from agdopt.race.variant import Variant

CAUTIOUS = ("", "plain", "mean")


class Candidate(Variant):
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        delta: float = 1e-15,
        weight_decay: float = 1e-2,
        clip: float | None = 1.0,
        nesterov: float = 0.0,
        cautious: str = "",
        floor: float = 0.0,
        capturable: bool = False,
    ) -> None:
        if cautious not in CAUTIOUS:
            raise ValueError(f"cautious must be one of {CAUTIOUS}, got {cautious!r}")
        self.hyper = Hyper(*betas, delta, standardize=True, clip=clip)
        self.nesterov, self.cautious, self.floor = nesterov, cautious, floor
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "capturable": capturable})

    def update(self, p: Tensor, g: Tensor, m: Tensor, b: Tensor, k: Scalars, group: dict[str, Any]) -> None:
        s = k.g * g + k.m * m
        m.add_(k.w1 * (g - m))
        b.add_(k.w2 * (s * s - b))
        root, least = b.sqrt(), torch.as_tensor(k.floor, dtype=b.dtype, device=b.device)
        if self.floor:
            least = torch.maximum(least, self.floor * b.mean().sqrt())
        # In the unit of sqrt(b), mhat is scale m and the gradient floor / delta g.
        ahead = (1 - self.nesterov) * k.scale * m + self.nesterov * k.floor / self.hyper.delta * g
        d = (ahead / torch.maximum(root, least)).clamp(-k.clip, k.clip)
        if self.cautious:
            agrees = (d * g > 0).to(d.dtype)
            d = d * (agrees / agrees.mean().clamp_min(1e-3) if self.cautious == "mean" else agrees)
        p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * d)
