import dataclasses
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from agdopt.race.record import Record, RecordError, append, read, repair


def record(**changes):
    values = {
        "plan": "tiny", "plan_hash": "abc", "optimizer": "sgd", "seed": 1, "recipe": {"epochs": 2},
        "environment": {}, "versions": {}, "commit": None, "parameters": 3, "epochs": 2, "steps": 4,
        "metrics": {"test.loss": 0.5}, "curves": {"train.loss": [1.0, 0.5]}, "seconds": 1.0,
        "seconds_per_step": 0.1, "peak_memory": None, "jobs": 1, "graph": "none",
    }  # fmt: skip
    return Record(**{**values, **changes})


def test_what_is_appended_is_read(tmp_path):
    path = tmp_path / "a" / "records.jsonl"
    append(path, record())
    append(path, record(seed=2))
    assert list(read(tmp_path).values()) == [record(), record(seed=2)]


def test_the_first_of_equal_keys_counts_over_all_files(tmp_path):
    append(tmp_path / "a.jsonl", record(seconds=1.0))
    append(tmp_path / "b.jsonl", record(seconds=2.0))
    append(tmp_path / "b.jsonl", record(seed=2))
    with pytest.warns(UserWarning, match="counts once"):
        records = read(tmp_path)
    assert {k[2]: r.seconds for k, r in records.items()} == {1: 1.0, 2: 1.0}


def test_of_a_run_recorded_twice_one_is_kept_and_it_is_said(tmp_path):
    for machine in "ab":
        for seed in (1, 2):
            append(tmp_path / machine / "records.jsonl", record(seed=seed))
    with pytest.warns(UserWarning, match=r"sgd seed 1 in .*b.records.jsonl, line 1 and 1 more"):
        assert len(read(tmp_path / "a", tmp_path / "b")) == 2


def test_a_line_half_written_by_another_process_is_set_aside_by_the_next(tmp_path):
    path = tmp_path / "records.jsonl"
    append(path, record())
    with open(path, "ab") as file:
        file.write(b'{"plan": "ti')
    with pytest.warns(UserWarning, match="half written; moved to"):
        append(path, record(seed=2))
    assert list(read(path).values()) == [record(), record(seed=2)]


ELSEWHERE = """
import json, sys, pathlib, tempfile
calls = []
class Fake:
    LK_LOCK = 1
    def locking(self, descriptor, mode, count): calls.append((mode, count))
sys.modules["fcntl"], sys.modules["msvcrt"], sys.platform = None, Fake(), "win32"
from agdopt.race import record
path = pathlib.Path(tempfile.mkdtemp()) / "records.jsonl"
values = json.loads(sys.argv[1])
for seed in (1, 2):
    record.append(path, record.Record(**{**values, "seed": seed}))
assert [r.seed for r in record.read(path).values()] == [1, 2]
assert path.stat().st_size < 5000, "the lock's far byte was written"
assert calls == [(1, 1)] * 2
"""


def test_records_are_written_where_there_is_no_fcntl():
    """Windows, as far as it can be had here."""
    command = [sys.executable, "-c", ELSEWHERE, json.dumps(dataclasses.asdict(record()))]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def test_a_half_written_line_is_set_aside_and_named(tmp_path):
    path = tmp_path / "records.jsonl"
    append(path, record())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    with pytest.warns(UserWarning, match="half written; left out"):
        assert list(read(path).values()) == [record()]
    with pytest.warns(UserWarning, match="moved to .*broken"):
        repair(path)
    assert path.read_bytes() == whole
    assert path.with_name("records.jsonl.broken").read_bytes() == whole[:40] + b"\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repair(path)
        assert len(read(tmp_path)) == 1


def test_a_newer_schema_and_a_broken_line_are_errors_in_words(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**dataclasses.asdict(record()), "schema": 2, "new": 1}) + "\n")
    with pytest.raises(RecordError, match="line 1 has schema 2, this agdopt reads up to 1"):
        read(path)
    path.write_text("{}\n")
    with pytest.raises(RecordError, match=r"records.jsonl, line 1 is no record"):
        read(path)
    path.write_text(json.dumps({"schema": 1}) + "\n")
    with pytest.raises(RecordError, match="no record of schema 1"):
        read(path)


def test_numbers_that_are_not_finite_become_null(tmp_path):
    path = tmp_path / "records.jsonl"
    append(
        path, record(metrics={"test.loss": float("nan")}, curves={"a": [float("inf"), 1.0]}, diverged_at=3)
    )
    (back,) = read(path).values()
    assert back.metrics == {"test.loss": None}
    assert back.curves == {"a": [None, 1.0]}
    assert back.diverged_at == 3
