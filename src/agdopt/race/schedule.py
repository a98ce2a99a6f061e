"""Schedule: the learning rate over training."""

import math
from dataclasses import dataclass

from agdopt.race.checks import need, unknown

KINDS = ("constant", "step", "cosine", "inverse-sqrt")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over training, as a function of the epochs and updates already done."""

    kind: str = "constant"
    milestones: tuple[int, ...] = ()  # step: epochs after which the rate is multiplied by gamma
    gamma: float = 0.1
    warmup: int = 0  # updates over which the rate rises linearly from `start`
    start: float = 0.0
    end: float = 0.0  # cosine: the fraction of the rate it ends at
    per: str = "epoch"  # cosine: lowered once an epoch, or at every update

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("schedule.kind", self.kind, KINDS)
        need(self.per in ("epoch", "update"), f"schedule.per must be 'epoch' or 'update', got {self.per!r}")
        need(self.warmup >= 0, f"schedule.warmup must be >= 0, got {self.warmup}")
        steps = self.kind == "step"
        need(steps == bool(self.milestones), "schedule.milestones belong to kind = 'step', which needs them")
        need(
            self.kind != "inverse-sqrt" or self.warmup > 0, "kind = 'inverse-sqrt' needs schedule.warmup > 0"
        )

    def lr(self, base: float, epoch: int, progress: float, update: int, epochs: int) -> float:
        """`epoch` and `update` count what is finished; `progress` is the share of the present epoch."""
        if update < self.warmup:
            return self.start + (base - self.start) * update / self.warmup
        if self.kind == "step":
            return base * self.gamma ** sum(epoch >= m for m in self.milestones)
        if self.kind == "inverse-sqrt":
            return base * math.sqrt(self.warmup / update)
        if self.kind == "cosine":
            done = (epoch + (progress if self.per == "update" else 0.0)) / epochs
            return base * (self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2)
        return base
