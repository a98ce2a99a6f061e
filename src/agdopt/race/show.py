"""What a terminal is shown: one style of table, and how far a race is. Plain lines where there is none."""

import importlib.util
import math
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

from agdopt.race.record import Record


def fancy(stream: TextIO) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None


def table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None
) -> None:
    """Names to the left, numbers to the right."""
    stream = stream or sys.stdout
    if fancy(stream):
        from rich import box
        from rich.console import Console
        from rich.table import Table

        drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for i, name in enumerate(head):
            drawn.add_column(name, justify="right" if i else "left", no_wrap=not i)
        for row in rows:
            drawn.add_row(*row)
        Console(file=stream).print(drawn)
        return
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    print(title, file=stream)
    for row in (head, *rows):
        cells = [f"{c:>{w}}" if i else f"{c:{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        print(("  " + "  ".join(cells)).rstrip(), file=stream)
    print(file=stream, flush=True)


class Show(Protocol):
    """What a race tells while it goes on."""

    def say(self, text: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def expect(self, optimizer: str, done: int, total: int) -> None: ...

    def finished(self, record: Record) -> None: ...


class Lines:
    """A line for everything; every ten seconds, how far it all is."""

    def __init__(self, started: float, stream: TextIO | None = None) -> None:
        self.started, self.stream = started, stream
        self.begun = self.said = time.monotonic()
        self.done: dict[str, int] = {}
        self.total: dict[str, int] = {}
        self.own = 0  # finished by this command: those tell how long one takes

    def say(self, text: str) -> None:
        stream = self.stream or sys.stdout
        print(f"{time.monotonic() - self.started:7.1f} s  {text}", file=stream, flush=True)

    detail = say

    def expect(self, optimizer: str, done: int, total: int) -> None:
        self.done[optimizer], self.total[optimizer] = done, total

    def finished(self, record: Record) -> None:
        self.own += 1
        self.done[record.optimizer] = self.done.get(record.optimizer, 0) + 1
        now, done, total = time.monotonic(), sum(self.done.values()), sum(self.total.values())
        if now - self.said >= 10 and total > done:
            self.said = now
            left = (now - self.begun) / self.own * (total - done)
            self.say(f"{done} of {total} runs, about {left:.0f} s left")


class Live:
    """A bar for each optimizer: runs, the time left, and the best so far."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[best]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        self.bars = Progress(*columns, console=Console(file=stream))
        self.ids: dict[str, Any] = {}
        self.best: dict[tuple[str, str], float] = {}

    def __enter__(self) -> "Live":
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def say(self, text: str) -> None:
        self.bars.console.print(text, highlight=False)

    def detail(self, text: str) -> None:
        """The bars say it."""

    def expect(self, optimizer: str, done: int, total: int) -> None:
        if optimizer not in self.ids:
            self.ids[optimizer] = self.bars.add_task(optimizer, best="")
        self.bars.update(self.ids[optimizer], completed=done, total=total)

    def finished(self, record: Record) -> None:
        # Of the search the validation metric, of the final runs the test metric.
        own = [m for m in record.metrics if m.partition(".")[2] == record.notes["metric"]]
        key = record.optimizer, own[-1] if own else ""
        value = record.metrics.get(key[1])
        if value is not None and record.diverged_at is None:
            better = max if record.notes["maximize"] else min
            self.best[key] = better(value, self.best.get(key, value))
        best = self.best.get(key, math.nan)
        text = f"best {key[1]} {best:.5g}" if math.isfinite(best) else "diverged"
        self.bars.update(self.ids[record.optimizer], advance=1, best=text)
