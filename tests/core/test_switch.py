"""core/switch.py: which coordinates are adaptive."""

from itertools import pairwise

import numpy as np
import pytest

from agdopt.core import Hyper, bhat, is_adaptive
from agdopt.core.reference import Reference


def noisy(t_end):
    rng, r = np.random.default_rng(0), Reference(np.zeros(200))
    for _ in range(t_end):
        r.step(rng.normal(size=200) * np.logspace(-4, 0, 200))
    return r


@pytest.mark.parametrize("t", [1, 2, 30, 3000])
def test_bhat_and_the_switch(t):
    r = noisy(t)
    expected = np.sqrt(r.b / (1 - 0.999**t))
    np.testing.assert_allclose(bhat(r.b, t, Hyper(), np.sqrt), expected, rtol=1e-12)
    for delta in (1e-6, 1e-3, 1e-1):
        assert np.array_equal(is_adaptive(r.b, t, Hyper(delta=delta), np.sqrt), expected > delta)


@pytest.mark.parametrize("t", [1, 50])
def test_adaptive_share_falls_from_one_to_zero(t):
    r = noisy(t)
    shares = [is_adaptive(r.b, t, Hyper(delta=delta), np.sqrt).mean() for delta in np.logspace(-12, 3, 100)]
    assert shares[0] == 1
    assert shares[-1] == 0
    assert all(later <= earlier for earlier, later in pairwise(shares))
    assert any(0 < share < 1 for share in shares)


def test_switch_takes_an_array_of_steps():
    t, hyper = np.arange(1.0, 9.0), Hyper(delta=0.01)
    b = np.full(8, 1e-5)
    assert np.array_equal(
        is_adaptive(b, t, hyper, np.sqrt, np),
        [bool(is_adaptive(x, float(now), hyper, np.sqrt)) for x, now in zip(b, t, strict=True)],
    )
