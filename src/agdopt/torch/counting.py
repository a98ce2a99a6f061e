"""How often sqrt(b) has which size, and how often it is above the floor: counted on the device, read once.

sqrt(b) falls into bins by its leading bits, eight an octave. Local and real tensors are counted: a DTensor's
own shard, both parts of a complex number.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agdopt.core import Hyper, is_adaptive
from agdopt.torch.bucket import dense
from agdopt.torch.gather import real
from agdopt.torch.optimizer import AGD

# The bits of a float32 from here on are its exponent and three bits of mantissa. Roots of positive float32
# numbers have codes from 2^-75 to 2^64. What is smaller, zero above all, falls into the bin before them;
# infinity and NaN into the one behind.
_SHIFT, _BEFORE, _BEHIND = 20, (127 - 75) * 8 - 1, (127 + 64) * 8
BINS = _BEHIND - _BEFORE + 1
_WIDTH = 2 * BINS + 1  # of a line: each bin's momentum SGD and adaptive, then the step
_EDGES = (np.arange(_BEFORE + 1, _BEHIND + 1, dtype=np.int32) << _SHIFT).view(np.float32).astype(np.float64)
LOW = np.concatenate([[0.0], _EDGES[:-1], [np.nan]])
HIGH = np.concatenate([[0.0], _EDGES[1:], [np.nan]])

# Elements counted at once: a CPU's piece and its temporaries stay in the cache, a GPU's take some 100 MB.
_ON_CPU, _ON_GPU = 1 << 17, 1 << 22


class Counted(NamedTuple):
    """One parameter."""

    name: str
    hyper: Hyper
    step: int
    counts: Any  # an array, by bin: momentum SGD, adaptive


class Counting:
    """Begins to count; `result` waits for what has not arrived."""

    @torch.no_grad()
    def __init__(self, optimizer: AGD) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a switch report cannot be part of a CUDA graph, for the host reads it: "
                "take it between two replays"
            )
        self._sent: list[tuple[list[tuple[str, Hyper]], Tensor, Any]] = []
        for device, alike in _stepped(optimizer).items():
            labels = [(name, hyper) for (hyper, _), members in alike.items() for name, *_ in members]
            table = torch.zeros(len(labels), _WIDTH, dtype=torch.int64, device=device)
            row = 0
            for (hyper, t), members in alike.items():
                _, steps, averages = zip(*members, strict=True)
                now, own = torch.stack(steps), table[row : row + len(members)]
                _count(averages, now if t is None else t, hyper, own)
                own[:, -1] = now.to(device, non_blocking=True)
                row += len(members)
            self._sent.append((labels, *_send(table)))

    def arrived(self) -> bool:
        return all(event is None or event.query() for *_, event in self._sent)

    def result(self) -> list[Counted]:
        counted = []
        for labels, table, event in self._sent:
            if event is not None:
                event.synchronize()
            for (name, hyper), line in zip(labels, table.numpy(), strict=True):
                counted.append(Counted(name, hyper, int(line[-1]), line[:-1].reshape(BINS, 2)))
        return [one for one in counted if one.step]


def _stepped(optimizer: AGD) -> dict[torch.device, dict[Any, list[tuple[str, Tensor, Tensor]]]]:
    """Name, step and b of what has been stepped, by device and (hyper, the step if the host knows it)."""
    found: dict[torch.device, dict[Any, list[tuple[str, Tensor, Tensor]]]] = defaultdict(dict)
    for index, group in enumerate(optimizer.param_groups):
        rule = {key: group[key] for key in ("delta", "amsgrad", "standardize", "clip")}
        hyper = Hyper(*group["betas"], **rule)
        names = group.get("param_names") or [f"{index}.{i}" for i in range(len(group["params"]))]
        for name, p in zip(names, group["params"], strict=True):
            state = optimizer.state.get(p)
            if state:
                b, step = real(state["exp_avg_sq"]), real(state["step"])
                t = float(step) if step.device.type == "cpu" else None
                if t != 0 and b.numel():
                    found[b.device].setdefault((hyper, t), []).append((name, step, b))
    return found


def _pieces(averages: Iterable[Tensor], size: int) -> Iterator[tuple[list[int], list[Tensor]]]:
    """All elements, at most `size` at a time: the rows they belong to, and the part of each."""
    rows: list[int] = []
    parts: list[Tensor] = []
    room = size
    for row, b in enumerate(averages):
        flat = b.as_strided((b.numel(),), (1,)) if dense(b) else b.reshape(-1)
        for start in range(0, len(flat), size):
            part = flat[start : start + size]
            if len(part) > room:
                yield rows, parts
                rows, parts, room = [], [], size
            rows.append(row)
            parts.append(part)
            room -= len(part)
    if rows:
        yield rows, parts


def _count(averages: Iterable[Tensor], t: float | Tensor, hyper: Hyper, table: Tensor) -> None:
    """Into a line of the table for each tensor. t: one step for all, or one for each, on their device."""
    device, one = table.device, table.new_ones(())
    for rows, parts in _pieces(averages, _ON_CPU if device.type == "cpu" else _ON_GPU):
        b, each = parts[0], partial(_sent, device=device)
        if len(parts) > 1:
            b, each = torch.cat(parts), partial(_sent, device=device, lengths=[len(part) for part in parts])
        root = (b if b.dtype == torch.float64 else b.float()).sqrt()
        if isinstance(t, Tensor):
            adaptive = is_adaptive(root, t[each(rows)], hyper, _as_it_is, torch)
        else:
            adaptive = is_adaptive(root, t, hyper, _as_it_is)
        codes = (root.float().view(torch.int32) >> _SHIFT).bitwise_and_(0x7FF)  # a NaN may have a sign
        index = codes.sub_(_BEFORE).clamp_(0, BINS - 1).mul_(2).add_(adaptive)
        if len(parts) > 1:
            index = index + each([(row - rows[0]) * _WIDTH for row in rows])
        own = table[rows[0] : rows[-1] + 1].view(-1)
        if device.type == "cpu":
            own += torch.bincount(index, minlength=len(own))
        else:  # there, bincount would wait for the host
            own.index_add_(0, index, one.expand(len(index)))


def _sent(numbers: list[int], device: torch.device, lengths: list[int] | None = None) -> Tensor:
    """On the device, each as often as `lengths` says. Nothing waits, as torch.tensor(device=...) would."""
    there = torch.tensor(numbers).to(device, non_blocking=True)
    if lengths is None:
        return there
    return there.repeat_interleave(_sent(lengths, device), output_size=sum(lengths))


def _as_it_is(root: Tensor) -> Tensor:
    return root


def _send(table: Tensor) -> tuple[Tensor, Any]:
    """The table on the host, or on its way there and the event that it has arrived."""
    if table.device.type != "cuda":
        return table.cpu(), None
    host = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
    host.copy_(table, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(table.device))
    return host, event
