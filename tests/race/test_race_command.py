"""agdopt race, as a user meets it."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.race.test_search import search_text

from agdopt.race import cli, show
from agdopt.race.plan import load
from agdopt.race.record import read

ROOT = Path(__file__).parents[2]
QUICK = ["--jobs", "1", "--trials", "2", "--seeds", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def race(*words):
    return cli.main(["race", *map(str, words)])


def test_no_plan_is_the_embedded_one_on_both_models(capsys):
    pytest.importorskip("sklearn")
    assert race(*QUICK, "--optimizers", "agd,sgd", "--set", "epochs=1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {(r["plan"], r["recipe"]["task"]["net"], r["optimizer"]) for r in found} == {
        (plan, net, name)
        for plan, net in (("digits", "mlp"), ("digits-cnn", "cnn"))
        for name in ("agd", "sgd")
    }
    for folder in ("digits", "digits-cnn"):
        assert len(read(Path("runs") / folder / "trials.jsonl")) == 4


def test_the_table_and_a_second_call(capsys):
    Path("plan.toml").write_text(search_text())
    assert race("plan.toml", "--jobs", "1") == 0
    said = capsys.readouterr().out
    assert "tiny: No verdict yet: 2 seeds shared with adamw" in said
    assert "&quot;trials&quot;: 6" in Path("runs/tiny/report.html").read_text("utf-8")  # the plan's search
    before = Path("runs/tiny/records.jsonl").read_bytes()
    assert race("plan.toml", "--jobs", "1", "--json") == 0
    captured = capsys.readouterr()
    assert Path("runs/tiny/records.jsonl").read_bytes() == before
    assert [r["seed"] for r in json.loads(captured.out)] == [1, 2, 1, 2]
    assert "12 trials, 12 of them have records" in captured.err


def test_the_template_runs_as_it_is_and_anew_when_it_changes(capsys):
    assert race("--new-task", "my_first_task.py") == 0
    assert "agdopt race --task my_first_task:make_task" in capsys.readouterr().out
    own = ["--task", "my_first_task:make_task", *QUICK, "--optimizers", "agd,adamw"]
    assert race(*own) == 0
    said = capsys.readouterr().out
    assert "runs/my_first_task" in said
    first = read(Path("runs/my_first_task/records.jsonl"))
    assert {r.epochs for r in first.values()} == {10}  # the task's budget
    assert {r.recipe["batch"] for r in first.values()} == {32}
    assert all(r.metrics["test.accuracy"] > 60 for r in first.values())
    text = Path("my_first_task.py").read_text()
    Path("my_first_task.py").write_text(
        text.replace("Linear(20, 64)", "Linear(20, 32)").replace("(64, 2)", "(32, 2)")
    )
    sys.modules.pop("my_first_task")
    assert race(*own) == 0
    both = read(Path("runs/my_first_task/records.jsonl"))
    assert len(both) == 2 * len(first)
    assert race("--new-task", "my_first_task.py") == 2
    assert "there is such a file" in capsys.readouterr().err


@pytest.fixture
def torchvision_imports():
    """transformers imports torchvision where it is installed. The index's wheel is built for CUDA: beside a
    CPU's torch its operators do not load, and the import fails for want of their names."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        names = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            names.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(names)


KEPT = []  # the names go with the library object


@pytest.mark.parametrize("example", ["race_plain_loop", "race_transformers"])
def test_examples_race(example, request):
    if example == "race_transformers":
        pytest.importorskip("transformers")
        request.getfixturevalue("torchvision_imports")
    shutil.copy(ROOT / "examples" / f"{example}.py", ".")
    assert race("--task", f"{example}:make_task", *QUICK, "--optimizers", "agd") == 0
    (record,) = read(Path("runs") / example / "records.jsonl").values()
    curve = record.curves["train.loss"]
    assert curve[-1] < 0.9 * curve[0]


ENTRIES = [
    *("agd", "agdw", "sgd", "adam", "adamw", "adabelief", "lion", "schedulefree"),
    *("adabound", "adahessian", "adan", "mars", "soap", "muon"),
]


def test_every_optimizer_of_the_embedded_plan_trains_on_both_models(tmp_path):
    """Also those that are commented out: each a '#' away."""
    pytest.importorskip("sklearn")
    pytest.importorskip("pytorch_optimizer")
    from agdopt.race.optimizers import resolve
    from agdopt.race.search import Tuning, grid, trial_plan
    from agdopt.race.task import make_task
    from agdopt.race.train import Training

    text = (ROOT / "src/agdopt/plans/digits.toml").read_text()
    ready, _, off = text.partition("# More, each ready to run.\n")
    off = "\n".join(line.removeprefix("# ") for line in off.splitlines())
    (tmp_path / "all.toml").write_text(ready + off)
    for net in ("mlp", "cnn"):
        plan = load(tmp_path / "all.toml", ["epochs=4", f"task.net={net}"])
        assert list(plan.optimizers) == ENTRIES
        task = make_task(plan.task, plan.batch, torch.device("cpu"))
        for entry in plan.optimizers.values():
            resolve(entry)
            tuning = Tuning(trial_plan(plan, plan.search), plan.search, entry)
            middle = tuning.with_values(grid(entry.search, 3, 5))
            training = Training(task, tuning.plan, middle, 1)
            for _ in training.advance():
                pass
            assert training.state.metrics["valid.accuracy"] > 50, (net, entry.name)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plam.toml"], "cannot read the plan"),
        (["digit"], "no plan 'digit'"),
        (["digits", "--set", "epoch=1"], "did you mean 'epochs'"),
        (["digits", "--optimizers", "adan"], "did you mean"),
        (["digits", "--trials", "-1"], "search.trials must be >= 0"),
        (["digits", "--trials", "0"], "lr is missing"),
        (["digits", "--jobs", "-1"], "--jobs must be >= 1"),
        (["digits", "--device", "gpu"], "no such device"),
        (["--task", "no_such_module:make_task"], "no_such_module"),
        (["--task", "bad:make_tsk"], "did you mean 'make_task'"),
        (["--task", "bad:make_task"], "must make an agdopt.race.task.Task, got int"),
        (["--task", "bad:raises"], "cannot be made: RuntimeError: no data today"),
        (["--task", "bad:three"], "must be a Task class or a function, got 3"),
        (["--new-task", "task.txt"], "a task is a Python file"),
        (["--new-task", "no/such/folder/task.py"], "cannot be written"),
        (["newer"], "has schema 99"),
        (["digits", "--out", "bad.py"], "cannot write to bad.py"),
    ],
)
def test_bad_input_is_a_sentence_and_2(words, says, capsys, tmp_path):
    Path("bad.py").write_text(BAD)
    sys.modules.pop("bad", None)
    if words == ["newer"]:
        Path("plan.toml").write_text(search_text())
        Path("runs/tiny").mkdir(parents=True)
        Path("runs/tiny/records.jsonl").write_text('{"schema": 99, "plan": "x"}\n')
        words = ["plan.toml"]
    assert race(*words) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert err.startswith("agdopt: ")


BAD = """
def make_task(batch):
    return 3

def raises():
    raise RuntimeError("no data today")

three = 3
"""

OWN = """
from agdopt.race.template import MyTask
import torch
class Own(MyTask):
    {body}
"""


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("metric = 'f1'", 1, "the task gives no 'f1' for 'valid'"),
        ("def loss(self, model, batch): raise KeyError('label')", 1, "failed: KeyError: 'label'"),
        (
            "def load(self): return {'train': super().load()['train']}",
            2,
            "the search needs a split 'valid', and the task has train",
        ),
        (
            "def score(self, model, batch): return {'accuracy': torch.tensor(float('nan'))}",
            0,
            "valid.accuracy is not finite",
        ),
    ],
)
def test_a_task_gone_wrong(body, code, says, capsys, request):
    name = f"own_{abs(hash(body))}"
    Path(f"{name}.py").write_text(OWN.format(body=body))
    assert race("--task", f"{name}:Own", *QUICK, "--optimizers", "sgd", "--set", "epochs=1") == code
    captured = capsys.readouterr()
    assert says in captured.out + captured.err
    for path in Path("runs").rglob("*.jsonl"):
        read(path)


def test_an_interrupt_keeps_what_was_done_and_the_next_call_goes_on():
    """Through processes of --jobs, which a terminal would interrupt as well."""
    Path("plan.toml").write_text(search_text(trials=4).replace("epochs = 2\n", ""))
    command = [
        sys.executable,
        "-m",
        "agdopt.race.cli",
        "race",
        "plan.toml",
        "--jobs",
        "2",
        "--set",
        "epochs=60",
    ]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    race = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    trials = Path("runs/tiny/trials.jsonl")
    until = time.monotonic() + 60
    while not trials.exists() and time.monotonic() < until:
        time.sleep(0.05)
    race.send_signal(signal.SIGINT)
    out, err = race.communicate(timeout=60)
    assert race.returncode == 1, out + err
    assert "interrupted; what was recorded is kept" in err
    assert "the same command goes on with them" in err
    assert "Traceback" not in err
    kept = trials.read_text()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert trials.read_text().startswith(kept)
    assert len(read(trials)) == trials.read_text().count("\n") == 8


def test_when_the_race_is_killed_its_processes_end(tmp_path):
    Path("plan.toml").write_text(search_text(trials=4))
    command = [sys.executable, "-m", "agdopt.race.cli", "race", "plan.toml", "--jobs", "2"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    more = ["--set", "epochs=100000", "--set", "search.epochs=100000", "--save-every", "0"]
    race = subprocess.Popen([*command, *more], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until = time.monotonic() + 60
    while not list(Path("runs").glob("tiny/checkpoints/*.ckpt")) and time.monotonic() < until:
        time.sleep(0.05)
    race.kill()
    # The workers hold the other end: it closes when the last of them is gone.
    out, _ = race.communicate(timeout=20)
    assert race.returncode == -9, out
    assert list(Path("runs").glob("tiny/checkpoints/*.ckpt"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_disk_that_is_full_ends_it_with_a_sentence(jobs):
    """As far as a limit on a file's size is like one."""
    Path("plan.toml").write_text(search_text(trials=4))
    command = f"ulimit -f 4; exec {sys.executable} -m agdopt.race.cli race plan.toml --jobs {jobs}"
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    with pytest.warns(UserWarning, match="half written; moved to"):
        assert race("plan.toml", "--jobs", "1") == 0
    assert Path("runs/tiny/trials.jsonl").read_text().count("\n") == 8


def test_a_process_that_dies_is_said_and_its_run_made_again(capsys):
    task = 'tests.race.tiny:Marked"\nmark = "mark"\nat = 3\nwhat = "kill'
    Path("plan.toml").write_text(search_text(trials=2, task=task))
    assert race("plan.toml", "--jobs", "2") == 1
    err = capsys.readouterr().err
    assert "a process of --jobs died" in err
    assert "the same command goes on" in err
    assert race("plan.toml", "--jobs", "2") == 0
    assert [r.seed for r in read(Path("runs/tiny/records.jsonl")).values()].count(2) == 2
    assert Path("runs/tiny/trials.jsonl").read_text().count("\n") == 4


def test_on_a_terminal_there_are_bars(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr(show, "fancy", lambda stream: True)
    monkeypatch.setattr("agdopt.race.commands.race.fancy", lambda stream: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    Path("plan.toml").write_text(search_text(trials=2))
    assert race("plan.toml", "--jobs", "1") == 0
    said = capsys.readouterr().out
    assert "4/4" in said
    assert "best test.loss" in said


def test_help_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; from agdopt.race.cli import main; main(['--help'])"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "race" in done.stdout
    code = code.replace("'--help'", "'race'").replace("main([", "sys.exit(main([").replace("])", "]))")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert 'pip install "agdopt[torch]"' in done.stderr
