"""Record: one finished run, one JSON line. Files of records only ever grow."""

import dataclasses
import fcntl
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
Key = tuple[str, str, int]


class RecordError(ValueError):
    """Records that cannot be used as they are; the message names file and line."""


@dataclass(frozen=True)
class Record:
    plan: str
    plan_hash: str  # of all that decides this run's numbers: Plan.hash(entry)
    optimizer: str  # the entry's name in the plan
    seed: int
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    versions: Mapping[str, str | None]
    commit: str | None
    parameters: int
    epochs: int
    steps: int
    metrics: Mapping[str, float | None]
    curves: Mapping[str, list[float | None]]  # one number an epoch
    seconds: float  # wall time of the whole run, beside whatever else ran
    seconds_per_step: float | None  # median over epochs, training only
    peak_memory: int | None  # bytes on the device, of all runs side by side
    jobs: int  # runs side by side when it ended
    graph: str  # how much of a step was one CUDA graph: step, backward, none
    diverged_at: int | None = None  # the update whose loss was not finite
    finished: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def key(self) -> Key:
        return self.plan_hash, self.optimizer, self.seed


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity: such a number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def append(path: Path, record: Record) -> None:
    """One locked write, on disk when this returns: runs in other processes may share the file."""
    line = json.dumps(_finite(dataclasses.asdict(record)), allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.write(line.encode())
        f.flush()
        os.fsync(f.fileno())


def repair(path: Path) -> None:
    """Set aside a last line that a killed process left half written."""
    with open(path, "r+b") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        text = f.read()
        whole = text.rfind(b"\n") + 1
        if whole == len(text):
            return
        broken = path.with_name(path.name + ".broken")
        with open(broken, "ab") as aside:
            aside.write(text[whole:] + b"\n")
        f.truncate(whole)
    warnings.warn(f"{path}: the last line was half written; moved to {broken}", stacklevel=2)


def _parse(line: str, where: str) -> Record:
    try:
        table = json.loads(line)
        schema = table["schema"]
    except (ValueError, KeyError, TypeError) as e:
        raise RecordError(f"{where} is no record: {e}") from e
    if schema > SCHEMA:
        raise RecordError(
            f"{where} has schema {schema}, this agdopt reads up to {SCHEMA}: use a newer agdopt"
        )
    try:
        return Record(**table)
    except TypeError as e:
        raise RecordError(f"{where} is no record of schema {schema}: {e}") from e


def read(*sources: Path) -> dict[Key, Record]:
    """The records of files, or of all *.jsonl below folders, by their key. The first of equal keys counts."""
    files: Iterable[Path] = [f for s in sources for f in (sorted(s.rglob("*.jsonl")) if s.is_dir() else [s])]
    records: dict[Key, Record] = {}
    for path in files:
        lines = path.read_text().split("\n")
        if lines.pop():
            # Not moved here: the folder may be read-only, or its writer alive.
            warnings.warn(f"{path}: the last line is half written; left out", stacklevel=2)
        for number, line in enumerate(lines, 1):
            record = _parse(line, f"{path}, line {number}")
            records.setdefault(record.key, record)
    return records
