"""Pictures of the numerical rows, from their records. Each file carries a digest of what it shows."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from agdopt.race.numerical.animation import animate
from agdopt.race.numerical.canvas import COLOURS, contours, panels_of, position, trail
from agdopt.race.numerical.functions import FUNCTIONS
from agdopt.race.numerical.races import chosen
from agdopt.race.numerical.reddi import grouped

Records = dict[str, dict[str, Any]]
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "agdopt", "font.size": 8, "axes.titlesize": 9}


def digest(name: str, records: Records) -> str:
    """Changes with the records a picture shows and with the code that draws."""
    shown = {
        cell: {k: v for k, v in records[cell].items() if k != "environment"} for cell in PICTURES[name][0]
    }
    text = json.dumps(shown, sort_keys=True).encode() + b"".join(file.read_bytes() for file in DRAWN_BY)
    return hashlib.sha256(text).hexdigest()[:16]


def _beale(records: Records) -> Figure:
    figure, ax = panels_of(1, 4.2, 3.8)
    contours(ax[0], "beale")
    for name, points in records["F1.path"]["points"].items():
        trail(ax[0], points, name, color=COLOURS[name])
        ax[0].plot(*points[-1][1:], "o", color=COLOURS[name], markersize=5)
    for mark in "AB":
        x, y = records[f"F1.{mark.lower()}"]["at"]
        ax[0].plot(x, y, "o", color="black", markersize=4)
        ax[0].annotate(mark, (x, y), textcoords="offset points", xytext=(-3, 6), weight="bold")
    ax[0].set_title("Beale, 9000 steps at rate 1e-3")
    ax[0].legend(loc="upper left")
    return figure


def _why(records: Records) -> Figure:
    n = records["F1.why"]
    figure, (left, right) = panels_of(2, 7.0, 2.6)
    t, share = np.array(n["share"]).T
    left.plot(t, 100 * share, color=COLOURS["AGD"])
    left.set(xlabel="step", ylabel="%", ylim=(99, 100.1), title="share of the first gradient squared in b")
    names = list(n["reached"])[::-1]
    right.barh(
        names, [n["reached"][name][0] for name in names], color=["#1f77b4", "#999999", "#666666", "#d62728"]
    )
    right.set(xlabel="steps until within 0.1", title="what b is made of", xticks=range(0, 20_000, 5000))
    return figure


def _three(records: Records) -> Figure:
    figure, panels = panels_of(3, 10.5, 3.6)
    for ax, name in zip(panels, FUNCTIONS, strict=True):
        contours(ax, name)
        optimizers = records[f"F3.{name}"]["optimizers"]
        then = optimizers["AGD"]["reached"][0]
        for optimizer, found in optimizers.items():
            style = {"linewidth": 1.8, "zorder": 3} if optimizer == "AGD" else {"linewidth": 1.0}
            trail(ax, found["points"], optimizer, color=COLOURS[optimizer], **style)
            if not found["diverged"]:
                ax.plot(
                    *position(found["points"], then), "o", color=COLOURS[optimizer], markersize=4, zorder=4
                )
        ax.set_title(f"{FUNCTIONS[name].formula}; dots: step {then}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS))
    return figure


def _rates(records: Records) -> Figure:
    figure, panels = panels_of(3, 10.5, 3.6)
    for ax, name in zip(panels[:2], ("Adam", "AGD"), strict=True):
        contours(ax, "beale")
        for i, entry in enumerate(records[f"F7.{name.lower()}"]["optimizers"][name]):
            trail(ax, entry["points"], f"{entry['lr']:g}", color=mpl.colormaps["viridis"](i / 7), linewidth=1)
        ax.set_title(name)
        ax.legend(loc="upper left", fontsize=6)
    contours(panels[2], "beale")
    for name, entries in records["F7.best"]["optimizers"].items():
        best = chosen(entries)[0]
        if best is not None:
            label = f"{name} {best['lr']:g}: {best['reached'][2]}"
            trail(panels[2], best["points"], label, color=COLOURS[name], linewidth=1)
    panels[2].set_title("best rate of each: steps to 1e-3")
    panels[2].legend(loc="upper left", fontsize=6)
    return figure


def _regret(records: Records) -> Figure:
    n = records["THEORY.regret"]
    problems = list(dict.fromkeys(row["problem"] for row in n["rows"]))
    figure, panels = panels_of(len(problems), 10.5, 2.9)
    t = np.array(n["checkpoints"])
    for ax, problem in zip(panels, problems, strict=True):
        for row in n["rows"]:
            if row["problem"] == problem and row["delta"] == 1e-8:
                colour = "#d62728" if "Algorithm 2" in row["setting"] else "#1f77b4"
                line = "-" if row["setting"].startswith("beta1/t") else "--"
                ax.loglog(t, row["curve"], line, color=colour, label=row["setting"])
        ax.loglog(t, np.sqrt(t), ":", color="black", label="sqrt T")
        ax.set(title=problem, xlabel="T")
    panels[0].set_ylabel("regret")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _reddi(records: Records) -> Figure:
    figure, panels = panels_of(2, 7.0, 3.0)
    for number, ax in enumerate(panels, 1):
        name = f"AGD, Algorithm {number}"
        for i, rows in enumerate(grouped(records[f"THEORY.reddi{number}"], name)):
            label = f"C {rows[0]['C']:g}, betas {rows[0]['beta1']:g}, {rows[0]['beta2']:.3g}"
            x, y = [row["delta"] for row in rows], [row["ends_at"] for row in rows]
            ax.semilogx(x, y, "o-", markersize=3, linewidth=1, color=f"C{i}", label=label)
        ax.set(xlabel="delta", ylim=(-1.1, 1.1), title=name)
        ax.axhline(-1, color="black", linewidth=0.5)
    panels[0].set_ylabel("ends at (-1 is best)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


# name: (cells, how to draw them)
PICTURES: dict[str, tuple[tuple[str, ...], Callable[[Records], Figure]]] = {
    "f1-beale": (("F1.path", "F1.a", "F1.b"), _beale),
    "f1-why": (("F1.why",), _why),
    "f3-functions": (tuple(f"F3.{name}" for name in FUNCTIONS), _three),
    "f7-rates": (("F7.adam", "F7.agd", "F7.best"), _rates),
    "theory-regret": (("THEORY.regret",), _regret),
    "theory-reddi": (("THEORY.reddi1", "THEORY.reddi2"), _reddi),
}
DRAWN_BY = [Path(__file__).with_name(f"{name}.py") for name in ("pictures", "canvas", "animation")]
ANIMATED = "f3-functions"  # a GIF beside the picture


def draw(records: Records, folder: Path, names: Iterable[str] | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name in PICTURES if names is None else names:
            figure = PICTURES[name][1](records)
            figure.savefig(
                folder / f"{name}.svg", metadata={"Date": None, "Identifier": digest(name, records)}
            )
            if name == ANIMATED:
                animate(records, folder / f"{name}.gif", digest(name, records))


def stale(records: Records, folder: Path) -> list[str]:
    """Pictures that do not show these records, by name."""
    found = []
    for name in PICTURES:
        files = [folder / f"{name}.svg"] + [folder / f"{name}.gif"] * (name == ANIMATED)
        mark = digest(name, records).encode()
        found += [file.name for file in files if not file.exists() or mark not in file.read_bytes()]
    return found
