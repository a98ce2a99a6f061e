"""One parameter after the other, in place: core/rule.py in torch's words."""

from typing import Any

import torch
from torch import Tensor

from agdopt.core import Scalars, scalars
from agdopt.torch.bucket import Bucket, Options
from agdopt.torch.rounding import store


def step(bucket: Bucket, o: Options) -> None:
    wide = bucket.wide
    for p, g, m, b, t, salt in zip(
        bucket.params,
        bucket.grads,
        bucket.exp_avgs,
        bucket.exp_avg_sqs,
        bucket.steps,
        bucket.salts,
        strict=True,
    ):
        t += 1
        now: Any = t.to(wide) if o.on_device else t.item()
        k = scalars(now, o.hyper, torch) if o.on_device else scalars(now, o.hyper)
        # Narrow tensors are computed in `wide` and rounded once, at the end; `to` returns others as they are.
        p_wide, m_wide, b_wide = p.to(wide), m.to(wide), b.to(wide)
        g = g.to(wide)
        if o.maximize:
            g = -g
        if o.l2:
            g = g.add(p_wide, alpha=o.l2)
        p_wide.mul_(o.shrink)
        p_wide.sub_(direction_(g, m_wide, b_wide, k, amsgrad=o.hyper.amsgrad).mul_(o.lr))

        store((p, m, b), (p_wide, m_wide, b_wide), salt, now, o.stochastic_rounding)


def direction_(g: Tensor, m: Tensor, b: Tensor, k: Scalars, *, amsgrad: bool) -> Tensor:
    """core.rule.direction, with m and b updated in place and one temporary."""
    # s = k_g g + k_m m
    s = torch.mul(g, k.g)
    s = s.addcmul_(m, k.m) if isinstance(k.m, Tensor) else s.add_(m, alpha=k.m)
    # m = m + w1 (g - m)
    m.lerp_(g, k.w1)
    # b = b + w2 (max(s^2, keep b) - b)
    s.mul_(s)
    if amsgrad:
        torch.maximum(s, b, out=s)
    b.lerp_(s, k.w2)
    # d = scale m / max(sqrt(b), floor)
    d = torch.sqrt(b, out=s).clamp_(min=k.floor)
    d = torch.div(m, d, out=d).mul_(k.scale)
    return d if k.clip == float("inf") else d.clamp_(-k.clip, k.clip)
