"""What records come to: the reading that speaks for a column, its duels, a verdict in words."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agdopt.race.goal import HIGHER
from agdopt.race.paper.cell import Cell
from agdopt.race.paper.evidence import Evidence
from agdopt.race.record import Record
from agdopt.race.stats import Interval

HOLDS, DOES_NOT, CANNOT_TELL = "holds", "does not", "cannot tell"


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
    interval: Interval | None
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


def decimals(cell: Cell) -> int:
    """That a reader of such numbers expects."""
    return 4 if cell.metric.endswith(("auc", "bits_per_byte")) else 2
