"""What the pictures share: panels, contours, colours."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agdopt.race.numerical.functions import FUNCTIONS

COLOURS = {
    "AGD": "#d62728",
    "AGD + AMSGrad": "#f7a6a6",
    "SGD": "#7f7f7f",
    "Adam": "#1f77b4",
    "AdamW": "#17becf",
    "AdaBelief": "#2ca02c",
    "AdaHessian": "#9467bd",
    "AdaBound": "#ff7f0e",
}


def panels_of(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def contours(ax: Axes, name: str) -> None:
    function = FUNCTIONS[name]
    left, right, bottom, top = function.view
    x, y = np.meshgrid(np.linspace(left, right, 90), np.linspace(bottom, top, 90))
    z = np.log1p(function.value(x, y))
    ax.contour(x, y, z, levels=12, colors="#bbbbbb", linewidths=0.5)
    ax.plot(*function.optimum, marker="*", color="black", markersize=8, linestyle="none", zorder=5)
    ax.set(xlim=(left, right), ylim=(bottom, top), title=function.formula)


def trail(ax: Axes, points: list[list[float]], label: str, **style: Any) -> None:
    _, x, y = np.array(points).T
    ax.plot(x, y, label=label, gid=f"path {label}", **style)


def position(points: list[list[float]], step: int) -> tuple[float, float]:
    t, x, y = np.array(points).T
    return float(np.interp(step, t, x)), float(np.interp(step, t, y))
