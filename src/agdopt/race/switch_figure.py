"""How bhat is spread over a training: the share of each decade, stacked, and the share that delta truncates.

From the file of a SwitchMonitor: agdopt switch FILE --out picture.svg. The curves of a Record have the same
names, and can be drawn too.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Curves = Mapping[str, Sequence[float | None]]

# Decades at either end that never hold more than this are drawn as one.
SMALL = 0.01


def add(commands: Any) -> None:
    parser = commands.add_parser("switch", help="draw what a SwitchMonitor has written")
    parser.add_argument("file", type=Path, help="a SwitchMonitor's JSON-lines file")
    parser.add_argument("--out", type=Path, help="picture: .svg, .png or .pdf (default: FILE.svg)")
    parser.add_argument("--prefix", default="switch", help="of the numbers' names (default: switch)")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    parser: argparse.ArgumentParser = args.parser
    out = args.out or args.file.with_suffix(".svg")
    if out.suffix not in (".svg", ".png", ".pdf"):
        parser.error(f"--out {out}: a picture's name ends in .svg, .png or .pdf")
    try:
        curves = read(args.file, args.prefix)
    except ValueError as e:
        parser.error(str(e))
    try:
        save(curves, curves["switch.step"], "step", out)
    except ModuleNotFoundError as e:
        print(f'agdopt: {e}; pictures need it: pip install "agdopt[race]"', file=sys.stderr)
        return 1
    print(f"{len(curves['switch.step'])} reports drawn to {out}")
    return 0


def read(path: Path, prefix: str = "switch") -> dict[str, list[float]]:
    """Curves by the names of a Record. Of two reports of a step, as in a resumed run, the later counts."""
    reports: dict[float, dict[str, float]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found = json.loads(line)
            reports[found[f"{prefix}/step"]] = found
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{path}, line {number} is no report of a SwitchMonitor: {line[:60]}") from None
    if not reports:
        raise ValueError(f"{path} is empty: the monitor has not come to its first report")
    ordered = [reports[step] for step in sorted(reports)]
    names = dict.fromkeys(name for report in ordered for name in report if name.startswith(f"{prefix}/"))
    return {
        "switch" + name.removeprefix(prefix).replace("/", "."): [report.get(name, 0.0) for report in ordered]
        for name in names
    }


def bands(curves: Curves) -> list[tuple[str, list[float]]]:
    """Label and share over time, from the smallest bhat to the largest."""
    name = "switch.decade."
    shares = {int(k.removeprefix(name)): _filled(v) for k, v in curves.items() if k.startswith(name)}
    none = [0.0] * len(curves["switch.adaptive"])
    groups = [(k, k + 1, shares.get(k, none)) for k in range(min(shares), max(shares) + 1)] if shares else []
    for end in (slice(0, 2), slice(-2, None)):
        while (
            len(groups) > 1
            and max(together := [a + b for a, b in zip(groups[end][0][2], groups[end][1][2], strict=True)])
            <= SMALL
        ):
            groups[end] = [(groups[end][0][0], groups[end][1][1], together)]
    found = [(f"1e{low} to 1e{high}", share) for low, high, share in groups]
    return [("0", _filled(curves["switch.zero"])), *found] if "switch.zero" in curves else found


def draw(axes: Any, curves: Curves, x: Sequence[float | None], unit: str) -> None:
    """The stack on matplotlib axes."""
    import matplotlib as mpl

    stack = bands(curves)
    colours = mpl.colormaps["viridis_r"]([(i + 0.5) / len(stack) for i in range(len(stack))])
    axes.stackplot(x, [share for _, share in stack], labels=[label for label, _ in stack], colors=colours)
    truncated = [1 - share for share in _filled(curves["switch.adaptive"])]
    style = {"color": "black", "marker": "o", "markersize": 3, "linewidth": 1}
    axes.plot(
        x, truncated, **style, markevery=max(1, len(truncated) // 25), label="at most delta: momentum SGD"
    )
    axes.set(xlabel=unit, ylabel="share of coordinates", ylim=(0, 1))
    axes.margins(x=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        title="bhat",
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        fontsize="small",
    )


def save(curves: Curves, x: Sequence[float | None], unit: str, out: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    draw(figure.subplots(), curves, x, unit)
    with mpl.rc_context({"svg.hashsalt": "agdopt"}):  # the same curves, the same file
        figure.savefig(out, dpi=150, metadata={"Date": None} if out.suffix == ".svg" else None)


def _filled(curve: Sequence[float | None]) -> list[float]:
    return [0.0 if value is None else value for value in curve]
