"""A task of your own. It runs as it is:

    agdopt race --task TASK_MODULE:make_task

Call it in the folder from which Python imports TASK_MODULE. Change the data, then the model. A quick look:
--optimizers agd,adamw --trials 2. When this file changes, its runs are made anew.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agdopt.race.task import Batch, Task, split


class MyTask(Task):
    # The metric that optimizers are judged by: a key of what `score` returns.
    metric: ClassVar[str] = "accuracy"
    maximize: ClassVar[bool] = True
    # The budget of a run, where no plan says otherwise.
    epochs: ClassVar[int | None] = 10
    batch: int = 32

    def load(self) -> dict[str, Batch]:
        """Tensors of all examples. Settings are chosen on `valid`; `test` is for the final runs alone."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1000, 20, generator=generator)
        noise = torch.randn(1000, generator=generator)
        y = (x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * noise > 0).long()
        return split(x, y, valid=0.2, test=0.2)  # or {"train": (x, y), "valid": ..., "test": ...}

    def model(self) -> nn.Module:
        """A fresh model. The race has seeded torch, and moves the model to the device."""
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What is minimised, of one batch of examples: they come as `load` gave them."""
        x, y = batch
        return F.cross_entropy(model(x), y)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Means over a batch. Leave it out where the loss is the metric: "loss", and maximize = False."""
        x, y = batch
        out = model(x)
        return {"accuracy": 100 * (out.argmax(1) == y).float().mean(), "loss": F.cross_entropy(out, y)}


make_task = MyTask
