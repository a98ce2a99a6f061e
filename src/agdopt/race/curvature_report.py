"""What the records of C1 say: numbers in words, a verdict, a picture. Pure functions of their lines."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agdopt.race.hessian import RANKED
from agdopt.race.record import tables
from agdopt.race.stats import interval, summary

HOLDS, DOES_NOT, CANNOT_TELL = "holds", "does not", "cannot tell"
FILE = "cells.jsonl"  # below --out: a line for each cell, scale and seed
SIGNALS = {"s": "AGD's s", "g": "Adam's g", "g - m": "AdaBelief's g - m", "g - g'": "g - g'", "mhat": "mhat"}
# g - m lies on top of s but for the first steps.
STYLES: Mapping[str, Any] = {
    "g - m": {"linestyle": "--"},
    "unmoved": {"color": "black", "linestyle": ":"},
}
Line = Mapping[str, Any]


def lines(out: Path) -> list[Line]:
    return [*tables(out / FILE)]


def of(found: Sequence[Line], cell: str) -> list[Line]:
    """What answers for a cell: the newest line of each seed, of the paper's scale if there is any."""
    own = [line for line in found if line["cell"] == cell]
    own = [line for line in own if line["scale"] == "paper"] or own
    return list({line["seed"]: line for line in own}.values())


def by_seed(found: Sequence[Line], key: str, path: str = "AGD") -> list[float]:
    """The mean over a training, of each seed."""
    return [line["paths"][path]["mean"][key] for line in found]


def judge(found: Sequence[Line]) -> tuple[str, str]:
    """Ours in words, and the verdict, from a cell's lines of one scale.

    It holds where s has the larger cosine than g, whichever way g points, and more than half of it is due to
    the gradient's having changed. That s beats g - m cannot be asked: they are parallel (see above).
    """
    keys = [*SIGNALS, "unmoved", "exact"]
    mean = {k: summary(by_seed(found, f"cosine.{k}")) for k in keys}
    words = "cosine with H dw: "
    told = {"unmoved": "s without its share of H dw", "exact": "the exact gradients' difference"}
    words += ", ".join(
        f"{told.get(k, k)} {m.mean:.3f}" + (f" ± {m.sd:.3f}" if m.sd else "") for k, m in mean.items()
    )
    words += f"; H dw is {statistics.fmean(by_seed(found, 'share')):.1%} of s by length"
    halves = statistics.fmean(by_seed(found, "halves.product"))
    words += f"; halves of the batches agree on H dw to {halves:.3f}"
    ranked = ", ".join(f"{k} {statistics.fmean(by_seed(found, f'rank.{k}')):.3f}" for k in RANKED.values())
    words += f". Rank correlation with |diag H|: {ranked}"
    s, g, unmoved = (by_seed(found, f"cosine.{k}") for k in ("s", "g", "unmoved"))
    ahead = interval([a - abs(b) for a, b in zip(s, g, strict=True)])
    earned = interval([a - 2 * max(b, 0.0) for a, b in zip(s, unmoved, strict=True)])
    if ahead is None or earned is None or found[0]["scale"] == "reduced":
        return words, CANNOT_TELL
    if min(ahead[0], earned[0]) > 0:
        return words, HOLDS
    return words, DOES_NOT if min(ahead[1], earned[1]) < 0 else CANNOT_TELL


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def picture(found: Sequence[Line], out: Path) -> None:
    """The cosines over training, a line for each signal, a panel for each path; mean and range over seeds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for ax, path in zip(panels, ("AGD", "AdamW"), strict=True):
        runs = [line["paths"][path] for line in found]
        count = min(len(run["t"]) for run in runs)
        t = runs[0]["t"][:count]
        for key, label in {**SIGNALS, "unmoved": "s without H dw"}.items():
            curves = [[_number(v) for v in r["curves"][f"cosine.{key}"][:count]] for r in runs]
            seeds = list(zip(*curves, strict=True))
            style = STYLES.get(key, {})
            mean = [statistics.fmean(v) for v in seeds]
            (drawn,) = ax.plot(t, mean, label=label, gid=f"{path} {key}", **style)
            low, high = [min(v) for v in seeds], [max(v) for v in seeds]
            ax.fill_between(t, low, high, color=drawn.get_color(), alpha=0.12, linewidth=0)
        ax.axhline(0, color="black", linewidth=0.5)
        ax.set(title=f"{found[0]['cell']}, along {path}", xlabel="step")
    panels[0].set_ylabel("cosine with H dw")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "agdopt"}):
        figure.savefig(out, metadata={"Date": None})
