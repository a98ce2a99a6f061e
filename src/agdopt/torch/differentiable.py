"""core.rule itself, under autograd: gradients flow through the step."""

from typing import Any

import torch
from torch import Tensor

from agdopt.core import direction, scalars
from agdopt.torch.bucket import Bucket, Options


def _sqrt(b: Tensor) -> Tensor:
    # The slope of sqrt is infinite at 0, where the floor decides anyway: 0 * inf would be NaN.
    return b.clamp(min=torch.finfo(b.dtype).tiny).sqrt()


def _at_least(x: Tensor, low: Any) -> Tensor:
    return x.clamp(min=low)


def _at_most(x: Tensor, high: Any) -> Tensor:
    return x.clamp(max=high)


def step(bucket: Bucket, o: Options) -> None:
    for p, g, m, b, t in zip(
        bucket.params, bucket.grads, bucket.exp_avgs, bucket.exp_avg_sqs, bucket.steps, strict=True
    ):
        t += 1
        k = scalars(t.to(bucket.wide), o.hyper, torch) if o.on_device else scalars(t.item(), o.hyper)
        # A copy, because p is written to and backward needs what it was.
        p_wide, g = p.to(bucket.wide, copy=True), g.to(bucket.wide) * (-1 if o.maximize else 1)
        d, m_new, b_new = direction(g + o.l2 * p_wide, m, b, k, _sqrt, _at_least, _at_most)
        m.copy_(m_new)
        b.copy_(b_new)
        p.copy_(p_wide * o.shrink - o.lr * d)
