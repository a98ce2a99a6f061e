"""One run: a task, a plan's entry, a seed.

An epoch's randomness is a function of (seed, epoch) alone, so a checkpoint between two epochs holds no
generator and no sampler, and for one seed every optimizer sees the same batches, crops and dropout masks.
"""

import dataclasses
import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agdopt.race.checks import PlanError, need
from agdopt.race.optimizers import build, is_second_order, resolve
from agdopt.race.plan import Entry, Plan
from agdopt.race.stepper import Place, Stepper
from agdopt.race.task import Task
from agdopt.torch import AGD, switch_report

STEP, WAIT, EPOCH = "step", "wait", "epoch"


def mix(*parts: object) -> int:
    """A seed of 63 bits from names and numbers, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


@dataclass
class Progress:
    """What a checkpoint holds beside the tensors of model and optimizer."""

    epoch: int = 0
    update: int = 0
    averaging: bool = False  # NT-ASGD has gone over to averaging
    diverged_at: int | None = None
    diverged_by: str = ""  # the first number that was not finite
    seconds: float = 0.0
    resumed: int = 0
    curves: dict[str, list[float]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def splits_of(task: Task, plan: Plan) -> tuple[Sequence[str], Sequence[str]]:
    """The splits for the curves and for the end. Of a search's trial only one is so much as looked at."""
    if not plan.judge:
        return task.watch(), task.final()
    have = ", ".join(task.splits)
    need(plan.judge in task.splits, f"the search needs a split {plan.judge!r}, and the task has {have}")
    return [plan.judge], [plan.judge]


class Training:
    """One run in progress: `advance()` goes on until the last epoch or divergence, a step at a time."""

    def __init__(
        self, task: Task, plan: Plan, entry: Entry, seed: int, checkpoint: dict[str, Any] | None = None
    ) -> None:
        self.task, self.plan, self.entry, self.seed = task, plan, entry, seed
        self.state = Progress(**checkpoint["progress"]) if checkpoint else Progress()
        self.watch, self.final = splits_of(task, plan)
        self.cls = resolve(entry)
        if is_second_order(self.cls) and plan.clip_grad_norm is not None:
            raise PlanError(
                f"optimizers.{entry.name}: clipping would cut the graph its second backward needs"
            )
        graph = plan.graph if entry.graph is None else entry.graph
        self.here = Place(task.device, entry.precision or plan.precision, graph)
        self.mean: list[torch.Tensor] = []  # of the weights after the epochs of plan.average_last so far
        with self.here():
            torch.manual_seed(seed)
            self.model = task.model().to(task.device)
            self.stepper = Stepper(self.here, task, self.model, plan.clip_grad_norm, self.state.update)
            if self.state.averaging:
                self._average()
            else:
                self.stepper.use(build(entry, self.cls, self.model, self.here.graph))
            if checkpoint:
                self.state.resumed += 1
                self.model.load_state_dict(checkpoint["model"])
                self.mean = [t.to(task.device) for t in checkpoint.get("mean", [])]
                self.stepper.built.load_state_dict(checkpoint["optimizer"])

    def checkpoint(self) -> dict[str, Any]:
        """Everything a later process needs to go on; whole between two epochs only."""
        with self.here():
            return {
                "progress": dataclasses.asdict(self.state),
                "model": self.model.state_dict(),
                "optimizer": self.stepper.built.optimizer.state_dict(),
                **({"mean": self.mean} if self.mean else {}),
            }

    @property
    def done(self) -> bool:
        return self.state.epoch >= self.plan.epochs or self.state.diverged_at is not None

    def advance(self) -> Iterator[str]:
        """Yields STEP after each update, WAIT while the device is behind, EPOCH when one is judged."""
        state = self.state
        while not self.done:
            started = time.perf_counter()
            with self.here():
                torch.manual_seed(mix(self.seed, state.epoch, "train"))
                steps = self.task.batches(self.model, mix(self.seed, state.epoch, "order"))
                self._mode("train")
            need(len(steps) > 0, "the task has no training batch")
            first_lr = self._lr(0.0)
            for i, step in enumerate(steps):
                with self.here():
                    self.stepper.step(step, self._lr(i / len(steps)) * step.lr_scale)
                state.update += 1
                yield STEP
            for _ in self.here.caught_up():
                yield WAIT
            trained = time.perf_counter() - started
            last = state.epoch + 1 == self.plan.epochs
            with self.here():
                judged, final = self._judge_all(last)
            for _ in self.here.caught_up():
                yield WAIT
            with self.here():
                pace = {"lr": first_lr, "ms_per_step": 1e3 * trained / len(steps)}
                self._book(judged, final, pace, len(steps))
            state.seconds += time.perf_counter() - started
            yield EPOCH

    def _lr(self, progress: float) -> float:
        s, schedule = self.state, self.entry.schedule or self.plan.schedule
        return schedule.lr(self.entry.lr, s.epoch, progress, s.update, self.plan.epochs)

    def _mode(self, name: str) -> None:
        """The model's mode, and the optimizer's where it has one (schedule-free methods keep two points)."""
        for thing in (self.model, self.stepper.built.optimizer):
            getattr(thing, name, bool)()

    @torch.no_grad()
    def _judge_all(self, last: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is watched, and after the last epoch the final splits, with the averages the run asks for."""
        built, params = self.stepper.built, self.stepper.params
        count = self.state.epoch + 1 - (self.plan.epochs - self.plan.average_last)
        self._mode("eval")  # first: a schedule-free method then moves the weights to its better point
        if count > 0:
            self.mean = self.mean or [torch.zeros_like(p) for p in params]
            torch._foreach_lerp_(self.mean, [p.detach() for p in params], 1 / count)
        averages = [built.optimizer.state[p]["ax"] for p in params] if self.state.averaging else []
        if last and self.mean:
            return self._judge(self.watch, averages), self._judge(self.final, self.mean)
        judged = self._judge([*self.watch, *(self.final if last else ())], averages)
        return judged, {k: v for k, v in judged.items() if k.partition(".")[0] in self.final}

    def _judge(self, splits: Iterable[str], weights: list[torch.Tensor]) -> dict[str, Any]:
        """With these weights in place of the model's own; none: as it stands."""
        params = self.stepper.params
        kept = [p.clone() for p in params] if weights else []
        for p, w in zip(params, weights, strict=False):
            p.copy_(w)
        with self.here.autocast():
            judged = {
                f"{split}.{key}": value
                for split in dict.fromkeys(splits)
                for key, value in self.task.evaluate(self.model, split).items()
            }
        for p, own in zip(params, kept, strict=False):
            p.copy_(own)
        return judged

    def _book(
        self, judged: dict[str, Any], judged_last: dict[str, Any], numbers: dict[str, float], steps: int
    ) -> None:
        """What the epoch brought, read from the device; a number that is not finite ends the run."""
        state, task = self.state, self.task
        loss, bad = self.stepper.read()
        values = {key: float(value) for key, value in judged.items()}
        final = {key: float(value) for key, value in judged_last.items()}
        watched = {k: v for k, v in values.items() if k.partition(".")[0] in self.watch}
        before = list(state.curves.get(f"valid.{task.metric}", []))
        for key, value in {"train.loss": loss / steps, **numbers, **watched}.items():
            state.curves.setdefault(key, []).append(value)
        self._look_at_the_switch()
        state.epoch += 1
        wild = ["the loss"] * (bad > 0) + [k for k, v in (values | final).items() if not math.isfinite(v)]
        if wild:
            state.diverged_at, state.diverged_by = bad or state.update, wild[0]
        if self.done:
            state.metrics = final or watched
        for split in self.watch:
            need(f"{split}.{task.metric}" in values, f"the task gives no {task.metric!r} for {split!r}")
        self._switch(before)

    def _look_at_the_switch(self) -> None:
        """Into the curves, where the optimizer has one; a decade that is not told held no share of bhat."""
        optimizer, curves = self.stepper.built.optimizer, self.state.curves
        if isinstance(optimizer, AGD):
            found = {k.replace("/", "."): v for k, v in switch_report(optimizer).numbers().items()}
            found.pop("switch.step", None)
            for key in dict.fromkeys([*(k for k in curves if k.startswith("switch.")), *found]):
                curves.setdefault(key, [0.0] * self.state.epoch).append(found.get(key, 0.0))

    def _switch(self, before: list[float]) -> None:
        """NT-ASGD: over to averaging once validation is worse than its best of all but the last n epochs."""
        n = self.entry.nt_asgd
        if not n or self.state.averaging or self.done:
            return
        curve = self.state.curves.get(f"valid.{self.task.metric}", [])
        need(bool(curve), f"optimizers.{self.entry.name}.nt_asgd needs a validation split in every epoch")
        sign = -1 if self.task.maximize else 1
        if len(before) > n and sign * curve[-1] > min(sign * v for v in before[:-n]):
            self.state.averaging = True
            self._average()

    def _average(self) -> None:
        decay = {k: v for k, v in self.entry.arguments.items() if k in ("lr", "weight_decay")}
        asgd = dataclasses.replace(
            self.entry, cls="torch.optim.ASGD", arguments={"t0": 0, "lambd": 0.0, **decay}, nt_asgd=0
        )
        for p in self.stepper.params:
            p.grad = None
        self.stepper.use(build(asgd, torch.optim.ASGD, self.model, self.here.graph))
