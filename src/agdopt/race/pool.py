"""Runs side by side on a CPU: in processes, since Python's threads would take turns."""

import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.connection import wait as ended
from typing import Any

import torch

from agdopt.race.driver import Driver, Options
from agdopt.race.plan import Entry, Plan
from agdopt.race.record import Record
from agdopt.race.recorder import Recorder
from agdopt.race.show import Show
from agdopt.race.task import Task, make_task

CPU = torch.device("cpu")


@dataclass
class Outcome:
    records: list[Record] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: int = 0


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """Processes that stay, each with its own copy of the task. They end when this process does, however."""

    def __init__(self, jobs: int, threads: int | None) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share torch's threads
        self.jobs = jobs
        self.stop = context.Event()
        self.lines = context.SimpleQueue()
        self.executor = ProcessPoolExecutor(
            jobs, context, _begin, (self.lines, self.stop, threads or max(1, cores() // jobs))
        )

    def close(self) -> None:
        self.stop.set()  # after an error, runs are still going on
        self.executor.shutdown(cancel_futures=True)

    def run(self, plan: Plan, runs: Sequence[tuple[Entry, int]], options: Options, show: Show) -> Outcome:
        outcome = Outcome()
        # A worker sees its own checkpoints only, so each has its share of what may be left.
        limit = None if options.limit is None else options.limit // self.jobs
        alone = dataclasses.replace(options, jobs=1, limit=limit, stop=None)
        try:
            pending = {self.executor.submit(_one, plan, e, s, alone, self.jobs) for e, s in runs}
        except BrokenProcessPool:
            pending = set()
        lost = len(runs) - len(pending)
        while pending:
            done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
            while not self.lines.empty():
                show.detail(self.lines.get())
            for future in done:
                lost += not _gather(future, outcome, show)
            if self.stop.is_set():
                for future in pending:
                    future.cancel()
        outcome.left += lost
        if lost and not self.stop.is_set():
            outcome.failed.append(
                "a process of --jobs died: killed, or out of memory? Fewer --jobs need less of it"
            )
        return outcome


def _gather(future: "Future[Outcome]", outcome: Outcome, show: Show) -> bool:
    try:
        found = future.result()
    except (BrokenProcessPool, CancelledError):
        return False
    for record in found.records:
        show.finished(record)
    outcome.records += found.records
    outcome.failed += found.failed
    outcome.left += found.left
    return True


@dataclass
class _Here:
    """What a worker keeps between its runs."""

    lines: Any
    stop: Any
    tasks: dict[str, Task] = field(default_factory=dict)


_here: _Here


def _begin(lines: Any, stop: Any, threads: int) -> None:
    global _here
    _here = _Here(lines, stop)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the race says when to stop
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End with the race, even if it was killed: else the same run would soon be made twice."""
    race = multiprocessing.parent_process()
    assert race is not None
    ended([race.sentinel])
    os._exit(1)


def _one(plan: Plan, entry: Entry, seed: int, options: Options, jobs: int) -> Outcome:
    key = repr((plan.task, plan.batch))
    try:
        if key not in _here.tasks:
            _here.tasks[key] = make_task(plan.task, plan.batch, CPU, options.data)
    except Exception as e:
        return Outcome(failed=[f"{entry.name} seed {seed} failed: {e}"])
    outcome = Outcome()
    recorder = Recorder(plan, CPU)
    say: Callable[[str], None] = _here.lines.put
    options = dataclasses.replace(options, stop=_here.stop.is_set)
    driver = Driver(
        _here.tasks[key],
        plan,
        [(entry, seed)],
        options,
        lambda t, _: recorder(t, jobs),
        say,
        outcome.records.append,
    )
    driver.run()
    outcome.failed, outcome.left = driver.failed, len(driver.left)
    return outcome
