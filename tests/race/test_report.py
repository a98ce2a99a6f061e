"""Verdicts in words, and reports rebuilt from what lies in folders."""

import dataclasses
import json
import os

import pytest
from tests.race.made import made, race, runs, trials

from agdopt.race.cli import main
from agdopt.race.goal import ReportError
from agdopt.race.record import append
from agdopt.race.report import write
from agdopt.race.standings import build
from agdopt.race.words import columns, headline, sentence


def said(report):
    return {e.name: sentence(report, e) for e in report.entrants}


def stored(folder, records, name="records.jsonl"):
    for r in records:
        append(folder / name, r)
    return folder


def test_a_race_in_words():
    report = build(race(), trials(), {"baseline": "adamw", "target": 0.88})
    assert headline(report) == (
        "Better than adamw: agd. No difference shown from adamw: sgd. Worse than adamw: rms. "
        "Cannot tell from adamw: flaky."
    )
    words = said(report)
    assert words["agd"].startswith(
        "agd: better than adamw; its mean test.accuracy is 0.051 higher (95% interval +0."
    )
    assert words["sgd"].startswith(
        "sgd: no difference from adamw shown; its mean test.accuracy is 0.003 higher"
    )
    assert "holds 0" in words["sgd"]
    assert "2 of 5 runs diverged, at step 43 (seed 4) and step 112 (seed 5)" in words["flaky"]
    table = columns(report)
    agd = report.entrants[0]
    assert [cell(agd) for cell in table.values()][:4] == ["agd", "0.951 ± 0.008", "5", "+0.051"]
    assert table["lr within 10%"](agd) == "14%"
    assert table["steps to 0.88"](agd) == "110"
    assert agd.reached.seconds == pytest.approx(110 * 0.002)
    assert table["adaptive"](agd) == "22.5%"
    assert "Tuning was not equal; trials: agd 7, flaky 0, sgd 0, adamw 7, rms 0." in report.notes


def test_three_seeds_claim_what_three_seeds_can():
    report = build([*runs("agd", 0.95, seeds=3), *runs("adamw", 0.90, 2, seeds=3)])
    assert headline(report) == "No verdict yet: 3 seeds shared with adamw, and a verdict takes 5."
    assert said(report)["agd"] == (
        "agd: cannot tell from adamw by 3 seeds; its mean test.accuracy is 0.045 higher, and it is the "
        "better one in 3 of 3 seeds, as one-sided as two equal optimizers look in 25 of 100 races."
    )
    assert "95% interval" not in columns(report)


def test_only_shared_seeds_are_compared():
    report = build([*runs("agd", 0.95), made("agd", 9, 0.96), *runs("adamw", 0.90, 2)])
    assert report.entrants[0].comparison.n == 5
    assert said(report)["agd"].endswith("Only the 5 seeds shared with adamw count in the comparison.")


def test_one_that_never_finished_and_one_alone():
    report = build(
        [
            *runs("adamw", 0.9),
            *(made("agd", s, diverged_at=12, notes={"diverged_by": "the loss"}) for s in range(1, 6)),
        ]
    )
    assert said(report)["agd"].startswith(
        "agd: worse than adamw; no seed finished on both sides. "
        "5 of 5 runs diverged, at step 12 (seed 1, by the loss)"
    )
    nobody = build([made(name, s, diverged_at=12) for s in range(1, 6) for name in ("agd", "adamw")])
    assert headline(nobody) == "These runs cannot tell agd from adamw."
    assert headline(build(runs("agd", 0.9))) == "Only agd has run: there is nothing to compare it with."


def test_two_settings_of_one_optimizer_are_two_entrants():
    report = build(
        [*runs("adamw", 0.9), *runs("agd", 0.95, hashed="aaaa1"), *runs("agd", 0.8, hashed="bbbb2")]
    )
    assert [e.name for e in report.entrants] == ["agd (aaaa)", "adamw", "agd (bbbb)"]
    assert any("More than one setting of agd" in n for n in report.notes)


def test_terms_that_were_not_equal_are_named():
    longer = [dataclasses.replace(r, recipe={**r.recipe, "epochs": 99}) for r in runs("agd", 0.9)]
    report = build([*longer, *runs("adamw", 0.9)])
    assert "The terms were not equal; epochs: 20, 99." in report.notes


def test_which_way_is_better():
    losses = [made("agd", 1, metrics={"test.loss": 0.2}), made("adamw", 1, metrics={"test.loss": 0.4})]
    assert [e.name for e in build(losses).entrants] == ["agd", "adamw"]
    own = [dataclasses.replace(r, metrics={"test.quality": 1.0}) for r in losses]
    with pytest.raises(ReportError, match=r"is more of 'quality' better\? Say --higher or --lower"):
        build(own)
    noted = [dataclasses.replace(r, notes={"metric": "quality", "maximize": False}) for r in own]
    assert not build(noted).goal.maximize
    assert build(race(), plan={"metric": "loss"}).goal.metric == "test.loss"
    with pytest.raises(
        ReportError, match=r"no metric 'los' in the records; they have test.accuracy, test.loss"
    ):
        build(race(), plan={"metric": "los"})


def test_what_no_report_can_be_made_of():
    with pytest.raises(ReportError, match="the search has 14 trials so far"):
        build([], trials())
    with pytest.raises(ReportError, match=r"several plans \(made, other\)"):
        build([made("agd", 1), made("agd", 2, plan="other")])


def test_a_baseline_without_a_run(tmp_path, capsys):
    report = build(runs("agd", 0.9), plan={"baseline": "adan"})
    assert report.baseline == "agd"
    assert "The baseline adan has no run: agd stands in for it." in report.notes
    assert main(["report", str(stored(tmp_path, runs("agd", 0.9))), "--baseline", "adan"]) == 1
    assert "the baseline 'adan' has no run; there are agd" in capsys.readouterr().err


def test_the_same_records_make_the_same_bytes(tmp_path, capsys):
    folder = stored(stored(tmp_path, race()), trials(), "trials.jsonl")
    (folder / "plan.json").write_text(json.dumps({"baseline": "sgd", "about": "<b>prose</b>"}))
    assert main(["report", str(folder)]) == 0
    files = [folder / "report.html", *sorted(folder.glob("charts/*.svg"))]
    first = [f.read_bytes() for f in files]
    assert main(["report", str(folder)]) == 0
    assert [f.read_bytes() for f in files] == first
    page = first[0].decode()
    assert len(files) == 1 + page.count("<figure") == 1 + 8
    assert "&lt;b&gt;prose&lt;/b&gt;" in page
    assert len(first[0]) < 1_000_000
    out = capsys.readouterr().out
    assert out.startswith("made: Better than sgd: agd.")
    assert out.rstrip().endswith("report.html")


def test_gaps_and_runs_that_ended_at_once_are_drawn_around(tmp_path):
    hole = made("agd", 2, 0.9)
    hole.curves["valid.accuracy"][5] = None
    nothing = [dataclasses.replace(made("sgd", s, diverged_at=3), epochs=0, curves={}) for s in (1, 2)]
    write(stored(tmp_path, [made("agd", 1, 0.9), hole, *nothing]))
    assert "2 of 2 runs diverged" in (tmp_path / "report.html").read_text()


def test_folders_of_several_machines_merge(tmp_path, capsys):
    a, b = tmp_path / "a", tmp_path / "b"
    stored(a, race())
    stored(b, [*runs("adan", 0.9, 5), *race()[:2]])
    assert main(["report", str(a), str(b), "--out", str(tmp_path / "both"), "--json"]) == 0
    table = {row["optimizer"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(table) == 6
    assert table["agd"]["verdict"] == "better"
    assert table["adamw"]["verdict"] == "baseline"
    assert table["sgd"]["runs"] == 5
    assert table["flaky"]["diverged_at"] == {"4": 43, "5": 112}
    page = (tmp_path / "both" / "report.html").read_text()
    assert "a run recorded twice counts once" in page
    assert not (a / "report.html").exists()


def test_every_folder_below_gets_its_own(tmp_path, capsys):
    stored(tmp_path / "one", runs("agd", 0.9))
    stored(tmp_path / "two", [made("agd", 1, plan="other")])
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert [row["plan"] for row in json.loads(capsys.readouterr().out)] == ["made", "other"]
    assert (tmp_path / "one" / "report.html").exists()
    assert (tmp_path / "two" / "report.html").exists()


def test_a_half_written_line_is_named_and_the_rest_counts(tmp_path, capsys):
    path = stored(tmp_path, runs("agd", 0.9, seeds=2)) / "records.jsonl"
    with path.open("ab") as f:
        f.write(path.read_bytes()[:50])
    assert main(["report", str(tmp_path)]) == 0
    assert "the last line is half written; left out." in capsys.readouterr().out
    assert "the last line is half written; left out." in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"schema": 99}\n', "line 1 has schema 99, this agdopt reads up to 1: use a newer agdopt"),
        ("no json\n", "line 1 is no record"),
    ],
)
def test_lines_that_cannot_be_read_end_with_1_and_a_sentence(tmp_path, capsys, line, words):
    (tmp_path / "records.jsonl").write_text(line)
    assert main(["report", str(tmp_path), "--json"]) == 1
    streams = capsys.readouterr()
    assert words in streams.err
    assert streams.out == ""


def test_misuse_ends_with_2(tmp_path, capsys):
    file = stored(tmp_path, runs("agd", 0.9, seeds=2)) / "records.jsonl"
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert "nothing does not exist" in capsys.readouterr().err
    assert main(["report", str(file)]) == 2
    assert "say with --out" in capsys.readouterr().err
    assert main(["report", str(file), "--out", str(tmp_path / "x")]) == 0
    assert (tmp_path / "x" / "report.html").exists()


def test_an_empty_folder_and_one_that_cannot_be_written(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "no records.jsonl in" in capsys.readouterr().err
    (tmp_path / "charts").write_text("in the way")
    assert main(["report", str(stored(tmp_path, race()))]) == 1
    assert f"{os.sep}charts" in capsys.readouterr().err


def test_a_terminal_gets_a_table_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["report", str(stored(tmp_path, runs("agd", 0.9, seeds=2)))]) == 0
    out = capsys.readouterr().out
    assert "0.897 ± 0.009" in out
    assert "──" in out
