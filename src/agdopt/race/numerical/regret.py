"""THEORY: how regret grows on convex problems in a box."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agdopt.core.reference import Reference
from agdopt.race.numerical.bounds import theorem2
from agdopt.race.numerical.cell import Cell, Numbers, verdict

Array = NDArray[np.float64]
T, SEEDS, BOX, ALPHA = 30_000, 64, (-1.0, 1.0), 0.1
DELTAS = (1e-8, 1e-2, 1.0)
CHECKPOINTS = np.unique(np.logspace(1, math.log10(T), 40).astype(int))
SETTINGS: dict[str, tuple[Literal["constant", "inverse"], bool]] = {
    "beta1/t, Algorithm 2": ("inverse", True),
    "beta1/t, Algorithm 1": ("inverse", False),
    "constant beta1, Algorithm 2": ("constant", True),
    "constant beta1, Algorithm 1": ("constant", False),
}


def _draws() -> dict[str, Array]:
    """Per problem the numbers c_t that its losses are made of; (T, SEEDS)."""
    random = np.random.default_rng(0)
    uniform = random.uniform(-1, 0.6, (T, SEEDS))
    return {
        "coin": random.choice([-1.0, 1.0], (T, SEEDS)),
        "absolute": uniform,
        "quadratic": uniform,
        "Reddi": np.repeat(np.where(np.arange(T) % 3 == 0, 3.0, -1.0)[:, None], SEEDS, 1),
    }


# loss and gradient at w, given c_t
LOSSES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "coin": (lambda w, c: c * w, lambda w, c: c + 0 * w),
    "absolute": (lambda w, c: np.abs(w - c), lambda w, c: np.sign(w - c)),
    "quadratic": (lambda w, c: (w - c) ** 2 / 2, lambda w, c: w - c),
    "Reddi": (lambda w, c: c * w, lambda w, c: c + 0 * w),
}


def hindsight(problem: str, c: Array) -> Array:
    """The least sum of losses that one fixed point has, for every chain."""
    best: Array
    if problem == "quadratic":
        best = c.mean(0)
    else:
        best = np.median(c, 0) if problem == "absolute" else -np.sign(c.sum(0))
    total: Array = LOSSES[problem][0](best, c).sum(0)
    return total


def exponent(t: Array, regret: Array) -> float | None:
    """Slope of log regret over log t in the last decade."""
    last = t >= t[-1] / 10
    if (regret[last] <= 0).any():
        return None
    return float(np.polyfit(np.log(t[last]), np.log(regret[last]), 1)[0])


@cache
def _walks() -> dict[str, Array]:
    """Cumulated losses at CHECKPOINTS of every setting: (checkpoint, problem, delta, seed)."""
    draws = _draws()
    c = np.stack([draws[p] for p in LOSSES], 1)[:, :, None, :]  # (T, problem, 1, seed)
    found = {}
    for name, (schedule, amsgrad) in SETTINGS.items():
        reference = Reference(
            np.full((len(LOSSES), len(DELTAS), SEEDS), 0.5),
            lr=ALPHA,
            delta=np.array(DELTAS)[:, None],
            amsgrad=amsgrad,
            beta1_schedule=schedule,
            lr_schedule="sqrt",
            box=BOX,
        )
        total, seen = np.zeros_like(reference.w), []
        gradient = np.empty_like(reference.w)
        for t in range(T):
            for i, (loss, slope) in enumerate(LOSSES.values()):
                total[i] += loss(reference.w[i], c[t, i])
                gradient[i] = slope(reference.w[i], c[t, i])
            reference.step(gradient)
            if t + 1 in CHECKPOINTS:
                seen.append(total.copy())
        found[name] = np.array(seen)
    return found


def _regret() -> dict[str, Any]:
    draws, rows = _draws(), []
    best = {p: np.array([hindsight(p, draws[p][:t]) for t in CHECKPOINTS]) for p in LOSSES}
    for name, totals in _walks().items():
        for i, problem in enumerate(LOSSES):
            for j, delta in enumerate(DELTAS):
                regret = (totals[:, i, j] - best[problem]).mean(1)  # over seeds
                rows.append(
                    {
                        "setting": name,
                        "problem": problem,
                        "delta": delta,
                        "exponent": exponent(CHECKPOINTS.astype(float), regret),
                        "regret": float(regret[-1]),
                        "curve": [float(f"{r:.4g}") for r in regret],
                    }
                )
    return {
        "T": T,
        "seeds": SEEDS,
        "alpha": ALPHA,
        "checkpoints": CHECKPOINTS.tolist(),
        "rows": rows,
        "bound_at_T": [[d, theorem2(3.0, 2.0, d, ALPHA, T)] for d in DELTAS],
    }


def _covered(row: dict[str, Any]) -> bool:
    return str(row["setting"]) == "beta1/t, Algorithm 2"


def _regret_judge(n: Numbers) -> tuple[str, str]:
    # sqrt T is a bound from above; a slope over one decade of a few random runs is known to about 0.1.
    limit = 0.6
    rows = [r for r in n["rows"] if _covered(r)]
    over = [r for r in rows if (r["exponent"] or 0) > limit]
    worst = max(rows, key=lambda r: r["exponent"] or 0)
    others = sorted({r["setting"] for r in n["rows"] if not _covered(r) and (r["exponent"] or 0) > limit})
    words = (
        f"regret grows at most like T^{worst['exponent']:.2f} ({worst['problem']}, delta {worst['delta']:g})"
    )
    words += (
        f"; with {', '.join(others) if others else 'none of the other three'} does it grow faster than sqrt T"
    )
    return words, verdict(not over)


CELLS = {
    "THEORY.regret": Cell(
        "Regret is O(sqrt T) on convex problems with beta1_t = beta1 / t and Algorithm 2.",
        "Corollary 3",
        _regret,
        _regret_judge,
    ),
}
