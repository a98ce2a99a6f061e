"""German to English with the paper's small Transformer: IWSLT14, or Multi30k in its place.

`batch` counts tokens: of the longer side, padding included. `python -m agdopt.race.tasks.translation --out
DIR` makes the tokens once, so that training needs no tokenizer; else they are made from the text each time.
"""

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from agdopt.race.checks import PlanError, need, unknown
from agdopt.race.task import Batch, MissingData, Step, Task, find_data
from agdopt.race.tasks._bleu import bleu
from agdopt.race.tasks._pairs import SETS, SPLITS, prepare, text
from agdopt.race.tasks._prepared import digest, save, split
from agdopt.race.tasks._transformer import EOS, PAD, Transformer, search

# Few widths, so that a CUDA graph for each is worth its capture. Longer sentences are left out of training.
WIDTHS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256)


@dataclass
class Translation(Task):
    pairs: str = "iwslt14"
    width: int = 512
    hidden: int = 1024
    heads: int = 4
    layers: int = 6
    dropout: float = 0.3
    smoothing: float = 0.1
    beam: int = 5
    penalty: float = 1.0
    attention: str = "fused"  # or math: torch's composed one, which can be differentiated twice (AdaHessian)
    sha256: str = ""  # of the tokens, so that a plan says which text it means; "": any
    sentences: int = 0  # at most so many of each split, for reduced runs; 0: all

    metric: ClassVar[str] = "loss"  # per token, without smoothing; BLEU comes at the end, for `test`
    eval_batch: ClassVar[int] = 16384  # tokens

    def __post_init__(self) -> None:
        if self.pairs not in SETS:
            raise unknown("pairs", self.pairs, SETS)
        need(
            self.attention in ("fused", "math"),
            f"task.attention must be fused or math, got {self.attention!r}",
        )
        need(self.beam > 0, f"task.beam must be > 0, got {self.beam}")
        need(
            self.batch >= WIDTHS[0], f"batch counts tokens and must be at least {WIDTHS[0]}, got {self.batch}"
        )
        super().__post_init__()

    def load(self) -> Mapping[str, Batch]:
        arrays = tokens(self.data, self.pairs)
        found = digest(arrays[f"{s}.{x}"] for s in SPLITS for x in ("de", "en"))
        if self.sha256 not in ("", found):
            raise MissingData(
                f"{self.pairs} here has tokens of SHA-256 {found}, the plan means {self.sha256}: another text"
                " or another version of tokenizers; get the plan's, or set task.sha256"
            )
        self.words = split(arrays["words"])
        self.references = split(arrays["test.text"])[: self.sentences or None]
        return {s: tuple(self._padded(arrays, f"{s}.{x}") for x in ("de", "en")) for s in SPLITS}

    def _padded(self, arrays: Mapping[str, np.ndarray], name: str) -> Tensor:
        lengths = arrays[f"{name}.lengths"].astype(np.int64)
        flat = np.split(arrays[name].astype(np.int16), lengths.cumsum()[:-1])[: self.sentences or None]
        rows = torch.full((len(flat) + 1, int(lengths[: len(flat)].max())), PAD, dtype=torch.int16)
        for row, ids in zip(rows, flat, strict=False):
            row[: len(ids)] = torch.from_numpy(ids)
        return rows  # the last is empty: it fills up batches

    def model(self) -> nn.Module:
        sizes = (self.width, self.hidden, self.heads, self.layers, self.dropout)
        return Transformer(len(self.words), *sizes)

    def _by_width(self, split: str) -> list[tuple[int, Tensor]]:
        """The sentences of each width."""
        longer = torch.stack([(t[:-1] != PAD).sum(1) for t in self.splits[split]]).max(0).values.cpu()
        widths = WIDTHS if split == "train" else (*WIDTHS, max(WIDTHS[-1] + 1, int(longer.max())))
        place = torch.bucketize(longer, torch.tensor(widths))
        return [(w, rows) for i, w in enumerate(widths) if len(rows := (place == i).nonzero()[:, 0])]

    def _cut(self, split: str, rows: Tensor, width: int) -> Batch:
        cut = (t[rows.to(t.device), :width] for t in self.splits[split])
        return tuple(F.pad(t, (0, width - t.shape[1]), value=PAD) for t in cut)

    def batches(self, model: nn.Module, seed: int) -> Sequence[Step]:
        """Sentences of like length together, batches in any order; what fills up a last one is empty."""
        random, parts = torch.Generator().manual_seed(seed), []
        empty = len(self.splits["train"][0]) - 1
        for width, rows in self._by_width("train"):
            size = max(1, self.batch // width)
            rows = rows[torch.randperm(len(rows), generator=random)]
            rows = F.pad(rows, (0, -len(rows) % size), value=empty)
            parts += [(width, some) for some in torch.split(rows, size)]
        order = torch.randperm(len(parts), generator=random).tolist()
        return [Step(self._cut("train", parts[i][1], parts[i][0])) for i in order]

    def fetch(self, inputs: Batch) -> Batch:
        source, target = (t.long() for t in inputs)
        # An empty sentence still has an end to look at: attention to nothing would be 0/0.
        source[:, 0].masked_fill_(source[:, 0] == PAD, EOS)
        return source, F.pad(target[:, :-1], (1, 0), value=EOS), target

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._cross_entropy(model, batch, label_smoothing=self.smoothing)

    def _cross_entropy(self, model: nn.Module, batch: Batch, **how: Any) -> Tensor:
        source, words, target = batch
        with sdpa_kernel(SDPBackend.MATH) if self.attention == "math" else contextlib.nullcontext():
            logits = model(source, words)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, **how)

    def evaluate(self, model: nn.Module, split: str) -> Mapping[str, Tensor]:
        assert isinstance(model, Transformer)
        total = torch.zeros((), device=self.device)
        texts = [""] * (len(self.splits[split][0]) - 1)
        for width, rows in self._by_width(split):
            for some in torch.split(rows, max(1, self.eval_batch // width)):
                batch = self.fetch(self._cut(split, some, width))
                total += self._cross_entropy(model, batch, reduction="sum")
                if split == "test":
                    best = search(model, batch[0], self.beam, self.penalty, 2 * width + 10)
                    for row, ids in zip(some.tolist(), best.tolist(), strict=True):
                        texts[row] = self.text(ids)
        loss = total / (self.splits[split][1][:-1] != PAD).sum()
        scores = {"loss": loss, "perplexity": loss.exp()}
        if split == "test":
            scores["bleu"] = torch.tensor(bleu(texts, self.references), device=self.device)
        return scores

    def text(self, ids: Sequence[int]) -> str:
        pieces = ids[: ids.index(EOS)] if EOS in ids else ids
        return text(self.words[i] for i in pieces)

    def watch(self) -> Sequence[str]:
        return ["valid"]

    def final(self) -> Sequence[str]:
        return ["valid", "test"]


def tokens(root: Path | None, name: str) -> Mapping[str, np.ndarray]:
    """The prepared ones, or made from the text."""
    try:
        path = find_data(root, [f"{name}.npz", f"{name}/{name}.npz"], name, "")
    except MissingData:
        return prepare(root, name)
    with np.load(path) as table:
        return dict(table)


TASK = Translation


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agdopt.race.tasks.translation", description=__doc__)
    parser.add_argument("--pairs", choices=SETS, default="iwslt14")
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: AGDOPT_DATA")
    parser.add_argument("--out", type=Path, required=True, help="folder for PAIRS.npz")
    args = parser.parse_args(argv)
    try:
        arrays = prepare(args.data, args.pairs)
    except PlanError as e:
        print(e, file=sys.stderr)
        return 2
    path = args.out / f"{args.pairs}.npz"
    save(path, arrays)
    sums = ", ".join(f"{s} {len(arrays[f'{s}.en.lengths']):,} pairs" for s in SPLITS)
    print(f"{path}: {sums}, {len(split(arrays['words'])):,} words, {path.stat().st_size / 2**20:.1f} MiB")
    print(f"sha256 = {digest(arrays[f'{s}.{x}'] for s in SPLITS for x in ('de', 'en'))!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
