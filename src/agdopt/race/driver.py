"""Many runs on one device: side by side, until a deadline, resumed where an earlier process stopped."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from agdopt.race import checkpoint
from agdopt.race.checks import PlanError
from agdopt.race.plan import Entry, Plan
from agdopt.race.record import Record, append
from agdopt.race.task import Task
from agdopt.race.train import EPOCH, WAIT, Training


@dataclass(frozen=True)
class Options:
    out: Path
    file: str = "records.jsonl"
    have: tuple[Path, ...] = ()  # folders of earlier commands: their checkpoints are gone on from
    jobs: int = 1
    deadline: float | None = None  # of time.monotonic()
    limit: int | None = None  # bytes of checkpoints that may be left at the deadline
    piece: int = 15 << 20  # bytes of one checkpoint file
    save_every: float = 60.0
    say_every: float = 15.0
    data: Path | None = None
    stop: Callable[[], bool] | None = None  # asked before every update


@dataclass(eq=False)
class Run:
    """One (entry, seed) of the plan; `training` while it is in flight."""

    entry: Entry
    seed: int
    name: str  # of its checkpoints
    epoch: int = 0  # where its checkpoint stands
    training: Training | None = None
    events: Iterator[str] = field(default_factory=lambda: iter(()))
    marked: float = 0.0
    costs: list[float] = field(default_factory=list)  # device seconds of its epochs in this process
    saved: float = 0.0
    said: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.entry.name} seed {self.seed}"


def state_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(state_bytes, items))


class Driver:
    """Round robin over runs: each turn launches one update. `record` makes a finished run's record."""

    def __init__(
        self,
        task: Task,
        plan: Plan,
        runs: Sequence[tuple[Entry, int]],
        options: Options,
        record: Callable[[Training, int], Record],
        say: Callable[[str], None],
        finished: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self.task, self.plan, self.options, self.record, self.say = task, plan, options, record, say
        self.finished = finished
        self.folder = options.out / "checkpoints"
        self.folders = [self.folder, *(h / "checkpoints" for h in options.have), *options.have]
        self.waiting = [Run(e, s, f"{e.name}-s{s}-{plan.hash(e)}") for e, s in runs]
        for run in self.waiting:
            run.epoch = checkpoint.epoch_of(self.folders, run.name)
        self.waiting.sort(key=lambda r: -r.epoch)  # what was begun is finished first; else the plan's order
        self.active: list[Run] = []
        self.parked: list[Run] = []  # stopped between two epochs because of the deadline
        self.left: list[Run] = []
        self.failed: list[str] = []
        self.cost: dict[str, float] = {}  # device seconds an epoch, by entry
        self.size: dict[str, int] = {}  # bytes of a checkpoint, by entry
        self.deadline = options.deadline
        self.stopping = False

    def stop(self) -> None:
        """For a signal: every run may end its epoch, if that takes no longer than ten seconds."""
        self.stopping = True
        self.deadline = time.monotonic() + min(10.0, self.time_left())

    def _heed(self) -> None:
        if self.options.stop and not self.stopping and self.options.stop():
            self.stop()

    def time_left(self) -> float:
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def _fits(self, runs: Sequence[Run], margin: float) -> bool:
        """All of them would finish before the deadline, or all of them could be saved at it."""
        costs, sizes = self.cost, self.size
        if not costs or not sizes:
            return True
        bytes_ = sum(sizes.get(r.entry.name, max(sizes.values())) for r in [*runs, *self.parked])
        if self.options.limit is None or bytes_ <= self.options.limit:
            return True
        done = {id(r): r.training.state.epoch if r.training else r.epoch for r in runs}
        need = sum(
            (self.plan.epochs - done[id(r)]) * costs.get(r.entry.name, max(costs.values())) for r in runs
        )
        return need * margin <= self.time_left()

    def run(self) -> None:
        while self.time_left() > 0:
            self._heed()
            self._fill()
            if not self.active:
                break
            busy = False
            for run in list(self.active):
                if run in self.active:  # another's turn may have ended it
                    busy |= self._turn(run)
            if not busy:
                time.sleep(1e-4)
        self._leave()

    def _fill(self) -> None:
        for run in list(self.waiting):
            if len(self.active) >= self.options.jobs or self.parked or self.stopping:
                return
            if not self._fits([*self.active, run], margin=1.05):
                continue
            self.waiting.remove(run)
            if self.task.device.type == "cuda" and not self.active:
                torch.cuda.reset_peak_memory_stats(self.task.device)
            try:
                state = checkpoint.load(self.folders, run.name)
                run.training = Training(self.task, self.plan, run.entry, run.seed, state)
            except Exception as e:  # one run's trouble is not the others'
                self._fail(run, e)
                continue
            run.events = run.training.advance()
            run.marked = run.saved = run.said = time.monotonic()
            self.active.append(run)
            graph = run.training.stepper.built.graph
            if state or graph != "none":
                at = f" from epoch {run.training.state.epoch}" if state else ""
                self.say(f"{run.label}: begins{at}, graph: {graph}")

    def _turn(self, run: Run) -> bool:
        """One update of one run. False: it is waiting for the device."""
        try:
            event = next(run.events, None)
        except Exception as e:  # a task that raises, a full device: said, and the others go on
            self.active.remove(run)
            self._fail(run, e)
            return True
        if event == EPOCH:
            self._judged(run)
        elif event is None:
            self.active.remove(run)
            self._finish(run)
        return event != WAIT

    def _judged(self, run: Run) -> None:
        assert run.training is not None
        self._heed()
        state, now = run.training.state, time.monotonic()
        took, run.marked = now - run.marked, now
        run.costs.append(took / len(self.active))
        self.cost[run.entry.name] = min(run.costs[-3:])
        if run.entry.name not in self.size:
            self.size[run.entry.name] = state_bytes(run.training.checkpoint()) + (64 << 10)
        if now - run.said >= self.options.say_every:
            run.said = now
            numbers = "  ".join(f"{k} {v[-1]:.5g}" for k, v in state.curves.items())
            self.say(f"{run.label}: epoch {state.epoch}/{self.plan.epochs}  {numbers}")
        if run.training.done:
            return
        if self.stopping or took * 1.2 + 2 > self.time_left():
            self.active.remove(run)
            self.parked.append(run)
            return
        limit, size = self.options.limit, self.size[run.entry.name] * len(self.active)
        if now - run.saved >= self.options.save_every and (limit is None or size <= limit):
            self._save(run)
            run.saved = now
        # The first epochs compile and capture: no measure of those to come. After them, one run given up in
        # time is better than all of them at 98 per cent when the deadline comes.
        if all(len(r.costs) >= 6 for r in self.active) and not self._fits(self.active, margin=1.02):
            for other in self.active:
                other.costs.clear()  # they were beside one more
            worst = min(self.active, key=lambda r: r.training.state.epoch if r.training else 0)
            self.active.remove(worst)
            self._drop(worst, "cannot finish in time beside the others, and is too large to save")
            self._free(worst)

    def _save(self, run: Run) -> int:
        assert run.training is not None
        run.epoch = run.training.state.epoch
        return checkpoint.save(
            self.folder, run.name, run.epoch, run.training.checkpoint(), self.options.piece
        )

    def _finish(self, run: Run) -> None:
        assert run.training is not None
        record = self.record(run.training, len(self.active) + 1)
        append(self.options.out / self.options.file, record)
        checkpoint.remove(self.folder, run.name)
        self.finished(record)
        if record.diverged_at is not None:
            result = f"diverged at step {record.diverged_at}: {record.notes['diverged_by']} is not finite"
        else:
            result = "  ".join(f"{k} {v:.5g}" for k, v in record.metrics.items() if v is not None)
        pace = f"{1e3 * (record.seconds_per_step or 0):.3f} ms a step"
        self.say(f"{run.label}: done in {record.seconds:.1f} s, {pace}  {result}")
        self._free(run)

    def _fail(self, run: Run, error: Exception) -> None:
        known = isinstance(error, PlanError)
        text = f"{run.label} failed: {error if known else f'{type(error).__name__}: {error}'}"
        self.say(text)
        self.failed.append(text if known else text + "\n" + "".join(traceback.format_exception(error)))
        self._free(run)

    def _drop(self, run: Run, why: str) -> None:
        checkpoint.remove(self.folder, run.name)
        run.epoch = checkpoint.epoch_of(self.folders, run.name)  # one of an earlier command may be there
        self.say(f"{run.label}: {why}; left for the next command from epoch {run.epoch}")
        self.left.append(run)

    def _free(self, run: Run) -> None:
        run.training, run.events = None, iter(())
        if self.task.device.type == "cuda":
            torch.cuda.empty_cache()

    def _leave(self) -> None:
        """At the end: what fits under the limit is kept, furthest first; the rest is said."""
        for run in self.parked:
            run.epoch = run.training.state.epoch if run.training else run.epoch
        kept = 0
        # A run stopped within an epoch has at most its latest checkpoint on disk.
        for run in sorted([*self.parked, *self.active], key=lambda r: -r.epoch):
            size = self.size.get(run.entry.name, 0)
            if self.options.limit is not None and kept + size > self.options.limit:
                self._drop(run, f"{size / 2**20:.0f} MiB do not fit under the limit of what may be left")
                continue
            kept += self._save(run) if run in self.parked else size
            self.say(f"{run.label}: left at epoch {run.epoch}/{self.plan.epochs}, saved")
            self.left.append(run)
        self.left += self.waiting
