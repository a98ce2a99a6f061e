"""Every so many steps, what the switch does, to whatever takes a dict."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch.optim.optimizer import Optimizer

from agdopt.torch.counting import Counting
from agdopt.torch.switch import SwitchReport, unwrapped

__all__ = ["SwitchMonitor"]


class SwitchMonitor:
    """Writes `switch_report(optimizer).numbers()` every `every` steps of the optimizer, until `close()`.

    to: the name of a JSON-lines file, which grows; TensorBoard's SummaryWriter; or anything that is called
        with a dict of numbers, such as W&B's `run.log` or MLflow's `log_metrics`. What it raises, the step
        raises: the parameters have moved by then, and the next step goes on.
    per_parameter: the adaptive share of every parameter, too.
    prefix: of the names, to tell several optimizers apart.
    hook: False where the optimizer is not to call `step()`, because you do.

    On a GPU nothing waits for the device: numbers are written by the first step that finds them arrived, at
    the latest by the next report or by `close()`; `switch/step` says which step they are of. A CUDA graph
    that holds the whole step runs no Python when it is replayed: take hook=False, and call `step()` after
    each replay.
    Copies of the optimizer (deepcopy, pickle) are not monitored.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int = 100,
        *,
        to: Any,
        per_parameter: bool = False,
        prefix: str = "switch",
        hook: bool = True,
    ) -> None:
        if every != int(every) or every < 1:
            raise ValueError(f"every must be a whole number of steps >= 1, got {every!r}")
        self.optimizer, self.every = unwrapped(optimizer), every
        self.per_parameter, self.prefix = per_parameter, prefix
        self._write, self._end = _writer(to, prefix)
        self._steps = 0
        self._counting: Counting | None = None
        self._hook = self.optimizer.register_step_post_hook(lambda *_: self.step()) if hook else None

    def step(self) -> None:
        """What is to be called after each step of the optimizer."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # nothing is computed now
        if self._counting is not None and self._counting.arrived():
            self._deliver()
        self._steps += 1
        if self._steps % self.every == 0:
            self._deliver()
            self._counting = Counting(self.optimizer)
            if self._counting.arrived():
                self._deliver()

    def close(self) -> None:
        """Write what is still on its way, and leave the optimizer alone."""
        if self._hook is not None:
            self._hook.remove()
        try:
            self._deliver()
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deliver(self) -> None:
        counting, self._counting = self._counting, None
        if counting is not None:
            numbers = SwitchReport(counting.result()).numbers(self.prefix, self.per_parameter)
            if numbers:
                self._write(numbers)


def _writer(to: Any, prefix: str) -> tuple[Callable[[dict[str, float]], object], Callable[[], object]]:
    """How to write a dict to it, and how to end."""
    if isinstance(to, str | Path):
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        file = open(to, "a", buffering=1)  # noqa: SIM115 (closed by the end)
        return lambda numbers: file.write(json.dumps(numbers) + "\n"), file.close
    if hasattr(to, "add_scalar"):

        def scalars(numbers: dict[str, float]) -> None:
            for name, value in numbers.items():
                to.add_scalar(name, value, int(numbers[f"{prefix}/step"]))

        return scalars, to.flush
    if not callable(to):
        raise TypeError(
            f"to must be a file name, a SummaryWriter or something to call with a dict, got {to!r}"
        )
    takes = _parameters(to)
    # MLflow would book all under step 0. W&B, known by `commit`, drops what is of a step before its own.
    if "step" in takes and "commit" not in takes:
        return lambda numbers: to(numbers, step=int(numbers[f"{prefix}/step"])), lambda: None
    return to, lambda: None


def _parameters(function: Callable[..., object]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some built-in ones have no signature
        return set()
