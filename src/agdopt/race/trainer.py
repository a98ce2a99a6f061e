"""Trainer: where a list of runs is trained. It knows neither search nor report."""

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Iterator, Sequence

import torch

from agdopt.race.driver import Driver, Options
from agdopt.race.plan import Entry, Plan
from agdopt.race.pool import Outcome, Pool
from agdopt.race.recorder import Recorder
from agdopt.race.show import Show
from agdopt.race.task import Task, make_task
from agdopt.race.train import splits_of


class Trainer:
    """Trains lists of runs: side by side in processes on a CPU, on streams of one process on a GPU."""

    def __init__(self, options: Options, device: torch.device, threads: int | None, show: Show) -> None:
        self.options, self.device, self.show = options, device, show
        self.pool = Pool(options.jobs, threads) if device.type == "cpu" and options.jobs > 1 else None
        if threads:
            torch.set_num_threads(threads)
        self.stop = self.pool.stop if self.pool else threading.Event()
        self.task: Task | None = None

    def over(self) -> bool:
        deadline = self.options.deadline
        return self.stop.is_set() or (deadline is not None and time.monotonic() >= deadline)

    def train(self, plan: Plan, runs: Sequence[tuple[Entry, int]], file: str) -> Outcome:
        options = dataclasses.replace(self.options, file=file, stop=self.stop.is_set)
        if self.task is None:  # made here even for other processes: a mistaken task is said once
            self.task = make_task(plan.task, plan.batch, self.device, options.data)
        splits_of(self.task, plan)
        if self.pool:
            return self.pool.run(plan, runs, options, self.show)
        recorder = Recorder(plan, self.device)
        driver = Driver(self.task, plan, runs, options, recorder, self.show.detail, self.show.finished)
        driver.run()
        return Outcome([], driver.failed, len(driver.left))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """An interrupt lets epochs end and be saved."""
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(s, lambda *_: self.stop.set()) for s in signals]
        try:
            yield
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)
            if self.pool:
                self.pool.close()
