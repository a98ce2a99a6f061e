"""agdopt speed: its gate, its records, its command line."""

import json

import pytest
import torch

from agdopt.race import cli, docs, parity, speed, timed

TINY = {"large": [(300,)], "many": [(3,), (2, 2)]}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(timed, "works", lambda device: TINY)
    monkeypatch.setattr(speed, "first_step", lambda device: {"cold": 2.0, "cached": 0.5})
    monkeypatch.setattr(
        speed, "gate", lambda device: parity.Gate(compared=1, worst={"automatic float32": 1e-7})
    )


def test_works_have_the_sizes_they_are_named_for():
    for device, large, gpt in (("cpu", 16_000_000, 98), ("cuda", 128 << 20, 146)):
        works = timed.works(device)
        assert [len(shapes) for shapes in works.values()] == [1, gpt, 59, 1000]
        assert speed._elements(works["large"]) == large
    assert speed._elements(timed.works("cpu")["gpt"]) == pytest.approx(30e6, rel=0.03)
    assert speed._elements(timed.works("cuda")["gpt"]) == pytest.approx(204e6, rel=0.01)


def test_records_and_table(tiny, tmp_path, capsys):
    out = tmp_path / "new" / "speed.jsonl"
    assert cli.main(["speed", "--device", "cpu", "--seconds", "0.01", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [r["work"] for r in records] == list(TINY)
    for record in records:
        rows = {row["name"]: row for row in record["rows"]}
        assert rows[timed.BASE]["ratio"] == 1.0
        assert {"AGD", "AGD, bf16 states", "AGD foreach", "copy of the same bytes"} <= rows.keys()
        assert all(0 < row["p20"] <= row["ms"] <= row["p80"] for row in rows.values())
        assert record["fingerprint"] == speed.fingerprint()
        assert all(name in printed for name in rows)


def test_json_is_a_list_and_nothing_else(tiny, capsys):
    assert cli.main(["speed", "--device", "cpu", "--only", "many", "--seconds", "0.01", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["tensors"] == 2


@pytest.mark.parametrize(
    "arguments", [["--only", "huge"], ["--seconds", "0"], ["--device", "tpu"], ["--nope"]]
)
def test_misuse_is_2(arguments, capsys):
    try:
        code = cli.main(["speed", *arguments])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_no_gpu_is_said(capsys):
    assert cli.main(["speed", "--device", "cuda"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_unwritable_folder_is_said(tiny, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "speed.jsonl")
    assert cli.main(["speed", "--device", "cpu", "--only", "many", "--seconds", "0.01", "--out", out]) == 1
    assert out.rsplit("/", 1)[0] in capsys.readouterr().err


def test_a_red_gate_prints_no_figure(monkeypatch, capsys):
    monkeypatch.setattr(parity, "BOUND", dict.fromkeys(parity.BOUND, 1e-300))
    monkeypatch.setattr(speed, "measure", lambda *a: pytest.fail("measured behind a red gate"))
    assert cli.main(["speed", "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "parity fails" in captured.err


def test_the_gate_is_green_here():
    found = parity.gate("cpu")
    assert found.failures == []
    assert found.compared == 30


def test_extra_memory_is_seen():
    a = torch.zeros(1_000_000)
    assert speed.extra_memory(lambda: a.add_(1), "cpu") < 100_000
    assert 4_000_000 <= speed.extra_memory(lambda: (a * 2).sum(), "cpu") < 4_200_000


def test_first_step_is_timed_in_fresh_processes():
    seconds = speed.first_step("cpu")
    assert 0 < seconds["cached"] < seconds["cold"]


def test_docs_name_old_versions():
    record = {
        **{"device": "a card", "work": "many", "torch": "2", "threads": 1, "when": "2026-01-01T00:00:00"},
        **{"fingerprint": speed.fingerprint(), "first_step": {"cold": 1.0, "cached": 0.1}},
        "rows": [{"name": "AGD", "ratio": 0.5}, {"name": timed.BASE, "ratio": 1.0}],
    }
    assert "not measured on this version" not in docs.speed_block([record])
    assert "| 1000 tensors of 1000 | 0.50 |" in docs.speed_block([record])
    assert "not measured on this version" in docs.speed_block([{**record, "fingerprint": "old"}])
    assert "has not been measured" in docs.speed_block([])
    with pytest.raises(ValueError, match="no block"):
        docs.filled("nothing to fill", "speed", "")
