"""Claims about sensitivity, the switch, cost and size."""

import importlib
import math
import statistics

import numpy as np

from agdopt.core import Hyper, direction, scalars
from agdopt.race.paper.cell import Cell
from agdopt.race.paper.evidence import Evidence
from agdopt.race.paper.finding import CANNOT_TELL, DOES_NOT, HOLDS, Finding, number


def widths(cell: Cell, column: str, evidence: Evidence) -> dict[int, float]:
    """By seed: decades of the swept value about its best within which the metric is within a point."""
    by_seed: dict[int, dict[float, float | None]] = {}
    for runs in evidence.runs[column].values():
        for r in runs:
            value = float(r.recipe["optimizer"]["arguments"][cell.swept[column]])
            by_seed.setdefault(r.seed, {})[value] = number(r, cell.metric)
    found = {}
    whole = sum(bool(runs) for runs in evidence.runs[column].values())
    for seed, curve in by_seed.items():
        if len(curve) < whole or not any(v is not None for v in curve.values()):
            continue
        points = sorted(curve)
        best = max(points, key=lambda x: -math.inf if (v := curve[x]) is None else v)
        near = [(v := curve[x]) is not None and v >= (curve[best] or 0.0) - 1 for x in points]
        low = high = points.index(best)
        while low and near[low - 1]:
            low -= 1
        while high + 1 < len(points) and near[high + 1]:
            high += 1
        found[seed] = math.log10(points[high] / points[low])
    return found


def robust(cell: Cell, evidence: Evidence) -> Finding:
    found = {column: widths(cell, column, evidence) for column in cell.entries}
    (rival,) = (c for c in cell.entries if c != cell.champion)
    own, other = list(found[cell.champion].values()), list(found[rival].values())
    if not own or not other:
        return Finding(CANNOT_TELL, f"{rival if own else cell.champion} has not been swept whole")
    words = "; ".join(
        f"{c} within a point of its best over {min(v):.1f}" + (f" to {max(v):.1f}" if max(v) > min(v) else "")
        + f" decades of {cell.swept[c]}"
        for c, v in ((cell.champion, own), (rival, other))
    )  # fmt: skip
    if min(len(own), len(other)) < 3:
        return Finding(CANNOT_TELL, words)
    verdict = HOLDS if min(own) > max(other) else DOES_NOT if max(own) < min(other) else CANNOT_TELL
    return Finding(verdict, words)


def switch(cell: Cell, evidence: Evidence) -> Finding:
    """Of the share of adaptive coordinates by epoch, in every run of every reading."""
    curves = [
        [v or 0.0 for v in r.curves[cell.metric]]
        for entries in evidence.runs.values()
        for runs in entries.values()
        for r in runs
        if r.diverged_at is None and r.curves.get(cell.metric)
    ]
    after = int(cell.switch.get("after", 0))
    if not curves or (after and min(map(len, curves)) <= after):
        return Finding(CANNOT_TELL, "no run is long enough to tell")
    oks = []
    for curve in curves:
        ok = all(v <= cell.switch.get("below", 1.0) for v in curve)
        ok &= statistics.fmean(curve) >= cell.switch.get("above", 0.0)
        if after:
            ok &= statistics.fmean(curve[after:]) > statistics.fmean(curve[:after])
        oks.append(ok)
    ends = (min(c[0] for c in curves), max(c[0] for c in curves), min(c[-1] for c in curves))
    words = f"adaptive {ends[0]:.1%} to {ends[1]:.1%} after the first epoch, "
    words += f"{ends[2]:.1%} to {max(c[-1] for c in curves):.1%} at the end"
    if len(curves) < 3:
        return Finding(CANNOT_TELL, words)
    return Finding(HOLDS if all(oks) else CANNOT_TELL if any(oks) else DOES_NOT, words)


def costs(evidence: Evidence) -> dict[str, tuple[float, float]]:
    """Seconds a step and bytes, relative to AdamW's; of runs that had the device to themselves."""
    found = {}
    for column, entries in evidence.runs.items():
        alone = [r for runs in entries.values() for r in runs if r.jobs == 1]
        time = [r.seconds_per_step for r in alone if r.seconds_per_step]
        memory = [float(r.peak_memory) for r in alone if r.peak_memory]
        if time and memory:
            found[column] = statistics.median(time), statistics.median(memory)
    if "AdamW" not in found:
        return {}
    base = found["AdamW"]
    return {column: (a / base[0], b / base[1]) for column, (a, b) in found.items()}


def cost(cell: Cell, evidence: Evidence) -> Finding:
    """About what AdamW's does: within a tenth more, in both. Far less: under two thirds of the time."""
    found = costs(evidence)
    words = ", ".join(f"{c} {a:.2f} in time, {b:.2f} in memory" for c, (a, b) in found.items())
    if not {"AGD", "AdaHessian"} <= set(found):
        return Finding(CANNOT_TELL, words or "no run had a GPU to itself")
    (time, memory), dear = found["AGD"], found["AdaHessian"]
    ok = max(time, memory) <= 1.1 and time < 2 / 3 * dear[0]
    return Finding(HOLDS if ok else DOES_NOT, f"relative to AdamW: {words}")


def parameters(cell: Cell, evidence: Evidence) -> Finding:
    """Of the model that the plans train, without memory for its numbers."""
    import torch

    module, _, name = cell.model.partition(":")
    with torch.device("meta"):
        model: torch.nn.Module = getattr(importlib.import_module(module), name)(**cell.shape)
    count = sum(p.numel() for p in model.parameters())
    digits = len(cell.size.rstrip("M").partition(".")[2])
    ok = f"{count / 1e6:.{digits}f}M" == cell.size
    return Finding(HOLDS if ok else DOES_NOT, f"{count:,}")


def table(cell: Cell, evidence: Evidence) -> Finding:
    """Of T1 one line is ours to answer for: what the rule keeps is the average of s_t squared."""
    hyper, random = Hyper(), np.random.default_rng(0)
    gradients = random.normal(size=50)
    m = b = average = mean = before = np.zeros(())
    for t, g in enumerate(gradients, 1):
        _, m, b = direction(g, m, b, scalars(t, hyper), np.sqrt, np.maximum, np.minimum)
        average = hyper.beta1 * average + (1 - hyper.beta1) * g
        mhat = average / (1 - hyper.beta1**t)
        mean, before = hyper.beta2 * mean + (1 - hyper.beta2) * (mhat - before) ** 2, mhat
    ok = bool(np.isclose(b, mean, rtol=1e-12))
    return Finding(HOLDS if ok else DOES_NOT, "AGD's line is what the rule computes; the others are quoted")
