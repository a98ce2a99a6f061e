"""What records say of a claim: pure functions, and cautious ones.

From five shared seeds on, race/stats.py decides: interval and corrected t-test must agree. Fewer carry no
interval; then a difference counts only where all runs of one side beat all of the other by FAR standard
deviations. A claim holds when nothing that ran speaks against it and all that it needs was clear.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agdopt.core import Hyper, direction, scalars
from agdopt.race import stats
from agdopt.race.goal import HIGHER
from agdopt.race.paper.cell import Cell
from agdopt.race.paper.evidence import Evidence
from agdopt.race.record import Record
from agdopt.race.stats import BETTER, ENOUGH, SAME, UNKNOWN, WORSE

HOLDS, DOES_NOT, CANNOT_TELL = "holds", "does not", "cannot tell"
FAR = 6.0  # pooled standard deviations: about 1 in 500 by chance for three runs a side, if they are normal


@dataclass(frozen=True)
class Pick:
    """The reading of a column that speaks for it."""

    entry: str
    outcomes: Mapping[int, float | None]  # by seed; None: it diverged

    @property
    def numbers(self) -> list[float]:
        return [v for v in self.outcomes.values() if v is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.numbers) if self.numbers else None

    @property
    def sd(self) -> float | None:
        return statistics.stdev(self.numbers) if len(self.numbers) > 1 else None


@dataclass(frozen=True)
class Duel:
    """The champion against one rival. A positive difference is in the champion's favour."""

    rival: str
    found: str
    difference: float | None
    interval: stats.Interval | None
    seeds: int


@dataclass(frozen=True)
class Finding:
    verdict: str
    words: str
    duels: Sequence[Duel] = field(default_factory=list)


def higher(metric: str) -> bool:
    return metric.rpartition(".")[2] in HIGHER


def number(record: Record, metric: str) -> float | None:
    """The one a run ended with; None where it diverged."""
    curve = record.curves.get(metric) or [None]
    return None if record.diverged_at is not None else record.metrics.get(metric, curve[-1])


def pick(cell: Cell, entries: Mapping[str, Sequence[Record]]) -> Pick | None:
    """The best reading, by what it is chosen by. A reading that diverged is chosen last."""
    by, best = cell.chosen_by or cell.metric, None
    sign = 1 if higher(by) else -1
    for name, runs in entries.items():
        values = [v for r in runs if (v := number(r, by)) is not None]
        rank = sign * statistics.fmean(values) if values else -math.inf
        if runs and (best is None or rank > best[0]):
            best = rank, Pick(name, {r.seed: number(r, cell.metric) for r in runs})
    return best[1] if best else None


def picks(cell: Cell, evidence: Evidence) -> dict[str, Pick]:
    found = {column: pick(cell, entries) for column, entries in evidence.runs.items()}
    return {column: p for column, p in found.items() if p is not None}


def judge(cell: Cell, evidence: Evidence) -> Finding:
    found = _JUDGES[cell.judge](cell, evidence) if evidence.runs or cell.table else Finding(CANNOT_TELL, "")
    if evidence.scale == "reduced" and cell.judge != "cost":
        # Other data or a shorter run is no answer to the claim, whatever it shows.
        words = f"at the reduced scale it {found.verdict}" if found.verdict != CANNOT_TELL else "reduced"
        return Finding(CANNOT_TELL, f"{words}: {found.words}", found.duels)
    return found


def _apart(own: Sequence[float], other: Sequence[float], maximize: bool) -> str:
    """For few runs: better or worse only where it is beyond doubt."""
    if min(len(own), len(other)) < 3:
        return UNKNOWN
    a, b = (own, other) if maximize else ([-v for v in own], [-v for v in other])
    pooled = math.sqrt((statistics.variance(a) + statistics.variance(b)) / 2)
    gap = statistics.fmean(a) - statistics.fmean(b)
    if abs(gap) < FAR * pooled or not gap:
        return UNKNOWN
    return (BETTER if min(a) > max(b) else UNKNOWN) if gap > 0 else WORSE if max(a) < min(b) else UNKNOWN


def duels(cell: Cell, found: Mapping[str, Pick]) -> list[Duel]:
    champion, maximize = found[cell.champion], higher(cell.metric)
    rivals = {n: p for n, p in found.items() if n != cell.champion}
    judged = stats.together(
        {n: stats.compare(champion.outcomes, p.outcomes, maximize) for n, p in rivals.items()}, maximize
    )
    result = []
    for name, c in judged.items():
        verdict = c.verdict
        if 0 < c.n < ENOUGH and not c.lost and not c.baseline_lost:
            verdict = _apart(champion.numbers, rivals[name].numbers, maximize)
        ends = sorted((1 if maximize else -1) * v for v in c.interval) if c.interval else None
        result.append(
            Duel(
                name,
                verdict,
                (c.mean if maximize else -c.mean) if c.n else None,
                (ends[0], ends[1]) if ends else None,
                c.n,
            )
        )
    return result


def _best(cell: Cell, evidence: Evidence) -> Finding:
    found = picks(cell, evidence)
    if cell.champion not in found or len(found) < 2:
        return Finding(CANNOT_TELL, f"{cell.champion} and a rival have not both run")
    fought = duels(cell, found)
    clear = [d for d in fought if d.found == BETTER or _on_par(cell, d)]
    worse = [d for d in fought if d.found == WORSE and d not in clear]
    absent = [c for c in cell.entries if c not in found]
    verdict = DOES_NOT if worse else HOLDS if len(clear) == len(fought) and not absent else CANNOT_TELL
    return Finding(verdict, "; ".join(map(_sentence, _nearest(fought))), fought)


def _on_par(cell: Cell, d: Duel) -> bool:
    """No difference shown is not enough: larger ones must be ruled out."""
    margin = cell.on_par.get(d.rival, 0.0)
    return d.interval is not None and max(map(abs, d.interval)) <= margin


def _nearest(fought: Sequence[Duel]) -> list[Duel]:
    """What decides comes first: lost duels, open ones, then the rest."""
    order = [WORSE, UNKNOWN, SAME, BETTER]
    return sorted(fought, key=lambda d: (order.index(d.found), d.difference or 0.0))


def shown(value: float, signed: bool = False) -> str:
    digits = 4 if abs(value) < 1 and not signed else 2
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text if float(text) or not value else f"{value:{'+' if signed else ''}.1g}"


def _sentence(d: Duel) -> str:
    word = {BETTER: "beats", WORSE: "loses to", SAME: "no difference from", UNKNOWN: "cannot tell from"}
    if d.difference is None:
        return f"{word[d.found]} {d.rival}: no shared seed finished"
    if d.interval:
        sure = f"95% {shown(d.interval[0], True)} to {shown(d.interval[1], True)}"
    else:
        sure = f"{d.seeds} seeds carry no interval" if d.seeds < ENOUGH else "no interval"
    return f"{word[d.found]} {d.rival} by {shown(d.difference, True)} ({sure})"


def _beyond(cell: Cell, evidence: Evidence) -> Finding:
    """Against a number that others quote, which has neither runs nor spread."""
    champion = picks(cell, evidence).get(cell.champion)
    if champion is None or champion.mean is None:
        return Finding(CANNOT_TELL, f"{cell.champion} has not run")
    ((rival, goal),) = cell.quoted.items()
    sign = 1 if higher(cell.metric) else -1
    gaps = [sign * (v - goal) for v in champion.numbers]
    lost = len(gaps) < len(champion.outcomes)
    between = stats.interval(gaps)
    far = len(gaps) >= 3 and abs(statistics.fmean(gaps)) > FAR * statistics.stdev(gaps)
    clear = not between[0] <= 0 <= between[1] if between else far
    mean = statistics.fmean(gaps)
    verdict = CANNOT_TELL if not clear or (lost and mean > 0) else HOLDS if mean > 0 else DOES_NOT
    sure = f"95% {shown(between[0], True)} to {shown(between[1], True)}" if between else f"{len(gaps)} seeds"
    words = f"{shown(champion.mean)}, by {shown(mean, True)} from {rival}'s {goal:g} ({sure})"
    return Finding(verdict, words)


def widths(cell: Cell, column: str, evidence: Evidence) -> dict[int, float]:
    """By seed: decades of the swept value about its best within which the metric is within a point."""
    by_seed: dict[int, dict[float, float | None]] = {}
    for runs in evidence.runs[column].values():
        for r in runs:
            value = float(r.recipe["optimizer"]["arguments"][cell.swept[column]])
            by_seed.setdefault(r.seed, {})[value] = number(r, cell.metric)
    found = {}
    whole = sum(bool(runs) for runs in evidence.runs[column].values())
    for seed, curve in by_seed.items():
        if len(curve) < whole or not any(v is not None for v in curve.values()):
            continue
        points = sorted(curve)
        best = max(points, key=lambda x: -math.inf if (v := curve[x]) is None else v)
        near = [(v := curve[x]) is not None and v >= (curve[best] or 0.0) - 1 for x in points]
        low = high = points.index(best)
        while low and near[low - 1]:
            low -= 1
        while high + 1 < len(points) and near[high + 1]:
            high += 1
        found[seed] = math.log10(points[high] / points[low])
    return found


def _robust(cell: Cell, evidence: Evidence) -> Finding:
    found = {column: widths(cell, column, evidence) for column in cell.entries}
    (rival,) = (c for c in cell.entries if c != cell.champion)
    own, other = list(found[cell.champion].values()), list(found[rival].values())
    if not own or not other:
        return Finding(CANNOT_TELL, f"{rival if own else cell.champion} has not been swept whole")
    words = "; ".join(
        f"{c} within a point of its best over {min(v):.1f}" + (f" to {max(v):.1f}" if max(v) > min(v) else "")
        + f" decades of {cell.swept[c]}"
        for c, v in ((cell.champion, own), (rival, other))
    )  # fmt: skip
    if min(len(own), len(other)) < 3:
        return Finding(CANNOT_TELL, words)
    verdict = HOLDS if min(own) > max(other) else DOES_NOT if max(own) < min(other) else CANNOT_TELL
    return Finding(verdict, words)


def _switch(cell: Cell, evidence: Evidence) -> Finding:
    """Of the share of adaptive coordinates by epoch, in every run of every reading."""
    curves = [
        [v or 0.0 for v in r.curves[cell.metric]]
        for entries in evidence.runs.values()
        for runs in entries.values()
        for r in runs
        if r.diverged_at is None and r.curves.get(cell.metric)
    ]
    after = int(cell.switch.get("after", 0))
    if not curves or (after and min(map(len, curves)) <= after):
        return Finding(CANNOT_TELL, "no run is long enough to tell")
    oks = []
    for curve in curves:
        ok = all(v <= cell.switch.get("below", 1.0) for v in curve)
        ok &= statistics.fmean(curve) >= cell.switch.get("above", 0.0)
        if after:
            ok &= statistics.fmean(curve[after:]) > statistics.fmean(curve[:after])
        oks.append(ok)
    ends = (min(c[0] for c in curves), max(c[0] for c in curves), min(c[-1] for c in curves))
    words = f"adaptive {ends[0]:.1%} to {ends[1]:.1%} after the first epoch, "
    words += f"{ends[2]:.1%} to {max(c[-1] for c in curves):.1%} at the end"
    if len(curves) < 3:
        return Finding(CANNOT_TELL, words)
    return Finding(HOLDS if all(oks) else CANNOT_TELL if any(oks) else DOES_NOT, words)


def costs(evidence: Evidence) -> dict[str, tuple[float, float]]:
    """Seconds a step and bytes, relative to AdamW's; of runs that had the device to themselves."""
    found = {}
    for column, entries in evidence.runs.items():
        alone = [r for runs in entries.values() for r in runs if r.jobs == 1]
        time = [r.seconds_per_step for r in alone if r.seconds_per_step]
        memory = [float(r.peak_memory) for r in alone if r.peak_memory]
        if time and memory:
            found[column] = statistics.median(time), statistics.median(memory)
    if "AdamW" not in found:
        return {}
    base = found["AdamW"]
    return {column: (a / base[0], b / base[1]) for column, (a, b) in found.items()}


def _cost(cell: Cell, evidence: Evidence) -> Finding:
    """About what AdamW's does: within a tenth more, in both. Far less: under two thirds of the time."""
    found = costs(evidence)
    words = ", ".join(f"{c} {a:.2f} in time, {b:.2f} in memory" for c, (a, b) in found.items())
    if not {"AGD", "AdaHessian"} <= set(found):
        return Finding(CANNOT_TELL, words or "no run had a GPU to itself")
    (time, memory), dear = found["AGD"], found["AdaHessian"]
    ok = max(time, memory) <= 1.1 and time < 2 / 3 * dear[0]
    return Finding(HOLDS if ok else DOES_NOT, f"relative to AdamW: {words}")


def _parameters(cell: Cell, evidence: Evidence) -> Finding:
    counts = {r.parameters for entries in evidence.runs.values() for runs in entries.values() for r in runs}
    digits = len(cell.size.rstrip("M").partition(".")[2])
    ok = all(f"{count / 1e6:.{digits}f}M" == cell.size for count in counts)
    return Finding(HOLDS if ok else DOES_NOT, " and ".join(f"{count:,}" for count in sorted(counts)))


def _table(cell: Cell, evidence: Evidence) -> Finding:
    """Of T1 one line is ours to answer for: what the rule keeps is the average of s_t squared."""
    hyper, random = Hyper(), np.random.default_rng(0)
    gradients = random.normal(size=50)
    m = b = average = mean = before = np.zeros(())
    for t, g in enumerate(gradients, 1):
        _, m, b = direction(g, m, b, scalars(t, hyper), np.sqrt, np.maximum, np.minimum)
        average = hyper.beta1 * average + (1 - hyper.beta1) * g
        mhat = average / (1 - hyper.beta1**t)
        mean, before = hyper.beta2 * mean + (1 - hyper.beta2) * (mhat - before) ** 2, mhat
    ok = bool(np.isclose(b, mean, rtol=1e-12))
    return Finding(HOLDS if ok else DOES_NOT, "the table below; AGD's line is what the rule computes")


def _none(cell: Cell, evidence: Evidence) -> Finding:
    return Finding(CANNOT_TELL, "")


_JUDGES = {
    "best": _best,
    "beyond": _beyond,
    "robust": _robust,
    "switch": _switch,
    "cost": _cost,
    "parameters": _parameters,
    "table": _table,
    "none": _none,
}
