"""One Triton launch for all tensors of a bucket, through a table of addresses: their number does not matter.

`step` lives on the device, so that a replayed CUDA graph counts on. Where no graph and no scaler is at work
the host counts beside it, and hands the numbers of the step over; else a tiny launch before makes them there.
Either way nothing waits for the GPU.
"""

import math
import tempfile
from collections import OrderedDict
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from agdopt.core import scalars
from agdopt.torch.bucket import Bucket, Options, layout
from agdopt.torch.gpu_kernel import ROW, prepare, update

CHUNK = 1024  # elements a program; larger chunks reach less of the bandwidth
WARPS = 4
PREPARED = 128  # tensors a program of `prepare`
UNKNOWN = -1  # no tensor's version

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_INTERPRETED = not hasattr(update, "device_caches")  # TRITON_INTERPRET=1: tests without a GPU


class _Addresses:
    """Device tables of gradient addresses.

    Gradients come back at the same few places, so each table is written once and kept, and the least used
    gives way. One slot is always left free for a capture, which may not wait; a slot that a graph reads is
    never written again.
    """

    SLOTS = 8

    def __init__(self, n: int, device: torch.device) -> None:
        width = -(-n // 2) * 2  # rows stay aligned to 16 bytes
        self.host = torch.empty((self.SLOTS, width), dtype=torch.int64, pin_memory=device.type != "cpu")
        self.rows: list[Tensor] = list(torch.empty((self.SLOTS, width), dtype=torch.int64, device=device))
        self.copied: list[Any] = [None] * self.SLOTS
        self.slots: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self.free = list(range(self.SLOTS))

    def table(self, addresses: tuple[int, ...], capturing: bool) -> Tensor | None:
        """None when every slot belongs to a graph."""
        slot = self.slots.get(addresses)
        if slot is not None:
            if capturing:
                del self.slots[addresses]  # the graph reads it for as long as it lives
            else:
                self.slots.move_to_end(addresses)
            return self.rows[slot]
        if not self.free:
            return None
        slot = self.free.pop()
        self.host[slot, : len(addresses)] = torch.tensor(addresses, dtype=torch.int64)
        self.rows[slot].copy_(self.host[slot], non_blocking=True)
        if not capturing:
            if self.rows[slot].is_cuda:
                self.copied[slot] = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self.copied[slot].record()
            if not self.free and self.slots:
                oldest = self.slots.popitem(last=False)[1]
                if self.copied[oldest] is not None:
                    self.copied[oldest].synchronize()  # the host's side may be written over only then
                self.free.append(oldest)
            self.slots[addresses] = slot
        return self.rows[slot]


class _Tables:
    """What the kernels read of one bucket, as long as its tensors stay where they are."""

    def __init__(self, bucket: Bucket) -> None:
        params = bucket.params
        device = params[0].device
        for p, m, b in zip(params, bucket.exp_avgs, bucket.exp_avg_sqs, strict=True):
            assert layout(p) == layout(m) == layout(b), "the optimizer lays averages out as their parameters"
        homes = (params, bucket.exp_avgs, bucket.exp_avg_sqs, bucket.steps)
        sizes = torch.tensor([p.numel() for p in params], dtype=torch.int64)
        chunks = (-(-sizes // CHUNK)).clamp(min=1)  # an empty tensor has a step to count, too
        columns = [torch.tensor([x.data_ptr() for x in home], dtype=torch.int64) for home in homes]
        table = torch.stack([*columns, sizes, chunks.cumsum(0) - chunks], dim=1).to(device)
        owner = torch.repeat_interleave(torch.arange(len(params), dtype=torch.int32), chunks).to(device)
        salts = torch.tensor(bucket.salts, dtype=torch.int64).to(torch.int32).to(device)
        self.rows = torch.empty((len(params), ROW.value), dtype=torch.float32, device=device)

        self.count, self.chunks = len(params), len(owner)
        self.contiguous = all(p.is_contiguous() for p in params)
        self.device = device.index
        self.dtypes = (params[0].dtype, bucket.exp_avgs[0].dtype)
        self.types = tuple(_TYPES[dtype] for dtype in self.dtypes)
        self.tensors: tuple[Any, ...] = (table, salts, owner, self.rows)
        self.at: tuple[Any, ...] = tuple(x.data_ptr() for x in self.tensors)
        self.addresses = _Addresses(len(params), device)

        vector = bucket.steps[0]._base  # the optimizer makes them so; inference tensors have no version
        if vector is None or vector.is_inference() or any(t._base is not vector for t in bucket.steps):
            vector = None
        self.steps: Tensor | None = vector
        self.places = [t.storage_offset() for t in bucket.steps]
        self.step, self.version, self.used = 0.0, UNKNOWN, False

    def next_step(self) -> float | None:
        """The number of the coming step; None where tensors differ in it, or the host has yet to learn it.

        It is read from the device once, but not at a first use: tables that do not last are not worth it.
        Later reads follow only when somebody else has written a step.
        """
        if self.steps is None or not self.used:
            self.used = True
            return None
        if self.version != self.steps._version:
            values = self.steps.tolist()
            self.version, self.step = self.steps._version, values[self.places[0]]
            if any(values[i] != self.step for i in self.places):
                self.steps = None
                return None
        return self.step + 1

    def gradients(self, bucket: Bucket, capturing: bool) -> Tensor:
        """This step's table of gradient addresses."""
        addresses = bucket.grad_addresses
        if not self.contiguous or not all(map(Tensor.is_contiguous, bucket.grads)):
            # Elements are taken as they lie in memory, so gradients must lie as their parameters do.
            bucket.grads = [
                g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
                for p, g in zip(bucket.params, bucket.grads, strict=True)
            ]
            addresses = [g.data_ptr() for g in bucket.grads]
        table = self.addresses.table(tuple(addresses), capturing)
        if table is None:
            if capturing:
                raise RuntimeError(
                    "too many CUDA graphs of this optimizer step: take one outside between captures"
                )
            self.addresses = _Addresses(self.count, bucket.params[0].device)
            table = self.addresses.table(tuple(addresses), capturing)
        assert table is not None
        if capturing:
            _captured.append((self, self.addresses))
        return table


# A graph does not tell when it dies: what one reads is kept for ever (some kB).
_captured: list[tuple[_Tables, _Addresses]] = []
_compiled: dict[tuple[Any, ...], Any] = {}


def step(bucket: Bucket, o: Options) -> None:
    capturing = not _INTERPRETED and torch.cuda.is_current_stream_capturing()
    tables: _Tables | None = bucket.memo.get("tables")
    if capturing and not o.on_device:
        raise RuntimeError("a CUDA graph is being captured: give AGD capturable=True")
    if capturing and isinstance(o.lr, Tensor) and not o.lr.is_cuda:
        raise RuntimeError("a CUDA graph is being captured: lr must be a number or a tensor on the GPU")
    if tables is None:
        if capturing:
            raise RuntimeError("a CUDA graph is being captured: take one step with these tensors before")
        tables = bucket.memo["tables"] = _Tables(bucket)
    grads = tables.gradients(bucket, capturing)
    if _INTERPRETED or tables.device == torch.cuda.current_device():
        _launch(tables, grads, o)
    else:
        with torch.cuda.device(tables.device):
            _launch(tables, grads, o)
    torch.autograd.graph.increment_version(bucket.params)  # as an in-place operation does, for autograd


def _launch(tables: _Tables, grads: Tensor, o: Options) -> None:
    lr = o.lr if isinstance(o.lr, Tensor) and o.lr.device == tables.rows.device else None
    on_device = o.on_device or lr is not None or o.found_inf is not None or o.grad_scale is not None
    t = None if on_device else tables.next_step()
    version, tables.version = tables.version, UNKNOWN  # should this be interrupted
    numbers: tuple[float, ...] = (0,) + (0.0,) * 12
    if t is None:
        _prepare(tables, lr, o)
    else:
        k = scalars(t, o.hyper)
        gain = -1.0 if o.maximize else 1.0
        numbers = (
            int(t), k.g, k.m, k.w1, k.w2, k.keep, 1 / k.floor, k.scale, k.clip,
            gain, float(o.l2), float(o.lr), float(o.shrink),
        )  # fmt: skip
    rounded = o.stochastic_rounding and tables.dtypes[0] == torch.bfloat16
    key = ("update", tables.device, *tables.dtypes, t is None, rounded)
    compiled = _compiled.get(key)
    # A compiled kernel takes bare addresses, and is spared asking tensors for them.
    table, salts, owner, rows = tables.tensors if compiled is None else tables.at
    at: Any = grads if compiled is None else grads.data_ptr()
    static = (*tables.types, t is None, rounded, CHUNK)
    _run(update, compiled, key, tables.chunks, (table, at, salts, owner, rows, *numbers, *static))
    if t is not None:
        tables.version, tables.step = version, t


def _prepare(tables: _Tables, lr: Tensor | None, o: Options) -> None:
    h, found, scale = o.hyper, o.found_inf, o.grad_scale
    key = ("prepare", tables.device, lr is not None and lr.dtype, found is None, scale is None)
    compiled = _compiled.get(key)
    table, _, _, rows = tables.tensors if compiled is None else tables.at
    args: tuple[Any, ...] = (
        table, rows,
        rows if found is None else found, rows if scale is None else scale, rows if lr is None else lr,
        tables.count,
        float(o.lr) if lr is None else 0.0, float(o.weight_decay if o.decoupled else 0.0), float(o.l2),
        -1.0 if o.maximize else 1.0, h.beta1, h.log_beta1, h.beta2, h.log_beta2, h.delta,
        float(h.amsgrad), math.inf if h.clip is None else float(h.clip), float(h.standardize),
        found is not None, scale is not None, lr is not None, PREPARED,
    )  # fmt: skip
    _run(prepare, compiled, key, -(-tables.count // PREPARED), args)


def _run(kernel: Any, compiled: Any, key: tuple[Any, ...], programs: int, args: tuple[Any, ...]) -> None:
    """Launch; from the second time on without deriving the signature anew, which takes longer than a step."""
    if compiled is not None:
        stream = driver.active.get_current_stream(key[1])
        entry, packed = compiled.function, compiled.packed_metadata
        compiled.run(programs, 1, 1, stream, entry, packed, None, None, None, *args)
    elif _INTERPRETED:
        kernel[(programs,)](*args)
    else:
        try:
            compiled = kernel[(programs,)](*args, num_warps=WARPS)
        except OSError:  # the cache folder cannot be written
            triton.knobs.cache.dir = tempfile.mkdtemp(prefix="agdopt-triton-")
            compiled = kernel[(programs,)](*args, num_warps=WARPS)
        _compiled[key] = compiled
