"""Runs are the same however they are cut into pieces, mixed with others, or replayed."""

import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.race.tiny import plan_text

from agdopt.race import checkpoint
from agdopt.race.driver import Driver, Options, Run
from agdopt.race.optimizers import build, flatten
from agdopt.race.plan import from_table
from agdopt.race.record import read
from agdopt.race.recorder import Recorder
from agdopt.race.run import main
from agdopt.race.stepper import Captured, Stepper
from agdopt.race.switch_figure import save
from agdopt.race.task import make_task
from agdopt.race.train import EPOCH, Training
from agdopt.torch import switch_report

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def make(text=None, **changes):
    plan = from_table({**tomllib.loads(text or plan_text()), **changes})
    return plan, make_task(plan.task, plan.batch, CPU)


def entry_text(**values):
    head = plan_text().partition("[optimizers.sgd]")[0]
    rows = "\n".join(f"{'class' if k == 'cls' else k} = {json.dumps(v)}" for k, v in values.items())
    return f"{head}\n[optimizers.one]\n{rows}\n"


def train(plan, task, name, epochs=None, state=None, seed=1):
    """Up to `epochs` finished, from a checkpoint if one is given."""
    training = Training(task, plan, plan.optimizers[name], seed, state)
    for event in training.advance():
        if event == EPOCH and training.state.epoch == epochs:
            break
    return training


def outcome(training):
    curves = {k: v for k, v in training.state.curves.items() if k != "ms_per_step"}
    return curves, training.state.metrics, {k: v.clone() for k, v in training.model.state_dict().items()}


def assert_same(a, b):
    assert a[0] == b[0]
    assert a[1] == b[1]
    for key, value in a[2].items():
        assert torch.equal(value, b[2][key]), key


ENTRIES = {
    "sgd": {"cls": "torch.optim.SGD", "lr": 0.05, "momentum": 0.9},
    "adam": {"cls": "torch.optim.Adam", "lr": 0.01, "betas": [0.9, 0.99]},
    "flat": {"cls": "torch.optim.AdamW", "lr": 0.01, "flat": True},
    "agd": {"cls": "agdopt.AGD", "lr": 0.01, "delta": 1e-5, "weight_decay": 1e-3},
    "asgd": {"cls": "torch.optim.SGD", "lr": 0.3, "nt_asgd": 1},
    "adabelief": {"cls": "pytorch_optimizer.AdaBelief", "lr": 0.01},
    "adahessian": {"cls": "pytorch_optimizer.AdaHessian", "lr": 0.1},
    "schedulefree": {"cls": "pytorch_optimizer.ScheduleFreeAdamW", "lr": 0.01},
}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("at", [1, 4])
def test_a_run_in_two_pieces_is_bit_the_same(tmp_path, name, at):
    if ENTRIES[name]["cls"].startswith("pytorch_optimizer"):
        pytest.importorskip("pytorch_optimizer")
    plan, task = make(entry_text(**ENTRIES[name]))
    whole = train(plan, task, "one")
    assert whole.done
    first = train(plan, task, "one", epochs=at)
    checkpoint.save(tmp_path, "one", at, first.checkpoint(), piece=2000)
    assert len(list(tmp_path.iterdir())) > 1
    state = checkpoint.load([tmp_path], "one")
    torch.rand(7)  # what happens between the two commands is nothing to the run
    second = train(plan, task, "one", state=state)
    assert_same(outcome(second), outcome(whole))
    assert second.state.resumed == 1
    assert second.state.averaging == (name == "asgd")


def test_a_run_with_a_switch_records_it_every_epoch(tmp_path):
    """Decades that come late or go have no share before and after; those with no switch record nothing."""
    values = {**ENTRIES["agd"], "delta": 1e-2}
    plan, task = make(entry_text(**values))
    training = train(plan, task, "one")
    record = Recorder(plan, CPU)(training, 1)
    seen = {k: v for k, v in record.curves.items() if k.startswith("switch.")}
    assert {len(curve) for curve in seen.values()} == {record.epochs}
    overall = switch_report(training.stepper.built.optimizer).overall
    assert seen["switch.adaptive"][-1] == pytest.approx(overall.adaptive, abs=1e-6)
    decades = [v for k, v in seen.items() if k.startswith("switch.decade.") or k == "switch.zero"]
    assert [sum(shares) for shares in zip(*decades, strict=True)] == pytest.approx(
        [1] * record.epochs, abs=1e-5
    )
    save(record.curves, list(range(record.epochs)), "epoch", tmp_path / "epochs.svg")
    assert "1e-2 to 1e-1" in (tmp_path / "epochs.svg").read_text()
    plan, task = make(epochs=1, schedule={})
    assert not [k for k in train(plan, task, "adamw").state.curves if k.startswith("switch")]


def test_the_first_steps_are_the_optimizers_own():
    """Against a loop written out by hand."""
    plan, task = make(epochs=1, schedule={})
    ours = train(plan, task, "adamw")
    other = Training(task, plan, plan.optimizers["adamw"], 1)
    model, optimizer = other.model, torch.optim.AdamW(other.model.parameters(), lr=0.01, weight_decay=0.1)
    from agdopt.race.train import mix

    steps = task.batches(model, mix(1, 0, "order"))
    torch.manual_seed(mix(1, 0, "train"))
    assert [len(s.inputs[0]) for s in steps] == [32, 32, 6]
    assert sorted(torch.cat([s.inputs[0] for s in steps]).tolist()) == list(range(70))
    for step in steps:
        optimizer.zero_grad()
        task.loss(model, task.fetch(step.inputs)).backward()
        optimizer.step()
    for p, q in zip(ours.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(p, q)


def replayed(monkeypatch):
    """CUDA graphs as the stepper sees them: captured once per shapes, then played over the static inputs."""

    def capture(stepper, inputs):
        return SimpleNamespace(replay=lambda: stepper._captured_part(inputs))

    monkeypatch.setattr(Stepper, "_capture", capture)


@pytest.mark.parametrize(
    ("name", "many"),
    [("sgd", False), ("sgd", True), ("flat", False), ("adabelief", True), ("adahessian", True)],
)
def test_steps_under_graphs_are_the_plain_ones(monkeypatch, name, many):
    if ENTRIES[name]["cls"].startswith("pytorch_optimizer"):
        pytest.importorskip("pytorch_optimizer")
    plan, task = make(entry_text(**ENTRIES[name]))
    plain = outcome(train(plan, task, "one"))
    replayed(monkeypatch)
    monkeypatch.setattr("agdopt.race.stepper.MANY", 0 if many else 3)
    training = Training(task, plan, plan.optimizers["one"], 1)
    entry = plan.optimizers["one"]
    if name == "flat":  # on the CPU torch refuses capturable: the graph holds all but its step
        monkeypatch.setattr("inspect.signature", lambda f: SimpleNamespace(parameters={}))
    training.stepper.use(build(entry, training.cls, training.model, graph=True))
    assert training.stepper.built.graph == ("step" if name == "sgd" else "backward")
    for _ in training.advance():
        pass
    captured = training.stepper.graphs
    assert {k[0][0] for k in captured} == {32, 6}
    assert (training.stepper.built.grads is None) == (name == "sgd" and not many)
    assert all(isinstance(c, Captured) and c.graph for c in captured.values())
    curves, metrics, weights = outcome(training)
    assert metrics == pytest.approx(plain[1], rel=1e-5)
    assert curves["train.loss"] == pytest.approx(plain[0]["train.loss"], rel=1e-5)
    for key, value in weights.items():
        torch.testing.assert_close(value, plain[2][key])


def test_flat_keeps_values_strides_and_gradients():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    model.to(memory_format=torch.channels_last)
    params = list(model.parameters())
    before = [(p.clone(), p.stride()) for p in params]
    flat = flatten(params)
    model(torch.randn(5, 3, 3, 3)).sum().backward()
    for p, (value, stride) in zip(params, before, strict=True):
        assert torch.equal(p, value)
        assert p.stride() == stride
        assert p.grad.untyped_storage().data_ptr() == flat.grad.untyped_storage().data_ptr()
    with torch.no_grad():
        flat -= flat.grad
    for p, (value, _) in zip(params, before, strict=True):
        assert torch.equal(p, value - p.grad)


def go(tmp_path, *more, text=None, out="out"):
    path = tmp_path / "plan.toml"
    path.write_text(text or plan_text())
    return main([str(path), "--out", str(tmp_path / out), "--device", "cpu", *more])


def results(*folders):
    drop = ("seconds", "seconds_per_step", "finished", "notes", "jobs")
    found = {}
    for key, record in read(*folders).items():
        table = dataclasses.asdict(record)
        table["curves"].pop("ms_per_step")
        found[key[1:]] = {k: v for k, v in table.items() if k not in drop}
    return found


def test_runs_side_by_side_and_one_after_the_other_are_the_same(tmp_path, capsys):
    assert go(tmp_path, out="a") == 0
    assert go(tmp_path, "--jobs", "3", out="b") == 0
    assert len(results(tmp_path / "a")) == 4
    assert results(tmp_path / "a") == results(tmp_path / "b")
    assert go(tmp_path, out="a") == 0
    assert "4 runs, 4 of them have records" in capsys.readouterr().out
    assert go(tmp_path, "--have", str(tmp_path / "a"), "--seeds", "1,2,3", out="c") == 0
    assert {k[1] for k in results(tmp_path / "c")} == {3}


def marked(tmp_path, what):
    task = f'"tests.race.tiny:Marked"\nmark = "{tmp_path / "mark"}"\nwhat = "{what}"'
    return plan_text().replace('"tests.race.tiny:Tiny"', task)


def test_kill_9_loses_no_finished_run_and_doubles_none(tmp_path):
    text = marked(tmp_path, "kill")
    path = tmp_path / "plan.toml"
    path.write_text(text)
    command = [sys.executable, "-m", "agdopt.race.run", str(path), "--out", str(tmp_path / "out")]
    command += ["--save-every", "0", "--threads", "1", "--device", "cpu", "--set", "task.at=9"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    killed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert killed.returncode == -9, killed.stderr
    kept = (tmp_path / "out/records.jsonl").read_bytes()
    assert kept.count(b"\n") == 1
    assert list((tmp_path / "out/checkpoints").glob("adamw-s1-*-00002-1of1.ckpt"))
    (tmp_path / "out/records.jsonl").write_bytes(kept + kept[:50])
    with pytest.warns(UserWarning, match="half written; moved"):
        assert go(tmp_path, "--set", "task.at=9", text=text) == 0
    assert not list((tmp_path / "out/checkpoints").iterdir())
    lines = (tmp_path / "out/records.jsonl").read_text().splitlines()
    assert [json.loads(line)["notes"]["resumed"] for line in lines] == [0, 1, 0, 0]
    assert go(tmp_path, "--set", "task.at=9", text=text, out="whole") == 0
    assert results(tmp_path / "out") == results(tmp_path / "whole")


def test_an_interrupt_saves_at_the_end_of_the_epoch(tmp_path, capsys):
    text = marked(tmp_path, "interrupt")
    assert go(tmp_path, text=text) == 0
    assert "4 runs left: the same command goes on" in capsys.readouterr().out
    assert [p.name.split("-")[0] for p in (tmp_path / "out/checkpoints").iterdir()] == ["sgd"]
    assert go(tmp_path, text=text) == 0
    assert "begins from epoch 3" in capsys.readouterr().out
    assert len(results(tmp_path / "out")) == 4


def test_a_checkpoint_of_another_folder_is_gone_on_from(tmp_path, capsys):
    text = marked(tmp_path, "interrupt")
    assert go(tmp_path, text=text, out="a") == 0
    assert go(tmp_path, "--have", str(tmp_path / "a"), text=text, out="b") == 0
    assert "begins from epoch 3" in capsys.readouterr().out
    assert go(tmp_path, text=text, out="c") == 0
    assert results(tmp_path / "b") == results(tmp_path / "c")


def test_a_task_that_raises_fails_its_run_and_no_other(tmp_path, capsys):
    assert go(tmp_path, text=marked(tmp_path, "raise")) == 1
    said = capsys.readouterr()
    assert "sgd seed 1 failed: ArithmeticError: the task has had enough" in said.err
    assert sorted(results(tmp_path / "out")) == [("adamw", 1), ("adamw", 2), ("sgd", 2)]


def test_divergence_is_a_result(tmp_path, capsys):
    assert go(tmp_path, "--optimizers", "sgd", "--set", "optimizers.sgd.lr=1e6") == 0
    records = read(tmp_path / "out").values()
    assert len(records) == 2
    for r in records:
        assert r.steps - 3 < r.diverged_at <= r.steps < 18  # found out at the end of its epoch of 3 steps
        assert len(r.curves["train.loss"]) == r.epochs == r.steps / 3
    said = capsys.readouterr().out
    assert "sgd seed 1: done" in said
    assert "diverged at step" in said
    assert "sgd: 2 runs, 2 diverged" in said


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--set", "epoch=1"], "did you mean 'epochs'"),
        (["--set", "task.row=1"], "did you mean 'rows'"),
        (["--set", "task.name=ptbb"], "did you mean 'ptb'"),
        (["--set", "task.name=no_module:Task"], "no_module"),
        (["--set", "task.name=math:sqrt", "--seeds", "1"], "task 'math:sqrt'"),
        (["--optimizers", "adam"], "did you mean 'adamw'"),
        (["--seeds", "one"], "--seeds wants whole numbers"),
        (["--set", "optimizers.sgd.class=no_such.SGD"], "leave it out with --optimizers"),
        (["--set", "optimizers.sgd.momentum=-1.0"], "Invalid momentum value"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_misuse_is_a_sentence(tmp_path, capsys, more, says):
    if "cuda" in more and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    code = go(tmp_path, *more)
    assert code == (1 if "momentum" in says else 2)
    assert says in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "out").write_text("a file")
    assert go(tmp_path) == 2
    assert "cannot write to" in capsys.readouterr().err


def in_flight(driver, name, seed, epoch, cost):
    run = Run(driver.plan.optimizers[name], seed, f"{name}-{seed}", costs=[cost] * 3)
    run.training = SimpleNamespace(state=SimpleNamespace(epoch=epoch))
    driver.cost[name] = cost
    return run


def test_a_run_begins_only_if_it_can_finish_or_be_saved(tmp_path, monkeypatch):
    plan, task = make(epochs=100)
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    def driver(limit):
        made = Driver(task, plan, [], Options(tmp_path, deadline=1100.0, limit=limit), None, print)
        made.size = {"sgd": 50}
        return made

    d = driver(limit=60)
    half = in_flight(d, "sgd", 1, 50, 1.0)
    fresh = in_flight(d, "sgd", 2, 0, 1.0)
    assert d._fits([half], 1.0)
    assert d._fits([half, in_flight(d, "sgd", 3, 50, 1.0)], 1.0)  # 50 s each: both finish
    assert not d._fits([half, fresh], 1.0)  # 150 s, and only one can be saved
    assert driver(limit=100)._fits([half, fresh], 1.0)  # both could be saved
    assert driver(limit=None)._fits([half, fresh], 1.0)
    d.parked.append(half)
    assert not d._fits([fresh], 1.05)  # what waits to be saved takes the room


def test_of_runs_that_cannot_all_finish_the_last_is_given_up(tmp_path, monkeypatch, capsys):
    plan, task = make(epochs=100)
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    turn = Driver._turn

    def slow(driver, run):
        clock[0] += 0.07  # three steps and one judgement an epoch
        return turn(driver, run)

    monkeypatch.setattr(Driver, "_turn", slow)
    runs = plan.runs(["adamw"], [1, 2, 3, 4])
    # 112 s for four of them, 84 for three.
    options = Options(tmp_path, jobs=4, deadline=1100.0, limit=100_000)
    driver = Driver(task, plan, runs, options, Recorder(plan, CPU), print)
    driver.size = {"adamw": 60_000}
    driver.run()
    said = capsys.readouterr().out
    assert said.count("cannot finish in time beside the others") == 1
    assert len(read(tmp_path)) == 3
    assert [r.seed for r in driver.left] == [1]


def test_what_cannot_be_saved_is_left_out_and_said(tmp_path, capsys):
    text = marked(tmp_path, "interrupt")
    assert go(tmp_path, "--leave", "0.001", text=text) == 0
    assert "do not fit under the limit" in capsys.readouterr().out
    assert not list((tmp_path / "out/checkpoints").glob("*"))
    assert go(tmp_path, text=text) == 0
    assert len(results(tmp_path / "out")) == 4


def test_a_deadline_in_time_parks_what_runs(tmp_path, capsys):
    assert go(tmp_path, "--until", "3", "--set", "epochs=100000", "--set", "schedule.milestones=[90000]") == 0
    said = capsys.readouterr().out
    assert "saved" in said
    assert "runs left" in said
    (path,) = (tmp_path / "out/checkpoints").iterdir()
    assert path.name.startswith("sgd-s1-")


def test_the_last_weights_are_averaged_for_the_final_splits():
    plan, task = make(average_last=3)
    whole = Training(task, plan, plan.optimizers["adamw"], 1)
    seen = [[p.detach().clone() for p in whole.model.parameters()] for e in whole.advance() if e == EPOCH]
    assert len(seen) == 6
    for mean, *last in zip(whole.mean, *seen[-3:], strict=True):
        torch.testing.assert_close(mean, sum(last) / 3)
    for p, own in zip(whole.model.parameters(), seen[-1], strict=True):
        assert torch.equal(p, own)  # the model itself goes on as it was
    assert whole.state.curves["test.loss"][-1] != whole.state.metrics["test.loss"]
    first = train(plan, task, "adamw", epochs=4)
    resumed = train(plan, task, "adamw", state=first.checkpoint())
    assert resumed.state.metrics == whole.state.metrics
