"""Plan: what to run, read from TOML into frozen dataclasses. An unknown key is an error, never ignored."""

import dataclasses
import hashlib
import importlib.resources
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agdopt.race.checks import PlanError, fields_of, need, unknown
from agdopt.race.schedule import Schedule
from agdopt.race.space import Search, Space, fixed, space

PRECISIONS = ("fp32", "tf32", "bf16")
SCALES = ("paper", "reduced")
# What decides no number of a run: prose, which of the runs are wanted, and how its settings were found.
NOT_HASHED = ("name", "about", "cell", "seeds", "optimizers", "search", "baseline", "target")
ENTRY_NOT_HASHED = ("name", "about", "seeds", "search")
# Set by the race itself, never in a file; hashed where they are set.
OWN = ("judge", "source")
# Keys younger than the first records: at these values they change nothing, so those records keep their hash.
LATER: Mapping[str, Any] = {"average_last": 0, "schedule": None}


@dataclass(frozen=True)
class Entry:
    """One optimizer of a plan: the class by its dotted name, and its arguments as they are handed over."""

    name: str
    cls: str
    arguments: Mapping[str, Any]
    about: str = ""
    flat: bool = False  # all parameters in one buffer: exact for elementwise optimizers only
    graph: bool | None = None  # None: as the plan says
    precision: str | None = None
    seeds: tuple[int, ...] | None = None
    nt_asgd: int = 0  # epochs without a better validation metric before SGD goes over to averaging
    schedule: Schedule | None = None  # None: the plan's
    search: Space = field(default_factory=dict)  # arguments to be found by the search, and where

    @property
    def lr(self) -> float:
        return float(self.arguments["lr"])

    def __post_init__(self) -> None:
        where = f"optimizers.{self.name}"
        need(
            re.fullmatch(r"[A-Za-z0-9._-]+", self.name) is not None,
            f"{where}: letters, digits, '.', '-', '_' only",
        )
        lr = self.arguments.get("lr")
        searched = lr is None and "lr" in self.search
        right = isinstance(lr, int | float) and not isinstance(lr, bool) and lr >= 0
        need(searched or right, f"{where}.lr must be a number >= 0, got {lr!r}")
        need(self.precision in (None, *PRECISIONS), f"{where}.precision must be one of {PRECISIONS}")
        need(
            self.nt_asgd == 0 or self.cls == "torch.optim.SGD", f"{where}.nt_asgd is for torch.optim.SGD only"
        )
        need(self.seeds != (), f"{where}.seeds is empty")


@dataclass(frozen=True)
class Plan:
    name: str
    task: Mapping[str, Any]
    optimizers: Mapping[str, Entry]
    epochs: int
    batch: int
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    schedule: Schedule = field(default_factory=Schedule)
    precision: str = "fp32"
    clip_grad_norm: float | None = None
    graph: bool = True
    average_last: int = 0  # final splits: with the mean of the weights after the last n epochs
    about: str = ""
    cell: str = ""  # the paper's row and cell it belongs to, such as T4.resnet20
    search: Search | None = None
    baseline: str = ""  # the entry that the others are compared with
    target: float | None = None  # of the metric: how long it takes to get there is reported
    judge: str = ""  # the only split judged: valid, while searching; else what the task says
    source: str = ""  # a hash of the file of a task of one's own: a changed task is another task

    def __post_init__(self) -> None:
        need(bool(self.name), "a plan needs a name")
        need("name" in self.task, "[task] needs name = 'cifar10' or 'my_module:make_task'")
        need(bool(self.optimizers), "a plan needs at least one [optimizers.NAME]")
        need(self.epochs > 0, f"epochs must be > 0, got {self.epochs}")
        need(self.batch > 0, f"batch must be > 0, got {self.batch}")
        need(bool(self.seeds), "seeds is empty")
        last = self.average_last
        need(0 <= last <= self.epochs, f"average_last must be from 0 to epochs ({self.epochs}), got {last}")
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.baseline and self.baseline not in self.optimizers:
            raise unknown("baseline", self.baseline, self.optimizers)
        for name, entry in self.optimizers.items():
            where = f"optimizers.{name}"
            if self.search is None or self.search.trials == 0:
                need("lr" in entry.arguments, f"{where}.lr is missing: it is to be searched, and nothing is")
                continue
            need(bool(entry.search), f"[{where}.search] is missing: every optimizer gets its trials, or none")
            shared = sorted({*self.seeds, *(entry.seeds or ())} & {*self.search.seeds})
            need(
                not shared,
                f"seeds {shared} are the search's own (search.seed, one a trial): final runs need others",
            )
        clip = self.clip_grad_norm
        need(
            clip is None or clip > 0, f"clip_grad_norm must be > 0, got {clip}; leave it out to clip nothing"
        )

    def recipe(self, entry: Entry) -> dict[str, Any]:
        """All that decides the numbers of this entry's runs, and nothing else, so that a plan may grow."""
        plan = {k: v for k, v in _told(self, NOT_HASHED).items() if v or k not in OWN}
        return {**plan, "optimizer": _told(entry, ENTRY_NOT_HASHED)}

    def hash(self, entry: Entry) -> str:
        text = json.dumps(canonical(self.recipe(entry)), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def runs(self, names: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[tuple[Entry, int]]:
        """Every (entry, seed) asked for, one seed of all entries before the next: an early stop compares."""
        for name in names:
            if name not in self.optimizers:
                raise unknown("optimizer", name, self.optimizers)
        entries = [self.optimizers[name] for name in names or self.optimizers]
        every = seeds or sorted({s for e in entries for s in e.seeds or self.seeds})
        return [(e, s) for s in every for e in entries if seeds or s in (e.seeds or self.seeds)]


def _told(thing: Plan | Entry, leave: Sequence[str]) -> dict[str, Any]:
    values = dataclasses.asdict(thing)
    return {k: v for k, v in values.items() if k not in leave and not (k in LATER and v == LATER[k])}


def canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: canonical(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(v) for v in value]
    # 30 and 30.0 in a TOML file are the same learning rate.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _entry(name: str, table: Mapping[str, Any]) -> Entry:
    where = f"optimizers.{name}"
    need(isinstance(table, Mapping), f"{where} must be a table: [{where}]")
    need("class" in table, f"{where} needs class = 'torch.optim.AdamW' or another dotted name")
    ours = {f.name for f in dataclasses.fields(Entry)} - {"name", "cls", "arguments"}
    own = {k: v for k, v in table.items() if k in ours}
    if "schedule" in own:
        own["schedule"] = Schedule(**fields_of(Schedule, own["schedule"], f"{where}.schedule"))
    own["search"] = space(own.get("search", {}), f"{where}.search")
    rest = {k: fixed(v) for k, v in table.items() if k not in ours | {"class"}}
    return Entry(**fields_of(Entry, {"name": name, "cls": table["class"], "arguments": rest, **own}, where))


def _swept(name: str, table: Any) -> dict[str, Any]:
    """`sweep` lists values of some keys: one entry for each, NAME-KEY-VALUE, all else as written."""
    if not isinstance(table, Mapping) or "sweep" not in table:
        return {name: table}
    rest, sweep = {k: v for k, v in table.items() if k != "sweep"}, table["sweep"]
    where = f"optimizers.{name}.sweep"
    need(isinstance(sweep, Mapping), f"{where} must be a table: key = [values]")
    entries = {}
    for key, values in sweep.items():
        need(isinstance(values, list) and bool(values), f"{where}.{key} must be a list of values")
        for value in values:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            entries[f"{name}-{key}-{text}"] = {**rest, key: value}
    return entries


def from_table(table: Mapping[str, Any]) -> Plan:
    values = fields_of(Plan, table, "the plan", hidden=OWN)
    values["schedule"] = Schedule(**fields_of(Schedule, table.get("schedule", {}), "[schedule]"))
    tables: dict[str, Any] = {}
    for name, entry in values["optimizers"].items():
        tables |= _swept(name, entry)
    values["optimizers"] = {name: _entry(name, t) for name, t in tables.items()}
    if "search" in table:
        values["search"] = Search(**fields_of(Search, table["search"], "[search]"))
    plan = Plan(**values)
    for name, entry in plan.optimizers.items():
        need(plan.search is not None or not entry.search, f"[optimizers.{name}.search] needs [search] trials")
    return plan


def override(table: dict[str, Any], setting: str) -> None:
    """`schedule.milestones=[1]`: the value as TOML, or as text where it is none."""
    path, equals, text = setting.partition("=")
    need(bool(equals), f"--set wants key=value, got {setting!r}")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, key = path.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        need(isinstance(table, dict), f"--set {setting}: {parent} is no table")
    table[key] = value


def _merge(table: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = value


def load(
    source: str | Path,
    settings: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    scale: str = "paper",
) -> Plan:
    """A plan from a file, or one of the package by its name, such as paper/t4-resnet20.

    `changes` are to its uppermost keys (None: as if it were not there), `settings` to any, as text. At scale
    "reduced", [reduced] changes what stands above it: minutes on two cores instead of hours.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    path = Path(source)
    inside = importlib.resources.files("agdopt") / "plans" / f"{source}.toml"
    if path.suffix != ".toml" and not inside.is_file():
        raise PlanError(f"no plan {str(source)!r}: neither a .toml file nor a plan of the package")
    try:
        text = path.read_text("utf-8") if path.suffix == ".toml" else inside.read_text("utf-8")
        table = tomllib.loads(text)
    except UnicodeDecodeError as e:
        raise PlanError(f"{source} is not TOML: it is no UTF-8 text") from e
    except OSError as e:
        raise PlanError(f"cannot read the plan {path}: {e.strerror}") from e
    except tomllib.TOMLDecodeError as e:
        raise PlanError(f"{source} is not TOML: {e}") from e
    reduced = table.pop("reduced", {})
    if scale == "reduced":
        need(bool(reduced), f"{source} has no [reduced] table, so no reduced scale")
        _merge(table, reduced)
    table = {k: v for k, v in {**table, **(changes or {})}.items() if v is not None}
    for setting in settings:
        override(table, setting)
    return from_table(table)
