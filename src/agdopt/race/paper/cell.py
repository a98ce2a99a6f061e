"""Cell: one claim of the paper, and where its answer comes from (plans/paper/cells.toml)."""

import difflib
import functools
import importlib.resources
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agdopt.race.checks import PlanError, fields_of, unknown

JUDGES = ("best", "beyond", "robust", "switch", "cost", "parameters", "table", "curvature")
NUMERICAL = ("F1", "F3", "F7", "C3", "THEORY")  # rows whose cells stand in race/numerical
ORDER = [*(f"T{i}" for i in range(1, 9)), *(f"F{i}" for i in range(1, 9)), "X1", "X2"]
ORDER += ["THEORY", "C1", "C2", "C3", "E1", "G1"]


@dataclass(frozen=True)
class Cell:
    name: str  # T4.resnet20
    claim: str
    judge: str
    metric: str = ""
    curve: str = ""  # the metric by epoch, where its name is another
    chosen_by: str = ""
    champion: str = "AGD"
    plan: str = ""
    stand_in: str = ""
    hours: float = 0.0
    reason: str = ""
    says: str = ""
    size: str = ""
    model: str = ""
    shape: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)
    quoted: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, Any] = field(default_factory=dict)
    swept: Mapping[str, Any] = field(default_factory=dict)
    switch: Mapping[str, Any] = field(default_factory=dict)
    on_par: Mapping[str, Any] = field(default_factory=dict)
    table: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        if self.judge not in JUDGES:
            raise unknown(f"judge of {self.name}", self.judge, JUDGES)

    @property
    def described(self) -> bool:
        """Nothing is trained for it: it is looked up or counted on the spot."""
        return self.judge in ("parameters", "table")

    @property
    def row(self) -> str:
        return self.name.partition(".")[0]

    def entries_of(self, plan: str) -> list[str]:
        """The patterns of this cell's own plan, or of another that it looks at, too."""
        own = []
        for pattern in (p for patterns in self.entries.values() for p in patterns):
            where, _, entry = pattern.rpartition("/")
            own += [entry] * ((where or self.plan) == plan)
        return own


def place(name: str) -> int:
    row = name.partition(".")[0]
    return ORDER.index(row) if row in ORDER else len(ORDER)


@functools.cache
def cells() -> dict[str, Cell]:
    """Of the trained rows and the descriptions, in the paper's order."""
    text = (importlib.resources.files("agdopt") / "plans/paper/cells.toml").read_text("utf-8")
    tables: dict[str, dict[str, Any]] = tomllib.loads(text)

    def whole(name: str) -> dict[str, Any]:
        own = dict(tables[name])
        base = own.pop("of", None)
        return {**(whole(base) if base else {}), **own}

    found = {}
    for name in sorted(tables, key=place):
        table = whole(name)
        known = {k: v for k, v in table.items() if k != "table"}
        checked = fields_of(Cell, {"name": name, **known}, f'["{name}"]')
        found[name] = Cell(**checked, table=table.get("table", ()))
    return found


def names() -> list[str]:
    """Every cell, numerical ones too, in the paper's order."""
    from agdopt.race.numerical import CELLS  # here: it needs torch to say its version

    return sorted([*cells(), *CELLS], key=place)


def select(wanted: Iterable[str], known: Sequence[str]) -> list[str]:
    """Of ROW or ROW.CELL, in any case; nothing wanted is all."""
    wanted = list(wanted)
    found: list[str] = []
    for word in wanted:
        own = [n for n in known if word.lower() in (n.lower(), n.partition(".")[0].lower())]
        if not own:
            rows = list(dict.fromkeys(n.partition(".")[0] for n in known))
            near = difflib.get_close_matches(word.lower(), [n.lower() for n in [*known, *rows]], n=1)
            exact = [n for n in [*known, *rows] if near and n.lower() == near[0]]
            hint = f"did you mean {exact[0]}?" if exact else f"there are {', '.join(rows)}"
            raise PlanError(f"no row or cell {word!r} of the paper; {hint}; `agdopt paper list` has them all")
        found += own
    return [n for n in known if n in found] if wanted else list(known)
