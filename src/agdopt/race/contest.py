"""A race: search, where the plan has one, then the final runs; what has a record is not run again."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from agdopt.race.checks import PlanError, seeds_of
from agdopt.race.driver import Options
from agdopt.race.optimizers import resolve
from agdopt.race.plan import Entry, Plan, canonical
from agdopt.race.pool import cores
from agdopt.race.record import Record, read, repair
from agdopt.race.search import Tuning, sampler_of, trial_plan
from agdopt.race.show import Show
from agdopt.race.task import source_of
from agdopt.race.trainer import Trainer

FINALS, TRIALS, PLAN = "records.jsonl", "trials.jsonl", "plan.json"


@dataclass
class Result:
    """What a command leaves behind, beside its records."""

    plan: Plan  # with the settings that the search found
    raced: list[str] = field(default_factory=list)  # the optimizers that came to their final runs
    failed: list[str] = field(default_factory=list)
    left: int = 0
    interrupted: bool = False


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as e:
        raise PlanError(f"--device {name}: no such device; cpu, cuda or cuda:1") from e
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise PlanError("--device cuda: torch sees no CUDA device here; use --device cpu")
    index, there = device.index or 0, torch.cuda.device_count()
    if index >= there:
        raise PlanError(f"--device {name}: there are {there} CUDA devices, counted from 0")
    return torch.device("cuda", index)


def _seeds(text: str, plan: Plan) -> list[int]:
    seeds = seeds_of(text)
    if plan.search and set(seeds) & set(plan.search.seeds):
        raise PlanError(f"--seeds {text}: the search trains with {plan.search.seeds}; final runs need others")
    return seeds


def _prepare(out: Path, plan: Plan) -> None:
    # Records hold what decides their numbers; the search and the prose, which a report shows, stand here.
    told = {k: v for k, v in dataclasses.asdict(plan).items() if v not in (None, "", (), {})}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in (FINALS, TRIALS):
            if file == FINALS or (out / file).exists():
                repair(out / file)
        (out / PLAN).write_text(json.dumps(canonical(told), indent=1) + "\n", "utf-8")
    except OSError as e:
        raise PlanError(f"cannot write to {out}: {e.strerror}") from e


def race(plan: Plan, args: argparse.Namespace, started: float, show: Show) -> Result:
    """Search, where the plan has one; then the final runs. What has a record is not run again."""
    plan = dataclasses.replace(plan, source=source_of(plan.task["name"]))
    seeds = _seeds(args.seeds, plan)
    names = [n for n in args.optimizers.split(",") if n]
    entries = list({e.name: e for e, _ in plan.runs(names, seeds)}.values())
    for entry in entries:
        resolve(entry)
    device = _device(args.device)
    jobs = args.jobs or (min(cores(), 8) if device.type == "cpu" else 1)
    if jobs < 1:
        raise PlanError(f"--jobs must be >= 1, got {args.jobs}")
    _prepare(args.out, plan)
    options = Options(
        out=args.out,
        have=tuple(args.have),
        jobs=jobs,
        deadline=None if args.until is None else started + args.until,
        save_every=args.save_every,
        limit=None if args.leave is None else int(args.leave * 2**20),
        data=args.data,
    )
    trainer = Trainer(options, device, args.threads, show)
    result = Result(plan)
    with trainer.listening():
        if plan.search and plan.search.trials:
            _tune(result, entries, trainer, show)
        else:
            result.raced = [e.name for e in entries]
        if result.raced:
            _finals(result, seeds, trainer, show)
        result.interrupted = trainer.stop.is_set()
    return result


def _tune(result: Result, entries: Sequence[Entry], trainer: Trainer, show: Show) -> None:
    """Round by round: what may begin, begins, for all optimizers together."""
    plan, options = result.plan, trainer.options
    assert plan.search is not None
    search, judged = plan.search, trial_plan(plan, plan.search)
    tunings = [Tuning(judged, search, e) for e in entries]
    if sampler_of(search) != search.sampler:
        show.say("Optuna is not installed: a grid with as many trials stands in for its sampler")

    def finished() -> dict[str, dict[int, Record]]:
        known = list(read(options.out, *options.have).values())
        return {t.entry.name: t.finished(known) for t in tunings}

    done = finished()
    count = sum(map(len, done.values()))
    show.say(f"{plan.name}: {len(tunings) * search.trials} trials, {count} of them have records")
    for t in tunings:
        total = search.trials + len(t.entry.seeds or plan.seeds)
        show.expect(t.entry.name, len(done[t.entry.name]), total)
    tried: set[tuple[int, str]] = set()  # what failed waits for the next command
    while not trainer.over():
        ready = [
            (n, t) for t in tunings for n in t.ready(done[t.entry.name]) if (n, t.entry.name) not in tried
        ]
        if not ready:
            break
        ready.sort(key=lambda r: r[0])
        tried |= {(n, t.entry.name) for n, t in ready}
        batch = [(t.suggest(n, done[t.entry.name]), search.seed + n) for n, t in ready]
        outcome = trainer.train(judged, batch, TRIALS)
        result.failed += outcome.failed
        done = finished()
        if outcome.left:
            break
    whole = [t for t in tunings if len(done[t.entry.name]) == search.trials]
    result.left += sum(search.trials - len(done[t.entry.name]) for t in tunings)
    best = {t.entry.name: t.best(done[t.entry.name]) for t in whole}
    result.plan = dataclasses.replace(plan, optimizers={**plan.optimizers, **best})
    result.raced = list(best)
    for name, entry in best.items():
        found = ", ".join(f"{k} = {entry.arguments[k]}" for k in entry.search)
        show.say(f"{name}: the best of {search.trials} trials has {found}")


def _finals(result: Result, seeds: Sequence[int], trainer: Trainer, show: Show) -> None:
    plan, options = result.plan, trainer.options
    known = read(options.out, *options.have)
    runs = plan.runs(result.raced, seeds)
    wanted = [(e, s) for e, s in runs if (plan.hash(e), e.name, s) not in known]
    show.say(f"{plan.name}: {len(runs)} runs, {len(runs) - len(wanted)} of them have records")
    trials = plan.search.trials if plan.search else 0
    for name in result.raced:
        mine = sum(e.name == name for e, _ in runs)
        todo = sum(e.name == name for e, _ in wanted)
        show.expect(name, trials + mine - todo, trials + mine)
    if wanted and not trainer.over():
        outcome = trainer.train(plan, wanted, FINALS)
        result.failed += outcome.failed
        result.left += outcome.left
    else:
        result.left += len(wanted)
