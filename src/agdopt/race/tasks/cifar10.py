"""CIFAR-10 with the ResNets of the paper (ResNet20, ResNet32) and of its X1 (ResNet18 in its CIFAR form)."""

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agdopt.race.checks import PlanError, unknown
from agdopt.race.task import Batch, MissingData, Task, find_data
from agdopt.race.tasks._resnet import NETS, ResNet

PAD = 4
MEAN, SD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
# Published MD5 of each batch in the official binary layout (label byte, then 3,072 pixel bytes): pixels and
# labels are verified whoever pickled them.
MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def read_batches(folder: Path, names: list[str]) -> tuple[Tensor, Tensor]:
    """Images (n, 32, 32, 3) as bytes, and labels, from torchvision's python batch layout."""
    images, labels = [], []
    for name in names:
        try:
            with open(folder / name, "rb") as f:
                table = pickle.load(f, encoding="latin1")
        except FileNotFoundError as e:
            raise MissingData(f"CIFAR-10 is not whole: {folder} lacks {name}") from e
        pixels, answer = np.asarray(table["data"], np.uint8), np.asarray(table["labels"], np.uint8)
        if hashlib.md5(np.concatenate([answer[:, None], pixels], 1).tobytes()).hexdigest() != MD5[name]:
            raise MissingData(
                f"{folder / name} does not hold CIFAR-10's published pixels and labels: get it anew"
            )
        # Copied, so that a pixel's colours really lie together: a view would make every gather a slow one.
        images.append(np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)))
        labels.append(answer)
    return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)).long()


@dataclass
class Cifar10(Task):
    net: str = "resnet20"
    valid: int = 0  # images held out of training, for searches; 0: train on all, judge on test alone
    channels_last: bool = True
    images: int = 0  # at most so many of each split, for reduced runs; 0: all

    metric: ClassVar[str] = "accuracy"
    maximize: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.net not in NETS:
            raise unknown("net", self.net, NETS)
        if not 0 <= self.valid < 50_000:
            raise PlanError(f"task.valid must be from 0 to 49999, got {self.valid}")
        super().__post_init__()
        self.mean = torch.tensor(MEAN, device=self.device) * 255
        self.sd = torch.tensor(SD, device=self.device) * 255
        self.range = torch.arange(32, device=self.device)

    def load(self) -> Mapping[str, Batch]:
        where = "https://www.cs.toronto.edu/~kriz/cifar.html (the python version, unpacked)"
        paths = ("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "data_batch_1")
        found = find_data(self.data, paths, "CIFAR-10", where)
        folder = found.parent if found.name == "data_batch_1" else found
        x, y = read_batches(folder, [f"data_batch_{i}" for i in range(1, 6)])
        # The same images for every seed: a search must not see what another of its trials is judged on.
        order = torch.randperm(50_000, generator=torch.Generator().manual_seed(50_000))
        held, kept = order[: self.valid], order[self.valid :].sort().values
        splits = {"train": (F.pad(x[kept], (0, 0, PAD, PAD, PAD, PAD)), y[kept])}
        if self.valid:
            splits["valid"] = (x[held], y[held])
        splits["test"] = read_batches(folder, ["test_batch"])
        return {k: (x[: self.images or None], y[: self.images or None]) for k, (x, y) in splits.items()}

    def model(self) -> nn.Module:
        net = ResNet(*NETS[self.net])
        if self.channels_last:
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net

    def fetch(self, inputs: Batch) -> Batch:
        """Crop 32 with padding 4, and flip: one gather from the padded bytes on the device."""
        (rows,) = inputs
        x, y = self.splits["train"]
        draw = torch.randint(0, 2 * PAD + 1, (2, len(rows), 1), device=self.device)
        flip = torch.randint(0, 2, (len(rows), 1), device=self.device, dtype=torch.bool)
        down = draw[0] + self.range
        across = draw[1] + torch.where(flip, 31 - self.range, self.range)
        return x[rows[:, None, None], down[:, :, None], across[:, None, :]], y.index_select(0, rows)

    def _images(self, x: Tensor) -> Tensor:
        x = ((x - self.mean) / self.sd).permute(0, 3, 1, 2)
        return x if self.channels_last else x.contiguous()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return F.cross_entropy(model(self._images(x)), y)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        x, y = batch
        out = model(self._images(x)).float()
        return {"accuracy": 100 * (out.argmax(1) == y).float().mean(), "loss": F.cross_entropy(out, y)}


TASK = Cifar10
