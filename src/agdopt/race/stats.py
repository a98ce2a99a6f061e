"""What a few runs can say and what they cannot (docs/decisions/0006-few-seeds.md): pure functions."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "no difference", "cannot tell"
ENOUGH = 5  # pairs; fewer carry no interval
LEVEL = 0.95
_EXACT = 8  # up to here every resample is counted; above, so many are drawn that the ends do not move
_DRAWS = 20_000

Interval = tuple[float, float]
Outcomes = Mapping[int, float | None]  # the final number by seed; None where the run diverged
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    n: int
    mean: float
    sd: float | None  # of one run, not of the mean
    interval: Interval | None  # for the mean


@dataclass(frozen=True)
class Comparison:
    """One optimizer against the baseline, by the seeds that both have run."""

    differences: Mapping[int, float]  # own - baseline, where both runs finished
    ahead: int  # seeds in which it is the better one
    lost: int  # of the shared seeds: runs that diverged
    baseline_lost: int
    interval: Interval | None = None
    p: float | None = None  # paired t-test; corrected for the number of comparisons by `together`
    verdict: str = UNKNOWN

    @property
    def n(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.differences.values())))


@dataclass(frozen=True)
class Sensitivity:
    """How much of what was tried lies within 10% of the best of it."""

    tried: int
    share: float
    lowest: float  # learning rates within: from, to
    highest: float
    best: float

    def near(self, value: float | None) -> bool:
        """An accuracy of at least 90% of the best one, a loss of at most 110% of the best one."""
        return value is not None and abs(value - self.best) <= (0.1 + 1e-9) * abs(self.best)


def summary(values: Sequence[float]) -> Summary:
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(len(values), float(np.mean(values)), sd, interval(values))


@functools.cache
def _resamples(n: int) -> tuple[Array, Array]:
    """How often each of n values is drawn, a resample a row, and the rows' probabilities."""
    if n > _EXACT:
        drawn = np.random.default_rng(0).multinomial(n, [1 / n] * n, size=_DRAWS)
        return drawn.astype(float), np.full(_DRAWS, 1 / _DRAWS)
    rows = itertools.combinations_with_replacement(range(n), n)
    counts = np.array([np.bincount(row, minlength=n) for row in rows], float)
    orders = [math.factorial(n) / math.prod(math.factorial(int(k)) for k in row) for row in counts]
    return counts, np.array(orders) / n**n


def interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """For the mean: the wider end, on either side, of Student's t and of a studentized bootstrap.

    None where the values cannot carry one.
    """
    from scipy.special import stdtrit  # here, so that `agdopt` starts without it

    x, n = np.asarray(values, float), len(values)
    if n < ENOUGH:
        return None
    centre, sd = x.mean(), x.std(ddof=1)
    if sd <= 1e-12 * abs(centre):
        return None
    counts, weights = _resamples(n)
    z = (x - centre) / sd
    mean = counts @ z / n
    variance = np.maximum(counts @ z**2 / n - mean**2, 0) * n / (n - 1)
    # Steadied: a resample of nearly equal values would have next to no spread, and its t no bound.
    t = mean * np.sqrt(n / (variance + 1 / (4 * n)))
    order = np.argsort(t)
    reached = np.cumsum(weights[order])
    far, near = t[order][np.searchsorted(reached, [(1 + level) / 2 - 1e-12, (1 - level) / 2 - 1e-12])]
    student = stdtrit(n - 1, (1 + level) / 2)
    one = sd / math.sqrt(n)
    return float(centre - max(far, student) * one), float(centre - min(near, -student) * one)


def t_test(values: Sequence[float]) -> float | None:
    """Two-sided p of a mean of 0; None where there is no spread to judge it by."""
    from scipy.special import stdtr

    n, sd = len(values), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    mean = float(np.mean(values)) if values else 0.0
    return float(2 * stdtr(n - 1, -abs(mean) / sd * math.sqrt(n))) if sd > 1e-12 * abs(mean) else None


def compare(own: Outcomes, baseline: Outcomes, maximize: bool) -> Comparison:
    """The difference by seed; its verdict is given by `together`, which knows of the other comparisons."""
    shared = sorted(set(own) & set(baseline))
    pairs = {s: (own[s], baseline[s]) for s in shared}
    differences = {s: a - b for s, (a, b) in pairs.items() if a is not None and b is not None}
    values = list(differences.values())
    return Comparison(
        differences=differences,
        ahead=sum((d > 0) == maximize and d != 0 for d in values),
        lost=sum(a is None for a, _ in pairs.values()),
        baseline_lost=sum(b is None for _, b in pairs.values()),
        interval=interval(values),
        p=t_test(values) if len(values) >= ENOUGH else None,
    )


def holm(ps: Sequence[float]) -> list[float]:
    """Corrected so that among comparisons without any difference one in twenty families claims one."""
    adjusted, so_far = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        so_far = max(so_far, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = so_far
    return adjusted


def together(comparisons: Mapping[str, Comparison], maximize: bool) -> dict[str, Comparison]:
    """Verdicts on several optimizers against one baseline."""
    tested = [(name, c.p) for name, c in comparisons.items() if c.p is not None]
    corrected = dict(zip((n for n, _ in tested), holm([p for _, p in tested]), strict=True))
    judged = {name: replace(c, p=corrected.get(name)) for name, c in comparisons.items()}
    return {name: replace(c, verdict=_verdict(c, maximize)) for name, c in judged.items()}


def _verdict(c: Comparison, maximize: bool) -> str:
    if not c.n and c.lost + c.baseline_lost:
        # Nothing is left to compare: one side never finished.
        return UNKNOWN if c.lost and c.baseline_lost else WORSE if c.lost else BETTER
    found = _found(c, maximize)
    # The runs that finished flatter the side that lost some.
    if (c.lost and found in (BETTER, SAME)) or (c.baseline_lost and found in (WORSE, SAME)):
        return UNKNOWN
    return found


def _found(c: Comparison, maximize: bool) -> str:
    """Two methods must agree: the interval, which stands skew, and the corrected t-test."""
    if c.n >= ENOUGH and not any(c.differences.values()):
        return SAME
    if c.interval is None or c.p is None:
        return UNKNOWN
    apart = not c.interval[0] <= 0 <= c.interval[1]
    if apart != (c.p <= 1 - LEVEL):
        return UNKNOWN
    if not apart:
        return SAME
    return BETTER if (c.mean > 0) == maximize else WORSE


def sign_test(ahead: int, n: int) -> float:
    """How often n fair coins fall so one-sided, or more: true of few seeds of any distribution."""
    few = min(ahead, n - ahead)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(few + 1)) * 0.5**n)


def epochs_to(curve: Sequence[float | None], target: float, maximize: bool) -> int | None:
    """Epochs until the curve first is as good as the target."""
    sign = 1 if maximize else -1
    reached = (i for i, v in enumerate(curve, 1) if v is not None and sign * v >= sign * target)
    return next(reached, None)


def sensitivity(trials: Sequence[tuple[float, float | None]], maximize: bool) -> Sensitivity | None:
    """Of trials as (learning rate, validation metric or None where it diverged)."""
    values = [v for _, v in trials if v is not None]
    if not values:
        return None
    found = Sensitivity(len(trials), 0.0, math.inf, -math.inf, max(values) if maximize else min(values))
    within = [lr for lr, v in trials if found.near(v)]
    return replace(found, share=len(within) / len(trials), lowest=min(within), highest=max(within))
