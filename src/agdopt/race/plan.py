"""Plan: what to run, read from TOML into frozen dataclasses. An unknown key is an error, never ignored."""

import dataclasses
import hashlib
import importlib.resources
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agdopt.race.checks import PlanError, fields_of, need, unknown

PRECISIONS = ("fp32", "tf32", "bf16")
KINDS = ("constant", "step", "cosine", "inverse-sqrt")
# What decides no number of a run: prose, and which of the runs are wanted.
NOT_HASHED = ("name", "about", "cell", "seeds", "optimizers")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over training, as a function of the epochs and updates already done."""

    kind: str = "constant"
    milestones: tuple[int, ...] = ()  # step: epochs after which the rate is multiplied by gamma
    gamma: float = 0.1
    warmup: int = 0  # updates over which the rate rises linearly from `start`
    start: float = 0.0
    end: float = 0.0  # cosine: the fraction of the rate it ends at
    per: str = "epoch"  # cosine: lowered once an epoch, or at every update

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("schedule.kind", self.kind, KINDS)
        need(self.per in ("epoch", "update"), f"schedule.per must be 'epoch' or 'update', got {self.per!r}")
        need(self.warmup >= 0, f"schedule.warmup must be >= 0, got {self.warmup}")
        steps = self.kind == "step"
        need(steps == bool(self.milestones), "schedule.milestones belong to kind = 'step', which needs them")
        need(
            self.kind != "inverse-sqrt" or self.warmup > 0, "kind = 'inverse-sqrt' needs schedule.warmup > 0"
        )

    def lr(self, base: float, epoch: int, progress: float, update: int, epochs: int) -> float:
        """`epoch` and `update` count what is finished; `progress` is the share of the present epoch."""
        if update < self.warmup:
            return self.start + (base - self.start) * update / self.warmup
        if self.kind == "step":
            return base * self.gamma ** sum(epoch >= m for m in self.milestones)
        if self.kind == "inverse-sqrt":
            return base * math.sqrt(self.warmup / update)
        if self.kind == "cosine":
            done = (epoch + (progress if self.per == "update" else 0.0)) / epochs
            return base * (self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2)
        return base


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

    @property
    def lr(self) -> float:
        return float(self.arguments["lr"])

    def __post_init__(self) -> None:
        where = f"optimizers.{self.name}"
        need(
            re.fullmatch(r"[A-Za-z0-9_-]+", self.name) is not None, f"{where}: letters, digits, '-', '_' only"
        )
        lr = self.arguments.get("lr")
        need(isinstance(lr, int | float) and lr >= 0, f"{where}.lr must be a number >= 0, got {lr!r}")
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
    about: str = ""
    cell: str = ""  # the paper's row and cell it belongs to, such as T4.resnet20

    def __post_init__(self) -> None:
        need(bool(self.name), "a plan needs a name")
        need("name" in self.task, "[task] needs name = 'cifar10' or 'my_module:make_task'")
        need(bool(self.optimizers), "a plan needs at least one [optimizers.NAME]")
        need(self.epochs > 0, f"epochs must be > 0, got {self.epochs}")
        need(self.batch > 0, f"batch must be > 0, got {self.batch}")
        need(bool(self.seeds), "seeds is empty")
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        clip = self.clip_grad_norm
        need(
            clip is None or clip > 0, f"clip_grad_norm must be > 0, got {clip}; leave it out to clip nothing"
        )

    def recipe(self, entry: Entry) -> dict[str, Any]:
        """All that decides the numbers of this entry's runs, and nothing else, so that a plan may grow."""
        plan = {k: v for k, v in dataclasses.asdict(self).items() if k not in NOT_HASHED}
        own = {k: v for k, v in dataclasses.asdict(entry).items() if k not in ("name", "about", "seeds")}
        return {**plan, "optimizer": own}

    def hash(self, entry: Entry) -> str:
        text = json.dumps(_canonical(self.recipe(entry)), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def runs(self, names: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[tuple[Entry, int]]:
        """Every (entry, seed) asked for, one seed of all entries before the next: an early stop compares."""
        for name in names:
            if name not in self.optimizers:
                raise unknown("optimizer", name, self.optimizers)
        entries = [self.optimizers[name] for name in names or self.optimizers]
        every = seeds or sorted({s for e in entries for s in e.seeds or self.seeds})
        return [(e, s) for s in every for e in entries if seeds or s in (e.seeds or self.seeds)]


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _canonical(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in value]
    # 30 and 30.0 in a TOML file are the same learning rate.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _entry(name: str, table: Mapping[str, Any]) -> Entry:
    where = f"optimizers.{name}"
    need(isinstance(table, Mapping), f"{where} must be a table: [{where}]")
    need("class" in table, f"{where} needs class = 'torch.optim.AdamW' or another dotted name")
    ours = {f.name for f in dataclasses.fields(Entry)} - {"name", "cls", "arguments"}
    own = {k: v for k, v in table.items() if k in ours}
    # TOML has no tuples; torch's betas are one.
    rest = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if k not in ours | {"class"}}
    return Entry(**fields_of(Entry, {"name": name, "cls": table["class"], "arguments": rest, **own}, where))


def from_table(table: Mapping[str, Any]) -> Plan:
    values = fields_of(Plan, table, "the plan")
    values["schedule"] = Schedule(**fields_of(Schedule, table.get("schedule", {}), "[schedule]"))
    values["optimizers"] = {name: _entry(name, t) for name, t in values["optimizers"].items()}
    return Plan(**values)


def _override(table: dict[str, Any], setting: str) -> None:
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


def load(source: str | Path, settings: Sequence[str] = ()) -> Plan:
    """A plan from a file, or one of the package by its name, such as paper/t4-resnet20."""
    path = Path(source)
    inside = importlib.resources.files("agdopt") / "plans" / f"{source}.toml"
    if path.suffix != ".toml" and not inside.is_file():
        raise PlanError(f"no plan {str(source)!r}: neither a .toml file nor a plan of the package")
    try:
        text = path.read_text() if path.suffix == ".toml" else inside.read_text()
        table = tomllib.loads(text)
    except OSError as e:
        raise PlanError(f"cannot read the plan {path}: {e.strerror}") from e
    except tomllib.TOMLDecodeError as e:
        raise PlanError(f"{source} is not TOML: {e}") from e
    for setting in settings:
        _override(table, setting)
    return from_table(table)
