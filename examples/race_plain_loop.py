"""The model of a plain PyTorch loop, raced:

    agdopt race --task race_plain_loop:make_task --trials 4

The loop whose model this was; the race runs it for each optimizer, setting and seed:

    for x, y in DataLoader(Waves(), batch_size=64, shuffle=True):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from agdopt.race.task import Batch, Task


class Waves(Dataset[tuple[Tensor, Tensor]]):
    """Any Dataset of tensors and numbers: the race reads it once and keeps it on the device."""

    def __init__(self, seed: int, count: int) -> None:
        self.x = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], torch.sin(6 * self.x[i]).sum(0, keepdim=True)


class PlainLoop(Task):
    epochs: ClassVar[int | None] = 20
    batch: int = 64

    def load(self) -> dict[str, Waves]:
        return {"train": Waves(0, 1200), "valid": Waves(1, 400), "test": Waves(2, 400)}

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return F.mse_loss(model(x), y)


make_task = PlainLoop
