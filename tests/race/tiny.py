"""A task of a unit test's size: a smooth function of eight numbers, learnt with dropout."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agdopt.race.task import Batch, Task


@dataclass
class Tiny(Task):
    rows: int = 70
    metric: ClassVar[str] = "loss"

    def load(self) -> Mapping[str, Batch]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(3 * self.rows, 8, generator=generator)
        y = torch.sin(x.sum(1, keepdim=True))
        return {name: (x[i::3], y[i::3]) for i, name in enumerate(("train", "valid", "test"))}

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return F.mse_loss(model(x), y)


@dataclass
class Marked(Tiny):
    """Does something to its process at the end of an epoch, once: leaves a mark so as not to do it again."""

    mark: str = ""
    at: int = 3
    what: str = "kill"

    def evaluate(self, model: nn.Module, split: str) -> Mapping[str, Tensor]:
        self.seen = getattr(self, "seen", 0) + (split == "valid")
        mark = Path(self.mark)
        if self.seen == self.at and not mark.exists():
            mark.touch()
            if self.what == "raise":
                raise ArithmeticError("the task has had enough")
            os.kill(os.getpid(), signal.SIGKILL if self.what == "kill" else signal.SIGINT)
        return super().evaluate(model, split)


def plan_text(task: str = "tests.race.tiny:Tiny", **more: str) -> str:
    lines = "\n".join(f"{k} = {v}" for k, v in more.items())
    return f"""
name = "tiny"
epochs = 6
batch = 32
seeds = [1, 2]
{lines}

[task]
name = "{task}"

[schedule]
kind = "step"
milestones = [4]

[optimizers.sgd]
class = "torch.optim.SGD"
lr = 0.05
momentum = 0.9

[optimizers.adamw]
class = "torch.optim.AdamW"
lr = 0.01
weight_decay = 0.1
"""
