"""What a probe finds, and what follows for delta and lr: numbers, a table, a plot."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from agdopt.race.show import table

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHARES = (0.99, 0.9, 0.5, 0.1, 0.01)


def adam_steps(beta1: float) -> float:
    """How many times Adam's the steps of AGD are at equal lr, under noise alone: sigma / bhat."""
    return math.sqrt((1 + beta1) / 2) / (1 - beta1)


def adabelief_steps(beta1: float) -> float:
    """How many times AdaBelief's the steps of AGD are at equal lr, once bias corrections are over.

    Its difference is g_t - m_t, which is beta1 / (1 - beta1) (m_t - m_{t-1}).
    """
    return beta1 / (1 - beta1)


@dataclass(frozen=True)
class Layer:
    name: str
    coordinates: int
    quantiles: tuple[float, ...]  # of bhat, at QUANTILES


@dataclass(frozen=True)
class Probe:
    """Where bhat settles: overall, by layer, and what follows for delta and lr."""

    batches: int
    betas: tuple[float, float]
    standardize: bool
    coordinates: int
    layers: tuple[Layer, ...]
    left_out: tuple[str, ...]  # parameters that had no two gradients
    bhat: Tensor  # ascending
    mhat: Tensor  # |mhat| of the same coordinates
    adam: Tensor  # |step| of AdamW at lr 1, of the same coordinates

    def share(self, delta: float) -> float:
        """The share of coordinates that would take adaptive steps."""
        return (self.bhat > delta).float().mean().item()

    def delta(self, share: float) -> float | None:
        """The delta that gives this adaptive share; None where fewer coordinates change at all."""
        if not 0 < share < 1:
            raise ValueError(
                f"share must lie between 0 and 1, got {share}: of all coordinates, those to adapt"
            )
        place = len(self.bhat) - round(share * len(self.bhat))  # of the smallest that is to adapt
        below, above = self.bhat[max(0, place - 1)].item(), self.bhat[min(place, len(self.bhat) - 1)].item()
        return (below if place and below else above / 2) or None

    def lr(self, adamw_lr: float, delta: float) -> float:
        """The rate at which AGD with this delta moves coordinates as far as AdamW at its rate, on average."""
        return adamw_lr * (self.adam.sum() / (self.mhat / self.bhat.clamp_min(delta)).sum()).item()

    def choices(self, adamw_lr: float, shares: Sequence[float] = SHARES) -> list[dict[str, float | None]]:
        deltas = [(share, self.delta(share)) for share in shares]
        return [{"share": s, "delta": d, "lr": self.lr(adamw_lr, d) if d else None} for s, d in deltas]

    def numbers(self, adamw_lr: float, shares: Sequence[float] = SHARES) -> dict[str, Any]:
        """All of it as plain numbers."""
        return {
            "batches": self.batches,
            "betas": list(self.betas),
            "standardize": self.standardize,
            "coordinates": self.coordinates,
            "changing": self.share(0.0),
            "bhat": dict(zip(map(str, QUANTILES), levels(self.bhat), strict=True)),
            "layers": [
                {
                    "name": layer.name,
                    "coordinates": layer.coordinates,
                    "bhat": dict(zip(map(str, QUANTILES), layer.quantiles, strict=True)),
                }
                for layer in self.layers
            ],
            "left_out": list(self.left_out),
            "adamw_lr": adamw_lr,
            "choices": self.choices(adamw_lr, shares),
        }

    def show(self, adamw_lr: float, shares: Sequence[float] = SHARES, stream: TextIO | None = None) -> None:
        """Two tables: where bhat lies, and what to choose."""

        def number(value: float | None) -> str:
            return "-" if value is None else f"{value:.2e}"

        overall = Layer("all", self.coordinates, levels(self.bhat))
        head = ["layer", "coordinates", *(f"{q:.0%}" for q in QUANTILES)]
        rows = [
            [layer.name, f"{layer.coordinates:,}", *map(number, layer.quantiles)]
            for layer in (*self.layers, overall)
        ]
        table("bhat, quantiles", head, rows, stream)
        rows = []
        for row in self.choices(adamw_lr, shares):
            delta, lr = row["delta"], row["lr"]
            rate = lr / delta if lr and delta else None
            rows.append([f"{row['share']:.0%}", number(delta), number(lr), number(rate)])
        head = ["adaptive share", "delta", "lr", "SGD's rate lr / delta"]
        table(f"AGD in place of AdamW at lr {adamw_lr:g}", head, rows, stream)

    def plot(self, path: Path | str) -> None:
        """How bhat is distributed, and the share that a delta makes adaptive."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot(xlabel="bhat, or delta", ylabel="coordinates", xscale="log")
        seen = self.bhat[self.bhat > 0].numpy()
        bins = np.geomspace(seen[0], seen[-1] * 1.001, 80).tolist()
        axes.hist(seen, bins, color="tab:blue", alpha=0.5)
        share = axes.twinx()
        every = slice(None, None, max(1, len(seen) // 1000))
        above = (len(seen) - 1 - np.arange(len(seen))) / len(self.bhat)
        share.plot(seen[every], above[every], color="tab:orange")
        share.set(ylabel="adaptive share at this delta", ylim=(0, 1))
        figure.savefig(path)


def levels(ascending: Tensor) -> tuple[float, ...]:
    return tuple(ascending[round(q * (len(ascending) - 1))].item() for q in QUANTILES)
