"""core/rule.py: by hand, against the literal algorithm, and the properties that define AGD."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerances import FLOAT64, SIGMAS

from agdopt.core import Hyper, direction, scalars
from agdopt.core.reference import Reference

rule = partial(direction, sqrt=np.sqrt, at_least=np.maximum, at_most=np.minimum)


class Rule:
    """core.rule in NumPy, with a learning rate."""

    def __init__(self, w, lr=1e-3, dtype=np.float64, **options):
        self.w, self.lr, self.hyper = np.array(w, dtype), lr, Hyper(**options)
        self.m, self.b, self.t = np.zeros_like(self.w), np.zeros_like(self.w), 0

    def step(self, g):
        self.t += 1
        d, self.m, self.b = rule(np.asarray(g, self.w.dtype), self.m, self.b, scalars(self.t, self.hyper))
        self.w = self.w - self.lr * d
        return d


BOTH = pytest.mark.parametrize("method", [Rule, Reference])

hypers = st.fixed_dictionaries(
    {
        "beta1": st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.9999]),
        "beta2": st.sampled_from([0.5, 0.9, 0.999, 0.999999]),
        "delta": st.sampled_from([1e-12, 1e-8, 1e-2, 1.0, 1e3]),
        "amsgrad": st.booleans(),
        "standardize": st.booleans(),
        "clip": st.sampled_from([None, 0.3, 1.0, 5.0]),
    }
)
size = st.floats(1e-3, 1e3)
gradients = st.lists(st.just(0.0) | size | size.map(lambda x: -x), min_size=1, max_size=30)


@BOTH
def test_three_steps_on_paper(method):
    """beta1 = 1/2, beta2 = 3/4, delta = 1/4, lr = 1, gradients 1, 2, 0 from w = 0.

    t   m      mhat   s      b           b/(1-beta2^t)   bhat      mhat/max(bhat, delta)
    1   1/2    1      1      1/4         1               1         1
    2   5/4    5/3    2/3    43/144      43/63           .826160   5/3 / sqrt(43/63)
    3   5/8    5/7   -20/21  .450716     .779616         .882959   5/7 / .882959
    """
    agd = method(np.zeros(1), lr=1.0, beta1=0.5, beta2=0.75, delta=0.25)
    agd.step([1.0])
    assert (agd.m[0], agd.b[0], agd.w[0]) == pytest.approx((0.5, 0.25, -1.0), rel=1e-14)
    agd.step([2.0])
    assert agd.m[0] == 1.25
    assert agd.b[0] == pytest.approx(43 / 144, rel=1e-14)
    assert agd.w[0] == pytest.approx(-1 - (5 / 3) / math.sqrt(43 / 63), rel=1e-14)
    agd.step([0.0])
    b = 0.75 * 43 / 144 + 0.25 * (20 / 21) ** 2
    assert agd.m[0] == 0.625
    assert agd.b[0] == pytest.approx(b, rel=1e-14)
    assert b == pytest.approx(0.450716, abs=5e-7)
    assert agd.w[0] == pytest.approx(-1 - 2.017366 - 0.808968, abs=1e-6)


@BOTH
def test_three_steps_on_paper_in_sgd_mode(method):
    """As above with delta = 2, which no bhat reaches: w = -(1 + 5/3 + 5/7)/2."""
    agd = method(np.zeros(1), lr=1.0, beta1=0.5, beta2=0.75, delta=2.0)
    for g in (1.0, 2.0, 0.0):
        agd.step([g])
    assert agd.w[0] == pytest.approx(-(1 + 5 / 3 + 5 / 7) / 2, rel=1e-14)


@BOTH
def test_amsgrad_is_fed_back(method):
    """beta1 = 0, beta2 = 1/2: s = 4, -3, 1 and b = 8, max(8.5, 8) = 8.5, max(4.75, 8.5) = 8.5.

    The next average starts from the maximum: with s = 4, b = 4.25 + 8 = 12.25. A separate maximum, as torch
    keeps for its Adam, would go 8, 8.5, 4.75 and then 10.375.
    """
    agd = method(np.zeros(1), beta1=0.0, beta2=0.5, amsgrad=True)
    kept = []
    for g in (4.0, 1.0, 2.0, 6.0):
        agd.step([g])
        kept.append(agd.b[0])
    assert kept == pytest.approx([8.0, 8.5, 8.5, 12.25], rel=1e-14)


@given(hypers, gradients)
def test_rule_is_the_literal_algorithm(hyper, values):
    literal, fast = Reference(np.zeros(1), lr=1.0, **hyper), Rule(np.zeros(1), lr=1.0, **hyper)
    largest = 0.0
    for g in values:
        literal.b, literal.m = fast.b, fast.m  # one step at a time
        w = literal.w
        literal.step([g])
        d = fast.step([g])
        largest = max(largest, abs(g))
        # s is a difference of numbers up to `largest`: its rounding error is a share of those.
        error = FLOAT64.state * largest
        np.testing.assert_allclose(fast.m, literal.m, rtol=0, atol=error)
        np.testing.assert_allclose(
            np.sqrt(fast.b), np.sqrt(literal.b), rtol=FLOAT64.state, atol=error * (1 - hyper["beta2"]) ** 0.5
        )
        bhat = max(float(np.sqrt(literal.b[0] / (1 - hyper["beta2"] ** literal.t))), hyper["delta"])
        step = (w - literal.w)[0]
        of_step = largest / bhat * (1 + largest / bhat) + abs(w[0])
        assert d[0] == pytest.approx(step, rel=1e-9, abs=FLOAT64.p * of_step)


@given(hypers, gradients)
def test_nothing_is_ever_infinite(hyper, values):
    agd = Rule(np.zeros(1), **{**hyper, "delta": 1e-30})
    for g in [0.0, *values, 0.0]:
        assert np.isfinite(agd.step([g])).all()
        assert np.isfinite([agd.m, agd.b]).all()
        assert (agd.b >= 0).all()


@given(hypers, gradients)
def test_zero_gradients_from_the_start_do_nothing(hyper, values):
    agd = Rule(np.ones(1), **hyper)
    for _ in values:
        assert agd.step([0.0]) == 0
    assert agd.w == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(gradients)
def test_clip_bounds_the_step_exactly(dtype, values):
    """|mhat / max(bhat, delta)| <= clip, to the bit; which is a floor of |mhat| / clip under bhat."""
    clipped, free = Rule(np.zeros(1), clip=0.5, dtype=dtype), Rule(np.zeros(1), dtype=dtype)
    for g in values:
        d, unclipped = clipped.step([g]), free.step([g])
        assert abs(d) <= 0.5
        assert d == np.clip(unclipped, -0.5, 0.5)
        if dtype == np.float64:
            t, m, b = free.t, free.m, free.b
            mhat, bhat = m / (1 - 0.9**t), np.sqrt(b / (1 - 0.999**t))
            assert d == pytest.approx(mhat / max(bhat[0], 1e-8, abs(mhat[0]) / 0.5), rel=1e-9)


def test_clip_is_of_the_corrected_update():
    """At t = 1 mhat / bhat is +-1 whatever the gradient; a clip before the correction would see 3.16."""
    assert Rule(np.zeros(1), clip=1.5).step([1e3]) == pytest.approx(1.0, rel=1e-14)
    assert Rule(np.zeros(1), clip=0.75).step([1e-3]) == 0.75


def test_huge_delta_is_momentum_sgd():
    """Bias-corrected momentum SGD of rate lr / delta."""
    rng, delta = np.random.default_rng(0), 1e6
    agd, w, m = Rule(np.ones(5), lr=3.0, delta=delta), np.ones(5), np.zeros(5)
    for t in range(1, 50):
        g = rng.normal(size=5)
        agd.step(g)
        m = 0.9 * m + 0.1 * g
        w = w - 3.0 / delta * m / (1 - 0.9**t)
    np.testing.assert_allclose(agd.w, w, rtol=1e-13)


@pytest.mark.parametrize("k", [-20, -3, 1, 12])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("standardize", [False, True])
def test_scale_law_is_exact(dtype, standardize, k):
    """loss * c with delta * c is the same path, bit for bit where c is a power of two."""
    rng, options = np.random.default_rng(k + 100), {"lr": 0.1, "dtype": dtype, "standardize": standardize}
    for amsgrad in (False, True):
        one = Rule(np.ones(50), delta=0.05, amsgrad=amsgrad, **options)
        other = Rule(np.ones(50), delta=0.05 * 2.0**k, amsgrad=amsgrad, **options)
        for _ in range(40):
            g = rng.normal(size=50).astype(dtype)
            one.step(g)
            other.step(g * dtype(2.0**k))
            assert np.array_equal(one.w, other.w)


@pytest.mark.parametrize("method", [Rule, Reference, partial(Rule, dtype=np.float32)])
def test_constant_gradients_grow_the_step(method):
    """s = 0 from t = 2 on, so b decays: mhat / bhat = sqrt((1 - beta2^t) / ((1 - beta2) beta2^(t-1)))."""
    agd, steps = method(np.zeros(1), lr=1.0), {}
    for t in range(1, 1001):
        before = agd.w
        agd.step([0.37])
        steps[t] = (before - agd.w)[0]
    exact = {t: math.sqrt((1 - 0.999**t) / (0.001 * 0.999 ** (t - 1))) for t in steps}
    precision = 1e-3 if agd.w.dtype == np.float32 else 1e-8
    assert steps == pytest.approx(exact, rel=precision)
    assert {t: float(f"{steps[t]:.2g}") for t in (1, 2, 10, 100, 1000)} == {
        1: 1.0,
        2: 1.4,
        10: 3.2,
        100: 10.0,
        1000: 41.0,
    }


@BOTH
def test_late_first_gradient(method):
    """Up to 1/sqrt(1 - beta2) = 31.6 lr; delta or a clip bounds it."""
    for options, expected in (({}, 31.6), ({"clip": 2.0}, 2.0)):
        agd = method(np.zeros(1), lr=1.0, **options)
        for _ in range(20_000):
            agd.step([0.0])
        agd.step([1e-3])
        assert -agd.w[0] == pytest.approx(expected, abs=0.05)


def white_noise(t_end, n, **options):
    """Yields t, mhat, bhat of n coordinates under gradients of mean 0 and standard deviation 3."""
    rng, agd = np.random.default_rng(0), Rule(np.zeros(n), **options)
    for t in range(1, t_end + 1):
        agd.step(3.0 * rng.normal(size=n))
        yield t, agd.m / (1 - agd.hyper.beta1**t), np.sqrt(agd.b / (1 - agd.hyper.beta2**t))


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_standardized_difference_estimates_the_noise_at_every_t(beta1):
    n = 4000
    for _, _, bhat in white_noise(60, n, beta1=beta1, beta2=0.99, standardize=True):
        # bhat^2 averages squares of variance 2 sigma^4; their correlation over time can only be forgotten.
        assert (bhat**2).mean() / 9.0 == pytest.approx(1.0, abs=SIGMAS * math.sqrt(2 / n))


def test_step_beside_adam_under_white_noise():
    """bhat settles at (1 - beta1) sqrt(2 / (1 + beta1)) sigma: from 1 to 9.75 times Adam's steps."""
    for t, _, bhat in white_noise(1500, 500, beta2=0.99):
        if t in (1, 1500):
            ratio = 1 / math.sqrt((bhat**2).mean() / 9.0)
            assert ratio == pytest.approx({1: 1.0, 1500: 9.75}[t], rel=0.05)
    assert math.sqrt((1 + 0.9) / 2) / (1 - 0.9) == pytest.approx(9.75, abs=0.005)


def test_scalars_take_arrays_and_numbers_alike():
    t = np.arange(1, 50, dtype=np.float64)
    for standardize in (False, True):
        hyper = Hyper(standardize=standardize, clip=2.0)
        for i, now in enumerate(t):
            for many, one in zip(scalars(t, hyper, np), scalars(float(now), hyper), strict=True):
                assert np.broadcast_to(many, t.shape)[i] == pytest.approx(one, rel=1e-15)


def test_scalars_are_good_in_float32():
    """1 - beta^t, subtracted, is off by 1e-5 at t = 1; expm1 is not."""
    for t in (1, 2, 10, 1000):
        for narrow, exact in zip(
            scalars(np.float32(t), Hyper(), np), scalars(float(t), Hyper()), strict=True
        ):
            assert float(narrow) == pytest.approx(exact, rel=5e-7)


@pytest.mark.parametrize("standardize", [False, True])
def test_weights_of_the_difference(standardize):
    """s is k_g (g - mhat_{t-1}); k_g = (1 - beta1) / (1 - beta1^t), or 1 / sqrt(1 + V_{t-1})."""
    for t in (1, 2, 3, 100):
        k = scalars(t, Hyper(standardize=standardize))
        if t > 1:
            assert k.m == pytest.approx(-k.g / (1 - 0.9 ** (t - 1)), rel=1e-14)
        v = 0 if t == 1 else (1 + 0.9 ** (t - 1)) * 0.1 / ((1 - 0.9 ** (t - 1)) * 1.9)
        assert k.g == pytest.approx(1 / math.sqrt(1 + v) if standardize else 0.1 / (1 - 0.9**t), rel=1e-14)
        assert math.isfinite(k.m)
