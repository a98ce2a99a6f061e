"""Which coordinates take an adaptive step: a pure function of b, t and delta."""

import math
from collections.abc import Callable
from typing import Any

from agdopt.core.hyper import Hyper
from agdopt.core.rule import scalars


def is_adaptive(b: Any, t: Any, hyper: Hyper, sqrt: Callable[[Any], Any], xp: Any = math) -> Any:
    """True where bhat > delta: an adaptive step. Elsewhere momentum SGD of rate lr / delta.

    sqrt is b's, xp (expm1 and sqrt) is t's.
    """
    return sqrt(b) > scalars(t, hyper, xp).floor


def bhat(b: Any, t: Any, hyper: Hyper, sqrt: Callable[[Any], Any], xp: Any = math) -> Any:
    """sqrt(b / (1 - beta2^t)), what is compared with delta."""
    return sqrt(b) * (hyper.delta / scalars(t, hyper, xp).floor)
