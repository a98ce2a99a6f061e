"""Record: one finished run, one JSON line. Files of records only ever grow."""

import dataclasses
import json
import math
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from agdopt.race.checks import PlanError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

SCHEMA = 1
Key = tuple[str, str, int]


class RecordError(PlanError):
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

    @property
    def trial(self) -> bool:
        """Of a search: judged on its validation split alone."""
        return "judge" in self.recipe


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity: such a number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def _lock(f: IO[bytes]) -> None:
    """Until the file is closed."""
    if sys.platform == "win32":
        # A lock there keeps readers out, so it is on a byte that no file of records reaches.
        f.seek(1 << 40)
        msvcrt.locking(f.fileno(), msvcrt.LK_LOCK, 1)
    else:
        fcntl.flock(f, fcntl.LOCK_EX)


def as_json(record: Record) -> dict[str, Any]:
    table: dict[str, Any] = _finite(dataclasses.asdict(record))
    return table


def append(path: Path, record: Record) -> None:
    add_line(path, as_json(record))


def add_line(path: Path, table: Mapping[str, Any]) -> None:
    """One locked write, on disk when this returns: runs in other processes may share the file."""
    line = json.dumps(table, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as f:
        _lock(f)
        _set_aside(f, path)  # of a process that was killed meanwhile
        f.write(line.encode())
        f.flush()
        os.fsync(f.fileno())


def repair(path: Path) -> None:
    """Set aside a last line that a killed process left half written."""
    with open(path, "a+b") as f:
        _lock(f)
        _set_aside(f, path)


def _set_aside(f: IO[bytes], path: Path) -> None:
    if f.seek(0, os.SEEK_END) == 0:
        return
    f.seek(-1, os.SEEK_END)
    if f.read(1) == b"\n":
        return
    f.seek(0)
    text = f.read()
    whole = text.rfind(b"\n") + 1
    broken = path.with_name(path.name + ".broken")
    with open(broken, "ab") as aside:
        aside.write(text[whole:] + b"\n")
    f.truncate(whole)
    warnings.warn(f"{path}: the last line was half written; moved to {broken}", stacklevel=3)


def _parse(line: str, where: str) -> Record:
    try:
        table = json.loads(line)
        schema = int(table["schema"])
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


def whole_lines(path: Path) -> list[str]:
    lines = path.read_text("utf-8").split("\n")
    if lines.pop():
        # Not moved here: the folder may be read-only, or its writer alive.
        warnings.warn(f"{path}: the last line is half written; left out", stacklevel=3)
    return lines


def tables(path: Path) -> list[dict[str, Any]]:
    """Of a file of other records than runs: none where there is no file."""
    return [json.loads(line) for line in whole_lines(path)] if path.exists() else []


def read(*sources: Path) -> dict[Key, Record]:
    """The records of files, or of all *.jsonl below folders, by their key. The first of equal keys counts."""
    files: Iterable[Path] = [f for s in sources for f in (sorted(s.rglob("*.jsonl")) if s.is_dir() else [s])]
    records: dict[Key, Record] = {}
    twice: list[str] = []
    for path in files:
        for number, line in enumerate(whole_lines(path), 1):
            record = _parse(line, f"{path}, line {number}")
            if records.setdefault(record.key, record) is not record:
                twice.append(f"{record.optimizer} seed {record.seed} in {path}, line {number}")
    if twice:
        more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        warnings.warn(f"a run recorded twice counts once, the first time: {twice[0]}{more}", stacklevel=2)
    return records
