"""What a search may try, as a plan writes it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agdopt.race.checks import fields_of, need, unknown

SAMPLERS = ("tpe", "random", "grid")


@dataclass(frozen=True)
class Search:
    """The same budget for every optimizer: so many trials, each with a seed of its own from `seed` on."""

    trials: int
    seed: int = 1000
    epochs: int | None = None  # of a trial; None: as many as the plan's
    sampler: str = "tpe"

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise unknown("search.sampler", self.sampler, SAMPLERS)
        need(self.trials >= 0, f"search.trials must be >= 0, got {self.trials}; 0 searches nothing")
        need(self.seed >= 0, f"search.seed must be >= 0, got {self.seed}")
        need(self.epochs is None or self.epochs > 0, f"search.epochs must be > 0, got {self.epochs}")

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.trials)


@dataclass(frozen=True)
class Range:
    """Numbers to search in. A rate is searched on a log scale."""

    low: float
    high: float
    log: bool = False

    def check(self, where: str) -> None:
        need(self.low < self.high, f"{where}: low must be below high, got {self.low} and {self.high}")
        need(self.low > 0 or not self.log, f"{where}: log = true needs low > 0, got {self.low}")

    def at(self, share: float) -> float:
        """The number that far along, from 0 to 1."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(max(math.exp(low + (high - low) * share), self.low), self.high)
        return self.low + (self.high - self.low) * share


Space = Mapping[str, Range | tuple[Any, ...]]


def fixed(value: Any) -> Any:
    """TOML has no tuples; torch's betas are one."""
    return tuple(map(fixed, value)) if isinstance(value, list) else value


def space(table: Any, where: str) -> Space:
    need(isinstance(table, Mapping), f"{where} must be a table: [{where}]")
    found: dict[str, Range | tuple[Any, ...]] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found[key] = limits = Range(**fields_of(Range, value, f"{where}.{key}"))
            limits.check(f"{where}.{key}")
        else:
            ok = isinstance(value, list) and len(value) > 0
            need(ok, f"{where}.{key} must be a list of values or {{low = .., high = ..}}, got {value!r}")
            found[key] = fixed(value)
    return found
