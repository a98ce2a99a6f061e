"""The search: as many trials for every optimizer, judged on the validation split and nothing else.

Trial n of an optimizer trains with the seed `search.seed + n`, so that its record says which trial it is.
What is tried next is a function of the plan, of n and of the finished trials 0 .. n-1 of the same optimizer:
it is the same however many run side by side, and after any interruption.
"""

import dataclasses
import importlib.util
import itertools
import math
import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agdopt.race.plan import Entry, Plan, canonical
from agdopt.race.record import Record
from agdopt.race.space import Range, Search, Space
from agdopt.race.train import mix

STARTUP = 4  # trials spread evenly before TPE has something to learn from
VALID = "valid"


def trial_plan(plan: Plan, search: Search) -> Plan:
    return dataclasses.replace(plan, epochs=search.epochs or plan.epochs, judge=VALID)


def sampler_of(search: Search) -> str:
    """What will be used here: Optuna's TPE needs Optuna."""
    there = search.sampler != "tpe" or importlib.util.find_spec("optuna") is not None
    return search.sampler if there else "grid"


def score(trial: Record) -> float:
    """Less is better; a diverged trial is worse than any number."""
    value = trial.metrics.get(f"{VALID}.{trial.notes['metric']}")
    if trial.diverged_at is not None or value is None:
        return math.inf
    return -value if trial.notes["maximize"] else value


@dataclass
class Tuning:
    """One optimizer's search. `plan` is that of its trials."""

    plan: Plan
    search: Search
    entry: Entry

    def with_values(self, values: Mapping[str, Any]) -> Entry:
        return dataclasses.replace(self.entry, arguments={**self.entry.arguments, **values})

    def finished(self, records: Iterable[Record]) -> dict[int, Record]:
        """Those of the records that are trials of this very search, by number."""
        found = {}
        for record in records:
            n = record.seed - self.search.seed
            if record.optimizer != self.entry.name or record.seed not in self.search.seeds:
                continue
            if self.search.sampler == "tpe":
                values = self._values(record)
                ours = values is not None and self.plan.hash(self.with_values(values)) == record.plan_hash
            else:
                ours = self.plan.hash(self.suggest(n, {})) == record.plan_hash
            if ours:
                found[n] = record
        return found

    def _values(self, record: Record) -> dict[str, Any] | None:
        """What the trial was tried with; None: it lies outside of the space."""
        arguments, values = record.recipe["optimizer"]["arguments"], {}
        for key, where in self.entry.search.items():
            value = arguments.get(key)
            if isinstance(where, Range):
                if not (isinstance(value, int | float) and where.low <= value <= where.high):
                    return None
            elif (value := _listed(where, value)) is None:
                return None
            else:
                value = where[value]
            values[key] = value
        return values

    def ready(self, finished: Mapping[int, Record]) -> list[int]:
        """The trials that may begin: those that need not know how others end, or whose others have ended."""
        blind = STARTUP if sampler_of(self.search) == "tpe" else self.search.trials
        missing = [n for n in range(self.search.trials) if n not in finished]
        return [n for n in missing if n < blind or n == missing[0]]

    def suggest(self, n: int, finished: Mapping[int, Record]) -> Entry:
        sampler, space = sampler_of(self.search), self.entry.search
        seed = mix(self.search.seed, self.entry.name, n)
        if sampler == "random":
            draw = random.Random(seed)
            return self.with_values({key: _pick(where, draw.random()) for key, where in space.items()})
        if sampler == "grid":
            return self.with_values(grid(space, n, self.search.trials))
        if n < STARTUP:
            # Without the two ends of the ranges, where the best is least likely to be.
            return self.with_values(grid(space, n + 1, min(STARTUP, self.search.trials) + 2))
        past = [(self._values(finished[m]), score(finished[m])) for m in range(n)]
        return self.with_values(_tpe(space, [(v, s) for v, s in past if v is not None], seed))

    def best(self, finished: Mapping[int, Record]) -> Entry:
        """The winner; a setting tried several times counts by its mean, the earlier of equals wins."""
        tried: dict[str, list[int]] = {}
        for n in sorted(finished):
            tried.setdefault(finished[n].plan_hash, []).append(n)
        numbers = min(tried.values(), key=lambda ns: statistics.fmean(score(finished[n]) for n in ns))
        values = self._values(finished[numbers[0]])
        assert values is not None
        return self.with_values(values)


def _listed(where: tuple[Any, ...], value: Any) -> int | None:
    """The index of a value that may have been through JSON."""
    listed = [canonical(v) for v in where]
    return listed.index(canonical(value)) if canonical(value) in listed else None


def _pick(where: Range | tuple[Any, ...], share: float) -> Any:
    """The value that far along, from 0 to 1."""
    if isinstance(where, Range):
        return _short(where, where.at(share))
    return where[min(int(share * len(where)), len(where) - 1)]


def _short(where: Range, value: float) -> float:
    """With the four digits that a person would write."""
    return min(max(float(f"{value:.4g}"), where.low), where.high)


def grid(space: Space, n: int, points: int) -> dict[str, Any]:
    """Point n of a grid with that many points, whatever the number of arguments.

    Lists alone: all combinations, thinned or repeated to the number of points. With ranges: lr, or else the
    first argument, takes evenly spaced values, and the others follow a lattice that leaves no corner empty.
    """
    if not any(isinstance(where, Range) for where in space.values()):
        every = list(itertools.product(*space.values()))  # type: ignore[arg-type]
        return dict(zip(space, every[n * len(every) // points], strict=True))
    keys = sorted(space, key=lambda key: key != "lr")
    root = 2.0
    for _ in range(40):  # of x ** d = x + 1, the golden ratio's kin: its powers fill d - 1 dimensions evenly
        root = (1 + root) ** (1 / len(keys))
    shares = [n / (points - 1) if points > 1 else 0.5]
    shares += [(0.5 + n * root**-j) % 1 for j in range(1, len(keys))]
    return {key: _pick(space[key], share) for key, share in zip(keys, shares, strict=True)}


def _tpe(space: Space, past: list[tuple[dict[str, Any], float]], seed: int) -> dict[str, Any]:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # A list is chosen from by its index: Optuna takes no tuples.
    limits: dict[str, BaseDistribution] = {
        key: FloatDistribution(where.low, where.high, log=where.log)
        if isinstance(where, Range)
        else CategoricalDistribution(range(len(where)))
        for key, where in space.items()
    }
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=STARTUP)
    study = optuna.create_study(sampler=sampler)
    for values, value in past:
        parameters = {k: v if isinstance(w := space[k], Range) else _listed(w, v) for k, v in values.items()}
        study.add_trial(optuna.trial.create_trial(params=parameters, distributions=limits, value=value))
    found = study.ask(limits).params
    return {
        key: _short(where, found[key]) if isinstance(where, Range) else where[found[key]]
        for key, where in space.items()
    }
