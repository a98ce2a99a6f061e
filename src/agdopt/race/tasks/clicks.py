"""Click-through rates: the paper's MLP on Avazu and its Deep & Cross Network on Criteo, judged by AUC.

Activations, normalisation and initialisation are not stated in the paper: ReLU, none, N(0, 0.01) [I]; rows
are taken at random. `python -m agdopt.race.tasks.clicks --log avazu --out DIR` reads a log once for all runs.
"""

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agdopt.race.checks import PlanError, need, unknown
from agdopt.race.task import Batch, MissingData, Task, find_data
from agdopt.race.tasks._clicks import LOGS, prepare


def layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(*[m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())])


class Mlp(nn.Module):
    """Embeddings of 16, layers of 64, 32, 16, one output."""

    def __init__(self, features: int, count: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(features, width)
        self.deep, self.out = layers(count * width, 64, 32, 16), nn.Linear(16, 1)
        nn.init.normal_(self.embedding.weight, std=0.01)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.deep(self.embedding(ids).flatten(1)))
        return out[:, 0]


class Dcn(nn.Module):
    """Embeddings of 8; beside two deep layers of 64, two cross layers: x0 (x . w) + b + x."""

    def __init__(self, features: int, count: int, width: int = 8) -> None:
        super().__init__()
        n = count * width
        self.embedding = nn.Embedding(features, width)
        self.deep, self.out = layers(n, 64, 64), nn.Linear(n + 64, 1)
        self.weights = nn.ParameterList([torch.randn(n) * n**-0.5 for _ in range(2)])
        self.biases = nn.ParameterList([torch.zeros(n) for _ in range(2)])
        nn.init.normal_(self.embedding.weight, std=0.01)

    def forward(self, ids: Tensor) -> Tensor:
        first = x = self.embedding(ids).flatten(1)
        for w, b in zip(self.weights, self.biases, strict=True):
            x = first * (x @ w)[:, None] + b + x
        out: Tensor = self.out(torch.cat([x, self.deep(first)], 1))
        return out[:, 0]


NETS = {"avazu": Mlp, "criteo": Dcn}


@dataclass
class Clicks(Task):
    log: str = "avazu"
    file: str = ""  # another file of the log's folder, such as a sample
    test_share: float = 0.0  # of the last rows; 0: the paper's, Avazu's last day or Criteo's last seventh
    threshold: int = 0  # values seen less often in training share one feature per field; 0: all are kept
    buckets: int = 0  # features are hashed into so many; 0: each its own, the whole vocabulary [I]
    rows: int = 0  # at most so many of the log, for reduced runs; 0: all

    metric: ClassVar[str] = "auc"
    maximize: ClassVar[bool] = True
    eval_batch: ClassVar[int] = 65536

    def __post_init__(self) -> None:
        if self.log not in LOGS:
            raise unknown("log", self.log, LOGS)
        need(0 <= self.test_share < 1, f"task.test_share must be in [0, 1), got {self.test_share}")
        need(self.threshold >= 0, f"task.threshold must be >= 0, got {self.threshold}")
        need(self.buckets >= 0, f"task.buckets must be >= 0, got {self.buckets}")
        super().__post_init__()

    def load(self) -> Mapping[str, Batch]:
        arrays = self._arrays()
        ids, click, day = (arrays[k][: self.rows or None] for k in ("ids", "click", "day"))
        first = self._first_of_test(day)
        features, self.features = merge(ids, arrays["sizes"], first, self.threshold, self.buckets)
        x, y = torch.from_numpy(features), torch.from_numpy(click.astype(np.float32))
        return {"train": (x[:first], y[:first]), "test": (x[first:], y[first:])}

    def _arrays(self) -> Mapping[str, np.ndarray]:
        try:
            path = find_data(self.data, [f"{self.log}.npz", f"{self.log}/{self.log}.npz"], self.log, "")
        except MissingData:
            return prepare(self.data, self.log, self.file)
        if self.file:
            return prepare(self.data, self.log, self.file)
        with np.load(path) as table:
            return dict(table)

    def _first_of_test(self, day: np.ndarray) -> int:
        if self.test_share or self.log == "criteo":
            return len(day) - round(len(day) * (self.test_share or 1 / 7))
        first = int((day < day.max()).sum())
        if first == 0 or (np.diff(day.astype(int)) < 0).any():
            raise PlanError(
                "the log is of one day or its days are out of order, so its last day makes no test set: "
                "set task.test_share, such as 0.1"
            )
        return first

    def model(self) -> nn.Module:
        return NETS[self.log](self.features, self.splits["train"][0].shape[1])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        ids, click = batch
        return F.binary_cross_entropy_with_logits(model(ids), click)

    def evaluate(self, model: nn.Module, split: str) -> Mapping[str, Tensor]:
        ids, click = self.splits[split]
        logits = torch.cat([model(part).float() for part in torch.split(ids, self.eval_batch)])
        return {"auc": auc(logits, click), "loss": F.binary_cross_entropy_with_logits(logits, click)}


def auc(scores: Tensor, click: Tensor) -> Tensor:
    """The chance that a click is scored above a row without one; equal scores count half."""
    _, place, count = torch.unique(scores, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    rank = (last - (count - 1) / 2)[place]
    yes = click.double().sum()
    no = len(click) - yes
    below: Tensor = rank[click > 0].sum() - yes * (yes + 1) / 2
    return below / (yes * no)


def merge(
    ids: np.ndarray, sizes: np.ndarray, train: int, threshold: int, buckets: int
) -> tuple[np.ndarray, int]:
    """From a number per field to one feature number, and how many features there are."""
    features, start = np.empty_like(ids), 0
    for i, size in enumerate(sizes):
        column = ids[:, i].astype(np.int64)
        if threshold:
            kept = np.bincount(column[:train], minlength=size) >= threshold
            column = np.where(kept, kept.cumsum(), 0)[column]  # 0: all the others
            size = kept.sum() + 1
        if buckets:
            # A multiplicative hash of field and value, the same everywhere.
            mixed = (column * len(sizes) + i + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            features[:, i] = (mixed >> np.uint64(20)) % np.uint64(buckets)
        else:
            features[:, i] = column + start
        start += int(size)
    return features, buckets or start


TASK = Clicks


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agdopt.race.tasks.clicks", description=__doc__)
    parser.add_argument("--log", choices=LOGS, required=True)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: AGDOPT_DATA")
    parser.add_argument("--out", type=Path, required=True, help="folder for LOG.npz")
    args = parser.parse_args(argv)
    try:
        arrays = prepare(args.data, args.log)
    except PlanError as e:
        print(e, file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    np.savez(args.out / f"{args.log}.npz", **arrays)  # type: ignore[arg-type]
    print(f"{args.log}: {len(arrays['ids']):,} rows, {arrays['sizes'].sum():,} features")
    return 0


if __name__ == "__main__":
    sys.exit(main())
