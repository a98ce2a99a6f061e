"""THEORY: how large the theorems' bounds are."""

import math
from typing import Any

import numpy as np

from agdopt.race.numerical.cell import Cell, Numbers, verdict
from agdopt.race.numerical.grid import rate_of

BETA1, BETA2 = 0.9, 0.999


def theorem1(G: float, L: float, gap: float, delta: float, alpha: float, steps: float) -> float:
    """Corollary 2's bound on min E||grad f||^2, n = 1; gap = f(w_1) - f*."""
    left1, left2 = 1 - BETA1, 1 - BETA2
    c3 = gap + G**2 * alpha * (delta + 8 * L * alpha) / (left1**8 * delta**2)
    c3 = G / (alpha * left1**2 * left2**2) * (c3 + alpha * BETA1 * G**2 / (left1**3 * delta))
    c4 = 15 * L * G**3 * alpha / (2 * left2**2 * left1**10 * delta**2)
    return (c3 + c4 * math.log(steps)) / (math.sqrt(steps) - math.sqrt(2))


def theorem2(G: float, D: float, delta: float, alpha: float, steps: float) -> float:
    """Corollary 3's bound on the regret, n = 1."""
    left1, root2 = 1 - BETA1, math.sqrt(1 - BETA2)
    c1 = (2 * G + delta) * D**2 / (2 * alpha * root2 * left1**2)
    c2 = alpha * G**2 / left1**3 * (1 + 1 / (delta * root2))
    return (c1 + D**2 * BETA1 / (alpha * root2) + c2) * math.sqrt(steps) / left1


def _bounds() -> dict[str, Any]:
    """One parameter, G = L = 1, a box of width 2, f(w_1) - f* = 1, lr 1e-3, a million steps."""
    rows = []
    powers = np.arange(1, 90)
    for delta in (1e-8, 1e-5, 1e-2, 1.0):
        # What is known without a theorem: ||grad||^2 <= G^2, and regret <= G D T.
        useful1 = [p for p in powers if theorem1(1, 1, 1, delta, 1e-3, 10.0**p) < 1]
        useful2 = [p for p in powers if theorem2(1, 2, delta, 1e-3, 10.0**p) < 2 * 10.0**p]
        rows.append(
            {
                "delta": delta,
                "theorem1": theorem1(1, 1, 1, delta, 1e-3, 1e6),
                "theorem2": theorem2(1, 2, delta, 1e-3, 1e6),
                "theorem1_says_something_from": int(useful1[0]),
                "theorem2_says_something_from": int(useful2[0]),
            }
        )
    t = np.arange(1, 1_000_001)
    sums = {}
    for schedule in ("constant", "inverse"):
        middle = np.cumsum(
            (BETA1 / (t if schedule == "inverse" else 1)) / (2 * rate_of(t, BETA1, BETA2, schedule))
        )
        sums[schedule] = float(np.log10(middle[-1] / middle[len(t) // 10 - 1]))
    return {"T": 1_000_000, "rows": rows, "middle_sum_grows_like_T_to": sums}


def _bounds_judge(n: Numbers) -> tuple[str, str]:
    first = n["rows"][0]
    words = (
        f"at delta {first['delta']:g} and T = {n['T']:,}: Theorem 1 {first['theorem1']:.0e}, Theorem 2 "
        f"{first['theorem2']:.0e}; they say more than |g| <= G from "
        f"T = 1e{first['theorem1_says_something_from']} and 1e{first['theorem2_says_something_from']} on"
    )
    return words, verdict(all(row["theorem1_says_something_from"] <= 9 for row in n["rows"]))


CELLS = {
    "THEORY.bounds": Cell(
        "The rates O(log T / sqrt T) and O(1 / sqrt T) say something about runs of practical length.",
        "Corollaries 2 and 3",
        _bounds,
        _bounds_judge,
    ),
}
