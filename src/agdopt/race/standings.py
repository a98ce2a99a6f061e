"""What the records of a race amount to. words.py says it, page.py shows it, report.py writes it down."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agdopt.race import stats
from agdopt.race.goal import Goal, ReportError, goal, outcome
from agdopt.race.record import Record
from agdopt.race.stats import SAME, Comparison, Outcomes, Sensitivity, Summary

ADAPTIVE = "switch.adaptive"


@dataclass(frozen=True)
class Reached:
    """The way to the target: medians over the runs that got there."""

    runs: int
    of: int
    steps: float | None
    seconds: float | None  # of training, judging left out


@dataclass(frozen=True)
class Entrant:
    """One optimizer with one setting: its runs, and what they amount to."""

    name: str
    place: int  # in the plan; decides its colour
    runs: tuple[Record, ...]
    trials: tuple[tuple[float, float | None], ...]  # learning rate, validation metric or None: it diverged
    outcomes: Outcomes
    summary: Summary | None
    comparison: Comparison | None  # None: the baseline itself
    sensitivity: Sensitivity | None
    reached: Reached | None

    @property
    def finished(self) -> list[Record]:
        return [r for r in self.runs if r.diverged_at is None]

    @property
    def diverged(self) -> list[Record]:
        return [r for r in self.runs if r.diverged_at is not None]

    @property
    def seconds_per_step(self) -> float | None:
        return _median(r.seconds_per_step for r in self.runs)

    @property
    def peak_memory(self) -> float | None:
        return _median(r.peak_memory for r in self.runs)

    @property
    def state_bytes(self) -> float | None:
        """What the optimizer keeps between steps."""
        return _median(r.notes.get("state_bytes") for r in self.runs)

    @property
    def adaptive(self) -> float | None:
        """Share of coordinates that took adaptive steps, at the end."""
        return _median((r.curves.get(ADAPTIVE) or [None])[-1] for r in self.finished)


@dataclass(frozen=True)
class Report:
    """A pure function of records."""

    plan: Mapping[str, Any]  # what all runs share; the optimizers stand with their entrants
    name: str
    goal: Goal
    baseline: str
    entrants: tuple[Entrant, ...]  # the best mean first
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Record]:
        return [r for e in self.entrants for r in e.runs]


def build(
    records: Iterable[Record],
    trials: Iterable[Record] = (),
    plan: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """`plan` may say baseline, target, metric and maximize; what it leaves out the records are asked for."""
    runs, tried = list(records), list(trials)
    if not runs:
        raise ReportError(
            "no finished run on the test split: nothing to report"
            + (f"; the search has {len(tried)} trials so far" if tried else "")
        )
    names = sorted({r.plan for r in runs})
    if len(names) > 1:
        raise ReportError(f"records of several plans ({', '.join(names)}): one report is of one plan")
    said = (runs[-1].recipe, runs[-1].notes, plan or {})
    asked = {k: v for table in said for k, v in table.items() if v not in (None, "")}
    aim = goal(runs, asked)
    groups = _groups(runs, asked.get("optimizers") or ())
    baseline = _baseline(groups, asked.get("baseline"))
    outcomes = {name: {r.seed: outcome(r, aim.metric) for r in own} for name, own in groups.items()}
    judged = stats.together(
        {n: stats.compare(o, outcomes[baseline], aim.maximize) for n, o in outcomes.items() if n != baseline},
        aim.maximize,
    )
    entrants = []
    for place, (name, own) in enumerate(groups.items()):
        numbers = [v for v in outcomes[name].values() if v is not None]
        of_it = tuple((_rate(t), outcome(t, aim.searched)) for t in tried if t.optimizer == own[0].optimizer)
        entrants.append(
            Entrant(
                name,
                place,
                tuple(own),
                of_it,
                outcomes[name],
                stats.summary(numbers) if numbers else None,
                judged.get(name),
                stats.sensitivity(of_it, aim.maximize),
                _reached(own, aim),
            )
        )
    entrants.sort(key=lambda e: _rank(e, aim.maximize))
    shared = {k: v for k, v in {**runs[-1].recipe, **(plan or {})}.items() if not k.startswith("optimizer")}
    if asked.get("baseline") not in (None, baseline, groups[baseline][0].optimizer):
        notes = [*notes, f"The baseline {asked['baseline']} has no run: {baseline} stands in for it."]
    return Report(shared, names[0], aim, baseline, tuple(entrants), (*notes, *_cautions(entrants, tried)))


def _rate(record: Record) -> float:
    return float(record.recipe["optimizer"]["arguments"]["lr"])


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def _rank(entrant: Entrant, maximize: bool) -> tuple[bool, float]:
    s = entrant.summary
    return s is None, 0.0 if s is None else -s.mean if maximize else s.mean


def _groups(runs: Sequence[Record], order: Iterable[str]) -> dict[str, list[Record]]:
    """Runs by optimizer in the plan's order; an optimizer with two settings is two entrants."""
    found: dict[tuple[str, str], list[Record]] = {}
    for name in dict.fromkeys([*order, *(r.optimizer for r in runs)]):
        for r in runs:
            if r.optimizer == name:
                found.setdefault((name, r.plan_hash), []).append(r)
    settings = [name for name, _ in found]
    return {
        name if settings.count(name) == 1 else f"{name} ({key[:4]})": sorted(own, key=lambda r: r.seed)
        for (name, key), own in found.items()
    }


def _baseline(groups: Mapping[str, Sequence[Record]], wanted: str | None) -> str:
    """The one wanted, of its settings the newest, which had the most trials; else AdamW, else the first."""
    own = [name for name, runs in groups.items() if wanted in (name, runs[0].optimizer)]
    classes = {name: runs[0].recipe.get("optimizer", {}).get("cls") for name, runs in groups.items()}
    adamw = [name for name, cls in classes.items() if cls == "torch.optim.AdamW"]
    return (own or adamw or [next(iter(groups))])[-1]


def _reached(runs: Sequence[Record], goal: Goal) -> Reached | None:
    if goal.target is None:
        return None
    steps, seconds = [], []
    for r in runs:
        epochs = stats.epochs_to(r.curves.get(goal.watched, []), goal.target, goal.maximize)
        if epochs is not None:
            each = r.steps / r.epochs
            steps.append(epochs * each)
            pace = [v for v in r.curves.get("ms_per_step", [])[:epochs] if v is not None]
            seconds.append(sum(pace) * each / 1e3 if pace else None)
    return Reached(len(steps), len(runs), _median(steps), _median(seconds))


def _cautions(entrants: Sequence[Entrant], trials: Sequence[Record]) -> list[str]:
    """What a reader must know before believing the comparison."""
    runs = [r for e in entrants for r in e.runs]
    said = []
    for key in dict.fromkeys(k for r in runs for k in r.recipe if k != "optimizer"):
        values = sorted({json.dumps(r.recipe.get(key)) for r in runs})
        if len(values) > 1:
            said.append(f"The terms were not equal; {key}: {', '.join(values)}.")
    counts = {e.name: len(e.trials) for e in entrants}
    if trials and len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {n}" for name, n in counts.items())
        said.append(f"Tuning was not equal; trials: {listed}.")
    twice = sorted({e.runs[0].optimizer for e in entrants if e.name != e.runs[0].optimizer})
    if twice:
        said.append(f"More than one setting of {', '.join(twice)}: each stands as an entrant of its own.")
    devices = sorted({str(r.environment.get("device", "?")) for r in runs})
    if len(devices) > 1:
        said.append(f"Times and memory come from different devices: {', '.join(devices)}.")
    same = [e.comparison.n for e in entrants if e.comparison and e.comparison.verdict == SAME]
    if same:
        more = " Ten seeds would about halve it." if min(same) < 8 else ""
        said.append(f"None shown is not none: the interval says how large a one may have been missed.{more}")
    jobs = max((r.jobs for r in runs), default=1)
    if jobs > 1:
        said.append(
            f"Up to {jobs} runs shared a device: a step alone is faster, and peak memory is that of them all."
        )
    return said
