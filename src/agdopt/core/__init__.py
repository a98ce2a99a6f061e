"""AGD without a framework: settings, the numbers of a step, the rule, the switch."""

from agdopt.core.hyper import Hyper
from agdopt.core.rule import Scalars, direction, scalars
from agdopt.core.switch import bhat, is_adaptive

__all__ = ["Hyper", "Scalars", "bhat", "direction", "is_adaptive", "scalars"]
