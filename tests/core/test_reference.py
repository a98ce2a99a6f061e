"""The theory's schedules, which exist in core/reference.py only."""

import math

import numpy as np
import pytest

from agdopt.core.reference import Reference


def three(**options):
    r = Reference(np.zeros(1), lr=1.0, beta1=0.5, beta2=0.75, delta=1e-8, **options)
    seen = []
    for g in (1.0, 2.0, 4.0):
        before = r.w
        r.step([g])
        seen.append((r.m[0], r.c1, (before - r.w)[0], r.b[0]))
    return seen


@pytest.mark.parametrize(
    ("schedule", "betas"),
    [
        ("constant", (1 / 2, 1 / 2, 1 / 2)),
        ("sqrt", (1 / 2, 1 / 2 / math.sqrt(2), 1 / 2 / math.sqrt(3))),
        ("inverse", (1 / 2, 1 / 4, 1 / 6)),
    ],
)
@pytest.mark.parametrize("debias", ["product", "power"])
def test_beta1_schedules(schedule, betas, debias):
    m, kept, s_old, b = 0.0, 1.0, 0.0, 0.0
    for t, (g, beta, seen) in enumerate(
        zip((1.0, 2.0, 4.0), betas, three(beta1_schedule=schedule, debias=debias), strict=True), start=1
    ):
        m, kept = beta * m + (1 - beta) * g, kept * beta
        c1 = 1 - (kept if debias == "product" else beta**t)
        b = 0.75 * b + 0.25 * (m / c1 - s_old) ** 2
        s_old = m / c1
        step = math.sqrt(1 - 0.75**t) / c1 * m / math.sqrt(b)
        assert seen == pytest.approx((m, c1, step, b), rel=1e-13)


@pytest.mark.parametrize("schedule", ["constant", "sqrt", "inverse"])
def test_product_debiasing_is_exact(schedule):
    """A constant gradient has a constant debiased average, whatever beta1_t does."""
    for debias in ("product", "power"):
        r = Reference(np.zeros(1), beta1_schedule=schedule, debias=debias)
        errors = []
        for _ in range(20):
            r.step([3.0])
            errors.append(abs(r.m[0] / r.c1 - 3.0))
        assert (max(errors) < 1e-12) == (debias == "product" or schedule == "constant")


def test_lr_schedule():
    constant, sqrt = (three(lr_schedule=name) for name in ("constant", "sqrt"))
    for t, (one, other) in enumerate(zip(constant, sqrt, strict=True), start=1):
        assert other[2] == pytest.approx(one[2] / math.sqrt(t), rel=1e-13)
        assert other[3] == one[3]


def test_box():
    r = Reference(np.array([0.0, 0.0, 0.5]), lr=1.0, box=(-0.25, 0.75))
    r.step([1.0, -1.0, 0.0])
    assert r.w.tolist() == [-0.25, 0.75, 0.5]


def test_weight_decay():
    """Decoupled: w (1 - lr wd) before the step. Coupled: the gradient is g + wd w."""
    decoupled, coupled, plain = (
        Reference(np.array([2.0]), lr=0.1, delta=1.0, **options)
        for options in ({"weight_decay": 0.5}, {"weight_decay": 0.5, "decoupled": False}, {})
    )
    for r, g in ((decoupled, 0.3), (coupled, 0.3), (plain, 0.3 + 0.5 * 2.0)):
        r.step([g])
    assert decoupled.w[0] == pytest.approx(2.0 * (1 - 0.05) - 0.1 * 0.3, rel=1e-14)
    assert coupled.w[0] == plain.w[0]


def test_maximize_is_the_mirror():
    up, down = Reference(np.ones(1), maximize=True), Reference(np.ones(1))
    for g in (1.0, -0.3, 2.0):
        up.step([g])
        down.step([-g])
    assert np.array_equal(up.w, down.w)


def test_the_callers_arrays_are_left_alone():
    w, g = np.ones(3, np.float32), np.ones(3, np.float32)
    Reference(w).step(g)
    assert w.tolist() == g.tolist() == [1, 1, 1]
