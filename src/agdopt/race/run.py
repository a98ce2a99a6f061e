"""Trains the runs of a plan: python -m agdopt.race.run paper/t4-resnet20 --out results/t4-resnet20"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from agdopt.race.checks import PlanError
from agdopt.race.contest import race
from agdopt.race.plan import SCALES, Plan, load
from agdopt.race.record import Key, Record, RecordError, read
from agdopt.race.show import Lines


def summary(plan: Plan, records: Mapping[Key, Record]) -> list[str]:
    """Mean and standard deviation over seeds, an entry a line; the reports proper are made elsewhere."""
    lines = []
    for entry in plan.optimizers.values():
        own = [r for k, r in sorted(records.items()) if k[:2] == (plan.hash(entry), entry.name)]
        text = f"{entry.name}: {len(own)} runs"
        diverged = sum(r.diverged_at is not None for r in own)
        if diverged:
            text += f", {diverged} diverged"
        fine = [r for r in own if r.diverged_at is None]
        for key in fine[0].metrics if fine else ():
            values = [v for r in fine if (v := r.metrics.get(key)) is not None]
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            text += f"  {key} {statistics.fmean(values):.3f}{spread}" if values else ""
        lines.append(text)
    return lines


def add_arguments(p: argparse.ArgumentParser) -> None:
    """Those of `agdopt race`, too."""
    p.add_argument("--have", type=Path, action="append", default=[], help="folder of earlier records; repeat")
    p.add_argument("--scale", choices=SCALES, default="paper", help="reduced: as the plan's [reduced] says")
    p.add_argument("--optimizers", default="", help="entries of the plan, a,b; default: all")
    p.add_argument("--seeds", default="", help="of the final runs, 1,2,3; default: the plan's")
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="epochs=1, task.valid=5000; repeat"
    )
    p.add_argument("--until", type=float, help="seconds after which to save what is unfinished, and stop")
    p.add_argument("--leave", type=float, metavar="MIB", help="checkpoints left at the end, at most")
    p.add_argument("--save-every", type=float, default=60.0, metavar="SECONDS", help="between checkpoints")
    p.add_argument("--data", type=Path, help="folder of the data sets; default: AGDOPT_DATA")
    p.add_argument("--device", help="cpu, cuda, cuda:1; default: cuda where there is one")
    p.add_argument("--threads", type=int, help="of torch on the CPU; default: the cores, shared by --jobs")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m agdopt.race.run", description=__doc__)
    p.add_argument("plan", help="a .toml file, or a plan of the package such as paper/t4-resnet20")
    p.add_argument("--out", type=Path, required=True, help="folder of records.jsonl and checkpoints/")
    p.add_argument("--jobs", type=int, default=1, help="runs side by side on the device")
    add_arguments(p)
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    args = _arguments(argv)
    quiet()
    show = Lines(started)
    try:
        result = race(load(args.plan, args.set, scale=args.scale), args, started, show)
        for line in summary(result.plan, read(args.out, *args.have)):
            show.say(line)
    except (PlanError, RecordError) as e:
        print(e, file=sys.stderr, flush=True)
        return 2
    except OSError as e:  # a disk that is full: what has a record is kept
        print(e, file=sys.stderr, flush=True)
        return 1
    if result.left:
        show.say(f"{result.left} runs left: the same command goes on with them")
    for line in result.failed:
        print(line, file=sys.stderr, flush=True)
    return 1 if result.failed else 0


def quiet() -> None:
    # Said of every capturable optimizer's first step, which is no part of a graph.
    warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")


if __name__ == "__main__":
    sys.exit(main())
