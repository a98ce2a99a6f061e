"""ImageNet, or a part of it, as a folder of classes: ResNet18, random crops and flips (the usual recipe [I]).

train/CLASS/*.JPEG and val/CLASS/*.JPEG, or train.zip and val.zip with these paths inside. Worker processes
decode images while the device trains; val is what the paper calls test.
"""

import io
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, overload

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from agdopt.race.checks import PlanError, need
from agdopt.race.task import Batch, MissingData, Step, Task, find_data
from agdopt.race.tasks._resnet import NETS, ResNet

MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TYPES = (".jpeg", ".jpg", ".png")


class Images(Dataset[tuple[Tensor, int]]):
    """The files of a split, class by class; from a folder or a zip file."""

    def __init__(self, path: Path, most: int = 0) -> None:
        self.path, self.open = path, dict[int, zipfile.ZipFile]()
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as z:
                names = [n for n in z.namelist() if n.lower().endswith(TYPES)]
        else:
            names = [str(p.relative_to(path)) for p in path.glob("*/*") if p.name.lower().endswith(TYPES)]
        if not names:
            raise MissingData(f"{path} has no images: CLASS/*.JPEG is wanted there")
        names.sort()
        self.classes = sorted({Path(n).parent.name for n in names})
        number = {c: i for i, c in enumerate(self.classes)}
        every = -(-len(names) // most) if most else 1  # thinned out evenly: every class stays
        self.names = names[::every]
        self.labels = [number[Path(n).parent.name] for n in self.names]

    def __len__(self) -> int:
        return len(self.names)

    def image(self, i: int) -> Any:
        from PIL import Image

        if self.path.suffix == ".zip":
            process = os.getpid()  # a place in a file is not to be shared between workers
            if process not in self.open:
                self.open[process] = zipfile.ZipFile(self.path)
            return Image.open(io.BytesIO(self.open[process].read(self.names[i]))).convert("RGB")
        return Image.open(self.path / self.names[i]).convert("RGB")

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return as_bytes(self.image(i)), self.labels[i]


def as_bytes(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image))


@dataclass
class View(Dataset[tuple[Tensor, int]]):
    """Images cut to size: at random by (seed, number) for training, else the middle of 8/7 of the size."""

    images: Images
    size: int
    seed: int | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        from PIL import Image

        image, size = self.images.image(i), self.size
        if self.seed is None:
            scale = size * 8 / 7 / min(image.size)
            image = image.resize([max(size, round(s * scale)) for s in image.size], Image.Resampling.BILINEAR)
            left, top = ((s - size) // 2 for s in image.size)
            return as_bytes(image.crop((left, top, left + size, top + size))), self.images.labels[i]
        random = np.random.default_rng((self.seed, i))
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=crop(random, *image.size))
        flip = Image.Transpose.FLIP_LEFT_RIGHT
        return as_bytes(image.transpose(flip) if random.random() < 0.5 else image), self.images.labels[i]


def crop(random: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """8 to 100 per cent of the area, 3/4 to 4/3 as wide as high; after ten misses the middle square."""
    for _ in range(10):
        area, ratio = width * height * random.uniform(0.08, 1), np.exp(random.uniform(-1, 1) * np.log(4 / 3))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


class Stream(Sequence[Step]):
    """An epoch's batches, decoded ahead by workers when gone through in order."""

    def __init__(self, view: View, batches: list[list[int]], device: torch.device, workers: int) -> None:
        self.view, self.batches, self.device, self.workers = view, batches, device, workers

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Step]:
        pinned = self.device.type == "cuda"
        loader = DataLoader(
            self.view, batch_sampler=self.batches, num_workers=self.workers, pin_memory=pinned
        )
        for x, y in loader:
            yield Step((x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)))

    @overload
    def __getitem__(self, i: int) -> Step: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Step]: ...
    def __getitem__(self, i: int | slice) -> Step | Sequence[Step]:
        if isinstance(i, slice):
            return Stream(self.view, self.batches[i], self.device, self.workers)
        return next(iter(Stream(self.view, [self.batches[i]], self.device, 0)))


@dataclass
class ImageNet(Task):
    net: str = "resnet18"
    folder: str = "imagenet"
    size: int = 224
    images: int = 0  # at most so many of each split, for reduced runs; 0: all

    metric: ClassVar[str] = "accuracy"
    maximize: ClassVar[bool] = True
    eval_batch: ClassVar[int] = 500

    def __post_init__(self) -> None:
        need(self.net in NETS, f"task.net must be one of {', '.join(NETS)}, got {self.net!r}")
        need(self.size >= 32, f"task.size must be >= 32, got {self.size}")
        try:
            import PIL  # noqa: F401
        except ModuleNotFoundError as e:
            raise PlanError(f"images are decoded by Pillow: pip install pillow ({e})") from e
        self.sets = {"train": self._images("train"), "test": self._images("val")}
        names = {k: s.classes for k, s in self.sets.items()}
        need(names["train"] == names["test"], f"{self.folder}: train and val have different classes")
        self.splits = {k: (torch.tensor(s.labels),) for k, s in self.sets.items()}
        self.workers = min(16, (os.cpu_count() or 1) - 1)
        self.mean, self.sd = (torch.tensor(v, device=self.device) * 255 for v in (MEAN, SD))

    def _images(self, name: str) -> Images:
        where = "https://image-net.org (ILSVRC2012; val sorted into folders of classes)"
        paths = [f"{self.folder}/{name}", f"{self.folder}/{name}.zip"]
        return Images(find_data(self.data, paths, f"{self.folder}'s {name}", where), self.images)

    def model(self) -> nn.Module:
        net = ResNet(*NETS[self.net], classes=len(self.sets["train"].classes), small=False)
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def _stream(self, split: str, order: Tensor, size: int, seed: int | None) -> Stream:
        batches = [b.tolist() for b in torch.split(order, size)]
        return Stream(View(self.sets[split], self.size, seed), batches, self.device, self.workers)

    def batches(self, model: nn.Module, seed: int) -> Sequence[Step]:
        order = torch.randperm(len(self.sets["train"]), generator=torch.Generator().manual_seed(seed))
        return self._stream("train", order, self.batch, seed)

    def fetch(self, inputs: Batch) -> Batch:
        return inputs

    def _logits(self, model: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = model(((x - self.mean) / self.sd).permute(0, 3, 1, 2))
        return out

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        return F.cross_entropy(self._logits(model, x), y)

    def evaluate(self, model: nn.Module, split: str) -> Mapping[str, Tensor]:
        right, loss = torch.zeros(2, device=self.device).unbind()
        order = torch.arange(len(self.sets[split]))
        for (x, y), _ in self._stream(split, order, self.eval_batch, None):
            out = self._logits(model, x).float()
            right += (out.argmax(1) == y).sum()
            loss += F.cross_entropy(out, y, reduction="sum")
        return {"accuracy": 100 * right / len(order), "loss": loss / len(order)}


TASK = ImageNet
