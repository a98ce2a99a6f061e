"""Which records answer for a cell, at which scale, and what is missing: status is computed, never written."""

import dataclasses
import fnmatch
import functools
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agdopt.race.paper.cell import Cell
from agdopt.race.plan import Entry, Plan, canonical, load
from agdopt.race.record import Record, read

DONE, REDUCED, NOT_YET = "done", "reduced", "not yet run"
SEEDS = 3  # fewer are reduced
Runs = Mapping[str, Mapping[str, list[Record]]]  # by column, by entry


@dataclass(frozen=True)
class Evidence:
    status: str = NOT_YET
    scale: str | None = None  # "paper": the plan's recipe, to the letter
    runs: Runs = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # reduced: how its recipe differs
    missing: tuple[str, ...] = ()  # entries without a run
    edited: int = 0  # runs of settings that the plan no longer has

    @property
    def seeds(self) -> int:
        """The fewest of an entry that has run."""
        counts = [len(found) for entries in self.runs.values() for found in entries.values() if found]
        return min(counts, default=0)


def records(folder: Path) -> list[Record]:
    """Of all races below the folder; speed, numerical and search records have other names or places."""
    files = [f for f in sorted(folder.rglob("records.jsonl")) if f.parent != folder / "numerical"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a run recorded twice counts once
        return [r for r in read(*files).values() if not r.trial] if files else []


@functools.cache
def plan_of(name: str) -> Plan:
    return load(f"paper/{name}")


def entries(cell: Cell, own: str = "") -> dict[str, list[tuple[Plan, Entry]]]:
    """By column; `own` in place of the cell's plan."""
    found: dict[str, list[tuple[Plan, Entry]]] = {}
    for column, patterns in cell.entries.items():
        found[column] = []
        for pattern in patterns:
            where, _, wanted = pattern.rpartition("/")
            plan = plan_of(where or own or cell.plan)
            found[column] += [(plan, plan.optimizers[n]) for n in fnmatch.filter(plan.optimizers, wanted)]
    return found


def gather(cell: Cell, known: Iterable[Record]) -> Evidence:
    """The best there is: the plan's own recipe, else the reduced one with most columns and most training."""
    if not cell.plan:
        return Evidence()
    mine = [r for r in known if not cell.metric or _holds(r, cell)]
    groups, edited = _groups(cell, mine, cell.plan)
    if cell.stand_in:
        whole = plan_of(cell.plan).task
        task = "; ".join(_differences(whole, plan_of(cell.stand_in).task, "task"))
        instead, _ = _groups(cell, mine, cell.stand_in)
        groups |= {(task or cell.stand_in, *changed): runs for changed, runs in instead.items()}
    if not groups:
        return Evidence(edited=edited)
    changed, runs = max(groups.items(), key=_worth)
    counts = {n: len(r) for by_entry in runs.values() for n, r in by_entry.items()}
    missing = tuple(n for n, count in counts.items() if not count)
    # Every run has as many parameters.
    short = cell.judge != "parameters" and min(counts.values()) < SEEDS
    status = REDUCED if changed or short else DONE
    return Evidence(status, "reduced" if changed else "paper", runs, changed, missing, edited)


def _holds(record: Record, cell: Cell) -> bool:
    return record.diverged_at is not None or cell.metric in {**record.metrics, **record.curves}


def _groups(cell: Cell, known: list[Record], own: str) -> tuple[dict[tuple[str, ...], Runs], int]:
    """Runs that share a recipe but for the optimizer, by how it differs from the plan's: () is the plan's."""
    columns = entries(cell, own)
    found: dict[tuple[str, ...], dict[str, dict[str, list[Record]]]] = {}
    edited = 0
    for column, wanted in columns.items():
        for plan, entry in wanted:
            for record in (r for r in known if r.plan == plan.name and r.optimizer == entry.name):
                changed = differences(plan, entry, record)
                if changed is None:
                    edited += 1
                    continue
                empty: dict[str, dict[str, list[Record]]] = {
                    c: {e.name: [] for _, e in w} for c, w in columns.items()
                }
                found.setdefault(changed, empty)[column][entry.name].append(record)
    # What other plans add does not make a group of its own: the cell's plan has not run.
    ours = {e.name for w in columns.values() for p, e in w if p is plan_of(own)}
    some = {
        k: g for k, g in found.items() if any(runs for c in g.values() for n, runs in c.items() if n in ours)
    }
    return dict(some), edited


def differences(plan: Plan, entry: Entry, record: Record) -> tuple[str, ...] | None:
    """Of the recipe, the optimizer left out; (): none. None: the plan has other settings for it now."""
    given = record.recipe["optimizer"]["arguments"]
    searched = {k: given[k] for k in entry.search if k in given}
    entry = dataclasses.replace(entry, arguments={**entry.arguments, **searched})
    if plan.hash(entry) == record.plan_hash:
        return ()
    now, then = canonical(plan.recipe(entry)), canonical(record.recipe)
    if _differences(now.pop("optimizer"), then.pop("optimizer"), "optimizer"):
        return None
    # A hash that differs without a word is a recipe we cannot vouch for.
    return tuple(_differences(now, then, "")) or ("a recipe of another version",)


def _differences(now: Mapping[str, Any], then: Mapping[str, Any], where: str) -> list[str]:
    found = []
    for key in sorted({*now, *then}):
        a, b, name = now.get(key), then.get(key), f"{where}.{key}" if where else key
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += _differences(a, b, name)
        elif a != b and key != "sha256":
            found.append(f"{name} {b}" + ("" if a is None else f", not {a}"))
    return found


def _worth(group: tuple[tuple[str, ...], Runs]) -> tuple[int, bool, int]:
    changed, runs = group
    columns = sum(any(found for found in by_entry.values()) for by_entry in runs.values())
    steps = sum(r.steps for by_entry in runs.values() for found in by_entry.values() for r in found)
    return columns, not changed, steps
