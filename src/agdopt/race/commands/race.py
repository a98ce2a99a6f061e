"""agdopt race: which optimizer is best on this task, with equal tuning and fresh seeds?"""

import argparse
import contextlib
import importlib.resources
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agdopt.race import report
from agdopt.race.checks import PlanError, need
from agdopt.race.contest import Result, race
from agdopt.race.plan import Plan, load
from agdopt.race.record import Record, as_json, read
from agdopt.race.run import add_arguments, quiet
from agdopt.race.show import Lines, Live, Show, fancy
from agdopt.race.task import budget

# What runs when no plan is given: plans/digits.toml, once for each of its models.
EMBEDDED = {"digits": [], "digits-cnn": ["name=digits-cnn", "task.net=cnn"]}


def add(commands: Any) -> None:
    p: argparse.ArgumentParser = commands.add_parser(
        "race", help=__doc__, description=f"{__doc__} The same command goes on where an earlier one stopped."
    )
    p.add_argument(
        "plan", nargs="?", help="a .toml file or a plan of the package; default: digits, two models"
    )
    p.add_argument("--task", metavar="MODULE:NAME", help="race on a task of your own")
    p.add_argument("--new-task", type=Path, metavar="FILE.py", help="write a task to begin with, and stop")
    p.add_argument("--out", type=Path, help="folder of records and reports; default: runs/<plan>")
    p.add_argument("--jobs", type=int, help="runs side by side; default: the cores of a CPU, 1 on a GPU")
    p.add_argument("--trials", type=int, help="of the search, for each optimizer; 0: the plan's own settings")
    p.add_argument("--json", action="store_true", help="the final records as a JSON list on standard output")
    add_arguments(p)


def run(args: argparse.Namespace) -> int:
    if args.new_task:
        return new_task(args.new_task)
    started = time.monotonic()
    quiet()
    stream = sys.stderr if args.json else sys.stdout
    found: list[Record] = []
    code = 0
    for plan in plans(args):
        own = argparse.Namespace(**vars(args))
        several = args.plan is None and args.task is None
        own.out = (args.out / plan.name if several else args.out) if args.out else Path("runs") / plan.name
        with showing(started, stream) as show:
            result = race(plan, own, started, show)
        records = finals(result, own)
        found += records
        print(f"{result.plan.name}: records in {own.out}", file=stream)
        if records:
            report.show(report.write(own.out, [own.out, *own.have]), own.out / "report.html", stream)
        code = max(code, say_what_is_missing(result))
        if result.interrupted:
            break
    if args.json:
        print(json.dumps([as_json(r) for r in found]))
    return code


def plans(args: argparse.Namespace) -> list[Plan]:
    settings = [*args.set, *([] if args.trials is None else [f"search.trials={args.trials}"])]
    if args.task:
        # The plan's optimizers and search on another task, which brings its own budget.
        name = args.task.replace(":make_task", "").replace(":", "-")
        changes = {"task": {"name": args.task}, "name": name, "target": None, "about": "", "cell": ""}
        if args.plan is None:
            changes |= budget(args.task)
        return [load(args.plan or "digits", settings, changes, args.scale)]
    if args.plan:
        return [load(args.plan, settings, scale=args.scale)]
    return [load("digits", [*own, *settings], scale=args.scale) for own in EMBEDDED.values()]


@contextlib.contextmanager
def showing(started: float, stream: Any) -> Iterator[Show]:
    if not fancy(stream):
        yield Lines(started, stream)
        return
    with Live(stream) as live:
        yield live


def finals(result: Result, args: argparse.Namespace) -> list[Record]:
    """Of the settings that were raced just now, whoever ran them."""
    keys = {(result.plan.hash(result.plan.optimizers[n]), n) for n in result.raced}
    return [r for k, r in sorted(read(args.out, *args.have).items()) if k[:2] in keys]


def say_what_is_missing(result: Result) -> int:
    def say(text: str) -> None:
        print(f"agdopt: {text}", file=sys.stderr)

    if result.failed:
        # A task that raises does so in every run.
        more = f"\nagdopt: {len(result.failed) - 1} more runs failed" if len(result.failed) > 1 else ""
        say(result.failed[0].rstrip() + more)
    if result.interrupted:
        say("interrupted; what was recorded is kept")
    if result.left:
        say(f"{result.left} runs are left: the same command goes on with them")
    return int(bool(result.failed) or result.interrupted)


def new_task(path: Path) -> int:
    need(path.suffix == ".py", f"--new-task {path}: a task is a Python file, such as my_task.py")
    module = ".".join(path.with_suffix("").parts)
    text = (importlib.resources.files("agdopt.race") / "template.py").read_text("utf-8")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text.replace("TASK_MODULE", module))
    except FileExistsError as e:
        raise PlanError(f"--new-task {path}: there is such a file, and it is left as it is") from e
    except OSError as e:
        raise PlanError(f"--new-task {path}: cannot be written: {e.strerror}") from e
    print(f"{path} is written; race on it with: agdopt race --task {module}:make_task")
    return 0
