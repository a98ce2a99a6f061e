"""Stochastic rounding to bfloat16: the random bits are a hash of (seed, parameter, step, element).

A plain cast freezes a slow average: 0.999 b rounds back to b. Rounding up with the probability of what is
cut off keeps the average right in expectation, and a hash instead of a generator needs no state and resumes
exactly. The Numba and Triton bodies compute the same bits.
"""

from typing import Any

import torch
from torch import Tensor

from agdopt.torch.bucket import dense

_LOW = 0xFFFFFFFF
GOLDEN = 0x9E3779B9


def mix(x: Any) -> Any:
    """Two multiply-xorshift rounds on 32 bits of ints or int64 tensors (C. Wellons' "lowbias32")."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


def salt(seed: int, index: int) -> int:
    """What distinguishes the index-th parameter of an optimizer."""
    return int(mix((seed + index * GOLDEN) & _LOW))


def random_bits(like: Tensor, salt: int, t: Any) -> Tensor:
    """32 random bits an element, as int64, for step t; elements are numbered as they lie in memory."""
    t = t.to(torch.int64) if isinstance(t, Tensor) else int(t)
    index = torch.arange(like.numel(), device=like.device, dtype=torch.int64)
    index = index.as_strided(like.shape, like.stride()) if dense(like) else index.view(like.shape)
    return torch.as_tensor(mix((index & _LOW) ^ mix(salt ^ t)))


def to_bfloat16(x: Tensor, bits: Tensor) -> Tensor:
    """x (float32) rounded by 16 random bits; infinities and NaN as a cast gives them."""
    up = (x.view(torch.int32) + (bits & 0xFFFF).to(torch.int32)) & -0x10000
    return torch.where(torch.isfinite(x), up.view(torch.float32), x).to(torch.bfloat16)


def store(
    narrow: tuple[Tensor, Tensor, Tensor],
    wide: tuple[Tensor, Tensor, Tensor],
    salt: int,
    t: Any,
    weights: bool,
) -> None:
    """Round p, m and b, computed wide, back into their own tensors; `weights`: stochastically for p too."""
    (p, m, b), (p_wide, m_wide, b_wide) = narrow, wide
    if m.dtype == torch.bfloat16:
        bits = random_bits(m, salt, t)
        m.copy_(to_bfloat16(m_wide, bits))
        b.copy_(to_bfloat16(b_wide, bits >> 16))
    if p is not p_wide:
        if weights and p.dtype == torch.bfloat16:
            p_wide = to_bfloat16(p_wide, random_bits(p, salt ^ _LOW, t))
        p.copy_(p_wide)
