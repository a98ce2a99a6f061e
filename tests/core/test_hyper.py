"""core/hyper.py: what is refused, and in which words."""

import math
from dataclasses import FrozenInstanceError

import pytest

from agdopt.core import Hyper


@pytest.mark.parametrize("name", ["beta1", "beta2"])
@pytest.mark.parametrize("value", [1.0, -0.1, 1.5, math.nan, math.inf])
def test_betas(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be in \[0, 1\), got {value}: .*share"):
        Hyper(**{name: value})


@pytest.mark.parametrize("value", [0.0, -1e-8, math.nan, math.inf, 1e-31])
def test_delta(value):
    with pytest.raises(ValueError, match=rf"delta must be .*>= 1e-30, got {value}: zero gradients .* 1e-12"):
        Hyper(delta=value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, -math.inf])
def test_clip(value):
    with pytest.raises(ValueError, match=rf"clip must be > 0, got {value}: .*None"):
        Hyper(clip=value)


def test_limits_are_allowed():
    Hyper(beta1=0.0, beta2=0.0, delta=1e-30, clip=1e-9)
    Hyper(beta1=math.nextafter(1.0, 0.0), beta2=0.5, delta=1e30, clip=math.inf)


def test_defaults_are_the_papers():
    hyper = Hyper()
    assert (hyper.beta1, hyper.beta2, hyper.delta) == (0.9, 0.999, 1e-8)
    assert (hyper.amsgrad, hyper.standardize, hyper.clip) == (False, False, None)


def test_nobody_changes_it():
    with pytest.raises(FrozenInstanceError):
        Hyper().beta1 = 0.5
