"""A report in plain language, and its table."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agdopt.race import stats
from agdopt.race.record import Record
from agdopt.race.standings import Entrant, Report
from agdopt.race.stats import BETTER, ENOUGH, SAME, UNKNOWN, WORSE, Comparison

TITLES = {
    BETTER: "Better than",
    SAME: "No difference shown from",
    WORSE: "Worse than",
    UNKNOWN: "Cannot tell from",
}


def listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def number(value: float | None) -> str:
    """Three significant digits, without an exponent where it reads well."""
    if value is None:
        return "–"
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}" if abs(value) >= 1e-3 else f"{value:.2g}"


def decimals(report: Report) -> int:
    """As many as the run-to-run spread makes meaningful, for the whole table."""
    spreads = [e.summary.sd for e in report.entrants if e.summary and e.summary.sd]
    return min(6, max(0, math.ceil(-math.log10(min(spreads) / 3.55)))) if spreads else 3


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def quality(e: Entrant, digits: int) -> str:
    if e.summary is None:
        return "–"
    spread = "" if e.summary.sd is None else f" ± {e.summary.sd:.{digits}f}"
    return f"{e.summary.mean:.{digits}f}{spread}"


def difference(e: Entrant, digits: int) -> str:
    c = e.comparison
    return "baseline" if c is None else _signed(c.mean, digits) if c.n else "–"


def span(c: Comparison, digits: int) -> str:
    assert c.interval is not None
    return f"{_signed(c.interval[0], digits)} to {_signed(c.interval[1], digits)}"


def headline(report: Report) -> str:
    """One sentence an impatient reader may leave with."""
    others = [e for e in report.entrants if e.comparison is not None]
    if not others:
        return f"Only {report.baseline} has run: there is nothing to compare it with."
    groups: dict[str, list[str]] = {}
    for e in others:
        groups.setdefault(e.comparison.verdict if e.comparison else UNKNOWN, []).append(e.name)
    if set(groups) == {UNKNOWN}:
        most = max(c.n + max(c.lost, c.baseline_lost) for e in others if (c := e.comparison))
        if most < ENOUGH:
            shared = f"{count(most, 'seed')} shared with {report.baseline}"
            return f"No verdict yet: {shared}, and a verdict takes {ENOUGH}."
        return f"These runs cannot tell {listed(groups[UNKNOWN])} from {report.baseline}."
    said = [f"{title} {report.baseline}: {listed(groups[v])}." for v, title in TITLES.items() if v in groups]
    return " ".join(said)


def sentence(report: Report, e: Entrant) -> str:
    """What is claimed of one optimizer, how sure it is, and what it is not."""
    return " ".join(filter(None, (_compared(report, e), _diverged(e), _thin(report, e))))


def _compared(report: Report, e: Entrant) -> str:
    c, digits, base, metric = e.comparison, decimals(report), report.baseline, report.goal.metric
    if c is None:
        return (
            f"{e.name} is the baseline: {metric} {quality(e, digits)} over {count(len(e.finished), 'run')}."
        )
    if not c.n:
        lost = bool(c.lost + c.baseline_lost)
        why = "no seed finished on both sides" if lost else "they share no seed"
        return f"{e.name}: {c.verdict} {'from' if c.verdict == UNKNOWN else 'than'} {base}; {why}."
    size = f"{abs(c.mean):.{digits}f}"
    way = f"{size} {'higher' if c.mean > 0 else 'lower'}" if float(size) else "the same"
    moved = f"its mean {metric} is {way}"
    if c.n < ENOUGH:
        return f"{e.name}: cannot tell from {base} by {count(c.n, 'seed')}; {moved}, {_ahead(c)}."
    if c.interval is None:
        if c.verdict == SAME:
            return f"{e.name}: no difference from {base}; {metric} is the same in every seed."
        return (
            f"{e.name}: cannot tell from {base}; {moved}, but equal differences show no spread to judge by."
        )
    where = f"95% interval {span(c, digits)}"
    if c.verdict in (BETTER, WORSE):
        return f"{e.name}: {c.verdict} than {base}; {moved} ({where}), {_ahead(c)}."
    if c.verdict == SAME:
        return f"{e.name}: no difference from {base} shown; {moved}, but the {where} holds 0."
    if c.lost or c.baseline_lost:
        why = "the runs that finished flatter the side that lost some"
    else:
        why = f"interval and corrected t-test (p = {number(c.p)}) disagree: more seeds would settle it"
    return f"{e.name}: cannot tell from {base}; {moved} ({where}), but {why}."


def _ahead(c: Comparison) -> str:
    """Few seeds still carry a sign test, which holds whatever the numbers' distribution."""
    ties = sum(d == 0 for d in c.differences.values())
    ahead = f"and it is the better one in {c.ahead} of {count(c.n, 'seed')}"
    chance = stats.sign_test(c.ahead, c.n - ties)
    if c.n >= ENOUGH or c.n == 1 or chance > 0.5:
        return ahead
    return f"{ahead}, as one-sided as two equal optimizers look in {100 * chance:.0f} of 100 races"


def _diverged(e: Entrant) -> str:
    if not e.diverged:
        return ""
    at = listed(f"step {r.diverged_at} (seed {r.seed}{_by(r)})" for r in e.diverged)
    kept = " Means are over the others." if e.finished else ""
    return f"{len(e.diverged)} of {count(len(e.runs), 'run')} diverged, at {at}.{kept}"


def _by(run: Record) -> str:
    what = run.notes.get("diverged_by")
    return f", by {what}" if what else ""


def _thin(report: Report, e: Entrant) -> str:
    c = e.comparison
    own = next(x for x in report.entrants if x.name == report.baseline)
    seeds = c.n + len({r.seed for r in e.diverged + own.diverged}) if c else 0
    if c is None or not c.n or max(len(e.runs), len(own.runs)) <= seeds:
        return ""
    return f"Only the {count(c.n, 'seed')} shared with {report.baseline} count in the comparison."


def columns(report: Report) -> dict[str, Callable[[Entrant], str]]:
    """The table: what is known of no entrant has no column."""
    digits, entrants = decimals(report), report.entrants
    table: dict[str, Callable[[Entrant], str]] = {
        "optimizer": lambda e: e.name,
        report.goal.metric: lambda e: quality(e, digits),
        "runs": lambda e: f"{len(e.finished)} of {len(e.runs)}" if e.diverged else str(len(e.runs)),
        f"vs {report.baseline}": lambda e: difference(e, digits),
    }
    if any(e.comparison and e.comparison.interval for e in entrants):
        table["95% interval"] = lambda e: (
            span(e.comparison, digits) if e.comparison and e.comparison.interval else "–"
        )
    table["verdict"] = lambda e: e.comparison.verdict if e.comparison else ""
    if any(e.seconds_per_step for e in entrants):
        table["ms/step"] = lambda e: number(e.seconds_per_step and 1e3 * e.seconds_per_step)
    if any(e.peak_memory for e in entrants):
        table["peak MB"] = lambda e: "–" if e.peak_memory is None else f"{e.peak_memory / 1e6:,.0f}"
    if any(e.state_bytes for e in entrants):
        table["state MB"] = lambda e: "–" if e.state_bytes is None else number(e.state_bytes / 1e6)
    if report.goal.target is not None:
        table[f"steps to {report.goal.target:g}"] = lambda e: _reached(e)
        table["seconds"] = lambda e: number(e.reached.seconds if e.reached else None)
    if any(e.sensitivity for e in entrants):
        table["lr within 10%"] = lambda e: f"{100 * e.sensitivity.share:.0f}%" if e.sensitivity else "–"
    if any(e.adaptive is not None for e in entrants):
        table["adaptive"] = lambda e: "–" if e.adaptive is None else f"{100 * e.adaptive:.1f}%"
    return table


def _reached(e: Entrant) -> str:
    to = e.reached
    if to is None or to.steps is None:
        return "never"
    return number(to.steps) + (f" ({to.runs} of {to.of})" if to.runs < to.of else "")


def rows(report: Report) -> list[dict[str, Any]]:
    """For programs: one object an optimizer, plain numbers, null where something is not known."""
    return [_row(report, e) for e in report.entrants]


def _row(report: Report, e: Entrant) -> dict[str, Any]:
    c, s, lr, to = e.comparison, e.summary, e.sensitivity, e.reached
    low, high = (c.interval if c else None) or (None, None)
    first = e.runs[0]
    recipe: Mapping[str, Any] = first.recipe.get("optimizer", {})
    return {
        "plan": report.name,
        "optimizer": e.name,
        "class": recipe.get("cls"),
        "arguments": recipe.get("arguments"),
        "metric": report.goal.metric,
        "maximize": report.goal.maximize,
        "runs": len(e.runs),
        "seeds": [r.seed for r in e.runs],
        "diverged_at": {str(r.seed): r.diverged_at for r in e.diverged},
        "mean": s and s.mean,
        "sd": s and s.sd,
        "baseline": report.baseline,
        "pairs": c and c.n,
        "difference": c.mean if c and c.n else None,
        "low": low,
        "high": high,
        "p": c and c.p,
        "verdict": c.verdict if c else "baseline",
        "sentence": sentence(report, e),
        "seconds_per_step": e.seconds_per_step,
        "peak_memory": e.peak_memory,
        "state_bytes": e.state_bytes,
        "target": report.goal.target,
        "reached": to and to.runs,
        "steps_to_target": to and to.steps,
        "seconds_to_target": to and to.seconds,
        "trials": len(e.trials),
        "lr_share_within_10_percent": lr and lr.share,
        "lr_within_10_percent": [lr.lowest, lr.highest] if lr else None,
        "adaptive_share": e.adaptive,
    }
