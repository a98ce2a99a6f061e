"""C3: the variance of mhat, by Monte Carlo, against the paper's formula."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agdopt.core.reference import Reference
from agdopt.race.numerical.cell import Cell, Numbers, verdict

Array = NDArray[np.float64]
CHAINS, STEPS, SHOWN = 100_000, 60, (1, 2, 5, 10, 60)
BETA1 = 0.9
# Of a sample variance of CHAINS normal numbers, relative; four of these is what we call equal.
ERROR = (2 / CHAINS) ** 0.5


def formula(t: int, beta1: float = BETA1) -> float:
    """The paper's Var(mhat_t) / Var(g)."""
    return (1 + beta1**t) * (1 - beta1) / ((1 - beta1**t) * (1 + beta1))


def exact(t: int, rho: float, beta1: float = BETA1) -> float:
    """Var(mhat_t) / Var(g) where gradients k steps apart correlate by rho^k."""
    weights = beta1 ** np.arange(t)[::-1] * (1 - beta1) / (1 - beta1**t)
    apart = np.abs(np.subtract.outer(np.arange(t), np.arange(t)))
    return float(weights @ rho**apart @ weights)


def mhats(draw: Callable[[int], Array]) -> dict[int, Array]:
    """mhat_t at the steps SHOWN, of gradients draw(t), one chain an element."""
    reference, found = Reference(np.zeros(CHAINS), beta1=BETA1), {}
    for t in range(1, STEPS + 1):
        reference.step(draw(t))
        if t in SHOWN:
            found[t] = reference.m / reference.c1
    return found


def _independent() -> dict[str, Any]:
    random = np.random.default_rng(0)
    noises: dict[str, Callable[[int], Array]] = {
        "normal": lambda t: random.normal(size=CHAINS),
        "Laplace": lambda t: random.laplace(scale=0.5**0.5, size=CHAINS),
        "+1 or -1": lambda t: random.choice([-1.0, 1.0], size=CHAINS),
    }
    return {
        "chains": CHAINS,
        "rows": [
            {"noise": name, "t": t, "measured": float(m.var()), "formula": formula(t)}
            for name, draw in noises.items()
            for t, m in mhats(draw).items()
        ],
    }


def _correlated() -> dict[str, Any]:
    rows = []
    for rho in (-0.5, 0.5, 0.9, 0.99):
        random = np.random.default_rng(0)
        g = random.normal(size=CHAINS)

        def draw(t: int, rho: float = rho, random: np.random.Generator = random) -> Array:
            nonlocal g
            if t > 1:
                g = rho * g + (1 - rho**2) ** 0.5 * random.normal(size=CHAINS)
            return g

        measured = float(mhats(draw)[STEPS].var())
        rows.append({"rho": rho, "measured": measured, "exact": exact(STEPS, rho), "formula": formula(STEPS)})
    return {"chains": CHAINS, "t": STEPS, "rows": rows}


def _moving() -> dict[str, Any]:
    """The true gradient moves by `slope` a step, in units of the noise's standard deviation."""
    rows = []
    for slope in (0.0, 0.05, 0.1, 0.2, 0.5):
        random = np.random.default_rng(0)

        def draw(t: int, slope: float = slope, random: np.random.Generator = random) -> Array:
            return slope * t + random.normal(size=CHAINS)

        m = mhats(draw)[STEPS]
        rows.append(
            {"slope": slope, "variance": float(m.var()), "error": float(((m - slope * STEPS) ** 2).mean())}
        )
    return {"chains": CHAINS, "t": STEPS, "rows": rows}


def _independent_judge(n: Numbers) -> tuple[str, str]:
    # A sample variance of Laplace numbers is less certain than one of normal numbers; their average is not.
    off = max(abs(row["measured"] / row["formula"] - 1) for row in n["rows"] if row["t"] > 1)
    last = n["rows"][-1]
    words = f"{last['formula']:.4f} of Var(g) at t = {last['t']}; measured within {off:.1%} at every t; "
    words += "equal, not less, at t = 1"
    return words, verdict(off < 6 * ERROR)


def _correlated_judge(n: Numbers) -> tuple[str, str]:
    said = ", ".join(f"{row['measured']:.3f} at {row['rho']:g}" for row in n["rows"])
    words = f"of Var(g) remain, by the formula {n['rows'][0]['formula']:.3f}; by correlation: {said}"
    return words, verdict(all(row["measured"] < 1 for row in n["rows"]))


def _moving_judge(n: Numbers) -> tuple[str, str]:
    said = ", ".join(f"{row['error']:.2f} at {row['slope']:g}" for row in n["rows"])
    words = f"mean squared error about the true gradient, g's own being 1: {said} standard deviations a step"
    return words, verdict(all(row["error"] < 1 for row in n["rows"]))


CELLS = {
    "C3.independent": Cell(
        "Var(mhat_t) = (1 + beta1^t)(1 - beta1) / ((1 - beta1^t)(1 + beta1)) Var(g), for stationary and "
        "uncorrelated gradients.",
        "the formula, < Var(g)",
        _independent,
        _independent_judge,
    ),
    "C3.correlated": Cell(
        "mhat has the lower variance also where successive gradients are correlated.",
        "assumed uncorrelated, for simplicity",
        _correlated,
        _correlated_judge,
    ),
    "C3.moving": Cell(
        "mhat is the better estimate of the gradient also while the gradient moves.",
        "unbiased, lower variance",
        _moving,
        _moving_judge,
    ),
}
