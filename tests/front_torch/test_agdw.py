"""AGDW: AGD with other defaults, and what those defaults promise."""

import inspect

import pytest
import torch
from tests.tolerances import HALF_ULP
from tests.twin import agd, random_gradients, step_beside_reference
from torch.nn import Parameter

from agdopt import AGD, AGDW


def test_only_defaults_differ():
    own, agds = (inspect.signature(cls).parameters for cls in (AGDW, AGD))
    assert list(own) == list(agds)
    assert {name for name in own if own[name] != agds[name]} == {
        *("delta", "weight_decay", "standardize", "clip")
    }
    # `step` is where torch hooks its profiler in, at a class's first instance.
    assert {name for name in vars(AGDW) if not name.startswith("__")} <= {"step"}
    given = {"betas": (0.8, 0.9), "amsgrad": True, "maximize": True, "seed": 3, "foreach": False}
    others = {"capturable": True, "decoupled_weight_decay": False, "stochastic_rounding": True}
    given |= {"lr": 0.5, "delta": 0.1, "weight_decay": 0.3, "clip": 2.0, "standardize": False, **others}
    p = Parameter(torch.ones(2, dtype=torch.bfloat16))
    assert AGDW([p], **given).defaults == AGD([p], **given).defaults


def test_every_body_runs_it(body):
    """On the rule, and with AGD's state."""
    params = [Parameter(torch.randn(5, 3)), Parameter(torch.randn(7))]
    optimizer = agd(params, body, AGDW, lr=0.05)
    for t in range(4):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer)
    plain = agd([Parameter(p.detach().clone()) for p in params], body)
    random_gradients(plain.param_groups[0]["params"], seed=0)
    plain.step()
    held, plainly = ([x.nbytes for s in opt.state.values() for x in s.values()] for opt in (optimizer, plain))
    assert held == plainly


@pytest.mark.parametrize("power", [-20, 3, 16])
def test_the_scale_of_the_loss_does_not_matter(body, power):
    """Exactly, for powers of two."""
    for dtype in (torch.float32, torch.bfloat16):
        paths = []
        for scale in (1.0, 2.0**power):
            params = [Parameter(torch.linspace(-1, 1, 40).to(dtype))]
            optimizer = agd(params, body, AGDW, lr=0.05)
            for t in range(6):
                params[0].grad = torch.linspace(-3, 3, 40).add(t).sin().to(dtype) * scale
                optimizer.step()
            paths.append(params[0].detach())
        assert torch.equal(*paths)


def test_no_step_exceeds_lr(body):
    """Not even where AGD's reaches 31.6 lr: a first gradient that is late and alone."""
    lr = 0.125
    farthest = {}
    for cls in (AGD, AGDW):
        p = Parameter(torch.zeros(300))
        optimizer = agd([p], body, cls, lr=lr, weight_decay=0.0)
        for t in range(40):
            before = p.detach().clone()
            p.grad = torch.zeros(300)
            p.grad[: 150 if t > 30 else 100] = (torch.arange(150.0 if t > 30 else 100.0) + t).sin()
            optimizer.step()
            moved = (p.detach() - before).abs() - HALF_ULP[torch.float32] * p.detach().abs()
            farthest[cls] = max(farthest.get(cls, 0.0), moved.max().item())
    assert farthest[AGDW] <= lr < farthest[AGD]
