"""One Triton launch for all tensors of a bucket (and a tiny one before it for the numbers of the step).

The kernels read a table of addresses, so the number of tensors does not matter. `step` and everything made
from it stay on the device: nothing waits for the GPU, and a replayed CUDA graph counts on.
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

from agdopt.torch.bucket import Bucket, Options

WARPS = 4
CHUNK = 1024  # elements a program; larger chunks reach less of the bandwidth
PREPARED = 128  # tensors a program of `_prepare`
# What `_prepare` hands to `_update`, a row of float32 a tensor, in this order: Scalars and the caller's numbers.
ROW = tl.constexpr(16)
STATIC = tl.constexpr(6)  # a row of the table: addresses of p, m, b, step; number of elements; first chunk


@triton.jit(do_not_specialize=["n"])
def _prepare(
    table, salts, rows, keys, found_inf, grad_scale, lr_tensor, n,
    lr: tl.float64, weight_decay: tl.float64, l2: tl.float64, sign: tl.float64,
    beta1: tl.float64, log_beta1: tl.float64, beta2: tl.float64, log_beta2: tl.float64, delta: tl.float64,
    keep: tl.float64, clip: tl.float64, standardize: tl.float64,
    FOUND_INF: tl.constexpr, GRAD_SCALE: tl.constexpr, LR_TENSOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Advance every step and write the numbers of that step: core.rule.scalars, in float64."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    live = 1.0
    if FOUND_INF:
        live = tl.where(tl.load(found_inf) == 0.0, 1.0, 0.0)
    if GRAD_SCALE:
        sign = sign / tl.load(grad_scale).to(tl.float64)
    if LR_TENSOR:
        lr = tl.load(lr_tensor).to(tl.float64)
    step = tl.load(table + i * STATIC + 3, mask=there, other=0).to(tl.pointer_type(tl.float32))
    now = tl.load(step, mask=there, other=0.0) + live
    tl.store(step, now, mask=there)
    t = tl.maximum(now, 1.0).to(tl.float64)

    c1 = 1.0 - tl.exp(t * log_beta1)
    c2 = 1.0 - tl.exp(t * log_beta2)
    c1_prev = 1.0 - tl.exp((t - 1.0) * log_beta1) + tl.where(t == 1.0, 2.0, 0.0)
    white = 1.0 / tl.sqrt(1.0 + (2.0 - c1_prev) * (1.0 - beta1) / (c1_prev * (1.0 + beta1)))
    k_g = tl.where(standardize != 0.0, white, (1.0 - beta1) / c1)

    row, zero = rows + i * ROW, t - t
    tl.store(row + 0, k_g.to(tl.float32), mask=there)
    tl.store(row + 1, (-k_g / c1_prev).to(tl.float32), mask=there)
    tl.store(row + 2, (zero + (1.0 - beta1)).to(tl.float32), mask=there)
    tl.store(row + 3, (zero + (1.0 - beta2)).to(tl.float32), mask=there)
    tl.store(row + 4, (zero + keep).to(tl.float32), mask=there)
    tl.store(row + 5, (1.0 / (delta * tl.sqrt(c2))).to(tl.float32), mask=there)
    tl.store(row + 6, (tl.sqrt(c2) / c1).to(tl.float32), mask=there)
    tl.store(row + 7, (zero + clip).to(tl.float32), mask=there)
    tl.store(row + 8, (zero + sign).to(tl.float32), mask=there)
    tl.store(row + 9, (zero + l2).to(tl.float32), mask=there)
    tl.store(row + 10, (zero + lr).to(tl.float32), mask=there)
    tl.store(row + 11, (zero + (1.0 - lr * weight_decay)).to(tl.float32), mask=there)
    tl.store(row + 12, (zero + live).to(tl.float32), mask=there)
    salt = tl.load(salts + i, mask=there, other=0).to(tl.uint32, bitcast=True)
    count = now.to(tl.int32).to(tl.uint32, bitcast=True)
    tl.store(keys + 2 * i, _mix(salt ^ count).to(tl.int32, bitcast=True), mask=there)
    tl.store(keys + 2 * i + 1, _mix((salt ^ 0xFFFFFFFF) ^ count).to(tl.int32, bitcast=True), mask=there)


@triton.jit
def _mix(x):
    """agdopt.torch.rounding.mix"""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _to_bfloat16(x, bits):
    up = ((x.to(tl.uint32, bitcast=True) + (bits & 0xFFFF)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where(tl.abs(x) < float("inf"), up, x).to(tl.bfloat16)


@triton.jit
def _load(address, offsets, size, FULL: tl.constexpr):
    if FULL:
        return tl.load(tl.multiple_of(address, 16) + offsets).to(tl.float32)
    return tl.load(address + offsets, mask=offsets < size, other=0.0).to(tl.float32)


@triton.jit
def _store(address, offsets, size, x, FULL: tl.constexpr):
    x = x.to(address.dtype.element_ty)
    if FULL:
        tl.store(tl.multiple_of(address, 16) + offsets, x)
    else:
        tl.store(address + offsets, x, mask=offsets < size)


@triton.jit
def _chunk(p_at, g_at, m_at, b_at, start, size, row, key, FULL: tl.constexpr, ROUND: tl.constexpr, BLOCK: tl.constexpr):
    """core.rule.direction on one chunk. FULL: no masks and aligned addresses, which is what wide loads take."""
    at = tl.arange(0, BLOCK)
    p, g = _load(p_at, at, size, FULL), _load(g_at, at, size, FULL)
    m, b = _load(m_at, at, size, FULL), _load(b_at, at, size, FULL)
    g = tl.load(row + 8) * g + tl.load(row + 9) * p

    # s = k_g g + k_m m
    s = tl.load(row + 0) * g + tl.load(row + 1) * m
    # m = m + w1 (g - m)
    m = m + tl.load(row + 2) * (g - m)
    # b = b + w2 (max(s^2, keep b) - b)
    s2 = s * s
    kept = tl.load(row + 4) * b
    b = b + tl.load(row + 3) * (tl.where(s2 < kept, kept, s2) - b)
    # d = scale m / max(sqrt(b), floor), within the clip; comparisons are written so that NaN stays NaN
    inverse_floor, clip = tl.load(row + 5), tl.load(row + 7)
    inverse = tl.rsqrt(b)
    d = tl.load(row + 6) * m * tl.where(inverse > inverse_floor, inverse_floor, inverse)
    d = tl.where(d < -clip, -clip, d)
    d = tl.where(d > clip, clip, d)
    p = p * tl.load(row + 11) - tl.load(row + 10) * d

    index = (start + at).to(tl.uint32)
    if m_at.dtype.element_ty == tl.bfloat16:
        bits = _mix(index ^ tl.load(key).to(tl.uint32, bitcast=True))
        _store(m_at, at, size, _to_bfloat16(m, bits), FULL)
        _store(b_at, at, size, _to_bfloat16(b, bits >> 16), FULL)
    else:
        _store(m_at, at, size, m, FULL)
        _store(b_at, at, size, b, FULL)
    if ROUND:
        bits = _mix(index ^ tl.load(key + 1).to(tl.uint32, bitcast=True))
        _store(p_at, at, size, _to_bfloat16(p, bits), FULL)
    else:
        _store(p_at, at, size, p, FULL)


@triton.jit
def _update(
    table, grads, rows, keys, owner, P: tl.constexpr, S: tl.constexpr, ROUND: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The chunk of this program: `owner` says of which tensor, the table where that lies."""
    chunk = tl.program_id(0)
    i = tl.load(owner + chunk)
    row = rows + i * ROW
    if tl.load(row + 12) != 0.0:  # not an overflow that a gradient scaler has found
        entry = table + i * STATIC
        start = (chunk - tl.load(entry + 5)) * BLOCK
        size = tl.load(entry + 4) - start
        p_at, m_at, b_at, g_at = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(grads + i)
        aligned = ((p_at | m_at | b_at | g_at) & 15) == 0
        p_at = p_at.to(tl.pointer_type(P)) + start
        g_at = g_at.to(tl.pointer_type(P)) + start
        m_at = m_at.to(tl.pointer_type(S)) + start
        b_at = b_at.to(tl.pointer_type(S)) + start
        if aligned & (size >= BLOCK):
            _chunk(p_at, g_at, m_at, b_at, start, size, row, keys + 2 * i, True, ROUND, BLOCK)
        else:
            _chunk(p_at, g_at, m_at, b_at, start, size, row, keys + 2 * i, False, ROUND, BLOCK)


class _Addresses:
    """Device tables of gradient addresses. Gradients come back at the same few places, so each table is written once
    and kept; the least used one gives way, but never one that a captured graph reads."""

    SLOTS = 8

    def __init__(self, n: int, device: torch.device) -> None:
        width = -(-n // 2) * 2  # rows stay aligned to 16 bytes
        pin = device.type != "cpu"
        self.host = torch.empty((self.SLOTS, width), dtype=torch.int64, pin_memory=pin)
        self.device = torch.empty((self.SLOTS, width), dtype=torch.int64, device=device)
        self.rows = list(self.device)
        self.copied: list[Any] = [None] * self.SLOTS
        self.slots: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self.free = list(range(self.SLOTS))

    def table(self, addresses: tuple[int, ...], capturing: bool) -> Tensor | None:
        """None when every slot belongs to a graph."""
        slot = self.slots.get(addresses)
        if slot is None:
            if self.free:
                slot = self.free.pop()
            elif capturing or not self.slots:
                return None
            else:
                slot = self.slots.popitem(last=False)[1]
                if self.copied[slot] is not None:
                    self.copied[slot].synchronize()
            self.host[slot, : len(addresses)] = torch.tensor(addresses, dtype=torch.int64)
            self.rows[slot].copy_(self.host[slot], non_blocking=True)
            if self.device.is_cuda and not capturing:
                self.copied[slot] = torch.cuda.Event()
                self.copied[slot].record()
            if not capturing:
                self.slots[addresses] = slot
        elif capturing:
            del self.slots[addresses]  # the graph reads it for as long as it lives
        else:
            self.slots.move_to_end(addresses)
        return self.rows[slot]


_INTERPRETED = not hasattr(_update, "device_caches")


class _Tables:
    """What the kernels read of one bucket, as long as its tensors stay where they are."""

    def __init__(self, bucket: Bucket) -> None:
        device, params = bucket.params[0].device, bucket.params
        for p, m, b in zip(params, bucket.exp_avgs, bucket.exp_avg_sqs, strict=True):
            if not p.stride() == m.stride() == b.stride():
                raise RuntimeError(f"states with strides {m.stride()}, {b.stride()} do not fit a parameter's {p.stride()}")
        n = len(params)
        sizes = torch.tensor([p.numel() for p in params], dtype=torch.int64)
        chunks = -(-sizes // CHUNK)
        self.count, self.chunks = n, int(chunks.sum())
        homes = (params, bucket.exp_avgs, bucket.exp_avg_sqs, bucket.steps)
        columns = [torch.tensor([x.data_ptr() for x in home], dtype=torch.int64) for home in homes]
        columns += [sizes, chunks.cumsum(0) - chunks]
        self.table = torch.stack(columns, dim=1).to(device)
        self.owner = torch.repeat_interleave(torch.arange(n, dtype=torch.int32), chunks).to(device)
        self.salts = torch.tensor(bucket.salts, dtype=torch.int64).to(torch.int32).to(device)
        self.rows = torch.empty((n, ROW.value), dtype=torch.float32, device=device)
        self.keys = torch.empty((n, 2), dtype=torch.int32, device=device)
        self.addresses = _Addresses(n, device)
        self.contiguous = all(p.is_contiguous() for p in params)
        self.device = device.index
        self.tensors = (self.table, self.salts, self.rows, self.keys, self.owner)
        self.at = tuple(x.data_ptr() for x in self.tensors)
        self.dtypes = (params[0].dtype, bucket.exp_avgs[0].dtype)
        self.types = (_TYPES[params[0].dtype], _TYPES[bucket.exp_avgs[0].dtype])


_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_captured: list[_Tables] = []  # a graph does not tell when it dies: what one reads is kept for ever (some kB each)
_compiled: dict[Any, Any] = {}


def step(bucket: Bucket, o: Options) -> None:
    if not bucket.params:
        return
    p = bucket.params[0]
    capturing = not _INTERPRETED and torch.cuda.is_current_stream_capturing()
    if capturing and not o.on_device:
        raise RuntimeError("a CUDA graph is being captured: give AGD capturable=True")
    tables: _Tables | None = bucket.memo.get("tables")
    if tables is None:
        if capturing:
            raise RuntimeError("a CUDA graph is being captured: take one step with these tensors before")
        tables = bucket.memo["tables"] = _Tables(bucket)
    addresses = bucket.grad_addresses
    if not tables.contiguous or not all(map(Tensor.is_contiguous, bucket.grads)):
        # Elements are taken in the order they lie in memory, so gradients must lie as their parameters do.
        bucket.grads = [
            g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
            for p, g in zip(bucket.params, bucket.grads, strict=True)
        ]
        addresses = [g.data_ptr() for g in bucket.grads]
    grads = tables.addresses.table(tuple(addresses), capturing)
    if grads is None:
        if capturing:
            raise RuntimeError("too many CUDA graphs of this optimizer step: take one step outside between them")
        tables.addresses = _Addresses(tables.count, p.device)
        grads = tables.addresses.table(tuple(addresses), capturing)
    if capturing:
        _captured.append(tables)
    if _INTERPRETED or p.device.index == torch.cuda.current_device():
        _launch(tables, grads, o)
    else:
        with torch.cuda.device(p.device):
            _launch(tables, grads, o)


def _launch(tables: _Tables, grads: Tensor, o: Options) -> None:
    h, lr = o.hyper, o.lr
    there = isinstance(lr, Tensor) and lr.device == tables.rows.device
    found, scale = o.found_inf, o.grad_scale
    rounded = o.stochastic_rounding and tables.types[0] is tl.bfloat16
    device = tables.device

    key: Any = ("prepare", device, there and lr.dtype, found is not None, scale is not None)
    compiled = _compiled.get(key)
    # A compiled kernel takes bare addresses, and is spared asking tensors for them.
    table, salts, rows, keys, owner = tables.tensors if compiled is None else tables.at
    args = (
        table, salts, rows, keys,
        rows if found is None else found, rows if scale is None else scale, lr if there else rows, tables.count,
        0.0 if there else float(lr), float(o.weight_decay if o.decoupled else 0.0), float(o.l2),
        -1.0 if o.maximize else 1.0, h.beta1, h.log_beta1, h.beta2, h.log_beta2, h.delta,
        float(h.amsgrad), math.inf if h.clip is None else float(h.clip), float(h.standardize),
        found is not None, scale is not None, there, PREPARED,
    )  # fmt: skip
    _run(_prepare, compiled, key, -(-tables.count // PREPARED), args)
    if tables.chunks:
        key = ("update", device, tables.dtypes, rounded)
        compiled = _compiled.get(key)
        table, salts, rows, keys, owner = tables.tensors if compiled is None else tables.at
        args = (table, grads if compiled is None else grads.data_ptr(), rows, keys, owner, *tables.types, rounded, CHUNK)
        _run(_update, compiled, key, tables.chunks, args)


def _run(kernel: Any, compiled: Any, key: tuple[Any, ...], programs: int, args: tuple[Any, ...]) -> None:
    """Launch; from the second time on without deriving the signature anew, which takes longer than a small step."""
    if compiled is not None:
        stream = driver.active.get_current_stream(key[1])
        compiled.run(
            programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None, *args
        )  # fmt: skip
    elif _INTERPRETED:
        kernel[(programs,)](*args)
    else:
        try:
            compiled = kernel[(programs,)](*args, num_warps=WARPS)
        except OSError:  # the cache folder cannot be written
            triton.knobs.cache.dir = tempfile.mkdtemp(prefix="agdopt-triton-")
            compiled = kernel[(programs,)](*args, num_warps=WARPS)
        _compiled[key] = compiled
