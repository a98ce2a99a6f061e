"""All tensors of a bucket in one pass over memory: core/rule.py compiled by Numba, run by threads of our own."""

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic, overload
from torch import Tensor

from agdopt.core import Scalars, rule, scalars
from agdopt.torch import rounding
from agdopt.torch.bucket import Bucket, Options

UNIT = 16384
SMALL = 65536


def _njit(f):
    return numba.njit(nogil=True, error_model="numpy")(f)

_direction = _njit(rule.direction)

@intrinsic
def _pointer(context, address):
    return types.voidptr(types.int64), lambda c, builder, s, args: builder.inttoptr(args[0], ir.IntType(8).as_pointer())

@intrinsic
def _fetch_add(context, address, value):
    def code(c, builder, s, args):
        return builder.atomic_rmw("add", builder.inttoptr(args[0], ir.IntType(64).as_pointer()), args[1], "seq_cst")
    return types.int64(types.int64, types.int64), code

@intrinsic
def _as_float(context, x):
    return types.float32(types.uint32), lambda c, builder, s, args: builder.bitcast(args[0], ir.FloatType())

@intrinsic
def _as_bits(context, x):
    return types.uint32(types.float32), lambda c, builder, s, args: builder.bitcast(args[0], ir.IntType(32))

@_njit
def _sqrt(x): return np.sqrt(x)
@_njit
def _at_least(x, low): return low if x < low else x
@_njit
def _at_most(x, high): return high if x > high else x

def _widen(x): ...
def _narrow(x, like, bits, stochastic): ...
@overload(_widen)
def _(x):
    if x == types.uint16:
        return lambda x: _as_float(np.uint32(np.uint32(x) << np.uint32(16)))
    return lambda x: x

@overload(_narrow)
def _(x, like, bits, stochastic):
    if like.dtype != types.uint16:
        return lambda x, like, bits, stochastic: x
    def narrow(x, like, bits, stochastic):
        now = _as_bits(x)
        up = np.uint32(bits & 0xFFFF) if stochastic else np.uint32(0x7FFF + ((now >> 16) & 1))
        up = up if abs(x) < np.float32(np.inf) else np.uint32(0)
        return np.uint16(np.uint32(now + up) >> 16)
    return narrow

@_njit
def _mix(x):
    x = np.uint32(np.uint32(x ^ (x >> 16)) * 0x7FEB352D)
    x = np.uint32(np.uint32(x ^ (x >> 15)) * 0x846CA68B)
    return np.uint32(x ^ (x >> 16))

def factory(source: str):
    def kernel(work, lead, table, ts, row_of, rows, weights, p_like, s_like):
        source
        n = table.shape[1]
        if lead:
            for i in range(n):
                carray(_pointer(table[4, i]), 1, np.float32)[0] = ts[i]
        offsets, sizes = table[5], table[6]
        w = work.ctypes.data
        n_units = (offsets[n - 1] + sizes[n - 1] + UNIT - 1) // UNIT
        unit = _fetch_add(w, 1)
        while unit < n_units:
            low = unit * UNIT
            i = np.searchsorted(offsets, low, "right") - 1
            while i < n and offsets[i] < low + UNIT:
                start = max(low - offsets[i], 0)
                count = min(low + UNIT - offsets[i], sizes[i]) - start
                if count > 0:
                    r = rows[row_of[i]]
                    k = Scalars(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7])
                    gain, l2, shrink, lr = r[8], r[9], r[10], r[11]
                    p = carray(_pointer(table[0, i] + start * p_like.itemsize), count, p_like.dtype)
                    g = carray(_pointer(table[1, i] + start * p_like.itemsize), count, p_like.dtype)
                    m = carray(_pointer(table[2, i] + start * s_like.itemsize), count, s_like.dtype)
                    b = carray(_pointer(table[3, i] + start * s_like.itemsize), count, s_like.dtype)
                    key = _mix(np.uint32(table[7, i] ^ np.int64(ts[i])))
                    key_p = _mix(np.uint32(~(table[7, i] ^ np.int64(ts[i]))))
                    for j in range(count):
                        w_old = _widen(p[j])
                        d, m_new, b_new = _direction(gain * _widen(g[j]) + l2 * w_old, _widen(m[j]), _widen(b[j]), k, _sqrt, _at_least, _at_most)
                        w_new = w_old * shrink - lr * d
                        bits = _mix(np.uint32(np.uint32(start + j) ^ key))
                        m[j] = _narrow(m_new, s_like, bits, True)
                        b[j] = _narrow(b_new, s_like, bits >> 16, True)
                        bits = _mix(np.uint32(np.uint32(start + j) ^ key_p))
                        p[j] = _narrow(w_new, p_like, bits, weights)
                i += 1
            _fetch_add(w + 64, 1)
            unit = _fetch_add(w, 1)
        if lead:
            while _fetch_add(w + 64, 0) < n_units:
                pass
    return kernel

_kernel = numba.njit(nogil=True, error_model="numpy", cache=True)(factory("x"))
@numba.njit(nogil=True, cache=True)
def _peek(table, ts):
    same = True
    for i in range(len(ts)):
        ts[i] = carray(_pointer(table[4, i]), 1, np.float32)[0] + np.float32(1)
        same = same and ts[i] == ts[0]
    return same

_queue = SimpleQueue()
_threads = 0

def worker(queue):
    while True:
        _kernel(*queue.get())

LIKE = {torch.float32: np.empty(0, np.float32), torch.float64: np.empty(0, np.float64), torch.bfloat16: np.empty(0, np.uint16)}

def unusable() -> str:
    return ""

def step(bucket: Bucket, o: Options) -> None:
    global _threads
    if o.found_inf is not None and float(o.found_inf) != 0:
        return
    memo = bucket.memo
    if "table" not in memo:
        n = len(bucket.params)
        table = np.empty((8, n), np.int64)
        for row, xs in zip((0, 2, 3, 4), (bucket.params, bucket.exp_avgs, bucket.exp_avg_sqs, bucket.steps)):
            table[row] = [x.data_ptr() for x in xs]
        sizes = [p.numel() for p in bucket.params]
        table[6] = sizes
        padded = (table[6] + 63)//64*64
        table[5] = np.cumsum(padded) - padded
        table[7] = bucket.salts
        memo["table"] = table
        memo["sizes"] = sizes
        memo["row_of"] = np.zeros(n, np.int64)
        memo["total"] = int(padded.sum())
    table = memo["table"]
    grads = bucket.grads
    assert all(map(Tensor.is_contiguous, grads)) and list(map(Tensor.numel, grads)) == memo["sizes"] and set(map(Tensor.dtype.__get__, grads))=={bucket.params[0].dtype}
    table[1] = bucket.grad_addresses
    ts = np.empty(len(grads), np.float32)
    if _peek(table, ts):
        distinct, row_of = [float(ts[0])], memo["row_of"]
    else:
        u, row_of = np.unique(ts, return_inverse=True)
        distinct = u.tolist()
    gain = (-1 if o.maximize else 1) / (1 if o.grad_scale is None else float(o.grad_scale))
    lr = float(o.lr)
    rows = np.array([(*scalars(t, o.hyper), gain, o.l2, o.shrink, lr) for t in distinct], np.float64 if bucket.wide == torch.float64 else np.float32)
    work = np.zeros(16, np.int64)
    p_like, s_like = LIKE[bucket.params[0].dtype], LIKE[bucket.exp_avgs[0].dtype]
    helpers = min(torch.get_num_threads(), memo["total"] // SMALL + 1) - 1
    while _threads < helpers:
        threading.Thread(target=worker, args=(_queue,), daemon=True).start(); _threads += 1
    args = (work, False, table, ts, row_of, rows, o.stochastic_rounding, p_like, s_like)
    try:
        for _ in range(helpers):
            _queue.put(args)
    finally:
        _kernel(work, True, table, ts, row_of, rows, o.stochastic_rounding, p_like, s_like)
