"""What a user sets once: the constants of the rule, checked."""

import math
from dataclasses import dataclass
from numbers import Real

# Below this a float32 floor delta * sqrt(1 - beta2^t) may round to zero, and a zero gradient would give 0/0.
SMALLEST_DELTA = 1e-30


def number(name: str, value: object) -> float:
    """value, if it is a number."""
    if type(value) is not float and (not isinstance(value, Real) or isinstance(value, bool)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return value  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Hyper:
    """beta1, beta2 and delta of the paper, and the options that change the rule itself.

    amsgrad      Algorithm 2: b never falls, and its maximum is what the next average starts from.
    standardize  measure the difference in units of the gradient's noise (docs/rule.md).
    clip         elementwise bound on mhat / max(bhat, delta); None for no bound.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    delta: float = 1e-8
    amsgrad: bool = False
    standardize: bool = False
    clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            beta = number(name, getattr(self, name))
            if not 0.0 <= beta < 1.0:
                raise ValueError(
                    f"{name} must be in [0, 1), got {beta}: it is the share of the old average that is kept"
                )
        if not SMALLEST_DELTA <= number("delta", self.delta) < math.inf:
            raise ValueError(
                f"delta must be a finite number >= {SMALLEST_DELTA}, got {self.delta}: "
                "zero gradients would divide by zero; use a tiny value such as 1e-12"
            )
        if self.clip is not None and not number("clip", self.clip) > 0.0:
            raise ValueError(
                f"clip must be > 0, got {self.clip}: nothing would move; use None for no bound on the step"
            )

    # log(0) is -inf and 0 * -inf is NaN; the shift is invisible for any beta above 1e-14.
    @property
    def log_beta1(self) -> float:
        return math.log(self.beta1 + 1e-30)

    @property
    def log_beta2(self) -> float:
        return math.log(self.beta2 + 1e-30)
