"""How charts look: one colour an optimizer in all of them, the baseline grey; SVG that follows its page."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from agdopt.race.standings import Entrant, Report
from agdopt.race.stats import Interval

# After Okabe and Ito, told apart by all eyes, in light and dark; then again, dashed and dotted.
COLOURS = ("#1f7fc4", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
BASELINE = "#8a929c"
# The page replaces these by its own, so that a chart follows light and dark.
INK, MUTED, LINE, CARD = "#1d2430", "#5d6778", "#e2e6ec", "#fefefe"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's own face
    "svg.hashsalt": "agdopt",  # equal records, equal bytes
    "font.size": 11.5,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": MUTED,
    "axes.titlepad": 8,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "legend.handlelength": 1.3,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.8,
}
Array = npt.NDArray[np.float64]


class Row(NamedTuple):
    """What stands in an optimizer's row: its runs, their centre, the interval."""

    values: Sequence[float] = ()
    centre: float | None = None
    span: Interval | None = None


def colour(report: Report, e: Entrant) -> str:
    return BASELINE if e.name == report.baseline else COLOURS[_turn(report, e) % len(COLOURS)]


def _turn(report: Report, e: Entrant) -> int:
    """Its place in the plan, the baseline left out."""
    return e.place - (e.place > next(x.place for x in report.entrants if x.name == report.baseline))


def again(report: Report, e: Entrant) -> int:
    """How many with its colour come before it."""
    return 0 if e.name == report.baseline else _turn(report, e) // len(COLOURS)


def in_plan(report: Report) -> list[Entrant]:
    return sorted(report.entrants, key=lambda e: e.place)


def canvas(
    columns: int = 1, rows: int = 1, *, height: float = 330, wide: bool = False, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """In the page's pixels, so that text has one size in every chart."""
    figure = Figure(
        figsize=((1150 if wide else 560) / 72, height / 72), layout=ConstrainedLayoutEngine(wspace=0.05)
    )
    axes = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=True)
    return figure, list(axes.flat)


def svg(figure: Figure) -> str:
    FigureCanvasSVG(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})

    def shorter(path: re.Match[str]) -> str:
        """A hundredth of a point is finer than any screen."""
        return re.sub(r"(\.\d\d)\d+", r"\1", path[0])

    return re.sub(r' d="[^"]*"', shorter, text.getvalue())


def rows_height(report: Report) -> float:
    return 80 + 34 * len(report.entrants)


def lines(axes: Axes, report: Report, curve: str, x_of: Callable[[Entrant, int], Array]) -> bool:
    """Mean and range over seeds; a diverged run as a thin line up to its cross. False: nothing to draw."""
    drawn = False
    for e in in_plan(report):
        paint, dashes = colour(report, e), DASHES[again(report, e) % len(DASHES)]
        whole = values(e, curve)
        if whole is not None:
            x = x_of(e, whole.shape[1])
            low, high = whole.min(0), whole.max(0)
            axes.fill_between(x, low, high, color=paint, alpha=0.16, linewidth=0, gid=f"of-{e.place}")
            axes.plot(x, whole.mean(0), color=paint, ls=dashes, label=e.name, gid=f"of-{e.place}")
            drawn = True
        for r in e.diverged:
            y = np.array(r.curves.get(curve, []), float)
            y = y[np.isfinite(y)]
            if len(y):
                x = x_of(e, len(y))
                axes.plot(x, y, color=paint, lw=0.8, marker="x", markevery=[-1], gid=f"of-{e.place}")
    return drawn


def values(e: Entrant, curve: str) -> Array | None:
    """One row a finished run."""
    runs = [r.curves[curve] for r in e.finished if r.curves.get(curve)]
    return np.array([run[: min(map(len, runs))] for run in runs], float) if runs else None


def epochs_below(axes: Axes) -> None:
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))


def legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    room = 90  # letters that fit beside each other, with 6 for each line and gap
    columns = len(labels) if sum(len(x) + 6 for x in labels) < room else room // (max(map(len, labels)) + 6)
    columns = max(1, columns)
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, labelcolor=MUTED, borderpad=0)


def dots(axes: Axes, report: Report, title: str, row: Callable[[Entrant], Row]) -> None:
    """A row an optimizer: its runs as dots, their mean as a tick, the interval as a bar."""
    for y, e in enumerate(report.entrants):
        own, paint, of = row(e), colour(report, e), f"of-{e.place}"
        if own.span is not None:
            axes.plot(own.span, [y, y], color=paint, lw=7, alpha=0.3, solid_capstyle="butt", gid=of)
        axes.plot(own.values, [y] * len(own.values), "o", color=paint, ms=6.5, mec=CARD, mew=0.7, gid=of)
        if own.centre is not None:
            axes.plot([own.centre], [y], "|", color=INK, ms=16, mew=1.8, gid=of)
    axes.set_title(title)
    axes.set_ylim(len(report.entrants) - 0.5, -0.5)
    axes.set_yticks(range(len(report.entrants)), [e.name for e in report.entrants])
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=11.5)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.05)
    axes.xaxis.set_major_locator(MaxNLocator(6))
