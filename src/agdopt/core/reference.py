"""Algorithms 1 and 2 line by line as the paper prints them, in float64: the oracle of every test.

Nothing here is shared with core/rule.py, on purpose: the two forms check each other. The theory's schedules
(beta1_t, alpha_t, a bounded domain) exist only here.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass
class Reference:
    """AGD on one array: `w` after each `step(gradient)`.

    beta1_schedule  beta1_t = beta1, beta1 / sqrt(t) or beta1 / t.
    debias          how m_t is debiased when beta1_t varies: by 1 - prod beta1_i, which is exact, or by
                    1 - beta1_t^t, which the theorems write.
    lr_schedule     alpha_t = lr or lr / sqrt(t).
    box             (low, high): w is clipped to it after each step. (For a box this is the projection in
                    every weighted norm, which is what the convergence proof needs.)
    standardize is defined for a constant beta1 only.
    lr, beta1, beta2 and delta may be arrays: a setting for each element of w.
    """

    w: Array
    lr: float | Array = 1e-3
    beta1: float | Array = 0.9
    beta2: float | Array = 0.999
    delta: float | Array = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True
    maximize: bool = False
    amsgrad: bool = False
    standardize: bool = False
    clip: float | None = None
    beta1_schedule: Literal["constant", "sqrt", "inverse"] = "constant"
    debias: Literal["product", "power"] = "product"
    lr_schedule: Literal["constant", "sqrt"] = "constant"
    box: tuple[float, float] | None = None

    t: int = field(default=0, init=False)
    m: Array = field(init=False)
    b: Array = field(init=False)
    kept: float | Array = field(default=1.0, init=False)  # prod of beta1_i
    c1: float | Array = field(default=0.0, init=False)  # the debiasing of m at the last step

    def __post_init__(self) -> None:
        self.w = np.array(self.w, dtype=np.float64)
        self.m, self.b = np.zeros_like(self.w), np.zeros_like(self.w)

    def step(self, gradient: ArrayLike) -> Array:
        self.t += 1
        t, m_old, c1_old = self.t, self.m, self.c1
        g = np.asarray(gradient, dtype=np.float64) * (-1 if self.maximize else 1)
        lr = self.lr / (math.sqrt(t) if self.lr_schedule == "sqrt" else 1)
        if self.decoupled:
            self.w = self.w * (1 - lr * self.weight_decay)
        else:
            g = g + self.weight_decay * self.w
        beta1 = self.beta1 / {"constant": 1, "sqrt": math.sqrt(t), "inverse": t}[self.beta1_schedule]
        self.kept = self.kept * beta1
        self.c1 = 1 - (self.kept if self.debias == "product" else beta1**t)

        self.m = beta1 * m_old + (1 - beta1) * g
        if t == 1:
            s = self.m / self.c1
        elif self.standardize:
            # g_t and mhat_{t-1} are independent under white noise, so their variances add up.
            variance = (1 + beta1 ** (t - 1)) * (1 - beta1) / ((1 - beta1 ** (t - 1)) * (1 + beta1))
            s = (g - m_old / c1_old) / np.sqrt(1 + variance)
        else:
            s = self.m / self.c1 - m_old / c1_old
        b_new = self.beta2 * self.b + (1 - self.beta2) * s**2
        self.b = np.maximum(b_new, self.b) if self.amsgrad else b_new

        c2 = 1 - self.beta2**t
        update = np.sqrt(c2) / self.c1 * self.m / np.maximum(np.sqrt(self.b), self.delta * np.sqrt(c2))
        if self.clip is not None:
            update = np.clip(update, -self.clip, self.clip)
        self.w = self.w - lr * update
        if self.box is not None:
            self.w = np.clip(self.w, *self.box)
        return self.w
