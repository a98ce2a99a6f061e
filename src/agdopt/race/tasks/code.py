"""A small GPT on Python source code, judged by bits per byte.

`python -m agdopt.race.tasks.code --out DIR` makes the corpus from the wheels that code.toml pins; training
then needs its one file and no tokenizer.
"""

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agdopt.race.checks import PlanError
from agdopt.race.task import Batch, MissingData, Step, Task, find_data
from agdopt.race.tasks._attention import Attention
from agdopt.race.tasks._prepared import digest

FILE = "code-corpus.npz"
SPLITS = ("train", "valid", "test")


class Block(nn.Module):
    """Pre-norm: attention, then a hidden layer of four times the width; no biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention = Attention(width, heads, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, False), nn.Linear(4 * width, width, False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), causal=True)
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Gpt(nn.Module):
    """Learned positions; the embedding is the output layer too. GPT-2's initialisation."""

    def __init__(self, words: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:  # what adds to the residual stream starts smaller, the more layers add to it
                into = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if into else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.words.weight)


@dataclass
class Code(Task):
    width: int = 512
    layers: int = 8
    heads: int = 8
    context: int = 512
    sha256: str = ""  # of the corpus' tokens, so that a plan says which text it means; "": any
    tokens: int = 0  # at most so many of each split, for reduced runs; 0: all

    metric: ClassVar[str] = "bits_per_byte"
    eval_batch: ClassVar[int] = 64

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise PlanError(f"task.width must be a multiple of task.heads, got {self.width} and {self.heads}")
        super().__post_init__()
        if len(self.splits["train"][0]) < (self.batch + 1) * self.context + 1:
            held = len(self.splits["train"][0])
            raise PlanError(f"task: {held} tokens make no batch of {self.batch} windows of {self.context}")
        self.window = torch.arange(self.context + 1, device=self.device)

    def load(self) -> Mapping[str, Batch]:
        where = "`python -m agdopt.race.tasks.code --out DIR`, which makes it from packages of the index,"
        path = find_data(self.data, (FILE, f"code/{FILE}"), "the code corpus", where)
        with np.load(path) as table:
            streams = {split: table[split] for split in SPLITS}
            lengths = table["lengths"]
        found = digest(streams.values())
        if self.sha256 not in ("", found):
            raise MissingData(
                f"{path} holds tokens of SHA-256 {found}, the plan means {self.sha256}: make it anew by"
                f" {where} with the versions that code.toml names, or set task.sha256"
            )
        self.vocabulary = len(lengths)
        self.lengths = torch.from_numpy(lengths.astype(np.int64)).to(self.device)
        kept = {k: v[: self.tokens or None].astype(np.int32) for k, v in streams.items()}
        return {k: (torch.from_numpy(v),) for k, v in kept.items()}

    def model(self) -> nn.Module:
        return Gpt(self.vocabulary, self.context, self.width, self.layers, self.heads)

    def batches(self, model: nn.Module, seed: int) -> Sequence[Step]:
        """The text cut into windows, from another place each epoch; files may share a window."""
        random = torch.Generator().manual_seed(seed)
        first = int(torch.randint(self.context, (1,), generator=random))
        starts = torch.arange(first, len(self.splits["train"][0]) - self.context, self.context)
        starts = starts[torch.randperm(len(starts), generator=random)].to(self.device)
        whole = len(starts) // self.batch * self.batch  # one shape: one graph
        return [Step((rows,)) for rows in torch.split(starts[:whole], self.batch)]

    def fetch(self, inputs: Batch) -> Batch:
        (starts,) = inputs
        text = self.splits["train"][0][starts[:, None] + self.window].long()
        return text[:, :-1], text[:, 1:]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        words, target = batch
        return F.cross_entropy(model(words).flatten(0, 1), target.flatten())

    def evaluate(self, model: nn.Module, split: str) -> Mapping[str, Tensor]:
        """Every token but the first is predicted once, from what its window holds before it."""
        (text,) = self.splits[split]
        total = torch.zeros((), device=self.device)
        words, target = text[:-1], text[1:]
        whole = len(target) // self.context * self.context
        starts = [*range(0, whole, self.eval_batch * self.context), whole, len(target)]
        for i, j in itertools.pairwise(starts):
            if j > i:
                logits = model(words[i:j].view(-1, min(self.context, j - i)).long()).flatten(0, 1)
                total += F.cross_entropy(logits, target[i:j].long(), reduction="sum")
        bits = total / math.log(2) / self.lengths[target.long()].sum()
        return {"bits_per_byte": bits, "loss": total / (len(text) - 1)}


TASK = Code

if __name__ == "__main__":
    from agdopt.race.tasks._corpus import main

    sys.exit(main())
