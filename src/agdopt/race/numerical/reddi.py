"""THEORY: Reddi, Kale and Kumar's counterexample: c x at one step in `period`, -x at the others, on [-1, 1].

Over a period -1 is best. An average that forgets makes the rare large step too small beside the others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agdopt.core.reference import Reference
from agdopt.race.numerical.cell import Cell, Numbers, verdict
from agdopt.race.numerical.paths import build

Array = NDArray[np.float64]
T, BOX = 30_000, (-1.0, 1.0)
DELTAS = (1e-8, 1e-2, 1.0, 1.1, 1.2, 1.5, 3.0, 10.0)


@dataclass(frozen=True)
class Case:
    period: int
    beta1: float
    cs: tuple[float, ...]
    beta2: Callable[[Any], Any]  # of c
    alpha: float


CASES = (
    Case(3, 0.0, (3.0, 5.0, 10.0, 100.0), lambda c: 1 / (1 + c**2), 0.1),  # their theorem's
    Case(101, 0.9, (101.0,), lambda c: 0.99 + 0 * c, 1.0),  # their picture's
    Case(101, 0.9, (101.0,), lambda c: 0.999 + 0 * c, 1.0),  # the usual betas
)


def _agd(case: Case, amsgrad: bool) -> tuple[Array, Array]:
    """For every c and delta the mean point of the last period, and regret over T."""
    c = np.array(case.cs)[:, None] + np.zeros(len(DELTAS))
    reference = Reference(
        np.zeros(c.shape),
        lr=case.alpha,
        beta1=case.beta1,
        beta2=case.beta2(c),
        delta=np.array(DELTAS),
        amsgrad=amsgrad,
        lr_schedule="sqrt",
        box=BOX,
    )
    regret, last, steps = np.zeros(c.shape), np.zeros(c.shape), T - T % case.period
    for t in range(1, steps + 1):
        slope = c if t % case.period == 1 else -np.ones_like(c)
        regret += slope * (reference.w + 1)
        last += reference.w / case.period * (t > steps - case.period)
        reference.step(slope)
    return last, regret / steps


def _adam(case: Case, c: float) -> tuple[float, float]:
    w = torch.zeros(1, dtype=torch.float64)
    w.grad = torch.empty_like(w)
    optimizer = build("Adam", w, lr=case.alpha, betas=(case.beta1, float(case.beta2(c))))
    regret, last, steps = 0.0, 0.0, T - T % case.period
    for t in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = case.alpha / math.sqrt(t)
        slope = c if t % case.period == 1 else -1.0
        regret += slope * (w.item() + 1)
        last += w.item() / case.period * (t > steps - case.period)
        w.grad.fill_(slope)
        optimizer.step()
        w.clamp_(*BOX)
    return last, regret / steps


@cache
def _reddi() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for case in CASES:
        agd = {f"AGD, Algorithm {1 + amsgrad}": _agd(case, amsgrad) for amsgrad in (False, True)}
        for i, c in enumerate(case.cs):
            head = {"period": case.period, "C": c, "beta1": case.beta1, "beta2": float(case.beta2(c))}
            ends, regret = _adam(case, c)
            rows.append(
                {**head, "optimizer": "Adam", "delta": None, "ends_at": ends, "regret_over_T": regret}
            )
            for name, (points, regrets) in agd.items():
                rows += [
                    {
                        **head,
                        "optimizer": name,
                        "delta": delta,
                        "ends_at": float(points[i, j]),
                        "regret_over_T": float(regrets[i, j]),
                    }
                    for j, delta in enumerate(DELTAS)
                ]
    return {"T": T, "rows": rows}


def _only(*optimizers: str) -> dict[str, Any]:
    return {"T": T, "rows": [row for row in _reddi()["rows"] if row["optimizer"] in optimizers]}


def cures(rows: list[dict[str, Any]]) -> float | None:
    """The least delta from which on Algorithm 1 ends at the good side."""
    good = None
    for row in sorted(rows, key=lambda r: -r["delta"]):
        if row["ends_at"] > -0.5:
            break
        good = row["delta"]
    return good


def grouped(n: Numbers, optimizer: str) -> list[list[dict[str, Any]]]:
    """The rows of an optimizer, one list a problem."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in n["rows"]:
        if row["optimizer"] == optimizer:
            found.setdefault((row["period"], row["C"], row["beta2"]), []).append(row)
    return list(found.values())


def _judge_first(n: Numbers) -> tuple[str, str]:
    groups = grouped(n, "AGD, Algorithm 1")
    tiny = [rows[0] for rows in groups]
    failing = [row for row in tiny if row["ends_at"] > 0]
    said = ", ".join(f"{row['ends_at']:+.2f}" for row in tiny)
    cured = ", ".join(f"{cures(rows):g}" for rows in groups)
    words = (
        f"ends at {said} where -1 is best (delta {tiny[0]['delta']:g}), and near -1 from delta = {cured} on"
    )
    return words, verdict(not failing)


def _judge_second(n: Numbers) -> tuple[str, str]:
    rows = [row for group in grouped(n, "AGD, Algorithm 2") for row in group]
    worst = max(rows, key=lambda row: row["ends_at"])
    words = f"ends at {worst['ends_at']:+.3f} or nearer to -1, whatever delta"
    return words, verdict(worst["ends_at"] < -0.9)


CELLS = {
    "THEORY.reddi1": Cell(
        "Algorithm 1 converges on Reddi's problems.",
        "not claimed: the theorems ask for Algorithm 2",
        lambda: _only("AGD, Algorithm 1", "Adam"),
        _judge_first,
    ),
    "THEORY.reddi2": Cell(
        "Algorithm 2 converges on Reddi's problems.",
        "Theorem 2",
        lambda: _only("AGD, Algorithm 2"),
        _judge_second,
    ),
}
