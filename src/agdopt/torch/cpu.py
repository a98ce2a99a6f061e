"""All tensors of a bucket in one pass over memory: core/rule.py, compiled by Numba.

The work is one flat range of elements, cut into units. It runs on the OpenMP threads PyTorch computes with:
they are still awake when a backward pass has just ended, and threads of our own would fight them for the
cores. Each takes the units of its own share, then what others have left. Numba only compiles; its own
threads, which abort a process where two threads or a forked child meet them, never start. A forked child has
none of OpenMP's threads and computes on the calling one, and so does Windows.

Whatever changes is changed inside one call that Python cannot interrupt: a step is taken whole or not at all.
Parameters of a bucket that share memory are stepped one after another, on one thread, as the loop does it.
"""

import ctypes
import os
from functools import cache
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agdopt.core import scalars
from agdopt.torch import cpu_kernel
from agdopt.torch.bucket import Bucket, Options, layout
from agdopt.torch.cpu_kernel import (
    FIRST,
    NEXT,
    ROW,
    ROW_OF,
    SALT,
    SAME,
    SIZE,
    STEP,
    STORED,
    B,
    G,
    M,
    P,
)

ALIGN = 64  # elements: where tensors begin in the flat range, so that units share no line of the cache
SMALL = 65536  # elements: up to here the calling thread is done before another could help

_nbytes = attrgetter("nbytes")
_forked = False


def unusable() -> str:
    """Why this body cannot run; empty if it can."""
    return cpu_kernel.why_not


def step(bucket: Bucket, o: Options) -> None:
    if o.found_inf is not None and float(o.found_inf) != 0:
        return
    tables: _Tables | None = bucket.memo.get("tables")
    if tables is None:
        tables = bucket.memo["tables"] = _Tables(bucket)
    if list(map(_nbytes, bucket.params)) != tables.nbytes:
        raise RuntimeError("a parameter has another size than its averages")
    grads = bucket.grads
    if tables.fit(grads):
        tables.table[G] = bucket.grad_addresses
    else:  # the copies live until the kernel is done
        grads = [_laid_out(g, p) for g, p in zip(grads, bucket.params, strict=True)]
        tables.table[G] = list(map(Tensor.data_ptr, grads))

    threads = torch.get_num_threads() if tables.parallel and not _forked else 1
    job, address = tables.job(threads)
    job[ROW_OF:] = 0
    tables.call(address)  # reads the steps
    if job[SAME]:
        times, rows, where = tables.times[:1], tables.rows, tables.where
    else:  # parameters that joined late count their own
        times, row_of = np.unique(tables.times, return_inverse=True)
        rows = np.empty((len(times), ROW), tables.rows.dtype)
        where = row_of.ctypes.data, rows.ctypes.data
    gain = (-1 if o.maximize else 1) / (1 if o.grad_scale is None else float(o.grad_scale))
    for row, t in zip(rows, times.tolist(), strict=True):
        row[:] = (*scalars(t, o.hyper), gain, o.l2, float(o.shrink), float(o.lr))
    job[ROW_OF:SAME] = (*where, o.stochastic_rounding)
    if threads > 1:
        _openmp()(tables.code, address, threads, 0)
    else:
        tables.call(address)
    torch.autograd.graph.increment_version(bucket.params)  # as an in-place operation does, for autograd


class _Tables:
    """What holds while parameters and averages stay where they are."""

    def __init__(self, bucket: Bucket) -> None:
        params, n = bucket.params, len(bucket.params)
        for p, m, b in zip(params, bucket.exp_avgs, bucket.exp_avg_sqs, strict=True):
            assert layout(p) == layout(m) == layout(b), "the optimizer lays averages out as their parameters"
        for t in bucket.steps:
            if t.dtype != torch.float32:
                t.data = t.float()
        self.table = np.empty((8, n), np.int64)
        tensors = {P: params, M: bucket.exp_avgs, B: bucket.exp_avg_sqs, STEP: bucket.steps}
        for row, column in tensors.items():
            self.table[row] = list(map(Tensor.data_ptr, column))
        self.table[SIZE] = list(map(Tensor.numel, params))
        self.table[SALT] = bucket.salts
        padded = -(-self.table[SIZE] // ALIGN) * ALIGN
        self.table[FIRST] = np.cumsum(padded) - padded
        self.nbytes = list(map(_nbytes, params))
        self.strides = None if all(map(Tensor.is_contiguous, params)) else list(map(Tensor.stride, params))
        spans = sorted(x for x in zip(self.table[P].tolist(), self.nbytes, strict=True) if x[1])
        apart = all(begin + size <= following for (begin, size), (following, _) in pairwise(spans))
        self.parallel = apart and int(padded.sum()) > SMALL and _openmp() is not None
        kernel = cpu_kernel.compiled(params[0].dtype, bucket.exp_avgs[0].dtype)
        self.call, self.code = kernel.ctypes, kernel.address
        self.times, self.row_of = np.empty(n, np.float32), np.zeros(n, np.int64)
        self.rows = np.empty((1, ROW), STORED[bucket.wide])
        self.where = self.row_of.ctypes.data, self.rows.ctypes.data
        self.jobs: dict[int, tuple[Any, int]] = {}

    def fit(self, grads: list[Tensor]) -> bool:
        """Whether gradients lie in memory as the parameters do."""
        if self.strides is None:
            fit = all(map(Tensor.is_contiguous, grads))
        else:
            fit = list(map(Tensor.stride, grads)) == self.strides
        return fit and list(map(_nbytes, grads)) == self.nbytes

    def job(self, threads: int) -> tuple[Any, int]:
        if threads not in self.jobs:
            job = np.zeros(NEXT + 8 * threads, np.int64)
            job[:ROW_OF] = len(self.times), self.table.ctypes.data, self.times.ctypes.data, threads
            self.jobs[threads] = job, job.ctypes.data
        return self.jobs[threads]


def _laid_out(g: Tensor, p: Tensor) -> Tensor:
    """g, or a copy, as p lies in memory."""
    if g.shape != p.shape:
        raise RuntimeError(f"a gradient has shape {tuple(g.shape)}, its parameter {tuple(p.shape)}")
    return g if g.dtype == p.dtype and layout(g) == layout(p) else torch.empty_like(p).copy_(g)


@cache
def _openmp() -> Any:
    """OpenMP's "run this on so many threads", from the library PyTorch is linked with; None without one.

    The entry is GCC's, and the libraries of LLVM and Intel have it too. The number is always PyTorch's own:
    GCC's library ends threads that one call has no use for.
    """
    try:
        parallel = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


def _in_child() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
