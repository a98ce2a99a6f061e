"""The search: an equal budget, the validation split only, and the same trials after any interruption."""

import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from tests.race.tiny import Tiny, plan_text

from agdopt.race.checks import PlanError
from agdopt.race.plan import Plan, from_table, load
from agdopt.race.record import read
from agdopt.race.run import main
from agdopt.race.search import STARTUP, Tuning, grid, trial_plan
from agdopt.race.space import Range

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def search_text(sampler="tpe", trials=6, task="tests.race.tiny:Tiny"):
    text = plan_text(task).replace("lr = 0.05\n", "").replace("lr = 0.01\n", "")
    text = text.replace('kind = "step"\nmilestones = [4]', 'kind = "cosine"')
    return f"""{text}
[search]
trials = {trials}
epochs = 2
sampler = "{sampler}"

[optimizers.sgd.search]
lr = {{ low = 1e-3, high = 1.0, log = true }}
[optimizers.adamw.search]
lr = {{ low = 1e-4, high = 0.1, log = true }}
betas = [[0.9, 0.999], [0.8, 0.95]]
"""


def go(tmp_path, *more, text=None, out="out"):
    path = tmp_path / "plan.toml"
    path.write_text(text or search_text())
    return main([str(path), "--out", str(tmp_path / out), "--device", "cpu", *more])


def results(path):
    return {r.key: (r.metrics, r.recipe) for r in read(path).values()}


def tuning(name="adamw", **changes):
    plan = from_table(tomllib.loads(search_text(**changes)))
    return Tuning(trial_plan(plan, plan.search), plan.search, plan.optimizers[name])


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_equal_budgets_and_disjoint_seeds_and_splits(tmp_path, sampler):
    if sampler == "tpe":
        pytest.importorskip("optuna")
    assert go(tmp_path, text=search_text(sampler)) == 0
    trials = read(tmp_path / "out/trials.jsonl").values()
    finals = read(tmp_path / "out/records.jsonl").values()
    for name in ("sgd", "adamw"):
        assert [r.seed for r in trials if r.optimizer == name] == list(range(1000, 1006))
        assert [r.seed for r in finals if r.optimizer == name] == [1, 2]
    for r in trials:
        assert r.trial
        assert r.epochs == 2
        assert list(r.metrics) == ["valid.loss"]
        assert not any("test" in curve for curve in r.curves)
    plan = from_table(tomllib.loads(search_text(sampler)))
    for r in finals:
        assert not r.trial
        assert {"valid.loss", "test.loss"} <= set(r.metrics)
        mine = [t for t in trials if t.optimizer == r.optimizer]
        best = min(mine, key=lambda t: t.metrics["valid.loss"])
        assert r.recipe["optimizer"] == best.recipe["optimizer"]
        # A final run is the run of a plan in which the setting is written down.
        arguments = r.recipe["optimizer"]["arguments"]
        entry = dataclasses.replace(plan.optimizers[r.optimizer], arguments=arguments)
        written = dataclasses.replace(
            plan, search=None, optimizers={r.optimizer: entry}, source=r.recipe["source"]
        )
        assert written.hash(entry) == r.plan_hash
    assert len({r.recipe["optimizer"]["arguments"]["lr"] for r in trials}) > 6


def test_a_trial_never_looks_at_the_test_split(tmp_path, monkeypatch):
    looked = []
    judge = Tiny.evaluate
    monkeypatch.setattr(Tiny, "evaluate", lambda task, m, s: looked.append(s) or judge(task, m, s))
    assert go(tmp_path, "--until", "0.0") == 0
    monkeypatch.setattr("agdopt.race.contest._finals", lambda *a: None)
    assert go(tmp_path) == 0
    assert set(looked) == {"valid"}


def marked(tmp_path, at):
    task = f'tests.race.tiny:Marked"\nmark = "{tmp_path / "mark"}"\nat = {at}\nwhat = "kill'
    return search_text(task=task)


@pytest.mark.parametrize("at", [3, 11, 17, 25])
def test_kill_9_anywhere_gives_the_same_trials_and_none_twice(tmp_path, at):
    """In the first round, in the middle of a trial that learns from others, and in the final runs."""
    text = marked(tmp_path, at)
    path = tmp_path / "plan.toml"
    path.write_text(text)
    command = [sys.executable, "-m", "agdopt.race.run", str(path), "--out", str(tmp_path / "cut")]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    killed = subprocess.run([*command, "--device", "cpu"], env=env, capture_output=True, timeout=100)
    assert killed.returncode == -9, killed.stderr
    if at == 11:
        with open(tmp_path / "cut/trials.jsonl", "a") as file:
            file.write('{"plan": "ti')
        with pytest.warns(UserWarning, match="half written; moved to"):
            assert go(tmp_path, text=text, out="cut") == 0
        assert (tmp_path / "cut/trials.jsonl.broken").exists()
    else:
        assert go(tmp_path, text=text, out="cut") == 0
    assert go(tmp_path, text=text, out="whole") == 0
    for file in ("trials.jsonl", "records.jsonl"):
        lines = (tmp_path / "cut" / file).read_text().splitlines()
        assert len(lines) == len(results(tmp_path / "whole" / file))
        assert results(tmp_path / "cut" / file) == results(tmp_path / "whole" / file)


def test_side_by_side_in_processes_is_the_same(tmp_path, capsys):
    assert go(tmp_path, out="one") == 0
    assert go(tmp_path, "--jobs", "2", "--threads", "1", out="two") == 0
    assert results(tmp_path / "one/trials.jsonl") == results(tmp_path / "two/trials.jsonl")
    assert results(tmp_path / "one/records.jsonl") == results(tmp_path / "two/records.jsonl")
    assert {r.jobs for r in read(tmp_path / "two").values()} == {2}


def test_a_diverged_trial_is_the_worst_and_the_search_goes_on(tmp_path):
    text = search_text(trials=STARTUP + 1).replace("high = 1.0", "high = 1e30")
    assert go(tmp_path, "--optimizers", "sgd", text=text) == 0
    trials = list(read(tmp_path / "out/trials.jsonl").values())
    assert len(trials) == STARTUP + 1
    assert any(t.diverged_at for t in trials)
    (lr,) = {r.recipe["optimizer"]["arguments"]["lr"] for r in read(tmp_path / "out/records.jsonl").values()}
    fine = [t for t in trials if t.diverged_at is None]
    assert lr == min(fine, key=lambda t: t.metrics["valid.loss"]).recipe["optimizer"]["arguments"]["lr"]


def test_more_trials_keep_the_first_ones_and_another_space_does_not(tmp_path):
    assert go(tmp_path) == 0
    before = (tmp_path / "out/trials.jsonl").read_text()
    assert go(tmp_path, "--set", "search.trials=7") == 0
    after = (tmp_path / "out/trials.jsonl").read_text()
    assert after.startswith(before)
    assert after.count("\n") == before.count("\n") + 2
    assert go(tmp_path, text=search_text().replace("high = 0.1", "high = 1e-3")) == 0
    narrowed = [t for t in read(tmp_path / "out/trials.jsonl").values() if t.optimizer == "adamw"]
    inside = [t for t in narrowed if t.recipe["optimizer"]["arguments"]["lr"] <= 1e-3]
    assert len(inside) >= 6
    final = list(read(tmp_path / "out/records.jsonl").values())[-1]
    assert final.recipe["optimizer"]["arguments"]["lr"] <= 1e-3


def test_a_task_whose_trials_fail_is_not_raced(tmp_path, capsys):
    text = search_text().replace("betas = [[0.9, 0.999], [0.8, 0.95]]", "eps = [-1.0]")
    assert go(tmp_path, text=text) == 1
    assert "Invalid epsilon value" in capsys.readouterr().err
    assert {r.optimizer for r in read(tmp_path / "out/records.jsonl").values()} == {"sgd"}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("trials = 6", "trails = 6", "did you mean 'trials'"),
        ("trials = 6", "trials = -1", "search.trials must be >= 0"),
        ("trials = 6", "trials = 0", "optimizers.sgd.lr is missing"),
        ('sampler = "tpe"', 'sampler = "tpi"', "did you mean 'tpe'"),
        ("epochs = 2\n", "seed = 0\nepochs = 2\n", "seeds [1, 2] are the search's own"),
        ("low = 1e-3", "lo = 1e-3", "did you mean 'low'"),
        ("low = 1e-3", "low = 2", "low must be below high, got 2 and 1.0"),
        ("low = 1e-3", "low = 0", "log = true needs low > 0"),
        ("betas = [[0.9, 0.999], [0.8, 0.95]]", "betas = 0.9", "must be a list of values or"),
        ("seeds = [1, 2]", 'baseline = "adam"', "did you mean 'adamw'"),
        ("seeds = [1, 2]", 'judge = "test"', "unknown key in the plan 'judge'"),
        ("seeds = [1, 2]", "target = true", "target must be"),
    ],
)
def test_a_mistaken_search_is_named(old, new, says):
    text = search_text()
    assert old in text
    with pytest.raises(PlanError) as error:
        from_table(tomllib.loads(text.replace(old, new)))
    assert says in str(error.value)


def test_every_optimizer_is_searched_for_or_none_is():
    table = tomllib.loads(search_text())
    searched = table["optimizers"]["adamw"]
    table["optimizers"]["adamw"] = {"class": "torch.optim.AdamW", "lr": 0.1}
    with pytest.raises(PlanError, match=r"\[optimizers.adamw.search\] is missing"):
        from_table(table)
    del table["search"]
    table["optimizers"] = {"adamw": {**searched, "lr": 0.1}}
    with pytest.raises(PlanError, match=r"\[optimizers.adamw.search\] needs \[search\]"):
        from_table(table)


def test_a_searched_argument_is_checked_too(tmp_path, capsys):
    assert go(tmp_path, text=search_text().replace("betas = [", "beta = [")) == 2
    assert "did you mean 'betas'" in capsys.readouterr().err
    assert go(tmp_path, "--seeds", "1003") == 2
    assert "final runs need others" in capsys.readouterr().err


def test_published_records_keep_their_hash():
    plan = load("paper/t4-resnet20")
    lines = (ROOT / "results/t4-resnet20/records.jsonl").read_text().splitlines()
    assert lines
    for record in map(json.loads, lines):
        assert plan.hash(plan.optimizers[record["optimizer"]]) == record["plan_hash"]


def test_how_settings_were_found_is_no_part_of_a_run():
    plan = from_table(tomllib.loads(search_text()))
    entry = dataclasses.replace(plan.optimizers["sgd"], arguments={"lr": 0.1})

    def same(**changes):
        return dataclasses.replace(plan, **changes).hash(entry) == plan.hash(entry)

    assert same(baseline="sgd", target=0.3, search=dataclasses.replace(plan.search, trials=9))
    assert plan.hash(dataclasses.replace(entry, search={})) == plan.hash(entry)
    assert not same(judge="valid")
    assert not same(source="abc")


def test_suggestions_are_a_function_of_seed_number_and_what_has_ended():
    for sampler in ("random", "grid"):
        values = [tuning(sampler=sampler).suggest(n, {}).arguments for n in range(6)]
        assert values == [tuning(sampler=sampler).suggest(n, {}).arguments for n in range(6)]
        assert len({v["lr"] for v in values}) == 6
        assert len({v["betas"] for v in values}) == 2
        assert all(1e-4 <= v["lr"] <= 0.1 for v in values)


def test_without_optuna_a_grid_of_the_same_budget(tmp_path, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "optuna" else found(name))
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert go(tmp_path) == 0
    assert "Optuna is not installed" in capsys.readouterr().out
    trials = [r for r in read(tmp_path / "out/trials.jsonl").values() if r.optimizer == "sgd"]
    lrs = [r.recipe["optimizer"]["arguments"]["lr"] for r in trials]
    assert lrs == pytest.approx([1e-3 * 1000 ** (n / 5) for n in range(6)], rel=1e-3)
    monkeypatch.undo()
    assert go(tmp_path) == 0  # begun with the grid, it needs no trial more where there is Optuna
    assert len(read(tmp_path / "out/trials.jsonl")) == 12


BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name.partition(".")[0] in {absent} else found(name, *a)
from agdopt.race.run import main
sys.exit(main(sys.argv[1:]))
"""


def test_training_needs_torch_and_numpy_only(tmp_path):
    absent = ("optuna", "rich", "matplotlib", "sklearn", "pytorch_optimizer", "scipy", "pandas", "numba")
    (tmp_path / "plan.toml").write_text(search_text())
    command = [sys.executable, "-c", BARE.format(absent=absent), str(tmp_path / "plan.toml")]
    command += ["--out", str(tmp_path / "out"), "--device", "cpu", "--threads", "1"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert len(read(tmp_path / "out/records.jsonl")) == 4


def test_grids():
    lists = {"lr": (1, 2, 3), "betas": ((0.9, 0.99), (0.8, 0.9))}
    every = [grid(lists, n, 6) for n in range(6)]
    assert len({tuple(v.values()) for v in every}) == 6
    assert len([grid(lists, n, 4) for n in range(4)]) == 4
    assert grid({"lr": Range(0.0, 1.0)}, 0, 1) == {"lr": 0.5}
    many = {"a": Range(0.0, 1.0), "lr": Range(1e-3, 1.0, log=True), "b": Range(0.0, 1.0)}
    points = [grid(many, n, 16) for n in range(16)]
    assert points[0]["lr"] == 1e-3
    assert points[-1]["lr"] == 1.0
    for key in ("a", "b"):
        assert {math.floor(4 * p[key]) for p in points} >= {0, 1, 2, 3}


def test_the_embedded_plan_gives_everyone_the_same():
    plan = load("digits")
    assert isinstance(plan, Plan)
    assert plan.search is not None
    assert all(e.search for e in plan.optimizers.values())
    assert plan.baseline == "adamw"
