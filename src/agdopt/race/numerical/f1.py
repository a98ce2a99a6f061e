"""F1: AGD and Adam on Beale, the points A and B; and why AGD's path is short there."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agdopt.race.numerical.cell import Cell, three, verdict
from agdopt.race.numerical.functions import FUNCTIONS
from agdopt.race.numerical.paths import Path, thinned, walk

BEALE = FUNCTIONS["beale"]
F1_STEPS, MOST_STEPS = 9000, 60_000


@cache
def _pair() -> tuple[Path, Path]:
    """AGD and Adam on Beale at lr 1e-3, past the steps of F1, until AGD has arrived."""
    agd = walk("AGD", BEALE, 1e-3, MOST_STEPS)
    return agd, walk("Adam", BEALE, 1e-3, agd.steps)


def _sizes(path: Path) -> NDArray[np.float64]:
    """||grad||_1 and ||diag H||_1 at every point of F1."""
    x, y = np.array(path.points[: F1_STEPS + 1]).T
    return np.array([np.abs(BEALE.gradient(x, y)).sum(0), np.abs(BEALE.curvature(x, y)).sum(0)])


def _step_length(path: Path, t: int) -> float:
    return math.dist(path.points[t], path.points[t - 1])


def _covered(path: Path, t: int) -> float:
    return 1 - math.dist(path.points[t], BEALE.optimum) / math.dist(BEALE.start, BEALE.optimum)


def _f1_path() -> dict[str, Any]:
    agd, adam = _pair()
    arrives = agd.reached[0]
    return {
        "agd_arrives": arrives,
        "adam_covered_then": _covered(adam, arrives),
        "adam_covered_at_9000": _covered(adam, F1_STEPS),
        "agd_distance_at_9000": math.dist(agd.points[F1_STEPS], BEALE.optimum),
        "points": {
            name: thinned(Path(path.points[: F1_STEPS + 1]), BEALE)
            for name, path in (("AGD", agd), ("Adam", adam))
        },
    }


def _f1_a() -> dict[str, Any]:
    agd, adam = _pair()
    gradient, curvature = _sizes(agd)
    t = int((gradient / curvature).argmax())
    return {
        "t": t,
        "gradient": gradient[t],
        "curvature": curvature[t],
        "step_ratio": _step_length(agd, t) / _step_length(adam, t),
        "at": agd.points[t],
    }


def _f1_b() -> dict[str, Any]:
    agd, _ = _pair()
    gradient, curvature = _sizes(agd)
    t = int((gradient / curvature).argmin())
    longest = max(range(1, F1_STEPS + 1), key=lambda t: _step_length(agd, t))
    return {
        "t": t,
        "gradient": gradient[t],
        "curvature": curvature[t],
        "at": agd.points[t],
        "step": _step_length(agd, t),
        "longest_step": _step_length(agd, longest),
    }


def _literal(part: Callable[[int], float]) -> list[int]:
    """Algorithm 1 on Beale where b sees part(t) * s_t only; steps to the optimum as in Path.reached."""
    w, m, before, b = np.array(BEALE.start), np.zeros(2), np.zeros(2), np.zeros(2)
    path = Path([BEALE.start])
    bounds = [0.1, 1e-2, 1e-3]
    for t in range(1, MOST_STEPS + 1):
        m = 0.9 * m + 0.1 * np.array(BEALE.gradient(*w))
        mhat = m / (1 - 0.9**t)
        b = 0.999 * b + 0.001 * (part(t) * (mhat - before)) ** 2
        before = mhat
        bhat = np.sqrt(b / (1 - 0.999**t))
        # With nothing in b yet, a step as long as any optimizer's first: lr.
        w = w - 1e-3 * (mhat / np.maximum(bhat, 1e-8) if b.all() else np.sign(mhat))
        while bounds and math.dist(w, BEALE.optimum) < bounds[0]:
            bounds.pop(0)
            path.reached.append(t)
        if not bounds:
            break
    return path.reached


def _f1_why() -> dict[str, Any]:
    shares: list[float] = []
    first: list[NDArray[np.float64]] = []

    def watch(state: dict[str, Any], gradient: Any) -> None:
        if not first:
            first.append(gradient.numpy().copy() ** 2)
        of_first = 0.001 * 0.999 ** len(shares) * first[0]
        shares.append(float((of_first / state["exp_avg_sq"].numpy()).min()))

    agd = walk("AGD", BEALE, 1e-3, F1_STEPS, watch=watch, go_on=True)
    return {
        "steps": agd.steps,
        "lr": 1e-3,
        "longest_step": max(_step_length(agd, t) for t in range(1, F1_STEPS + 1)),
        "least_share": min(shares),
        "share_at_the_end": shares[-1],
        "median_share": float(np.median(shares)),
        "share": [[t, float(f"{shares[t - 1]:.5g}")] for t in range(1, F1_STEPS + 1, 100)],
        "reached": {
            "AGD": _literal(lambda t: 1.0),
            "only s_1": _literal(lambda t: float(t == 1)),
            "without s_1": _literal(lambda t: float(t > 1)),
            "Adam": walk("Adam", BEALE, 1e-3, MOST_STEPS).reached,
        },
    }


CELLS = {
    "F1.path": Cell(
        "On Beale, when AGD reaches the optimum, Adam has covered about half of the distance.",
        "about half",
        _f1_path,
        lambda n: (
            f"{n['adam_covered_then']:.0%} when AGD is within 0.1 (step {n['agd_arrives']}), "
            f"{n['adam_covered_at_9000']:.0%} at step {F1_STEPS}",
            verdict(0.4 <= n["adam_covered_then"] <= 0.65),
        ),
    ),
    "F1.arrives": Cell(
        "AGD's path in the figure, which ends at B, reaches the optimum.",
        "reaches the optimal point",
        lambda: {"distance": _f1_path()["agd_distance_at_9000"]},
        lambda n: (f"{n['distance']:.3f} from it at B, step {F1_STEPS}", verdict(n["distance"] < 0.1)),
    ),
    "F1.a": Cell(
        "At A, the largest ||grad||_1 / ||diag H||_1 on AGD's path, its step is 1.89 times Adam's.",
        "22.3 / 25.3, 1.89 times",
        _f1_a,
        lambda n: (
            f"{n['gradient']:.3f} / {n['curvature']:.3f} at step {n['t']}, {n['step_ratio']:.3f} times",
            verdict(
                round(n["gradient"], 1) == 22.3
                and round(n["curvature"], 1) == 25.3
                and abs(n["step_ratio"] - 1.89) < 0.01
            ),
        ),
    ),
    "F1.b": Cell(
        "At B, the smallest, the step is reduced so as not to miss the optimum.",
        "0.2 / 34.8",
        _f1_b,
        lambda n: (
            f"{n['gradient']:.3f} / {n['curvature']:.3f} at step {n['t']}; step {n['step']:.1e}, "
            f"longest on the path {n['longest_step']:.1e}",
            verdict(round(n["gradient"], 1) == 0.2 and round(n["curvature"], 1) == 34.8),
        ),
    ),
    "F1.why": Cell(
        "AGD is fast there because its differences carry the Hessian.",
        "by utilizing Hessian information",
        _f1_why,
        lambda n: (
            f"at least {n['least_share']:.1%} of b is the first gradient squared, all along the path; with "
            f"nothing else in b {three(n['reached']['only s_1'])} steps, AGD {three(n['reached']['AGD'])}",
            verdict(n["least_share"] < 0.5),
        ),
    ),
}
