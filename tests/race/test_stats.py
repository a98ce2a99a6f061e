"""What is claimed of a few runs holds: known answers, and races simulated by the thousand."""

from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import false_discovery_control, ttest_rel

from agdopt.race.stats import (
    BETTER,
    SAME,
    UNKNOWN,
    WORSE,
    compare,
    epochs_to,
    holm,
    interval,
    sensitivity,
    sign_test,
    summary,
    t_test,
    together,
)


def seeds(values):
    return dict(enumerate(values, 1))


def verdict(own, baseline, maximize=True):
    return together({"a": compare(seeds(own), seeds(baseline), maximize)}, maximize)["a"].verdict


# Differences of five seeds, their true mean, and how often the page says that the interval holds it.
DRAWS = {
    "normal": (lambda r: r.normal(size=5), 0.0, 0.95),
    "in coarse steps": (lambda r: np.floor(2 * r.normal(size=5) + r.uniform()) / 2, 0.0, 0.95),
    "skewed to the left": (lambda r: -r.lognormal(0, 0.5, size=5), -np.exp(0.125), 0.94),
    "skewed as an exponential": (lambda r: r.exponential(size=5), 1.0, 0.91),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_the_interval_holds_the_mean_as_often_as_the_page_says(draw):
    sample, mean, claimed = DRAWS[draw]
    r = np.random.default_rng(0)
    races = [list(sample(r)) for _ in range(2000)]
    ends = np.array([interval(x) for x in races])
    # A standard error of 0.006, where a percentile bootstrap is 0.1 short.
    assert np.mean((ends[:, 0] <= mean) & (mean <= ends[:, 1])) > claimed - 0.006
    # Not by being useless: no more than half again as wide as Student's.
    student = 2 * 2.776 * np.std(races, axis=1, ddof=1) / np.sqrt(5)
    assert np.median((ends[:, 1] - ends[:, 0]) / student) < 1.5


def percentile(x):
    means = np.random.default_rng(0).choice(x, (1000, len(x))).mean(1)
    return np.quantile(means, [0.025, 0.975])


def student(x):
    return np.mean(x) + stdtrit(4, [0.025, 0.975]) * np.std(x, ddof=1) / np.sqrt(5)


def test_the_table_that_decided_is_true():
    text = (Path(__file__).parents[2] / "docs/decisions/0006-few-seeds.md").read_text()
    draws = ("normal", "skewed to the left", "skewed as an exponential")
    for name, method in {
        "percentile bootstrap": percentile,
        "Student's t": student,
        "ours": interval,
    }.items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| {name} |"))
        for draw, cell in zip(draws, row.strip("|").split("|")[1:], strict=True):
            sample, mean, _ = DRAWS[draw]
            r = np.random.default_rng(0)
            ends = np.array([method(list(sample(r))) for _ in range(2000)])
            held = np.mean((ends[:, 0] <= mean) & (mean <= ends[:, 1]))
            assert held == pytest.approx(float(cell), abs=0.0151), (name, draw)


@pytest.mark.parametrize("draw", DRAWS)
def test_equal_optimizers_are_seldom_told_apart(draw):
    r = np.random.default_rng(1)
    said = []
    for _ in range(600):
        base, *others = (seeds(DRAWS[draw][0](r)) for _ in range(6))
        judged = together({str(i): compare(o, base, True) for i, o in enumerate(others)}, True)
        said.append({c.verdict for c in judged.values()} & {BETTER, WORSE})
    assert np.mean([bool(s) for s in said]) < 0.07


def test_a_large_difference_is_found():
    r = np.random.default_rng(2)
    found = [verdict(r.normal(4, 1, 5), r.normal(0, 0.1, 5)) for _ in range(200)]
    assert found.count(BETTER) > 170
    assert WORSE not in found


def test_the_interval_follows_shift_scale_and_sign():
    x = np.array([0.3, -0.1, 0.8, 0.4, 0.2, 1.9])
    low, high = interval(list(x))
    assert interval(list(10 * x + 3)) == pytest.approx((10 * low + 3, 10 * high + 3))
    assert interval(list(-x)) == pytest.approx((-high, -low))
    assert interval(list(x)) == (low, high)  # no draw of its own to differ by


def test_counting_all_resamples_and_drawing_them_agree(monkeypatch):
    x = [0.3, -0.1, 0.8, 0.4, 0.2, 1.9, 0.6, 0.5]
    exact = interval(x)
    monkeypatch.setattr("agdopt.race.stats._EXACT", 5)
    interval.__globals__["_resamples"].cache_clear()
    assert interval(x) == pytest.approx(exact, abs=0.03)
    interval.__globals__["_resamples"].cache_clear()


def test_what_carries_no_interval():
    assert interval([1.0, 2.0, 3.0, 4.0]) is None
    assert interval([1.0] * 5) is None


def test_p_values_are_those_of_scipy():
    a, b = [0.91, 0.93, 0.90, 0.95, 0.92], [0.90, 0.91, 0.91, 0.92, 0.90]
    assert t_test([x - y for x, y in zip(a, b, strict=True)]) == pytest.approx(ttest_rel(a, b).pvalue)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert min(holm([0.01, 0.04, 0.03])) >= min(false_discovery_control([0.01, 0.04, 0.03]))


def test_three_seeds_of_one_sign_are_one_race_in_four():
    assert [sign_test(k, 3) for k in range(4)] == [0.25, 1.0, 1.0, 0.25]
    assert sign_test(0, 0) == 1.0


def test_verdicts():
    base = [0.90, 0.91, 0.89, 0.92, 0.90]
    up = [0.95, 0.97, 0.93, 0.98, 0.96]
    assert verdict(up, base) == BETTER
    assert verdict(up, base, maximize=False) == WORSE
    assert verdict(base, up) == WORSE
    assert verdict([0.91, 0.90, 0.90, 0.91, 0.91], base) == SAME
    assert verdict(base, base) == SAME
    assert verdict(up[:4], base) == UNKNOWN
    assert verdict([b + 0.05 for b in base], base) == UNKNOWN  # the same in every seed: no spread to go by


def test_runs_that_diverged_speak_against_their_side():
    base = [0.90, 0.91, 0.89, 0.92, 0.90, 0.91]
    up, down = [0.95, 0.97, 0.93, 0.98, 0.96, None], [0.80, 0.83, 0.81, 0.79, 0.80, None]
    assert verdict(up, base) == UNKNOWN
    assert verdict(down, base) == WORSE
    assert verdict(base, up) == UNKNOWN
    assert verdict(base, down) == BETTER
    assert verdict([None] * 6, base) == WORSE
    assert verdict(base, [None] * 6) == BETTER
    assert verdict([None] * 6, [None] * 6) == UNKNOWN


def test_comparisons_pay_for_each_other():
    base, a = [0.90, 0.91, 0.89, 0.92, 0.90], [0.911, 0.917, 0.909, 0.926, 0.906]
    alone = together({"a": compare(seeds(a), seeds(base), True)}, True)["a"]
    others = {str(i): compare(seeds(base[i:] + base[:i]), seeds(base), True) for i in range(1, 5)}
    among = together({"a": compare(seeds(a), seeds(base), True), **others}, True)["a"]
    assert (alone.verdict, among.verdict) == (BETTER, UNKNOWN)
    assert among.interval == alone.interval
    assert among.p == pytest.approx(5 * alone.p)


def test_summary():
    s = summary([1.0, 2.0, 3.0])
    assert (s.n, s.mean, s.sd, s.interval) == (3, 2.0, 1.0, None)
    assert summary([1.0]).sd is None


def test_epochs_to_a_target():
    assert epochs_to([0.5, None, 0.9, 0.8], 0.8, True) == 3
    assert epochs_to([0.5, 0.4], 0.5, False) == 1
    assert epochs_to([0.5, 0.6], 0.8, True) is None


def test_within_ten_percent_of_the_best():
    found = sensitivity([(1e-4, 0.5), (1e-3, 0.81), (1e-2, 0.9), (1e-1, None)], True)
    assert (found.tried, found.share, found.lowest, found.highest) == (4, 0.5, 1e-3, 1e-2)
    assert sensitivity([(1.0, 2.0), (2.0, 2.2), (3.0, 2.3)], False).share == pytest.approx(2 / 3)
    assert sensitivity([(1.0, None)], True) is None
