import math
import tomllib
from pathlib import Path

import pytest
from tests.race.tiny import plan_text

from agdopt.race.checks import PlanError
from agdopt.race.optimizers import resolve
from agdopt.race.plan import Schedule, from_table, load

FOLDER = Path(__file__).parents[2] / "src/agdopt/plans"
PLANS = sorted(p for p in FOLDER.rglob("*.toml") if p.stem != "cells")  # a table of the paper's rows


def plan(text=None, **changes):
    return from_table({**tomllib.loads(text or plan_text()), **changes})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("epochs = 6", "epoch = 6", "did you mean 'epochs'"),
        ("epochs = 6", "", "lacks epochs"),
        ("epochs = 6", "epochs = 0", "epochs must be > 0, got 0"),
        ("epochs = 6", "epochs = true", "got True"),
        ("epochs = 6", "epochs = 6.5", "got 6.5"),
        ("seeds = [1, 2]", "seeds = []", "seeds is empty"),
        ("seeds = [1, 2]", "seeds = 1", "seeds"),
        ("seeds = [1, 2]", "precision = 'bf61'", "did you mean 'bf16'"),
        ("seeds = [1, 2]", "clip_grad_norm = 0", "leave it out"),
        ('kind = "step"', 'kind = "steps"', "did you mean 'step'"),
        ("milestones = [4]", "milestone = [4]", "did you mean 'milestones'"),
        ("milestones = [4]", "", "milestones"),
        ("lr = 0.05", "", "lr must be a number"),
        ("lr = 0.05", "lr = 0.05\nflat = 1", "flat must be true or false"),
        ("lr = 0.05", "lr = 0.05\nprecision = 'half'", "precision must be one of"),
        ("lr = 0.01", "lr = 0.01\nnt_asgd = 5", "torch.optim.SGD only"),
        ('name = "tests.race.tiny:Tiny"', "", "[task] needs name"),
    ],
)
def test_a_mistake_is_named(old, new, says):
    text = plan_text()
    assert old in text
    with pytest.raises(PlanError) as error:
        plan(text.replace(old, new))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("momentum = 0.9", "momentums = 0.9", "did you mean 'momentum'"),
        ("momentum = 0.9", "precison = 'bf16'", "did you mean 'precision'"),
        ("torch.optim.SGD", "torch.optim.SDG", "did you mean 'SGD'"),
        ("torch.optim.SGD", "no_such_package.SGD", "install no-such-package"),
        ("torch.optim.SGD", "math.sqrt", "is no optimizer"),
        ("torch.optim.SGD", "torch.optim.Adafactor", "momentum"),
    ],
)
def test_a_mistaken_optimizer_is_named(old, new, says):
    with pytest.raises(PlanError) as error:
        resolve(plan(plan_text().replace(old, new)).optimizers["sgd"])
    assert says in str(error.value)


def test_flat_is_for_elementwise_optimizers_only():
    text = (
        plan_text()
        .replace("torch.optim.SGD", "torch.optim.Adafactor")
        .replace("momentum = 0.9", "flat = true")
    )
    with pytest.raises(PlanError, match="not known to be elementwise"):
        resolve(plan(text).optimizers["sgd"])


def test_hash_is_of_what_decides_the_numbers():
    one = plan()
    sgd = one.optimizers["sgd"]
    assert one.hash(sgd) != one.hash(one.optimizers["adamw"])

    def same(old, new):
        other = plan(plan_text().replace(old, new))
        return other.hash(other.optimizers["sgd"]) == one.hash(sgd)

    assert same("seeds = [1, 2]", "seeds = [3]")
    assert same('name = "tiny"', 'name = "other"\nabout = "prose"')
    assert same("lr = 0.01", "lr = 0.02")  # the other entry's
    assert same("seeds = [1, 2]", "graph = true")  # written out, but the default
    assert same("momentum = 0.9", "momentum = 0.90")
    for old, new in [
        ("epochs = 6", "epochs = 7"),
        ("lr = 0.05", "lr = 0.06"),
        ("milestones = [4]", "milestones = [5]"),
        ("seeds = [1, 2]", "precision = 'bf16'"),
        ('name = "tests.race.tiny:Tiny"', 'name = "tests.race.tiny:Tiny"\nrows = 71'),
    ]:
        assert not same(old, new), new


def test_whole_numbers_hash_alike_in_either_notation():
    a, b = (plan(plan_text().replace("lr = 0.05", f"lr = {x}")) for x in ("30", "30.0"))
    assert a.hash(a.optimizers["sgd"]) == b.hash(b.optimizers["sgd"])


def test_overrides(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(plan_text())
    changed = load(
        path, ["epochs=1", "schedule.milestones=[2]", "optimizers.sgd.lr=1e-3", "task.name=other:Task"]
    )
    assert (changed.epochs, changed.schedule.milestones) == (1, (2,))
    assert changed.optimizers["sgd"].lr == 1e-3
    assert changed.task["name"] == "other:Task"
    for bad in ("epochs", "epoch=3", "name.x=3"):
        with pytest.raises(PlanError):
            load(path, [bad])


def test_a_plan_that_is_not_there(tmp_path):
    with pytest.raises(PlanError, match="neither"):
        load("paper/t99")
    with pytest.raises(PlanError, match="cannot read"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("epochs =")
    with pytest.raises(PlanError, match="is not TOML"):
        load(tmp_path / "bad.toml")


def test_runs_go_seed_by_seed():
    p = plan()
    assert [(e.name, s) for e, s in p.runs()] == [("sgd", 1), ("adamw", 1), ("sgd", 2), ("adamw", 2)]
    assert [(e.name, s) for e, s in p.runs(["adamw"], [7])] == [("adamw", 7)]
    with pytest.raises(PlanError, match="did you mean 'adamw'"):
        p.runs(["adam"])


def test_schedules():
    def lrs(schedule, at, epochs=10):
        return [schedule.lr(2.0, e, p, u, epochs) for e, p, u in at]

    assert lrs(Schedule(), [(0, 0, 0), (9, 0.5, 99)]) == [2.0, 2.0]
    step = Schedule("step", milestones=(3, 5), gamma=0.5)
    assert lrs(step, [(2, 0.9, 0), (3, 0, 0), (5, 0, 0)]) == [2.0, 1.0, 0.5]
    cosine = Schedule("cosine", end=0.5)
    assert lrs(cosine, [(0, 0.9, 0), (5, 0, 0)]) == [2.0, pytest.approx(1.5)]
    assert lrs(Schedule("cosine", per="update"), [(4, 0.5, 0)]) == [
        pytest.approx(1 + math.cos(0.45 * math.pi))
    ]
    warm = Schedule("inverse-sqrt", warmup=100, start=1e-7)
    at = [(0, 0, 0), (0, 0, 50), (0, 0, 100), (0, 0, 400)]
    assert lrs(warm, at) == pytest.approx([1e-7, 1.00000005, 2.0, 1.0])


@pytest.mark.parametrize("path", PLANS, ids=lambda p: p.stem)
def test_the_packages_plans_name_classes_that_take_their_arguments(path):
    plan = load(path.relative_to(FOLDER).with_suffix("").as_posix())
    for entry in plan.optimizers.values():
        if entry.cls.startswith("pytorch_optimizer."):
            pytest.importorskip("pytorch_optimizer")
        resolve(entry)


def test_a_sweep_is_one_entry_a_value():
    text = plan_text().partition("[optimizers.adamw]")[0] + "sweep.lr = [0.05, 1e-3]\nsweep.momentum = [0]\n"
    swept = plan(text)
    assert list(swept.optimizers) == ["sgd-lr-0.05", "sgd-lr-0.001", "sgd-momentum-0"]
    assert swept.optimizers["sgd-momentum-0"].arguments == {"lr": 0.05, "momentum": 0}
    # The value that the plain entry has gives the plain entry's runs.
    assert swept.hash(swept.optimizers["sgd-lr-0.05"]) == plan().hash(plan().optimizers["sgd"])
    with pytest.raises(PlanError, match=r"sgd.sweep.lr must be a list"):
        plan(text.replace("[0.05, 1e-3]", "3"))


def test_the_reduced_scale_changes_what_it_names(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(plan_text() + "\n[reduced]\nepochs = 2\nschedule.milestones = [1]\ntask.rows = 5\n")
    full, small = load(path), load(path, scale="reduced")
    assert (full.epochs, full.schedule.milestones) == (6, (4,))
    assert (small.epochs, small.schedule.milestones, small.batch) == (2, (1,), 32)
    assert small.task == {"name": "tests.race.tiny:Tiny", "rows": 5}
    assert load(path, ["epochs=3"], scale="reduced").epochs == 3
    path.write_text(plan_text())
    with pytest.raises(PlanError, match=r"no \[reduced\] table"):
        load(path, scale="reduced")


def test_an_entry_may_have_a_schedule_of_its_own():
    p = plan(plan_text() + 'schedule = { kind = "cosine" }\n')
    assert p.optimizers["adamw"].schedule == Schedule("cosine")
    assert p.optimizers["sgd"].schedule is None
    assert p.hash(p.optimizers["adamw"]) != plan().hash(plan().optimizers["adamw"])


def test_records_made_before_a_key_was_there_keep_their_hash():
    """Recipes have no trace of younger keys at the values that change nothing."""
    recipe = plan().recipe(plan().optimizers["sgd"])
    assert "average_last" not in recipe
    assert "schedule" not in recipe["optimizer"]
    assert plan(average_last=2).recipe(plan().optimizers["sgd"])["average_last"] == 2
