"""Handwritten digits, 8x8: the set that comes with scikit-learn, for an MLP and a small CNN."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agdopt.race.checks import unknown
from agdopt.race.task import Batch, MissingData, Task, split

NETS = ("mlp", "cnn")


@dataclass
class Digits(Task):
    net: str = "mlp"

    metric: ClassVar[str] = "accuracy"
    maximize: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.net not in NETS:
            raise unknown("net", self.net, NETS)
        super().__post_init__()

    def load(self) -> Mapping[str, Batch]:
        try:
            from sklearn.datasets import load_digits
        except ImportError as e:
            raise MissingData(f"the digits come with scikit-learn ({e}): pip install scikit-learn") from e
        x, y = map(torch.as_tensor, load_digits(return_X_y=True))
        return split(x.float() / 16, y.long())

    def model(self) -> nn.Module:
        if self.net == "mlp":
            return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return F.cross_entropy(model(x), y)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        x, y = batch
        out = model(x)
        return {"accuracy": 100 * (out.argmax(1) == y).float().mean(), "loss": F.cross_entropy(out, y)}


TASK = Digits
