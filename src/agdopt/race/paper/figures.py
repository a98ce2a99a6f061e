"""The figures of docs/results.md, from records: each file carries a digest of what it shows."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from agdopt.race import paint, switch_figure
from agdopt.race.paper.cell import Cell
from agdopt.race.paper.evidence import Evidence
from agdopt.race.paper.finding import number, pick
from agdopt.race.paper.listing import Line
from agdopt.race.record import Record

# The white lets dark pages show them.
STYLE: Any = paint.STYLE | {"figure.facecolor": "white", "font.size": 10}
COLOURS = ("#d55e00", "#1f7fc4", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#5d6778", "#1d2430")
CURVES, SWEPT, SWITCH = ("F4", "F5", "G1"), ("F2", "F8"), ("F6",)


@dataclass(frozen=True)
class Picture:
    name: str  # of the file
    title: str
    kind: str
    shown: Mapping[str, Any]  # all that is drawn, as plain numbers

    @property
    def digest(self) -> str:
        text = json.dumps([self.title, self.kind, self.shown], sort_keys=True).encode()
        code = Path(__file__).read_bytes() + Path(switch_figure.__file__).read_bytes()
        return hashlib.sha256(text + code).hexdigest()[:16]


def pictures(lines: Iterable[Line]) -> list[Picture]:
    """What the records allow; two cells with one picture show it once."""
    found: list[Picture] = []
    for line in lines:
        cell, evidence = line.cell, line.evidence
        if cell is None or not evidence.runs:
            continue
        shown: Mapping[str, Any] = {}
        if cell.row in CURVES:
            kind, shown = "curves", _curves(cell, evidence)
        elif cell.row in SWEPT:
            kind, shown = "swept", _swept(cell, evidence)
        elif cell.row in SWITCH:
            kind, shown = "switch", _shares(cell, evidence)
        if shown and all(p.shown != shown for p in found):
            scale = "; ".join(evidence.changed)
            title = f"{cell.name}: {cell.curve or cell.metric}" + (f" ({scale})" if scale else "")
            found.append(Picture(cell.name.lower().replace(".", "-"), title, kind, shown))
    return found


def _curves(cell: Cell, evidence: Evidence) -> dict[str, Any]:
    """By column, one list a run: of the reading that speaks for it."""
    name = cell.curve or cell.metric
    found = {}
    for column, entries in evidence.runs.items():
        best = pick(cell, entries)
        runs = [r.curves[name] for r in entries[best.entry] if r.curves.get(name)] if best else []
        if best and runs:
            found[f"{column} ({best.entry})" if len(entries) > 1 else column] = runs
    return found if any(len(run) > 1 for runs in found.values() for run in runs) else {}


def _swept(cell: Cell, evidence: Evidence) -> dict[str, Any]:
    """By column: value of the setting, the metric of every run."""
    found = {}
    for column, entries in evidence.runs.items():
        key = cell.swept[column]
        points = [
            [float(runs[0].recipe["optimizer"]["arguments"][key]), [number(r, cell.metric) for r in runs]]
            for runs in entries.values()
            if runs
        ]
        if points:
            found[f"{column}: {key}"] = sorted(points)
    return found


def _shares(cell: Cell, evidence: Evidence) -> dict[str, Any]:
    """Of the first seed of the first reading that was watched."""
    run: Record
    for entries in evidence.runs.values():
        for name, runs in entries.items():
            for run in runs:
                curves = {k: v for k, v in run.curves.items() if k.startswith("switch.")}
                told = any(name.startswith("switch.decade.") for name in curves)
                if told and len(curves.get("switch.adaptive", [])) > 1:
                    return {"run": f"{name}, seed {run.seed}", "curves": curves}
    return {}


def draw(picture: Picture) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    if picture.kind == "curves":
        axes, end = figure.subplots(1, 2, width_ratios=[2, 1])
        _draw_curves(axes, picture.shown, 1 / 8)
        _draw_curves(end, picture.shown, 3 / 4)
        end.set_title("the last quarter")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3)
    elif picture.kind == "swept":
        axes = figure.subplots()
        _draw_swept(axes, picture.shown)
    else:
        axes, curves = figure.subplots(), picture.shown["curves"]
        switch_figure.draw(axes, curves, list(range(1, len(curves["switch.adaptive"]) + 1)), "epoch")
    run = picture.shown.get("run", "")
    axes.set_title(f"{picture.title}; {run}" if run else picture.title)
    return figure


def _draw_curves(axes: Any, shown: Mapping[str, Any], since: float) -> None:
    """All numbers of the part of training `since` are in sight; those before it may not be."""
    seen: list[float] = []
    for colour, (label, runs) in zip(COLOURS, reversed(list(shown.items())), strict=False):
        epochs = min(map(len, runs))
        values = np.array([run[:epochs] for run in runs], float)
        mean, sd = values.mean(0), values.std(0, ddof=1) if len(runs) > 1 else np.zeros(epochs)
        x = np.arange(1, epochs + 1)
        axes.plot(x, mean, color=colour, label=f"{label}, {len(runs)} seeds", linewidth=1.3)
        axes.fill_between(x, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)
        late = mean[int(since * epochs) :]
        seen += list(late[np.isfinite(late)])
        if since > 0.5:
            axes.set_xlim(since * epochs, epochs)
    if seen:
        low, high = np.percentile(seen, [1, 99])
        room = 0.08 * (high - low) or 1.0
        axes.set_ylim(low - room, high + room)
    axes.set(xlabel="epoch; mean ± standard deviation")


def _draw_swept(axes: Any, shown: Mapping[str, Any]) -> None:
    for colour, (label, points) in zip(COLOURS, shown.items(), strict=False):
        fine = [(x, [v for v in values if v is not None]) for x, values in points]
        x = [x for x, values in fine if values]
        mean = [float(np.mean(values)) for _, values in fine if values]
        sd = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for _, values in fine if values]
        axes.errorbar(x, mean, yerr=sd, color=colour, marker="o", markersize=4, capsize=3, label=label)
    axes.set(xscale="log", xlabel="value; mean ± standard deviation")
    axes.legend()


def stale(found: Iterable[Picture], folder: Path) -> list[Picture]:
    def fresh(picture: Picture) -> bool:
        file = folder / f"{picture.name}.svg"
        return file.exists() and picture.digest in file.read_text("utf-8")

    return [picture for picture in found if not fresh(picture)]


def save(found: Iterable[Picture], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for picture in found:
        with mpl.rc_context(STYLE):
            text = paint.svg(draw(picture))
        files.append(folder / f"{picture.name}.svg")
        files[-1].write_text(f"{text}<!-- {picture.digest} -->\n", "utf-8")
    return files
