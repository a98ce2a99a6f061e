"""Claims that one optimizer is better than others, or than a number.

From five shared seeds on race/stats.py decides: interval and corrected t-test must agree. Fewer carry no
interval; then a difference counts only where all runs of one side beat all of the other by FAR standard
deviations.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from agdopt.race import stats
from agdopt.race.paper.cell import Cell
from agdopt.race.paper.evidence import Evidence
from agdopt.race.paper.finding import (
    CANNOT_TELL,
    DOES_NOT,
    HOLDS,
    Duel,
    Finding,
    Pick,
    decimals,
    higher,
    picks,
)
from agdopt.race.stats import BETTER, ENOUGH, SAME, UNKNOWN, WORSE

FAR = 6.0  # pooled standard deviations: about 1 in 500 by chance for three runs a side, if they are normal
WORDS = {
    WORSE: "is worse than",
    UNKNOWN: "cannot be told from",
    SAME: "shows no difference from",
    BETTER: "is better than",
}


def apart(own: Sequence[float], other: Sequence[float], maximize: bool) -> str:
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
            verdict = apart(champion.numbers, rivals[name].numbers, maximize)
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


def best(cell: Cell, evidence: Evidence) -> Finding:
    found = picks(cell, evidence)
    if cell.champion not in found or len(found) < 2:
        return Finding(CANNOT_TELL, f"{cell.champion} and a rival have not both run")
    fought = duels(cell, found)
    clear = [d for d in fought if d.found == BETTER or _on_par(cell, d)]
    worse = [d for d in fought if d.found == WORSE and d not in clear]
    absent = [c for c in cell.entries if c not in found]
    verdict = DOES_NOT if worse else HOLDS if len(clear) == len(fought) and not absent else CANNOT_TELL
    return Finding(verdict, sentence(cell, fought), fought)


def _on_par(cell: Cell, d: Duel) -> bool:
    """No difference shown is not enough: larger ones must be ruled out."""
    margin = cell.on_par.get(d.rival, 0.0)
    return d.interval is not None and max(map(abs, d.interval)) <= margin


def sentence(cell: Cell, fought: Sequence[Duel]) -> str:
    """Lost duels first: they decide."""
    digits, parts = decimals(cell), []
    for found, words in WORDS.items():
        told = []
        for d in (d for d in fought if d.found == found):
            span = f", 95% {_span(d.interval, digits)}" if d.interval else ""
            size = "no seed finished on both sides" if d.difference is None else f"{d.difference:+.{digits}f}"
            told.append(f"{d.rival} ({size}{span})")
        if told:
            parts.append(f"{words} {', '.join(told)}")
    bare = {d.seeds for d in fought if not d.interval}
    few = f"; no interval from {min(bare)} seed{'s' * (min(bare) != 1)}" if bare else ""
    return f"{cell.champion} {'; '.join(parts)}{few}"


def _span(between: stats.Interval, digits: int) -> str:
    return f"{between[0]:+.{digits}f} to {between[1]:+.{digits}f}"


def beyond(cell: Cell, evidence: Evidence) -> Finding:
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
    digits = decimals(cell)
    sure = f"95% {_span(between, digits)}" if between else f"no interval from {len(gaps)} seeds"
    words = f"{champion.mean:.{digits}f}, {mean:+.{digits}f} from {rival}'s {goal:g} ({sure})"
    return Finding(verdict, words)
