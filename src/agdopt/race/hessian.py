"""A task's Hessian along a training, and what optimizers take in its place: the two sides of C1."""

import contextlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agdopt.race.task import Task

# By which average each optimizer divides.
RANKED = {"s": "bhat", "g": "Adam's sqrt(vhat)", "g - m": "AdaBelief's"}


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """One vector, in logical order whatever the strides, and a copy."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def cosine(a: Tensor, b: Tensor) -> float | None:
    """In float64; None where one of them is zero and has no direction."""
    a, b = a.double(), b.double()
    size = a.norm() * b.norm()
    return float(a @ b / size) if size > 0 else None


def ranks(x: Tensor) -> Tensor:
    """Equal values share their mean rank: their order in memory must not look like agreement."""
    _, place, count = torch.unique(x, return_inverse=True, return_counts=True)
    mean: Tensor = count.cumsum(0) - (count - 1) / 2
    return mean[place]


def rank_correlation(a: Tensor, b: Tensor) -> float | None:
    """Spearman's; None where one of them is constant."""
    centred = [r.double() - (len(r) + 1) / 2 for r in (ranks(a), ranks(b))]
    return cosine(*centred)


@dataclass(frozen=True)
class Look:
    """Derivatives at one point. Halves: estimates from every other batch, whose mean is the estimate."""

    gradient: Tensor
    products: Tensor  # H dw: two halves
    diagonals: Tensor  # diag H by Hutchinson's probes: two halves, zero without probes

    @property
    def product(self) -> Tensor:
        return self.products.mean(0)

    @property
    def diagonal(self) -> Tensor:
        return self.diagonals.mean(0)


class Objective:
    """The mean loss of a few fixed batches: a function of the weights and of nothing else.

    Crops, carried states and dropout masks are the same at every look; without `dropout` there are no masks.
    BatchNorm takes each batch's own statistics, as in training: with its running ones the loss would be
    another function of the weights, whose gradients no optimizer saw. Model and generators are put back.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        count: int,
        seed: int,
        dropout: bool = False,
        cudnn: bool = True,  # cuDNN's recurrent layers have no second derivative
    ) -> None:
        self.task, self.model, self.seed, self.dropout, self.cudnn = task, model, seed, dropout, cudnn
        self.params = [p for p in model.parameters() if p.requires_grad]
        with self._still():
            steps = task.batches(model, seed)
            self.start = [b.clone() for b in model.buffers()]
            chosen = steps[:: max(1, len(steps) // count)][:count]  # from all over the epoch
            self.batches = [task.fetch(step.inputs) for step in chosen]

    @contextlib.contextmanager
    def _still(self) -> Iterator[None]:
        modes = [(m, m.training) for m in self.model.modules()]
        kept = [(b, b.clone()) for b in self.model.buffers()]
        devices = [self.task.device] if self.task.device.type == "cuda" else []
        try:
            with (
                torch.random.fork_rng(devices),
                torch.backends.cudnn.flags(enabled=self.cudnn, allow_tf32=False),
            ):
                torch.manual_seed(self.seed)
                for module, _ in modes:
                    # One by one, and not Module.train, which goes down into the children.
                    module.training = self.dropout or isinstance(module, nn.modules.batchnorm._BatchNorm)
                yield
        finally:
            for module, mode in modes:
                module.training = mode
            for buffer, value in kept:
                buffer.copy_(value)

    def look(self, dw: Tensor, probes: int = 0) -> Look:
        """At the weights as they stand; `probes` random signs a batch for the diagonal."""
        gradient = torch.zeros_like(dw)
        products, diagonals = dw.new_zeros(2, len(dw)), dw.new_zeros(2, len(dw))
        counts = [len(self.batches[half::2]) for half in (0, 1)]
        with self._still():
            for i, batch in enumerate(self.batches):
                half, share = i % 2, 1 / counts[i % 2]
                for buffer, value in zip(self.model.buffers(), self.start, strict=True):
                    buffer.copy_(value)
                torch.manual_seed(self.seed + i)
                loss = self.task.loss(self.model, batch)
                first = torch.autograd.grad(loss, self.params, create_graph=True)
                gradient += flat(first) / len(self.batches)
                products[half] += share * self._times(first, dw)
                for _ in range(probes):
                    z = torch.randint(0, 2, dw.shape, device=dw.device).to(dw.dtype) * 2 - 1
                    diagonals[half] += share / probes * z * self._times(first, z)
        whole = slice(None) if counts[1] else slice(0, 1)  # a single batch has no second half
        return Look(gradient, products[whole], diagonals[whole])

    def _times(self, first: Sequence[Tensor], vector: Tensor) -> Tensor:
        """The Hessian times a vector, from first derivatives that still have their graph."""
        parts = torch.split(vector, [p.numel() for p in self.params])
        given = [part.view_as(p) for part, p in zip(parts, self.params, strict=True)]
        # A parameter that enters linearly has no second derivative: zeros.
        return flat(torch.autograd.grad(first, self.params, given, retain_graph=True, materialize_grads=True))


class Signals:
    """What each optimizer would precondition by, from one and the same sequence of gradients."""

    def __init__(self, like: Tensor, beta1: float, beta2: float) -> None:
        self.beta1, self.beta2, self.t = beta1, beta2, 0
        self.g, self.m, self.mhat = torch.zeros_like(like), torch.zeros_like(like), torch.zeros_like(like)
        # AGD's b, Adam's v and AdaBelief's: averages of squares of what each is named after.
        self.squares = {key: torch.zeros_like(like) for key in ("s", "g", "g - m")}

    def step(self, g: Tensor) -> Mapping[str, Tensor]:
        self.t += 1
        m = self.m.lerp(g, 1 - self.beta1)
        mhat = m / (1 - self.beta1**self.t)
        found = {"s": mhat - self.mhat, "g": g, "g - m": g - m, "g - g'": g - self.g, "mhat": mhat}
        for key, square in self.squares.items():
            square.lerp_(found[key].square(), 1 - self.beta2)
        self.g, self.m, self.mhat = g, m, mhat
        return found

    @property
    def weight(self) -> float:
        """Of the newest gradient in s: s_t = weight (g_t - mhat_{t-1})."""
        return (1 - self.beta1) / (1 - self.beta1**self.t)


def compare(
    found: Mapping[str, Tensor], signals: Signals, look: Look, probed: bool, part: slice
) -> dict[str, float | None]:
    h = look.product[part]
    vectors = {key: x[part] for key, x in found.items()}
    vectors["unmoved"] = vectors["s"] - signals.weight * h
    numbers = {f"cosine.{key}": cosine(x, h) for key, x in vectors.items()}
    length = float(vectors["s"].norm())
    numbers["share"] = signals.weight * float(h.norm()) / length if length else None  # of H dw in s
    if len(look.products) == 2:
        numbers["halves.product"] = cosine(*look.products[:, part])
    if probed:
        diagonal = look.diagonal[part].abs()
        for key, square in signals.squares.items():
            numbers[f"rank.{RANKED[key]}"] = rank_correlation(square[part], diagonal)
        numbers["rank.|s|"] = rank_correlation(vectors["s"].abs(), diagonal)
        if len(look.diagonals) == 2:
            numbers["halves.diagonal"] = rank_correlation(*look.diagonals[:, part].abs())
    return numbers


def mean_of(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return round(statistics.fmean(known), 5) if known else None


def means(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: mean_of(row.get(key) for row in rows) for key in keys}
