"""The switch of a whole optimizer, seen: what share of it is adaptive, and how bhat is spread.

Which side of delta a coordinate is on is counted exactly. Sizes of bhat are counted in bins an eighth of an
octave wide: a quantile is a bin's middle, right within 7%; a bin across an edge of decades is shared out.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from torch.optim.optimizer import Optimizer

from agdopt.core import bhat
from agdopt.torch.counting import HIGH, LOW, Counted, Counting
from agdopt.torch.optimizer import AGD

__all__ = ["QUANTILES", "SwitchReport", "SwitchRow", "switch_report"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class SwitchRow(NamedTuple):
    """One parameter, or all of them. Shares are of its elements."""

    name: str
    step: int
    elements: int
    adaptive: float  # the share with bhat > delta
    quantiles: dict[float, float]  # of bhat
    decades: dict[int, float]  # -3: the share with 1e-3 <= bhat < 1e-2; none where it is zero
    zero: float  # the share with bhat = 0
    broken: float  # the share whose bhat is infinite or NaN


class SwitchReport:
    """`overall`, and `rows`: one for every parameter that has been stepped. Printed, it is a table."""

    def __init__(self, counted: list[Counted]) -> None:
        self._counted = counted

    @cached_property
    def overall(self) -> SwitchRow:
        return _row("overall", self._counted)

    @cached_property
    def rows(self) -> list[SwitchRow]:
        return [_row(one.name, [one]) for one in self._counted]

    def numbers(self, prefix: str = "switch", per_parameter: bool = False) -> dict[str, float]:
        """A flat dict, as loggers take it; empty before the first step."""
        if not self._counted:
            return {}
        all_ = self.overall
        found = {f"{prefix}/step": float(all_.step), f"{prefix}/adaptive": all_.adaptive}
        found |= {f"{prefix}/bhat/p{100 * q:.0f}": x for q, x in all_.quantiles.items() if x == x}
        found |= {f"{prefix}/decade/{k}": share for k, share in all_.decades.items()}
        found |= {f"{prefix}/{key}": share for key in ("zero", "broken") if (share := getattr(all_, key))}
        if per_parameter:
            found |= {f"{prefix}/adaptive_in/{row.name}": row.adaptive for row in self.rows}
        return found

    def __str__(self) -> str:
        if not self._counted:
            return "no parameter has been stepped yet, so there is no bhat"
        rows = [self.overall, *self.rows]
        wide = max(len(row.name) for row in rows)
        lines = [f"{'':{wide}}{'step':>9}{'elements':>14}{'adaptive':>10}  bhat"]
        lines[0] += "".join(f"{f'{q:.0%}':>9}" for q in QUANTILES)
        for row in rows:
            spread = "".join(f"{value:>9.1e}" for value in row.quantiles.values())
            lines.append(
                f"{row.name:{wide}}{row.step:>9}{row.elements:>14,}{row.adaptive:>10.2%}      {spread}"
            )
        return "\n".join(lines)


def switch_report(optimizer: Optimizer) -> SwitchReport:
    """What the switch does now. Print it, or look at its `overall`, its `rows` or its `numbers()`.

    Counted on the device and read once for each device, whatever the number of tensors. Sharded parameters
    are counted where they are: each process reports its own shards.
    """
    return SwitchReport(Counting(unwrapped(optimizer)).result())


def unwrapped(optimizer: Any) -> AGD:
    """The AGD inside what accelerate or Lightning wrap around it."""
    inner = optimizer
    while not isinstance(inner, AGD):
        inner = getattr(inner, "optimizer", None)
        if inner is None:
            raise TypeError(f"{type(optimizer).__name__} has no switch to look at; an agdopt.AGD has")
    return inner


def _row(name: str, counted: list[Counted]) -> SwitchRow:
    alike: dict[Any, list[Counted]] = defaultdict(list)
    for one in counted:
        alike[one.step, one.hyper.beta2].append(one)  # in these, a bin means the same bhat
    spread: list[tuple[float, float, int]] = []
    elements = adaptive = 0
    for (t, _), some in alike.items():
        counts = sum(one.counts for one in some)
        count = counts[:, 0] + counts[:, 1]
        (bins,) = count.nonzero()
        low, high = (bhat(edges[bins] ** 2, t, some[0].hyper, np.sqrt).tolist() for edges in (LOW, HIGH))
        spread += zip(low, high, count[bins].tolist(), strict=True)
        elements += int(count.sum())
        adaptive += int(counts[:, 1].sum())
    sound = sorted(bin_ for bin_ in spread if bin_[0] == bin_[0])
    reached = list(accumulate(n for *_, n in sound))
    decades: dict[int, float] = defaultdict(float)
    for low, high, n in sound:
        if low:
            low, high = math.log10(low), math.log10(high)
            above = min(1.0, (high - math.floor(high)) / (high - low))
            decades[math.floor(high) - 1] += (1 - above) * n / elements
            decades[math.floor(high)] += above * n / elements
    quantiles = dict.fromkeys(QUANTILES, math.nan)
    for q in QUANTILES if sound else ():
        low, high, _ = sound[bisect_left(reached, q * reached[-1])]
        quantiles[q] = math.sqrt(low * high)
    total = max(elements, 1)
    return SwitchRow(
        name,
        step=max((one.step for one in counted), default=0),
        elements=elements,
        adaptive=adaptive / elements if elements else math.nan,
        quantiles=quantiles,
        decades={decade: share for decade, share in decades.items() if share},
        zero=sum(n for low, _, n in sound if not low) / total,
        broken=sum(n for low, _, n in spread if low != low) / total,
    )
