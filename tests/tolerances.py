"""Every number that a test allows, in one place. A test that needs a looser one has found something.

Errors are measured in the size of what was added up (tests/twin.py), after one step from equal states.
"""

from typing import NamedTuple

import torch


class Tolerance(NamedTuple):
    p: float  # of the parameter
    state: float  # of m and b
    reason: str


FLOAT64 = Tolerance(
    1e-12, 1e-12, "the Reference's literal 1 - beta2^t has a relative error of 1e-16 / 1e-3 at t = 1"
)
FLOAT32 = Tolerance(6e-7, 3e-7, "ten float32 roundings of at most 6e-8 on the way to p, five to m and b")
ON_DEVICE = Tolerance(
    1.2e-6, 6e-7, "as float32, and the numbers of the step are float32 too: twice the roundings"
)

# What rounding to a narrow dtype at the end of a step computed wide adds.
HALF_ULP = {torch.float64: 0.0, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def tolerance(
    p: torch.dtype,
    state: torch.dtype,
    *,
    on_device: bool = False,
    stochastic: bool = False,
    truncates: bool = False,
) -> Tolerance:
    """The row for parameters and averages of these dtypes.

    on_device   the numbers of the step are made from a tensor of steps (capturable, torch.compile).
    stochastic  bfloat16 parameters are rounded at random, as bfloat16 averages always are: by up to a whole
                unit in the last place.
    truncates   Triton's interpreter casts float32 to bfloat16 by cutting off, where a GPU rounds to nearest.
    """
    p, state = p.to_real(), state.to_real()
    row = FLOAT64 if p == torch.float64 else ON_DEVICE if on_device else FLOAT32
    ulps = 2 if p == torch.bfloat16 and (stochastic or truncates) else 1
    return Tolerance(
        row.p + ulps * HALF_ULP[p],
        row.state + (2 if state == torch.bfloat16 else 1) * HALF_ULP[state],
        f"{row.reason}; then one rounding to {p}, {state}",
    )


# Means over random numbers (seeds are fixed, so this decides once and for all): standard errors.
SIGMAS = 4.0
# Finite differences in float64 against autograd.
GRADCHECK = {"eps": 1e-6, "atol": 1e-6, "rtol": 1e-5}
# Parameters up to 8 that share memory, stepped one after the other: a few float32 roundings.
OVERLAPPING = 1e-6
# Two bodies round stochastically alike but where a float32 rounding error meets the threshold: this share.
ROUNDED_ALIKE = 5e-4
# Whether a model trains alike, not where each step goes: bodies drift apart over many steps.
TRAINED_ALIKE = {"rtol": 1e-4, "atol": 1e-5}
# The switch report counts bhat in bins an eighth of an octave wide, the widest 12.5%, taken at their middles.
BIN = 0.07
