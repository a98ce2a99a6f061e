"""The whole algorithm. NumPy, Numba, JAX, Keras and torch's differentiable path call these two functions;
the in-place torch bodies and the Triton kernel restate them and are held to them by tests/parity.

    mhat_t = m_t / (1 - beta1^t)          bhat_t = sqrt(b_t / (1 - beta2^t))
    s_t = mhat_t - mhat_{t-1}             w -= lr * mhat_t / max(bhat_t, delta)

s_t is computed as k_g g_t + k_m m_{t-1}: one formula for every t, with no copy of m_{t-1}, in which all
that is hard to get right is a number per step (docs/rule.md has the algebra).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from agdopt.core.hyper import Hyper


class Scalars(NamedTuple):
    """The numbers of step t: Python floats, or whatever array type t is."""

    g: Any  # s = g * gradient + m * m_{t-1}
    m: Any
    w1: Any  # weight of the new value in m and in b
    w2: Any
    keep: Any  # 1: b never falls (Algorithm 2); 0: it may
    floor: Any  # delta in the unit of sqrt(b)
    scale: Any  # turns m / sqrt(b) into mhat / bhat
    clip: Any  # bound on |mhat / max(bhat, delta)|, infinite for none


def scalars(t: Any, hyper: Hyper, xp: Any = math) -> Scalars:
    """Every bias correction lives here. t counts from 1; xp holds expm1 and sqrt for t's type."""
    c1 = -xp.expm1(t * hyper.log_beta1)  # 1 - beta1^t, exact in float32 too
    c2 = -xp.expm1(t * hyper.log_beta2)
    # 1 - beta1^(t-1). At t = 1, where m is 0, any finite k_m is right; 2 makes the variance below 0.
    c1_prev = -xp.expm1((t - 1) * hyper.log_beta1) + 2 * (t == 1)
    if hyper.standardize:
        # Under white noise Var(g_t - mhat_{t-1}) is Var(g) + Var(mhat_{t-1}); s_1 = g_1 as it is.
        g = 1 / xp.sqrt(1 + (2 - c1_prev) * (1 - hyper.beta1) / (c1_prev * (1 + hyper.beta1)))
    else:
        g = (1 - hyper.beta1) / c1
    return Scalars(
        g=g,
        m=-g / c1_prev,
        w1=1 - hyper.beta1,
        w2=1 - hyper.beta2,
        keep=1.0 if hyper.amsgrad else 0.0,
        floor=hyper.delta * xp.sqrt(c2),
        scale=xp.sqrt(c2) / c1,
        clip=math.inf if hyper.clip is None else hyper.clip,
    )


def direction(
    g: Any,
    m: Any,
    b: Any,
    k: Scalars,
    sqrt: Callable[..., Any],
    at_least: Callable[..., Any],
    at_most: Callable[..., Any],
) -> tuple[Any, Any, Any]:
    """mhat / max(bhat, delta), and the new m and b. The learning rate and the decay belong to the caller."""
    s = k.g * g + k.m * m  # mhat_t - mhat_{t-1}
    m = m + k.w1 * (g - m)  # not beta1 m + (1 - beta1) g: in float32 those two weights do not add up to 1
    past = b * (k.w2 < 1)  # with beta2 = 0 nothing of b is left, not even its rounding
    b = past + k.w2 * (at_least(s * s, k.keep * b) - past)
    d = k.scale * m / at_least(sqrt(b), k.floor)
    return at_most(at_least(d, -k.clip), k.clip), m, b
