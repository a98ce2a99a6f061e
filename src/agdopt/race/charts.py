"""The charts of a report: every one that its records can fill."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from agdopt.race.paint import (
    INK,
    MUTED,
    STYLE,
    Array,
    Row,
    canvas,
    colour,
    dots,
    epochs_below,
    in_plan,
    legend,
    lines,
    rows_height,
    svg,
    values,
)
from agdopt.race.standings import ADAPTIVE, Entrant, Report
from agdopt.race.words import decimals

BAND = "Line: mean over seeds. Band: their range, from the lowest to the highest run."


@dataclass(frozen=True)
class Chart:
    name: str
    title: str
    caption: str
    svg: str
    wide: bool = False


def draw(report: Report) -> list[Chart]:
    watched = report.goal.watched
    makers: list[Callable[[], Chart | None]] = [
        lambda: _finals(report),
        lambda: _curve(report, watched, "curve", f"{watched} by epoch"),
        lambda: _curve(report, watched, "curve-end", f"{watched}, the last quarter", start=0.75),
        lambda: _curve(report, "train.loss", "train-loss", "train.loss by epoch"),
        lambda: _curve(report, watched, "curve-time", f"{watched} by time", time=True),
        lambda: _adaptive(report),
        lambda: _rates(report),
        lambda: _cost(report),
    ]
    with mpl.rc_context(STYLE):
        return [chart for make in makers if (chart := make()) is not None]


def _finals(report: Report) -> Chart:
    def final(e: Entrant) -> Row:
        own = [v for v in e.outcomes.values() if v is not None]
        return Row(own, e.summary.mean, e.summary.interval) if e.summary else Row()

    def apart(e: Entrant) -> Row:
        c = e.comparison
        return Row(list(c.differences.values()), c.mean, c.interval) if c and c.n else Row()

    compared = any(apart(e).values for e in report.entrants)
    figure, axes = canvas(1 + compared, height=rows_height(report), wide=compared)
    dots(axes[0], report, report.goal.metric, final)
    if compared:
        better = "right" if report.goal.maximize else "left"
        dots(axes[1], report, f"difference from {report.baseline}, seed by seed ({better} is better)", apart)
        axes[1].axvline(0, color=MUTED, lw=1)
    bars = any(final(e).span or apart(e).span for e in report.entrants)
    ends = "Bar: 95% interval of the mean." if bars else "Too few seeds for an interval."
    return Chart("finals", "Final runs", f"Dot: one run. Tick: the mean. {ends}", svg(figure), compared)


def _epochs(_: Entrant, length: int) -> Array:
    return np.arange(1, length + 1, dtype=float)


def _seconds(e: Entrant, length: int) -> Array:
    """Of training, at the pace of the median run."""
    paces = values(e, "ms_per_step")
    known = paces is not None and paces.shape[1] >= length
    steps = e.finished[0].steps / e.finished[0].epochs if known else 0.0
    return np.cumsum(np.median(paces[:, :length], 0)) * steps / 1e3 if known else np.full(length, np.nan)  # type: ignore[index]


def _curve(
    report: Report, curve: str, name: str, title: str, start: float = 0.0, time: bool = False
) -> Chart | None:
    every = [v for e in report.entrants if (v := values(e, curve)) is not None]
    length = max((v.shape[1] for v in every), default=0)
    timed = all(values(e, "ms_per_step") is not None for e in report.entrants if e.finished)
    if not length or (time and not timed) or (start and length < 12):
        return None
    figure, (axes,) = canvas()
    lines(axes, report, curve, _seconds if time else _epochs)
    judged = curve == report.goal.watched
    far = _window(axes, [v[:, int(start * v.shape[1]) :] for v in every], judged and report.goal.maximize)
    if start:
        axes.set_xlim(start * length, length * 1.005)
    if time:
        axes.set_xlabel("seconds of training")
    else:
        epochs_below(axes)
    target = report.goal.target
    if judged and target is not None and axes.get_ylim()[0] < target < axes.get_ylim()[1]:
        axes.axhline(target, color=MUTED, lw=0.9, ls=(0, (2, 3)))
        place = {"xy": (0.01, target), "xycoords": ("axes fraction", "data")}
        axes.annotate("target", **place, ha="left", va="bottom", color=MUTED, fontsize=10)  # type: ignore[arg-type]
    legend(figure, axes)
    caption = BAND + (" Time spent judging is left out." if time else "") + far
    return Chart(name, title, caption, svg(figure))


def _window(axes: Axes, every: list[Array], maximize: bool) -> str:
    """Leaves out the worst few values: the first epochs would flatten all that matters."""
    seen = np.concatenate([v[np.isfinite(v)] for v in every])
    if not len(seen):
        return ""
    if not maximize and seen.min() > 0 and seen.max() > 10 * seen.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
        axes.yaxis.set_minor_formatter(lambda v, _: "")
        return ""
    worst, best = np.quantile(seen, (0.02, 1.0) if maximize else (0.98, 0.0))
    room = 0.05 * abs(best - worst) or 1e-3
    low, high = min(worst, best) - room, max(worst, best) + room
    axes.set_ylim(low, high)
    return " A few values lie outside." if seen.min() < low or seen.max() > high else ""


def _adaptive(report: Report) -> Chart | None:
    figure, (axes,) = canvas(height=280, wide=True)
    if not lines(axes, report, ADAPTIVE, _epochs):
        return None
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f}%")
    epochs_below(axes)
    legend(figure, axes)
    what = "Share of coordinates with bhat > delta: their step is adaptive, the others' is momentum SGD's."
    return Chart("adaptive", "Adaptive share", f"{what} {BAND}", svg(figure), True)


def _cost(report: Report) -> Chart | None:
    def quality(e: Entrant) -> Row:
        return _medians([v for v in e.outcomes.values() if v is not None])

    def pace(e: Entrant) -> Row:
        return _medians([1e3 * r.seconds_per_step for r in e.runs if r.seconds_per_step is not None])

    def memory(e: Entrant) -> Row:
        return _medians([r.peak_memory / 1e6 for r in e.runs if r.peak_memory is not None])

    panels = {report.goal.metric: quality, "ms per step": pace, "peak memory, MB": memory}
    filled = {title: row for title, row in panels.items() if any(row(e).values for e in report.entrants)}
    if len(filled) < 2:
        return None
    figure, axes = canvas(len(filled), height=rows_height(report), wide=True)
    for axis, (title, row) in zip(axes, filled.items(), strict=True):
        dots(axis, report, title, row)
        if row is not quality:
            axis.set_xlim(left=0)
    return Chart("cost", "What it costs", "Dot: one run. Tick: the median.", svg(figure), True)


def _medians(own: list[float]) -> Row:
    return Row(own, statistics.median(own)) if own else Row()


def _rates(report: Report) -> Chart | None:
    """A panel an optimizer, on shared axes: where its good learning rates lie, and how many there are."""
    searched = [(e, e.sensitivity) for e in in_plan(report) if e.sensitivity]
    if not searched:
        return None
    columns = min(4, len(searched))
    rows = math.ceil(len(searched) / columns)
    figure, axes = canvas(columns, rows, height=60 + 170 * rows, wide=True, sharex=True)
    for axis, (e, found) in zip(axes, searched, strict=False):
        paint, foot = colour(report, e), axis.get_xaxis_transform()
        for lr, value in e.trials:
            if value is None:
                axis.plot(lr, 0.05, "x", color=paint, ms=7, transform=foot)
            else:
                fill = "full" if found.near(value) else "none"
                axis.plot(lr, value, "o", color=paint, fillstyle=fill, ms=7, mew=1.3, gid=f"of-{e.place}")
        axis.set_xscale("log")
        best = f"{found.best:.{decimals(report)}f}"
        axis.set_title(f"{e.name}: {100 * found.share:.0f}% (best {best})", color=INK)
    for i in range(len(searched), len(axes)):
        axes[i].set_visible(False)
        axes[i - columns].tick_params(labelbottom=True)
    figure.supxlabel("learning rate", color=MUTED, fontsize=11.5)
    bound = "at least 90%" if report.goal.maximize else "at most 110%"
    caption = (
        f"Each mark is a trial, by {report.goal.searched}. Filled: within 10% of the optimizer's best one "
        f"({bound} of it); the percentage is their share. A cross diverged. "
        "A search looks most where it is good, so the share flatters what was searched."
    )
    return Chart("learning-rate", "Learning-rate sensitivity", caption, svg(figure), True)
