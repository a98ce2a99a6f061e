"""Stochastic rounding: the same bits in every body, right in expectation, and never stuck."""

import math

import pytest
import torch
from tests.tolerances import SIGMAS
from tests.twin import agd
from torch import Tensor
from torch.nn import Parameter

from agdopt.torch import rounding

SHAPES = ((1500,), (3, 5), (), (1,), (40, 30))


def one_step(body: str, t: int, seed: int, lay=Tensor.contiguous) -> list[Tensor]:
    """p, m and b of five parameters after step t.

    From zero averages and with every step at its clip, all that comes before the rounding is one product in
    every body, so that the roundings can be compared bit for bit.
    """
    generator = torch.Generator().manual_seed(1)
    params = [Parameter(lay(torch.randn(shape, generator=generator).bfloat16())) for shape in SHAPES]
    optimizer = agd(
        params, body, lr=1e-3, clip=0.5, state_dtype=torch.bfloat16, stochastic_rounding=True, seed=seed
    )
    for p in params:
        p.grad = lay(torch.randn(p.shape, generator=generator).bfloat16())
        zeros = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.tensor(t - 1.0), **zeros}
    optimizer.step()
    return [
        x
        for p in params
        for x in (p.detach(), optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"])
    ]


@pytest.mark.parametrize("t", [1, 2, 1000, 2**23 + 1])
@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1, -1])
def test_bodies_round_alike_to_the_bit(trainer, t, seed):
    for x, y in zip(one_step(trainer, t, seed), one_step("loop", t, seed), strict=True):
        assert torch.equal(x, y)


def test_numbers_differ_by_seed_step_parameter_and_element():
    first = one_step("loop", 5, 0)
    for t, seed in ((6, 0), (5, 1)):
        assert not torch.equal(one_step("loop", t, seed)[0], first[0])
    bits = rounding.random_bits(torch.empty(1000), rounding.salt(0, 0), 1)
    assert bits.unique().numel() == 1000
    for other in (rounding.salt(0, 1), rounding.salt(1, 0)):
        assert (rounding.random_bits(torch.empty(1000), other, 1) == bits).sum() == 0


def test_rounding_is_to_a_neighbour_and_right_in_expectation():
    n = 200_000
    for value in (1.0 + 2**-9, -3.1415927, 1e-20, 65504.1, 0.1):
        x = torch.full((n,), value)
        rounded = rounding.to_bfloat16(x, rounding.random_bits(x, rounding.salt(3, 4), 2)).double()
        low, high = sorted(rounded.unique().tolist())
        exact = float(x[0])
        assert low <= exact <= high
        up = (exact - low) / (high - low)
        assert abs((rounded == high).double().mean() - up) < SIGMAS * math.sqrt(up * (1 - up) / n)


def test_what_needs_no_rounding_stays():
    x = torch.tensor([0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 2.0**127, 2.0**-126])
    for bits in (0, 0xFFFF):
        assert torch.equal(
            rounding.to_bfloat16(x, torch.full(x.shape, bits)).nan_to_num(7.0), x.bfloat16().nan_to_num(7.0)
        )


def test_infinities_and_nan_survive(trainer):
    p = Parameter(torch.ones(4).bfloat16())
    p.grad = torch.tensor([math.inf, -math.inf, math.nan, 1.0]).bfloat16()
    optimizer = agd([p], trainer, state_dtype=torch.bfloat16, stochastic_rounding=True)
    optimizer.step()
    m, b = (optimizer.state[p][key].isfinite().tolist() for key in ("exp_avg", "exp_avg_sq"))
    assert m == b == [False, False, False, True]
    assert p.isfinite().tolist()[2:] == [False, True]


def test_bfloat16_averages_follow_float32_ones(trainer):
    """A plain cast would freeze b within 2^-8 of where it was: 0.999 b rounds back to b."""
    g = torch.randn(2000)
    averages = {}
    for dtype in (torch.float32, torch.bfloat16):
        p = Parameter(torch.zeros_like(g))
        optimizer = agd([p], trainer, lr=1e-3, state_dtype=dtype)
        p.grad = g.clone()
        optimizer.step()
        p.grad = torch.zeros_like(g)
        for _ in range(10 if trainer == "gpu" else 200):
            optimizer.step()
        averages[dtype] = optimizer.state[p]["exp_avg_sq"].double()
    ratio = averages[torch.bfloat16] / averages[torch.float32]
    # Each of 200 roundings errs by less than 2^-8 with mean 0.
    assert abs(ratio.mean() - 1) < SIGMAS * 2**-8 * math.sqrt(200 / g.numel())


def test_bfloat16_parameters_move_by_less_than_their_spacing(trainer):
    """Steps of 1e-4 from 1.0 vanish in a plain cast, whose spacing is 2^-8 below 1."""
    moved = {}
    for stochastic in (False, True):
        p = Parameter(torch.ones(4000).bfloat16())
        optimizer = agd([p], trainer, lr=1e-4, stochastic_rounding=stochastic, clip=1.0, betas=(0.0, 0.999))
        for _ in range(5):
            p.grad = torch.ones_like(p)
            optimizer.step()
        moved[stochastic] = 1 - p.double().mean().item()
    if trainer != "gpu":  # Triton's interpreter cuts off where the GPU rounds to nearest
        assert moved[False] == 0
    spacing = 2**-8
    assert moved[True] == pytest.approx(5e-4, abs=SIGMAS * math.sqrt(5e-4 * spacing / 4000))


def test_resumed_rounding_is_the_same():
    """The bits hang on seed, parameter, step and element: on nothing that a checkpoint does not hold."""
    torch.manual_seed(123)
    once = one_step("foreach", 3, 5)
    torch.manual_seed(321)
    assert all(map(torch.equal, once, one_step("foreach", 3, 5)))


def test_bodies_number_elements_alike_in_every_layout(trainer):
    results = []
    for body in (trainer, "loop"):
        p = Parameter(torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0)).bfloat16())
        p.data = p.data.contiguous(memory_format=torch.channels_last)
        optimizer = agd([p], body, lr=1e-3, clip=0.5, stochastic_rounding=True)
        p.grad = torch.ones_like(p)
        optimizer.step()
        results.append(p.detach())
    assert torch.equal(*results)
