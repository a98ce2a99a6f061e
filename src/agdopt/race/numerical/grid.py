"""The algorithm, line by line, over a grid of settings and sequences of gradients; do bounds hold on it?

Each inequality of the proofs is about every coordinate alone, so n = 1 here; G = alpha = 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agdopt.core.reference import Reference

Array = NDArray[np.float64]
Schedule = Literal["constant", "sqrt", "inverse"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "sqrt", "inverse")

BETA1, BETA2, DELTA = (0.0, 0.5, 0.9, 0.99), (0.0, 0.9, 0.999, 0.99999), (1e-8, 1e-2, 1.0)
GRADIENTS = ("constant", "alternating", "random signs", "uniform", "rare", "against the average")
AXES = (BETA1, BETA2, DELTA, GRADIENTS)
STEPS = 2000
ROUNDING = 1e-9  # of differences of numbers that grow with 1 / delta


@dataclass
class Check:
    """quantity / bound over everything that was tried: where it is largest, how often it is over 1."""

    tried: int = 0
    over: int = 0
    largest: float = -math.inf
    where: dict[str, Any] = field(default_factory=dict)
    by_beta1: Array = field(default_factory=lambda: np.full(len(BETA1), -math.inf))

    def see(self, quantity: Any, bound: Any, schedule: str, t: int) -> None:
        shape = tuple(map(len, AXES))
        ratio = np.broadcast_to(np.asarray(quantity / bound, dtype=np.float64), shape)
        self.tried += ratio.size
        self.over += int((ratio > 1 + ROUNDING).sum())
        self.by_beta1 = np.maximum(self.by_beta1, ratio.max((1, 2, 3)))
        if ratio.max() > self.largest:
            self.largest = float(ratio.max())
            i = np.unravel_index(int(ratio.argmax()), shape)
            names = ("beta1", "beta2", "delta", "gradients")
            self.where = {n: axis[k] for n, axis, k in zip(names, AXES, i, strict=True)}
            self.where |= {"schedule": schedule, "t": t}

    def numbers(self) -> dict[str, Any]:
        by_beta1 = dict(zip(map(str, BETA1), self.by_beta1.tolist(), strict=True))
        return {
            "tried": self.tried,
            "over": self.over,
            "largest": self.largest,
            "where": self.where,
            "by_beta1": by_beta1,
        }


@dataclass
class Step:
    """What the lemmas speak of, after step t. Arrays over AXES."""

    schedule: Schedule
    t: int
    g: Array
    m: Array
    s: Array
    v: Array
    rate: Array  # the theorems' a_t
    rate_before: Array
    v_before: Array
    beta1: Array
    beta1_next: Array
    moved: Array  # w_{t+1} - w_t
    moved_before: Array


def axis(values: tuple[float, ...], place: int) -> Array:
    return np.array(values).reshape([-1 if i == place else 1 for i in range(len(AXES))])


def beta1_at(t: int, schedule: Schedule) -> Array:
    return axis(BETA1, 0) / {"constant": 1, "sqrt": math.sqrt(t), "inverse": t}[schedule]


def rate_of(t: Any, beta1: Any, beta2: Any, schedule: str, falling: bool = True) -> Any:
    """a_t = alpha_t sqrt(1 - beta2^t) / (1 - beta1_t^t), alpha_t = 1 / sqrt t (or 1)."""
    beta1_t = beta1 / {"constant": 1.0, "sqrt": np.sqrt(t), "inverse": t}[schedule]
    return np.sqrt((1 - beta2**t) / (t if falling else 1)) / (1 - beta1_t**t)


def rate(t: int, schedule: Schedule) -> Array:
    found: Array = rate_of(t, axis(BETA1, 0), axis(BETA2, 1), schedule)
    return found


def gradients(t: int, m: Array, random: np.random.Generator) -> Array:
    """One of each kind of GRADIENTS, none over 1; the last kind always turns against the average."""
    g = np.empty_like(m)
    g[..., 0], g[..., 1] = 1.0, (-1.0) ** t
    g[..., 2], g[..., 3] = random.choice([-1.0, 1.0]), random.uniform(-1, 1)
    g[..., 4] = random.choice([-1.0, 1.0]) * (random.random() < 0.02)
    g[..., 5] = np.where(m[..., 5] > 0, -1.0, 1.0)
    return g


def walks(amsgrad: bool) -> Iterator[Step]:
    """The paper's algorithm, line by line, for every setting of the grid and every schedule."""
    for schedule in SCHEDULES:
        random = np.random.default_rng(0)
        reference = Reference(
            np.zeros(tuple(map(len, AXES))),
            lr=1.0,
            beta1=axis(BETA1, 0),
            beta2=axis(BETA2, 1),
            delta=axis(DELTA, 2),
            amsgrad=amsgrad,
            beta1_schedule=schedule,
            debias="power",
            lr_schedule="sqrt",
        )
        zero = np.zeros_like(reference.w)
        mhat, v, moved = zero, zero, zero
        for t in range(1, STEPS + 1):
            w, mhat_before, v_before, moved_before = reference.w, mhat, v, moved
            g = gradients(t, reference.m, random)
            reference.step(g)
            mhat, moved = reference.m / reference.c1, reference.w - w
            c2 = 1 - axis(BETA2, 1) ** t
            v = np.maximum(np.sqrt(reference.b), axis(DELTA, 2) * np.sqrt(c2))
            yield Step(
                schedule,
                t,
                g,
                reference.m,
                mhat - mhat_before,
                v,
                rate(t, schedule),
                rate(t - 1, schedule) if t > 1 else rate(1, schedule),
                v_before,
                beta1_at(t, schedule),
                beta1_at(t + 1, schedule),
                moved,
                moved_before,
            )
