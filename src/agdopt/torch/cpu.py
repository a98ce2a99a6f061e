"""All tensors of a bucket in one pass over memory: core/rule.py compiled by Numba.

The work is one flat range of elements, cut into units of 16,384. It runs on the OpenMP threads that PyTorch
itself computes with (they are awake when a backward pass has just ended, and no second set of threads competes
with them for the cores), as many as torch.get_num_threads() says; each takes units from its own share, then from
the others'. Numba only compiles: its threading layers, which abort when two threads or a forked child use them,
never start. A forked child, which OpenMP's threads do not follow, computes on the calling thread; so does
everybody where PyTorch has no OpenMP with this entry (Windows).

Everything that changes happens inside one call that Python cannot interrupt: a step is taken or it is not.
Parameters that share memory are stepped one after the other, on one thread, as the loop does.
"""

import ctypes
import hashlib
import os
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agdopt.core import Scalars, rule, scalars
from agdopt.torch import rounding
from agdopt.torch.bucket import Bucket, Options

try:
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic, overload

    _why_not = "" if numba.version_info >= (0, 60) else f"numba {numba.__version__} is older than 0.60"
    if numba.config.DISABLE_JIT:
        _why_not = "NUMBA_DISABLE_JIT is set"
except Exception as error:  # what a damaged installation raises can be anything
    _why_not = f"numba cannot be imported: {error}"

UNIT = 16384  # elements
PADDING = 64  # elements: a tensor begins at a multiple, so that no cache line belongs to two units
# The job, 64-bit words. The counters are what threads write to: each has a cache line of its own.
TENSORS, TABLE, STEPS, ROW_OF, ROWS, WEIGHTS, SHARES, RUN, TICKET, COUNTERS = 0, 1, 2, 3, 4, 5, 6, 7, 8, 16
# The rows of the table, a column a tensor
P, G, M, B, STEP, FIRST, SIZE, SALT = range(8)


def unusable() -> str:
    """Why this body cannot run; empty if it can."""
    return _why_not


def _njit(f: Callable[..., Any]) -> Any:
    return f if _why_not else numba.njit(error_model="numpy")(f)


def _instruction(f: Callable[..., Any]) -> Any:
    return f if _why_not else intrinsic(f)


@_instruction
def _pointer(_: Any, address: Any) -> Any:
    byte = ir.IntType(8).as_pointer()
    return types.voidptr(types.int64), lambda c, builder, s, args: builder.inttoptr(args[0], byte)


@_instruction
def _next(_: Any, address: Any) -> Any:
    """Count up the word at an address; the old count."""

    def code(c: Any, builder: Any, s: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.atomic_rmw("add", builder.inttoptr(args[0], word.as_pointer()), word(1), "monotonic")

    return types.int64(types.int64), code


@_instruction
def _float(_: Any, bits: Any) -> Any:
    return types.float32(types.uint32), lambda c, builder, s, args: builder.bitcast(args[0], ir.FloatType())


@_instruction
def _bits(_: Any, x: Any) -> Any:
    return types.uint32(types.float32), lambda c, builder, s, args: builder.bitcast(args[0], ir.IntType(32))


def _wide(x: Any) -> Any: ...
def _narrow(x: Any, kind: Any, random: Any, stochastic: Any) -> Any: ...


if not _why_not:

    @overload(_wide)
    def _(x):
        if x == types.uint16:
            return lambda x: _float(np.uint32(np.uint32(x) << np.uint32(16)))
        return lambda x: x

    @overload(_narrow)
    def _(x, kind, random, stochastic):
        if kind.dtype != types.uint16:
            return lambda x, kind, random, stochastic: x

        def narrow(x, kind, random, stochastic):
            now = _bits(x)
            up = np.uint32(random & 0xFFFF) if stochastic else np.uint32(0x7FFF + ((now >> 16) & 1))
            up = up if x == x else np.uint32(0)
            return np.uint16(np.uint32(now + up) >> 16)

        return narrow


@_njit
def _mix(x):
    """rounding.mix in 32 bits."""
    x = np.uint32(np.uint32(x ^ (x >> 16)) * 0x7FEB352D)
    x = np.uint32(np.uint32(x ^ (x >> 15)) * 0x846CA68B)
    return np.uint32(x ^ (x >> 16))

_direction = _njit(rule.direction)
_sqrt = _njit(lambda x: np.sqrt(x))
_at_least = _njit(lambda x, low: low if x < low else x)
_at_most = _njit(lambda x, high: high if x > high else x)

def _kernel(source: str, p_kind: Any, s_kind: Any, k_kind) -> Any:
    p_bytes, s_bytes = np.dtype(p_kind).itemsize, np.dtype(s_kind).itemsize
    def run(address: int) -> None:
        source
        job = numba.carray(_pointer(address), 16, np.int64)
        n = job[TENSORS]
        table = numba.carray(_pointer(job[TABLE]), (8, n), np.int64)
        ts = numba.carray(_pointer(job[STEPS]), n, np.float32)
        if job[RUN] == 0:
            for i in range(n):
                ts[i] = numba.carray(_pointer(table[STEP, i]), 1, np.float32)[0] + np.float32(1)
            return
        ticket = _next(address + 8 * TICKET)
        if ticket == 0:
            for i in range(n):
                numba.carray(_pointer(table[STEP, i]), 1, np.float32)[0] = ts[i]
        row_of = numba.carray(_pointer(job[ROW_OF]), n, np.int64)
        rows = numba.carray(_pointer(job[ROWS]), (n, 12), k_kind)
        units = (table[FIRST, n - 1] + table[SIZE, n - 1] + UNIT - 1) // UNIT
        shares = job[SHARES]
        for turn in range(shares):
            share = (ticket + turn) % shares
            counter = address + 8 * (COUNTERS + 8 * share)
            first, last = share * units // shares, (share + 1) * units // shares
            unit = first + _next(counter)
            while unit < last:
                low = unit * UNIT
                i = np.searchsorted(table[FIRST], low, "right") - 1
                while i < n and table[FIRST, i] < low + UNIT:
                    start = max(low - table[FIRST, i], 0)
                    count = min(low + UNIT - table[FIRST, i], table[SIZE, i]) - start
                    if count > 0:
                        r = rows[row_of[i]]
                        k = Scalars(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7])
                        gain, l2, shrink, lr = r[8], r[9], r[10], r[11]
                        p = numba.carray(_pointer(table[P, i] + start * p_bytes), count, p_kind)
                        g = numba.carray(_pointer(table[G, i] + start * p_bytes), count, p_kind)
                        m = numba.carray(_pointer(table[M, i] + start * s_bytes), count, s_kind)
                        b = numba.carray(_pointer(table[B, i] + start * s_bytes), count, s_kind)
                        salt = table[SALT, i] ^ np.int64(ts[i])
                        key, p_key, from_ = _mix(np.uint32(salt)), _mix(np.uint32(~salt)), np.uint32(start)
                        weights = job[WEIGHTS] != 0
                        for j in range(count):
                            old = _wide(p[j])
                            d, m_new, b_new = _direction(gain * _wide(g[j]) + l2 * old, _wide(m[j]), _wide(b[j]), k, _sqrt, _at_least, _at_most)
                            index = np.uint32(np.uint32(j) + from_)
                            random = _mix(np.uint32(index ^ key))
                            m[j] = _narrow(m_new, s_kind, random, True)
                            b[j] = _narrow(b_new, s_kind, random >> 16, True)
                            p[j] = _narrow(old * shrink - lr * d, p_kind, _mix(np.uint32(index ^ p_key)), weights)
                    i += 1
                unit = first + _next(counter)
    return run

_KINDS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.uint16}

@cache
def _compiled(p_dtype: torch.dtype, s_dtype: torch.dtype) -> Any:
    source = hashlib.sha256(Path(rule.__file__).read_bytes()).hexdigest()
    f = _kernel(source, _KINDS[p_dtype], _KINDS[s_dtype], np.float64 if p_dtype == torch.float64 else np.float32)
    try:
        return numba.cfunc("void(int64)", cache=True, error_model="numpy")(f)
    except RuntimeError:
        return numba.cfunc("void(int64)", error_model="numpy")(f)

_fork = None

def _threads():
    lib = ctypes.CDLL(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    f = lib.GOMP_parallel
    f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    f.restype = None
    return f
_fork = _threads()
_nbytes = attrgetter("nbytes")

class _Tables:
    def __init__(self, bucket):
        n = len(bucket.params)
        table = self.table = np.empty((8, n), np.int64)
        for row, xs in zip((P, M, B, STEP), (bucket.params, bucket.exp_avgs, bucket.exp_avg_sqs, bucket.steps)):
            table[row] = [x.data_ptr() for x in xs]
        self.nbytes = [p.nbytes for p in bucket.params]
        table[SIZE] = [p.numel() for p in bucket.params]
        padded = (table[SIZE] + PADDING - 1)//PADDING*PADDING
        table[FIRST] = np.cumsum(padded) - padded
        table[SALT] = bucket.salts
        self.kernel = _compiled(bucket.params[0].dtype, bucket.exp_avgs[0].dtype)
        self.run = self.kernel.ctypes
        self.address = self.kernel.address
        self.zeros = np.zeros(n, np.int64)
        self.threads = 1 + int(padded.sum()) // 65536
        self.contiguous = all(p.is_contiguous() for p in bucket.params)
        self.ts = np.empty(n, np.float32)
        self.kind = np.float64 if bucket.wide == torch.float64 else np.float32

def step(bucket: Bucket, o: Options) -> None:
    if o.found_inf is not None and float(o.found_inf) != 0:
        return
    tables = bucket.memo.get("tables")
    if tables is None:
        tables = bucket.memo["tables"] = _Tables(bucket)
    grads = bucket.grads
    assert all(map(Tensor.is_contiguous, grads)) and list(map(_nbytes, grads)) == tables.nbytes and list(map(_nbytes, bucket.params)) == tables.nbytes
    table = tables.table
    table[G] = bucket.grad_addresses
    ts = tables.ts
    shares = min(torch.get_num_threads(), tables.threads)
    job = np.zeros(16 + 8 * shares, np.int64)
    job[:7] = len(grads), table.ctypes.data, ts.ctypes.data, tables.zeros.ctypes.data, 0, o.stochastic_rounding, shares
    tables.run(job.ctypes.data)
    if (ts == ts[0]).all():
        distinct = [float(ts[0])]
    else:
        u, row_of = np.unique(ts, return_inverse=True)
        distinct = u.tolist()
        job[ROW_OF] = row_of.ctypes.data
    gain = (-1 if o.maximize else 1) / (1 if o.grad_scale is None else float(o.grad_scale))
    lr = float(o.lr)
    rows = np.array([(*scalars(t, o.hyper), gain, o.l2, o.shrink, lr) for t in distinct], tables.kind)
    job[ROWS] = rows.ctypes.data
    job[RUN] = 1
    if shares > 1:
        _fork(tables.address, job.ctypes.data, shares, 0)
    else:
        tables.run(job.ctypes.data)
