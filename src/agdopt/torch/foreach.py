"""All parameters of a bucket at once, an operation at a time: torch/loop.py on lists, with one temporary."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from agdopt.core import Scalars, scalars
from agdopt.torch.bucket import Bucket, Options
from agdopt.torch.rounding import store


def step(bucket: Bucket, o: Options) -> None:
    torch._foreach_add_(bucket.steps, 1)
    rows: list[Any] = list(
        zip(bucket.params, bucket.grads, bucket.exp_avgs, bucket.exp_avg_sqs, bucket.salts, strict=True)
    )
    if o.on_device:
        # One vector of steps gives all the numbers in a few operations; each tensor then takes its own.
        t = torch.stack(bucket.steps).to(bucket.wide)
        k = scalars(t, o.hyper, torch)
        _apply(
            rows,
            Scalars(*(list(x.unbind()) if isinstance(x, Tensor) else x for x in k)),
            t.unbind(),
            o,
            bucket.wide,
        )
        return
    by_step = defaultdict(list)  # parameters that joined late count their own steps
    for row, step in zip(rows, bucket.steps, strict=True):
        by_step[step.item()].append(row)
    for now, some in by_step.items():
        _apply(some, scalars(now, o.hyper), [now] * len(some), o, bucket.wide)


def _apply(rows: list[Any], k: Scalars, ts: Any, o: Options, wide: torch.dtype) -> None:
    params, grads, exp_avgs, exp_avg_sqs, salts = (list(column) for column in zip(*rows, strict=True))
    # Narrow tensors are computed in `wide` and rounded once, at the end; `to` returns others as they are.
    p, g, m, b = ([x.to(wide) for x in xs] for xs in (params, grads, exp_avgs, exp_avg_sqs))
    if o.maximize:
        g = list(torch._foreach_neg(g))
    if o.l2:
        g = list(torch._foreach_add(g, p, alpha=o.l2))

    # s = k_g g + k_m m
    s = torch._foreach_mul(g, k.g)
    if isinstance(k.m, list):
        torch._foreach_addcmul_(s, m, k.m)
    else:
        torch._foreach_add_(s, m, alpha=k.m)
    # m = m + w1 (g - m)
    torch._foreach_lerp_(m, g, k.w1)
    # b = b + w2 (max(s^2, keep b) - b)
    torch._foreach_mul_(s, s)
    if o.hyper.amsgrad:
        torch._foreach_maximum_(s, b)
    torch._foreach_lerp_(b, s, k.w2)
    # w = shrink w - lr scale m / max(sqrt(b), floor)
    torch._foreach_copy_(s, b)
    torch._foreach_sqrt_(s)
    torch._foreach_clamp_min_(s, k.floor)
    if o.weight_decay and o.decoupled:
        torch._foreach_mul_(p, o.shrink)
    if o.hyper.clip is None and isinstance(k.scale, float) and isinstance(o.lr, float):
        torch._foreach_addcdiv_(p, m, s, value=-o.lr * k.scale)
    else:
        torch._foreach_reciprocal_(s)
        torch._foreach_mul_(s, m)
        torch._foreach_mul_(s, k.scale)
        if o.hyper.clip is not None:
            torch._foreach_clamp_min_(s, -o.hyper.clip)
            torch._foreach_clamp_max_(s, o.hyper.clip)
        torch._foreach_mul_(s, o.lr)
        torch._foreach_sub_(p, s)

    if exp_avgs[0].dtype != wide or params[0].dtype != wide:
        for narrow, computed, salt, now in zip(
            zip(params, exp_avgs, exp_avg_sqs, strict=True), zip(p, m, b, strict=True), salts, ts, strict=True
        ):
            store(narrow, computed, salt, now, o.stochastic_rounding)
