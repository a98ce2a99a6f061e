"""Trains the runs of a plan: python -m agdopt.race.run paper/t4-resnet20 --out results/t4-resnet20"""

import argparse
import datetime
import importlib.metadata
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import agdopt
from agdopt.race.checks import PlanError
from agdopt.race.driver import Driver, Options
from agdopt.race.optimizers import resolve
from agdopt.race.plan import SCALES, Plan, load
from agdopt.race.record import Key, Record, RecordError, read, repair
from agdopt.race.task import make_task
from agdopt.race.train import Training


def environment(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,  # type: ignore[no-untyped-call]
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"torch": torch.__version__, "agdopt": agdopt.__version__}
    for package in ("numpy", "pytorch-optimizer", "schedulefree"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None  # not there, or on the path without having been installed
    return found


def commit() -> str | None:
    """AGDOPT_COMMIT for a copy without its history; else what git says, marked where the race has changed."""
    if "AGDOPT_COMMIT" in os.environ:
        return os.environ["AGDOPT_COMMIT"]
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip() + (
            "+changed" if git("status", "--porcelain", "--", ".") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


class Recorder:
    """From a finished training to its record; what is the same for all of them is asked once."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.environment, self.versions, self.commit = environment(device), versions(), commit()

    def __call__(self, training: Training, jobs: int) -> Record:
        state, entry = training.state, training.entry
        pace = state.curves.get("ms_per_step", [])
        cuda = self.device.type == "cuda"
        return Record(
            plan=self.plan.name,
            plan_hash=self.plan.hash(entry),
            optimizer=entry.name,
            seed=training.seed,
            recipe=self.plan.recipe(entry),
            environment=self.environment,
            versions=self.versions,
            commit=self.commit,
            parameters=sum(p.numel() for p in training.model.parameters()),
            epochs=state.epoch,
            steps=state.update,
            metrics=_short(state.metrics),
            curves={k: [_round(v) for v in values] for k, values in state.curves.items()},
            seconds=round(state.seconds, 3),
            seconds_per_step=_round(statistics.median(pace) / 1e3) if pace else None,
            peak_memory=torch.cuda.max_memory_allocated(self.device) if cuda else None,
            jobs=jobs,
            graph=training.stepper.built.graph,
            diverged_at=state.diverged_at,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            notes={"resumed": state.resumed, "averaging": state.averaging},
        )


def _round(value: float) -> float:
    return float(f"{value:.7g}")


def _short(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {k: _round(v) for k, v in metrics.items()}


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


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m agdopt.race.run", description=__doc__)
    p.add_argument("plan", help="a .toml file, or a plan of the package such as paper/t4-resnet20")
    p.add_argument("--out", type=Path, required=True, help="folder of records.jsonl and checkpoints/")
    p.add_argument("--have", type=Path, action="append", default=[], help="folder of earlier records; repeat")
    p.add_argument("--scale", choices=SCALES, default="paper", help="reduced: as the plan's [reduced] says")
    p.add_argument("--optimizers", default="", help="entries of the plan, a,b; default: all")
    p.add_argument("--seeds", default="", help="1,2,3; default: the plan's")
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="epochs=1, task.valid=5000"
    )
    p.add_argument("--jobs", type=int, default=1, help="runs side by side on the device")
    p.add_argument("--until", type=float, help="seconds after which to save what is unfinished, and stop")
    p.add_argument("--leave", type=float, metavar="MIB", help="checkpoints left at the end, at most")
    p.add_argument("--save-every", type=float, default=60.0, metavar="SECONDS", help="between checkpoints")
    p.add_argument("--data", type=Path, help="folder of the data sets; default: AGDOPT_DATA")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--threads", type=int, help="of torch on the CPU")
    return p.parse_args(argv)


def race(args: argparse.Namespace, started: float) -> int:
    def say(text: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {text}", flush=True)

    plan = load(args.plan, args.set, args.scale)
    try:
        seeds = [int(s) for s in args.seeds.split(",") if s]
    except ValueError as e:
        raise PlanError(f"--seeds wants whole numbers such as 1,2,3, got {args.seeds!r}") from e
    runs = plan.runs([n for n in args.optimizers.split(",") if n], seeds)
    for entry in {e.name: e for e, _ in runs}.values():
        resolve(entry)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "records.jsonl").touch()
    except OSError as e:
        raise PlanError(f"cannot write to {args.out}: {e.strerror}") from e
    repair(args.out / "records.jsonl")
    known = read(args.out, *args.have)
    wanted = [(e, s) for e, s in runs if (plan.hash(e), e.name, s) not in known]
    say(f"{plan.name}: {len(runs)} runs, {len(runs) - len(wanted)} of them have records")
    driver = None
    if wanted:
        device = torch.device(args.device)
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise PlanError("--device cuda: torch sees no CUDA device here; use --device cpu")
            device = torch.device("cuda", device.index or 0)
        task = make_task(plan.task, plan.batch, device, args.data)
        options = Options(
            out=args.out,
            have=tuple(args.have),
            jobs=max(1, args.jobs),
            deadline=None if args.until is None else started + args.until,
            save_every=args.save_every,
            limit=None if args.leave is None else int(args.leave * 2**20),
        )
        driver = Driver(task, plan, wanted, options, Recorder(plan, device), say)
        before = [signal.signal(s, lambda *_: driver.stop()) for s in (signal.SIGINT, signal.SIGTERM)]
        try:
            driver.run()
        finally:
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
                signal.signal(number, handler)
    for line in summary(plan, read(args.out, *args.have)):
        say(line)
    if driver and driver.left:
        say(f"{len(driver.left)} runs left: the same command goes on with them")
    for line in driver.failed if driver else ():
        print(line, file=sys.stderr, flush=True)
    return 1 if driver and driver.failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    args = _arguments(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    # Said of every capturable optimizer's first step, which is no part of a graph.
    warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
    try:
        return race(args, started)
    except (PlanError, RecordError) as e:
        print(e, file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
