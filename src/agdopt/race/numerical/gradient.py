"""THEORY: does the gradient vanish, as Theorem 1 says? Under noise that is rare and large to one side."""

import math
from typing import Any, Literal

import numpy as np

from agdopt.core.reference import Reference
from agdopt.race.numerical.cell import Cell, Numbers, verdict

T, CHAINS, START = 30_000, 200, 3.0
CHECKPOINTS = np.unique(np.logspace(2, math.log10(T), 20).astype(int))
Schedule = Literal["constant", "sqrt"]
# beta1's schedule and value, beta2, and an alpha with which T is long enough to tell
SETTINGS: tuple[tuple[Schedule, float, float, float], ...] = (
    ("constant", 0.0, 0.9, 1.0),
    ("constant", 0.9, 0.9, 0.1),
    ("constant", 0.9, 0.999, 0.1),
    ("sqrt", 0.9, 0.999, 1.0),
)


def _walk(schedule: Schedule, beta1: float, beta2: float, alpha: float, amsgrad: bool) -> list[float]:
    """min_{t <= T} E ||grad f(w_t)||^2 at CHECKPOINTS, f(w) = sqrt(1 + w^2), noise +9 (1 in 10) or -1."""
    random = np.random.default_rng(0)
    reference = Reference(
        np.full(CHAINS, START),
        lr=alpha,
        beta1=beta1,
        beta2=beta2,
        amsgrad=amsgrad,
        beta1_schedule=schedule,
        lr_schedule="sqrt",
    )
    least, found = math.inf, []
    for t in range(1, T + 1):
        slope = reference.w / np.sqrt(1 + reference.w**2)
        least = min(least, float((slope**2).mean()))
        if t in CHECKPOINTS:
            found.append(least)
        reference.step(slope + np.where(random.random(CHAINS) < 0.1, 9.0, -1.0))
    return found


def _gradient() -> dict[str, Any]:
    return {
        "T": T,
        "chains": CHAINS,
        "checkpoints": CHECKPOINTS.tolist(),
        "rows": [
            {
                "optimizer": f"Algorithm {1 + amsgrad}",
                "beta1": beta1,
                "schedule": schedule,
                "beta2": beta2,
                "alpha": alpha,
                "curve": _walk(schedule, beta1, beta2, alpha, amsgrad),
            }
            for schedule, beta1, beta2, alpha in SETTINGS
            for amsgrad in (False, True)
        ],
    }


def power(n: Numbers, row: dict[str, Any]) -> float:
    """Slope of log E||grad f||^2 over log T in the last decade; log T / sqrt T has about -0.4 here."""
    t, curve = np.array(n["checkpoints"]), np.array(row["curve"])
    last = t >= t[-1] / 10
    return float(np.polyfit(np.log(t[last]), np.log(curve[last]), 1)[0])


def _judge(n: Numbers) -> tuple[str, str]:
    by = {k: [row for row in n["rows"] if row["optimizer"] == f"Algorithm {k}"] for k in (1, 2)}
    slowest = max(power(n, row) for row in by[2])
    most, stuck = (max(rows, key=lambda row: row["curve"][-1]) for rows in (by[2], by[1]))
    words = f"Algorithm 2: at most {most['curve'][-1]:.2g} at T = {n['T']:,}, falling like T^{slowest:.2f} "
    words += f"at least; Algorithm 1: still {stuck['curve'][-1]:.2g} "
    words += f"with betas {stuck['beta1']:g}, {stuck['beta2']:g}"
    return words, verdict(slowest < -0.35)


CELLS = {
    "THEORY.gradient": Cell(
        "min_t E||grad f(w_t)||^2 falls like log T / sqrt T with Algorithm 2.",
        "Theorem 1, Corollaries 1 and 2",
        _gradient,
        _judge,
    ),
}
