"""State dicts of others: the published AGD's, Adam's, and ones that do not fit."""

import re
import warnings
from copy import deepcopy

import pytest
import torch
from tests.cases import BODIES
from tests.twin import agd, step_beside_reference
from torch.nn import Parameter

from agdopt import AGD


def published(params, amsgrad=False, **changes):
    """As the paper's code writes it: a Python number for the step, and two options that are not ours."""
    group = {
        "lr": 7e-3,
        "betas": (0.9, 0.999),
        "delta": 1e-2,
        "weight_decay": 5e-4,
        "amsgrad": amsgrad,
        "win": False,
        "clip": None,
        **changes,
    }
    state = {
        i: {
            "step": 17,
            "exp_avg": torch.full_like(p, 0.25),
            "exp_avg_sq": torch.full_like(p, 0.01),
            **({"max_exp_avg_sq": torch.full_like(p, 0.02)} if amsgrad else {}),
        }
        for i, p in enumerate(params)
    }
    return {"state": state, "param_groups": [{**group, "params": list(range(len(params)))}]}


def parameters(dtype=torch.float32):
    return [Parameter(torch.randn(shape).to(dtype)) for shape in ((2, 3), (4,))]


def loading(optimizer, state_dict) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.load_state_dict(state_dict)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_dict_of_the_published_agd(trainer, dtype):
    params = parameters(dtype)
    optimizer = agd(params, trainer)
    (told,) = loading(optimizer, published(params))
    assert "group option 'win'" in told
    assert "clip" not in told
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["delta"], group["weight_decay"]) == (
        7e-3,
        (0.9, 0.999),
        1e-2,
        5e-4,
    )
    assert set(group) == set(AGD(params).param_groups[0])
    for p in params:
        state = optimizer.state[p]
        assert state["step"].dtype == torch.float32
        assert state["step"] == 17
        assert state["exp_avg"].unique() == torch.tensor(0.25)
        p.grad = torch.randn_like(p)
    step_beside_reference(optimizer, truncates=trainer == "gpu")
    assert optimizer.state[params[0]]["step"] == 18


def test_one_warning_names_all_that_we_do_not_have():
    params = parameters()
    optimizer = AGD(params)
    (told,) = loading(optimizer, published(params, amsgrad=True, clip=5.0, nesterov=True))
    for words in ("'win'", "'nesterov'", "'max_exp_avg_sq'", "clip=5.0"):
        assert words in told
    assert optimizer.param_groups[0]["amsgrad"] is True
    assert set(optimizer.state[params[0]]) == {"step", "exp_avg", "exp_avg_sq"}
    # "left out": the published clip bounds something else, so it must not act here.
    assert optimizer.param_groups[0]["clip"] is None


def test_the_warning_points_at_the_caller():
    params = parameters()
    with pytest.warns(UserWarning, match="'win'") as caught:
        AGD(params).load_state_dict(published(params))
    assert caught[0].filename == __file__


def test_what_schedulers_leave_in_groups_is_theirs():
    params = parameters()
    optimizer = AGD(params)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.01)
    saved = deepcopy(optimizer.state_dict())
    del saved["param_groups"][0]["standardize"]  # as if an older version had written it
    assert loading(AGD(params), saved) == []


def test_our_own_state_dict_loads_in_silence():
    params = parameters()
    optimizer = AGD(params, clip=2.0, amsgrad=True)
    assert loading(AGD(params), optimizer.state_dict()) == []
    # Options that users add to their groups are theirs, too.
    optimizer.param_groups[0]["layer"] = 3
    other = AGD(params)
    assert loading(other, optimizer.state_dict()) == []
    assert other.param_groups[0]["layer"] == 3


def stepped(body="foreach"):
    params = parameters()
    optimizer = agd(params, body)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return params, optimizer


def change(path, value):
    def apply(state_dict):
        *parents, last = path
        for key in parents:
            state_dict = state_dict[key]
        if value is None:
            del state_dict[last]
        else:
            state_dict[last] = value

    return apply


# how the state_dict is damaged, and what the refusal says
MISFITS = {
    "exp_avg of another shape": (
        change(("state", 1, "exp_avg"), torch.zeros(5)),
        ["exp_avg", "parameter 1", "(5,)", "(4,)"],
    ),
    "exp_avg_sq of another shape": (
        change(("state", 0, "exp_avg_sq"), torch.zeros(3, 2)),
        ["exp_avg_sq", "parameter 0", "(3, 2)", "(2, 3)"],
    ),
    "no exp_avg": (change(("state", 1, "exp_avg"), None), ["exp_avg", "parameter 1"]),
    "no step": (change(("state", 1, "step"), None), ["step", "parameter 1"]),
    "a number for an average": (change(("state", 1, "exp_avg"), 0.5), ["exp_avg", "parameter 1"]),
    "too few parameters": (
        change(("param_groups", 0, "params"), [0]),
        ["doesn't match the size"],
    ),
    "too many groups": (
        lambda state_dict: state_dict["param_groups"].append(dict(state_dict["param_groups"][0])),
        ["different number of parameter groups"],
    ),
    "delta out of range": (change(("param_groups", 0, "delta"), 0.0), ["delta", "1e-30", "0.0"]),
    "lr out of range": (change(("param_groups", 0, "lr"), -1.0), ["lr", ">= 0", "-1.0"]),
    "not AGD's": (change(("param_groups", 0, "delta"), None), ["not AGD's", "delta"]),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused_before_anything_is_changed(misfit):
    damage, words = MISFITS[misfit]
    params, optimizer = stepped()
    saved = deepcopy(optimizer.state_dict())
    damaged = deepcopy(saved)
    damage(damaged)
    damaged_before = deepcopy(damaged)
    with pytest.raises(ValueError, match=re.escape(words[0])) as refusal:
        optimizer.load_state_dict(damaged)
    for word in words:
        assert word in str(refusal.value)
    now = optimizer.state_dict()
    assert now["param_groups"] == saved["param_groups"]
    for i, state in saved["state"].items():
        assert all(torch.equal(x, now["state"][i][key]) for key, x in state.items())
    assert str(damaged) == str(damaged_before)
    step_beside_reference(optimizer)
    assert optimizer.state[params[0]]["step"] == 2


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_another_optimizers_state_dict_is_refused(cls):
    params, optimizer = stepped()
    other = cls(params)
    for p in params:
        p.grad = torch.ones_like(p)
    other.step()
    with pytest.raises(ValueError, match=r"not AGD's: .*no delta.*another scale"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.state[params[0]]["step"] == 1


def test_missing_state_stays_missing(body):
    """A parameter that had no gradient when the file was written has none of it afterwards."""
    params, optimizer = stepped(body)
    saved = deepcopy(optimizer.state_dict())
    del saved["state"][0]
    optimizer.load_state_dict(saved)
    for p in params:
        p.grad = torch.ones_like(p)
    step_beside_reference(optimizer)
    assert [int(optimizer.state[p]["step"]) for p in params] == [1, 2]


def test_old_pickles(trainer):
    """__setstate__ fills what an old object lacks."""
    params, optimizer = stepped(trainer)
    state = optimizer.__getstate__()
    for group in state["param_groups"]:
        for key in ("capturable", "standardize", "clip", "state_dtype", "stochastic_rounding", "seed"):
            group.pop(key)
    for values in state["state"].values():
        values["step"] = int(values["step"])
    old = AGD.__new__(AGD)
    old.__setstate__(state)
    assert set(old.param_groups[0]) == set(AGD(params).param_groups[0])
    for p in params:
        p.grad = torch.ones_like(p)
    step_beside_reference(old)


def test_channels_last_state_dict_fits_a_contiguous_parameter(body):
    """Averages take the layout of the parameter they are loaded for, or at least work there."""
    x = torch.randn(2, 3, 4, 5)
    p = Parameter(x.contiguous(memory_format=torch.channels_last))
    q = Parameter(x.clone())
    optimizers = agd([p], body), agd([q], body)
    p.grad = torch.randn_like(p)
    optimizers[0].step()
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    for _ in range(2):
        q.grad = torch.randn_like(q)
        step_beside_reference(optimizers[1])


@pytest.mark.parametrize("body", [name for name in BODIES if name != "gpu"])
def test_capturable_state_dict_moves_step_where_it_belongs(body):
    params, optimizer = stepped(body)
    saved = deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["capturable"] = True
    optimizer.load_state_dict(saved)
    for p in params:
        p.grad = torch.ones_like(p)
    step_beside_reference(optimizer)
