import dataclasses
import json
import warnings

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
    records = read(tmp_path)
    assert {k[2]: r.seconds for k, r in records.items()} == {1: 1.0, 2: 1.0}


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
