"""agdopt paper: what the paper claims, what stands of it, and how to repeat it."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agdopt.race.checks import PlanError, need, seeds_of
from agdopt.race.commands.race import say_what_is_missing, showing
from agdopt.race.contest import race
from agdopt.race.paper.cell import Cell, cells, names, select
from agdopt.race.paper.evidence import entries
from agdopt.race.plan import Plan, load
from agdopt.race.record import read
from agdopt.race.run import add_arguments, quiet, summary
from agdopt.race.show import table

RESULTS = Path("results")


def add(commands: Any) -> None:
    p: argparse.ArgumentParser = commands.add_parser(
        "paper", help="the paper's tables and figures", description=__doc__
    )
    actions = p.add_subparsers(required=True, metavar="action", dest="action")
    listed = actions.add_parser("list", help="every cell: claim, status, numbers, verdict, command")
    listed.add_argument("cells", nargs="*", metavar="ROW[.CELL]", help="T4, T4.resnet20; default: all")
    listed.add_argument("--json", action="store_true", help="one object a cell, on standard output")
    ran = actions.add_parser("run", help="train what a cell needs; goes on where an earlier one stopped")
    ran.add_argument("cells", nargs="+", metavar="ROW[.CELL]", help="T4, T4.resnet20")
    ran.add_argument("--out", type=Path, help="folder of records; default: RESULTS/<plan>")
    ran.add_argument("--jobs", type=int, help="runs side by side; default: the cores of a CPU, 1 on a GPU")
    ran.add_argument("--stand-in", action="store_true", help="on the cell's other data set: reduced")
    add_arguments(ran)
    told = actions.add_parser("report", help="write docs/results.md and its figures, from the records")
    told.add_argument("--out", type=Path, default=Path("docs/results.md"), help="default: docs/results.md")
    for action in (listed, ran, told):
        action.add_argument("--results", type=Path, default=RESULTS, help="folder of the records")


def run(args: argparse.Namespace) -> int:
    given = args.results != RESULTS and args.action != "run"
    need(not given or args.results.is_dir(), f"--results {args.results}: there is no such folder")
    return {"list": _list, "run": _run, "report": _report}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from agdopt.race.paper.listing import listing

    lines = listing(args.results, args.cells)
    if args.json:
        print(json.dumps([line.json() for line in lines], indent=1))
        return 0
    rows = []
    for line in lines:
        status = f"{line.status}, {line.evidence.seeds} seeds" if line.evidence.seeds else line.status
        again = line.command.removeprefix("agdopt paper ")
        takes = f"{line.hours:g} h" if line.hours else "seconds"
        rows.append([line.name, status, line.verdict, takes if again else "", again])
    table("The paper, cell by cell", ["cell", "status", "verdict", "an H200", "agdopt paper ..."], rows)
    done = sum(line.status == "done" for line in lines)
    print(f"{len(lines)} cells, {done} done. Numbers and reasons: --json, or `agdopt paper report`.")
    return 0


def _report(args: argparse.Namespace) -> int:
    from agdopt.race.paper.page import write

    for path in write(args.results, args.out):
        print(f"{path} written")
    return 0


def _run(args: argparse.Namespace) -> int:
    started, code = time.monotonic(), 0
    quiet()
    chosen = select(args.cells, names())
    for name in [n for n in chosen if n not in cells()]:
        _refuse(name, args)
        code = max(code, _numerical(name, args))
    trained = [cells()[n] for n in chosen if n in cells()]
    for cell in trained:
        if cell.described:
            print(f"agdopt: {cell.name}: documented by `agdopt paper report`", file=sys.stderr)
        elif cell.judge == "curvature":
            _refuse(cell.name, args, "seeds", "scale", "data", "device")
            _curvature(cell, args)
    for plan, wanted in _plans(trained, args):
        try:
            found, stopped = _train(plan, wanted, args, started)
        except PlanError as e:
            # A data set that is not there, most likely: the other cells of the row may have theirs.
            print(f"agdopt: {plan.name}: {e}", file=sys.stderr)
            found, stopped = 2, False
        code = max(code, found)
        if stopped:
            break
    return code


def _refuse(name: str, args: argparse.Namespace, *takes: str) -> None:
    """What is no race takes few of a race's flags, and none is left out in silence."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    usual = {**vars(parser.parse_args([])), "jobs": None, "stand_in": False}
    given = [k for k, v in usual.items() if k not in takes and getattr(args, k) != v]
    flags = ", ".join("--" + k.replace("_", "-") for k in given)
    need(not given, f"{name} takes no {flags}: it is no race; run it in a command of its own")


def _numerical(name: str, args: argparse.Namespace) -> int:
    from agdopt.race import numerical
    from agdopt.race.paper.listing import NUMERICAL

    out = args.out / "records.jsonl" if args.out else args.results / NUMERICAL
    record = numerical.run(name, out)
    (row,) = (r for r in numerical.listing({name: record}) if r["cell"] == name)
    print(f"{name}: {row['verdict']}. {row['ours']}", flush=True)
    return 0


def _curvature(cell: Cell, args: argparse.Namespace) -> None:
    from agdopt.race import curvature, curvature_report
    from agdopt.race.paper.listing import CURVATURE

    out = args.out or args.results / CURVATURE
    seeds = seeds_of(args.seeds)
    found = curvature.run(cell.name, out, args.data, args.scale, args.device or "", seeds)
    words, verdict = curvature_report.judge(found)
    print(f"{cell.name}: {verdict}. {words}", flush=True)


def _plans(trained: Sequence[Cell], args: argparse.Namespace) -> list[tuple[Plan, list[str]]]:
    """Each plan once, with the entries that the cells look at; other plans have cells of their own."""
    found: dict[str, tuple[Plan, dict[str, None]]] = {}
    for cell in (c for c in trained if c.plan):
        if args.stand_in:
            need(bool(cell.stand_in), f"--stand-in: {cell.name} has no other data set than its own")
        name = cell.stand_in if args.stand_in else cell.plan
        if name not in found:
            found[name] = load(f"paper/{name}", args.set, scale=args.scale), {}
        for pairs in entries(cell, name).values():
            found[name][1].update((e.name, None) for p, e in pairs if p.name == name)
    return [(plan, list(wanted)) for plan, wanted in found.values()]


def _train(plan: Plan, wanted: Sequence[str], args: argparse.Namespace, started: float) -> tuple[int, bool]:
    own = argparse.Namespace(**vars(args))
    own.out = args.out or args.results / plan.name
    own.optimizers = args.optimizers or ",".join(wanted)
    if args.stand_in or args.scale == "reduced" or args.set:
        print(f"{plan.name}: not the paper's recipe, so its cells are reduced at best", flush=True)
    with showing(started, sys.stdout) as show:
        result = race(plan, own, started, show)
    for line in summary(result.plan, read(own.out, *own.have)):
        print(line, flush=True)
    print(f"{plan.name}: records in {own.out}; `agdopt paper report` has the verdict", flush=True)
    return say_what_is_missing(result), result.interrupted
