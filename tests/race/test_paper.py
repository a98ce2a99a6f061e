"""The paper as a program: statuses cannot be talked up, verdicts are cautious, what is listed can be run."""

import dataclasses
import json
import random

import pytest
from tests.race.made import made

from agdopt.race.cli import main
from agdopt.race.paper import duel, figures, page
from agdopt.race.paper.cell import cells
from agdopt.race.paper.evidence import DONE, NOT_YET, REDUCED, entries, gather, plan_of
from agdopt.race.paper.finding import CANNOT_TELL, DOES_NOT, HOLDS
from agdopt.race.paper.listing import line, listing
from agdopt.race.paper.verdict import judge
from agdopt.race.record import append

T4, T8, PTB = cells()["T4.resnet20"], cells()["T8"], cells()["T3.ptb1"]
TRAINED = [cell for cell in cells().values() if cell.plan]


def record(plan, name, seed, metrics, **changes):
    entry = plan.optimizers[name]
    recipe = json.loads(json.dumps(plan.recipe(entry)))
    values = {"plan": plan.name, "hashed": plan.hash(entry), "recipe": recipe, "metrics": metrics}
    return made(name, seed, **{**values, **changes})


def runs(cell, means, seeds=5, plan=None, metric=None, sign=1, **changes):
    """Of every entry of the columns named, about their means."""
    found = []
    draw = random.Random(0)
    for column, pairs in entries(cell).items():
        for own, entry in pairs if column in means else ():
            p = plan or own
            noise = [draw.uniform(-0.1, 0.1) for _ in range(seeds)]
            found += [
                record(p, entry.name, s, {metric or cell.metric: means[column] + sign * n}, **changes)
                for s, n in enumerate(noise, 1)
            ]
    return found


def level(cell, **changes):
    return {**dict.fromkeys(cell.entries, 92.0), **changes}


@pytest.mark.parametrize("cell", TRAINED, ids=lambda c: c.name)
def test_every_cell_has_a_plan_and_every_column_an_answer(cell):
    for patterns, pairs in zip(cell.entries.values(), entries(cell).values(), strict=True):
        assert len(pairs) >= len(patterns), "a pattern that names no entry"
    assert set(cell.paper) <= {*cell.entries, *cell.without}
    assert cell.champion in cell.entries or cell.judge in ("switch", "robust")
    assert any(plan.name == cell.plan for pairs in entries(cell).values() for plan, _ in pairs)
    if cell.stand_in:
        assert all(entries(cell, cell.stand_in).values())
    assert cell.hours > 0


def test_a_plan_that_no_cell_asks_for_would_never_be_seen():
    used = {name for cell in TRAINED for name in (cell.plan, cell.stand_in)}
    folder = page.Path(page.__file__).parents[2] / "plans/paper"
    assert {path.stem for path in folder.glob("*.toml")} - {"cells"} == used - {""}


def test_done_takes_the_papers_recipe_and_three_seeds_of_everything():
    assert gather(T4, []).status == NOT_YET
    whole = gather(T4, runs(T4, level(T4), seeds=3))
    assert (whole.status, whole.scale, whole.seeds) == (DONE, "paper", 3)
    few = gather(T4, runs(T4, level(T4), seeds=2))
    assert (few.status, few.scale, few.seeds) == (REDUCED, "paper", 2)
    lacking = gather(T4, [r for r in runs(T4, level(T4)) if r.optimizer != "agd"])
    assert (lacking.status, lacking.missing) == (REDUCED, ("agd",))


def test_a_plan_edited_after_the_run_is_no_longer_done():
    plan = plan_of("t4-resnet20")
    longer = gather(T4, runs(T4, level(T4), plan=dataclasses.replace(plan, epochs=200)))
    assert (longer.status, longer.scale, longer.changed) == (REDUCED, "reduced", ("epochs 200, not 160",))
    sgd = plan.optimizers["sgd"]
    other = dataclasses.replace(sgd, arguments={**sgd.arguments, "lr": 0.2})
    edited = dataclasses.replace(plan, optimizers={**plan.optimizers, "sgd": other})
    found = gather(T4, runs(T4, level(T4), plan=edited))
    assert (found.status, found.missing, found.edited) == (REDUCED, ("sgd",), 5)


def test_a_smoke_test_does_not_hide_runs_at_the_papers_scale():
    full = runs(T4, {"AGD": 92.0, "SGD": 92.0}, seeds=2)
    smoke = runs(T4, level(T4), plan=dataclasses.replace(plan_of("t4-resnet20"), epochs=2))
    assert gather(T4, [*smoke, *full]).scale == "paper"


def test_other_data_is_reduced_and_says_so():
    cell = cells()["T3.iwslt14"]
    stand_in = plan_of(cell.stand_in)
    found = line(cell, runs(cell, {**level(cell, AGD=95.0), "AdaBelief": 95.0}, plan=stand_in))
    assert (found.status, found.scale, found.verdict) == (REDUCED, "reduced", CANNOT_TELL)
    assert "multi30k, not iwslt14" in found.why


def test_searched_settings_belong_to_the_plan_wherever_the_search_went():
    cell = cells()["E1.resnet20"]
    plan = plan_of(cell.plan)

    def searched(name, lr):
        entry = plan.optimizers[name]
        entry = dataclasses.replace(entry, arguments={**entry.arguments, "lr": lr})
        at = dataclasses.replace(plan, optimizers={**plan.optimizers, name: entry})
        return [record(at, name, s, {cell.metric: 92.0}) for s in (1, 2, 3)]

    assert gather(cell, [r for name in plan.optimizers for r in searched(name, 0.03)]).status == DONE


@pytest.mark.parametrize(
    ("means", "seeds", "verdict"),
    [
        ({"AGD": 93.0}, 5, HOLDS),
        ({"AGD": 93.0}, 3, HOLDS),  # ten standard deviations
        ({"AGD": 92.1}, 3, CANNOT_TELL),  # one
        ({"AGD": 93.0}, 2, CANNOT_TELL),
        ({}, 5, CANNOT_TELL),
        ({"AGD": 93.0, "Adam": 94.0}, 5, DOES_NOT),
        ({"AGD": 93.0, "Adam": 94.0}, 3, DOES_NOT),
        ({"AGD": 93.0, "Adam": 93.02}, 5, CANNOT_TELL),  # not better than every rival
    ],
)
@pytest.mark.parametrize("cell", [T4, PTB], ids=lambda c: c.name)
def test_best_means_clearly_better_than_every_rival(cell, means, seeds, verdict):
    sign = 1 if cell is T4 else -1  # perplexity: less is better
    turned = {c: 92.0 + sign * (m - 92.0) for c, m in level(cell, **means).items()}
    known = runs(cell, turned, seeds, sign=sign)
    known = [
        dataclasses.replace(r, metrics={**r.metrics, "valid.perplexity": r.metrics[cell.metric]})
        for r in known
    ]
    found = judge(cell, gather(cell, known))
    assert found.verdict == verdict, found.words
    assert (sign > 0) == (cell is T4)


def test_a_claim_about_all_needs_all():
    """Nothing is best of those that have not run; but one lost duel decides."""
    some = {"AGD": 93.0, "SGD": 92.0, "Adam": 92.0}
    assert judge(T4, gather(T4, runs(T4, some))).verdict == CANNOT_TELL
    assert judge(T4, gather(T4, runs(T4, {**some, "SGD": 94.0}))).verdict == DOES_NOT


def test_runs_that_diverged_are_no_success():
    known = runs(T4, level(T4, AGD=93.0))
    broken = [
        dataclasses.replace(r, diverged_at=7, metrics={})
        if r.optimizer.startswith("agd") and r.seed == 1
        else r
        for r in known
    ]
    assert judge(T4, gather(T4, broken)).verdict == CANNOT_TELL


def test_few_equal_runs_rarely_look_different():
    """Three runs a side without any difference: one claim in a hundred at most."""
    draw = random.Random(0)
    sides = [[[draw.gauss(0, 1) for _ in range(3)] for _ in range(2)] for _ in range(5000)]
    assert sum(duel.apart(a, b, True) != "cannot tell" for a, b in sides) < 50


def test_on_par_is_a_narrow_interval_and_not_the_lack_of_a_difference():
    cell = cells()["T5.criteo"]
    means = {"AGD": 0.8023, "Adam": 0.8022, "AdaBelief": 0.8023, "SGD": 0.73, "AdaHessian": 0.79}

    def verdict(scale):
        known = runs(cell, means)
        near = [
            dataclasses.replace(
                r, metrics={cell.metric: (m := means_of(r)) + scale * (r.metrics[cell.metric] - m)}
            )
            for r in known
        ]
        return judge(cell, gather(cell, near)).verdict

    def means_of(r):
        column = {"sgd": "SGD", "adam": "Adam", "adabelief": "AdaBelief", "adahessian": "AdaHessian"}
        return means[column.get(r.optimizer, "AGD")]

    assert verdict(0.002) == HOLDS
    assert verdict(0.03) == CANNOT_TELL


def test_sensitivity_is_decades_within_a_point_of_the_best():
    cell = cells()["F8.agd-delta"]

    def known(agd, adam):
        found = []
        for column, bad in (("AGD", agd), ("Adam", adam)):
            for own, entry in entries(cell)[column]:
                value = float(entry.arguments[cell.swept[column]])
                found += [
                    record(own, entry.name, s, {cell.metric: 80.0 if bad(value) else 92.0}) for s in (1, 2, 3)
                ]
        return found

    wide, narrow = (lambda v: v < 1e-6), (lambda v: v < 1e-3)
    assert judge(cell, gather(cell, known(wide, narrow))).verdict == HOLDS
    assert judge(cell, gather(cell, known(narrow, wide))).verdict == DOES_NOT
    assert judge(cell, gather(cell, known(wide, wide))).verdict == CANNOT_TELL
    # The other sweep's cell says the same, once its own plan has run.
    other = cells()["F8.adam-eps"]
    assert gather(other, [r for r in known(wide, narrow) if r.plan == "f8-agd-delta"]).status == NOT_YET
    assert judge(other, gather(other, known(wide, narrow))).verdict == HOLDS


def test_the_switch_is_judged_by_its_curve_in_every_run():
    cell = cells()["F6.lstm2"]

    def known(before, after):
        curves = {"switch.adaptive": [before] * 100 + [after] * 100}
        return [
            record(own, entry.name, s, {}, curves=curves)
            for own, entry in entries(cell)["AGD"]
            for s in (1, 2, 3)
        ]

    assert judge(cell, gather(cell, known(0.03, 0.05))).verdict == HOLDS
    assert judge(cell, gather(cell, known(0.05, 0.03))).verdict == DOES_NOT
    assert judge(cell, gather(cell, known(0.6, 0.8))).verdict == DOES_NOT
    assert gather(cell, runs(cell, {"AGD": 60.0}, metric="test.perplexity", curves={})).status == NOT_YET


def test_cost_is_of_runs_that_had_the_device_to_themselves():
    cell = cells()["T6"]
    times = {"sgd": 0.88, "adamw": 1.0, "adahessian": 2.9, "agd": 1.07}

    def known(jobs=1, **more):
        plan = plan_of(cell.plan)
        return [
            record(plan, n, s, {cell.metric: 3.0}, seconds_per_step=t, jobs=jobs, peak_memory=1000)
            for n, t in {**times, **more}.items()
            for s in (1, 2, 3)
        ]

    assert judge(cell, gather(cell, known())).verdict == HOLDS
    assert judge(cell, gather(cell, known(agd=1.3))).verdict == DOES_NOT
    assert judge(cell, gather(cell, known(jobs=2))).verdict == CANNOT_TELL


def test_against_a_quoted_number():
    cell = cells()["X2"]
    for mean, verdict in ((71.5, HOLDS), (69.0, DOES_NOT), (70.25, CANNOT_TELL)):
        assert judge(cell, gather(cell, runs(cell, {"AGD": mean}, seeds=3))).verdict == verdict


def test_figures_know_when_they_are_stale(tmp_path):
    pytest.importorskip("matplotlib")
    first, second = ([line(cells()["F5.resnet20"], runs(T4, level(T4), seeds=n))] for n in (3, 4))
    drawn = figures.pictures(first)
    assert [p.name for p in drawn] == ["f5-resnet20"]
    figures.save(drawn, tmp_path)
    assert not figures.stale(drawn, tmp_path)
    assert figures.stale(figures.pictures(second), tmp_path)


def test_list_is_an_object_a_cell_and_the_report_regenerates_from_records(tmp_path, capsys):
    for r in runs(T4, level(T4, AGD=93.0)):
        append(tmp_path / "results/t4-resnet20/records.jsonl", r)
    where = ["--results", str(tmp_path / "results")]
    assert main(["paper", "list", "--json", *where]) == 0
    rows = {row["cell"]: row for row in json.loads(capsys.readouterr().out)}
    wanted = {
        "row",
        "cell",
        "claim",
        "scale",
        "status",
        "seeds",
        "ours",
        "paper",
        "verdict",
        "plan",
        "command",
    }
    for row in rows.values():
        assert wanted <= set(row)
        assert row["status"] in (DONE, REDUCED, NOT_YET)
        assert row["verdict"] in (HOLDS, DOES_NOT, CANNOT_TELL)
        assert row["status"] != NOT_YET or row["verdict"] == CANNOT_TELL
    assert {"T1", "T2.criteo", "F1.a", "THEORY.regret", "C3.independent", "G1.gpt"} <= set(rows)
    assert rows["T4.resnet20"]["verdict"] == HOLDS
    assert rows["T4.resnet20"]["ours"]["AGD"]["mean"] == pytest.approx(93.0, abs=0.1)
    out = tmp_path / "docs/results.md"
    assert main(["paper", "report", *where, "--out", str(out)]) == 0
    text = out.read_text()
    holds = text.partition("## Holds")[2].partition("## Does not hold")[0]
    assert "**T4.resnet20**" in holds
    assert "`agdopt paper run T4.resnet20`" in text
    assert (tmp_path / "docs/figures/f5-resnet20.svg").exists()
    assert main(["paper", "report", *where, "--out", str(out)]) == 0
    assert out.read_text() == text


def test_the_readme_gets_five_lines(capsys):
    lines = [line(T4, runs(T4, level(T4, Adam=94.0)))]
    told = page.readme(lines).splitlines()
    assert len(told) == 5
    assert "AGD is worse than Adam" in told[1]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["list", "T44"], 2, "did you mean T4?"),
        (["run", "t4.resnet-20"], 2, "did you mean T4.resnet20?"),
        (["run", "T4.resnet20", "--stand-in"], 2, "T4.resnet20 has no other data set"),
        (
            ["run", "T4.resnet20", "--data", "nowhere", "--device", "cpu"],
            2,
            "CIFAR-10 is not there: get it from",
        ),
        (["run", "T4.resnet20", "--optimizers", "agdd"], 2, "did you mean 'agd'"),
        (["run", "F1.a", "--seeds", "1"], 2, "F1.a takes no --seeds"),
        (["run", "C1.digits", "--set", "epochs=1"], 2, "C1.digits takes no --set"),
        (["run", "C1.digits", "--seeds", "a"], 2, "--seeds wants whole numbers"),
        (["list", "--results", "nowhere"], 2, "there is no such folder"),
    ],
)
def test_bad_input_is_a_sentence(words, code, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", *words]) == code
    assert says in capsys.readouterr().err


def test_run_measures_a_numerical_cell(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pytorch_optimizer")
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "run", "F1.a"]) == 0
    assert "F1.a: holds" in capsys.readouterr().out
    assert main(["paper", "list", "f1.A"]) == 0
    assert "1 cells, 1 done" in capsys.readouterr().out


def test_run_trains_and_the_same_command_goes_on(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--scale", "reduced", "--optimizers", "sgd,agd", "--set", "task.images=100", "--jobs", "1"]
    words = ["paper", "run", "T4.resnet20", *small, "--data", str(data), "--device", "cpu", "--threads", "1"]
    code, said = main([*words, "--seeds", "1"]), capsys.readouterr().err
    if code == 2 and "is not there: get it from" in said:
        pytest.skip(said)
    assert code == 0, said
    assert main([*words, "--seeds", "1,2"]) == 0
    assert "4 runs, 2 of them have records" in capsys.readouterr().out
    assert main(["paper", "list", "T4.resnet20", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["status"], row["scale"], row["seeds"], row["verdict"]) == (REDUCED, "reduced", 2, CANNOT_TELL)
    assert "task.images 100" in row["why"]


def test_half_written_lines_are_left_out_and_said(tmp_path):
    """Of a cell that was killed while it wrote; the others' lines count."""
    for file in ("numerical/records.jsonl", "c1/cells.jsonl"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text('{"cell": "F1')
    with pytest.warns(UserWarning, match="the last line is half written"):
        found = listing(tmp_path, ["F1", "C1"])
    assert {line.status for line in found} == {NOT_YET}
