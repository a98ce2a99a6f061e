"""The Numba kernel of torch/cpu.py: one thread's part of a step, calling core.rule.direction itself."""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agdopt.core import Scalars, rule

numba: Any
extending: Any
ir: Any
try:
    numba, extending, ir = map(import_module, ("numba", "numba.extending", "llvmlite.ir"))
    why_not = "" if numba.version_info[:2] >= (0, 60) else f"numba {numba.__version__} is older than 0.60"
    if numba.config.DISABLE_JIT:
        why_not = "NUMBA_DISABLE_JIT is set"
except Exception as error:  # a damaged installation raises anything
    why_not = f"numba cannot be imported: {error}"

UNIT = 16384  # elements a thread takes at a time

# A job, in words of 64 bits: what stays, what each step says, and the counters, in a line of the cache each.
COUNT, TABLE, TIMES, SHARES, ROW_OF, ROWS, STOCHASTIC, SAME, TICKET, NEXT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 16
# The table's rows; its columns are the tensors. FIRST: where one begins in the flat range.
P, G, M, B, STEP, FIRST, SIZE, SALT = range(8)
ROW = len(Scalars._fields) + 4  # the numbers of one t: Scalars, gain, l2, shrink, lr

STORED: dict[Any, Any] = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.uint16}


@cache
def compiled(p_dtype: torch.dtype, average_dtype: torch.dtype) -> Any:
    # Numba's cache on disk knows this file and what a function closes over, not the functions that it calls.
    source = hashlib.sha256(Path(rule.__file__).read_bytes()).hexdigest()
    wide = np.float64 if p_dtype == torch.float64 else np.float32
    kernel = _kernel(source, STORED[p_dtype], STORED[average_dtype], wide)
    # An empty XDG_CACHE_HOME would put the cache into the current folder.
    on_disk = os.environ.get("XDG_CACHE_HOME") != "" or bool(os.environ.get("NUMBA_CACHE_DIR"))
    try:
        return numba.cfunc("void(int64)", error_model="numpy", cache=on_disk)(kernel)
    except Exception:  # there is no folder to write to, the disk is full, a file in it is damaged
        return numba.cfunc("void(int64)", error_model="numpy")(kernel)


def _njit(f: Callable[..., Any]) -> Any:
    return f if why_not else numba.njit(error_model="numpy")(f)


def _intrinsic(f: Callable[..., Any]) -> Any:
    return f if why_not else extending.intrinsic(f)


_direction = _njit(rule.direction)
_sqrt = _njit(lambda x: np.sqrt(x))
_at_least = _njit(lambda x, low: low if x < low else x)  # NaN stays
_at_most = _njit(lambda x, high: high if x > high else x)


@_njit
def _mix(x: Any) -> Any:
    """rounding.mix, in 32 bits all along: Numba would widen it to 64."""
    x = np.uint32(np.uint32(x ^ (x >> 16)) * 0x7FEB352D)
    x = np.uint32(np.uint32(x ^ (x >> 15)) * 0x846CA68B)
    return np.uint32(x ^ (x >> 16))


@_njit
def _to_bfloat16(x: Any, random: Any, stochastic: Any) -> Any:
    """The bits of x (float32) rounded by the low 16 random bits, or to nearest even."""
    bits = np.float32(x).view(np.uint32)
    up = np.uint32(random & 0xFFFF) if stochastic else np.uint32(0x7FFF + ((bits >> 16) & 1))
    up = up if x == x else np.uint32(0)  # it would turn some NaN into 0; an infinity has nothing to carry
    return np.uint16(np.uint32(bits + up) >> 16)


def _widen(x: Any) -> Any: ...  # what is stored -> what is computed with
def _narrow(x: Any, kind: Any, random: Any, stochastic: Any) -> Any: ...  # and back


if not why_not:
    extending.overload(_widen)(
        lambda x: (
            (lambda x: np.uint32(np.uint32(x) << 16).view(np.float32))
            if x == numba.types.uint16
            else (lambda x: x)
        )
    )
    extending.overload(_narrow)(
        lambda x, kind, random, stochastic: (
            (lambda x, kind, random, stochastic: _to_bfloat16(x, random, stochastic))
            if kind.dtype == numba.types.uint16
            else (lambda x, kind, random, stochastic: x)
        )
    )


@_intrinsic
def _pointer(_: Any, address: Any) -> Any:
    byte = ir.IntType(8).as_pointer()
    signature = numba.types.voidptr(numba.types.int64)
    return signature, lambda c, builder, s, args: builder.inttoptr(args[0], byte)


@_intrinsic
def _count(_: Any, address: Any) -> Any:
    """The word at an address, which goes up by one."""
    word = ir.IntType(64)

    def code(c: Any, builder: Any, s: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], word.as_pointer())
        return builder.atomic_rmw("add", pointer, word(1), "monotonic")

    return numba.types.int64(numba.types.int64), code


def _kernel(source: str, kind: Any, average: Any, wide: Any) -> Callable[[int], None]:
    """The kernel for parameters and gradients stored as `kind`, averages as `average`, numbers as `wide`."""
    p_bytes, m_bytes = np.dtype(kind).itemsize, np.dtype(average).itemsize

    def run(address: int) -> None:
        source  # noqa: B018 (to close over it)
        job = numba.carray(_pointer(address), NEXT, np.int64)
        n = job[COUNT]
        table = numba.carray(_pointer(job[TABLE]), (8, n), np.int64)
        times = numba.carray(_pointer(job[TIMES]), n, np.float32)
        if job[ROWS] == 0:
            job[SAME] = 1
            for i in range(n):
                times[i] = numba.carray(_pointer(table[STEP, i]), 1, np.float32)[0] + np.float32(1)
                job[SAME] &= times[i] == times[0]
            return
        ticket = _count(address + 8 * TICKET)
        if ticket == 0:
            for i in range(n):
                numba.carray(_pointer(table[STEP, i]), 1, np.float32)[0] = times[i]
        row_of = numba.carray(_pointer(job[ROW_OF]), n, np.int64)
        rows = numba.carray(_pointer(job[ROWS]), (n, ROW), wide)
        units, shares = (table[FIRST, n - 1] + table[SIZE, n - 1] + UNIT - 1) // UNIT, job[SHARES]
        for turn in range(shares):
            share = (ticket + turn) % shares
            begin, end = share * units // shares, (share + 1) * units // shares
            unit = begin + _count(address + 8 * (NEXT + 8 * share))
            while unit < end:
                low = unit * UNIT
                i = np.searchsorted(table[FIRST], low, "right") - 1
                while i < n and table[FIRST, i] < low + UNIT:
                    start = max(low - table[FIRST, i], 0)
                    size = min(low + UNIT - table[FIRST, i], table[SIZE, i]) - start
                    if size > 0:
                        p = numba.carray(_pointer(table[P, i] + start * p_bytes), size, kind)
                        g = numba.carray(_pointer(table[G, i] + start * p_bytes), size, kind)
                        m = numba.carray(_pointer(table[M, i] + start * m_bytes), size, average)
                        b = numba.carray(_pointer(table[B, i] + start * m_bytes), size, average)
                        r = rows[row_of[i]]
                        k = Scalars(r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7])
                        gain, l2, shrink, lr = r[8], r[9], r[10], r[11]
                        salt, weights = table[SALT, i] ^ np.int64(times[i]), job[STOCHASTIC] != 0
                        key, p_key, first = _mix(np.uint32(salt)), _mix(np.uint32(~salt)), np.uint32(start)
                        for j in range(size):
                            old = _widen(p[j])
                            d, m_new, b_new = _direction(
                                *(gain * _widen(g[j]) + l2 * old, _widen(m[j]), _widen(b[j])),
                                *(k, _sqrt, _at_least, _at_most),
                            )
                            index = np.uint32(np.uint32(j) + first)
                            bits, p_bits = _mix(np.uint32(index ^ key)), _mix(np.uint32(index ^ p_key))
                            m[j] = _narrow(m_new, average, bits, True)
                            b[j] = _narrow(b_new, average, bits >> 16, True)
                            p[j] = _narrow(old * shrink - lr * d, kind, p_bits, weights)
                    i += 1
                unit = begin + _count(address + 8 * (NEXT + 8 * share))

    return run
