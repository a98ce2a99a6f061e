"""Going over from AdamW, Adam and SGD: what stays the same step, what is refused, no spike in the loss."""

import copy
import statistics
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.tolerances import FLOAT64
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW
from torch.optim import lr_scheduler as schedulers

from agdopt import AGDW
from agdopt.core import Hyper, bhat
from agdopt.torch import decay_groups, from_adamw, from_sgd


def parameters(dtype=torch.float64):
    return [
        Parameter(torch.linspace(-1, 1, n).reshape(shape).to(dtype)) for n, shape in ((15, (5, 3)), (1, ()))
    ]


def run(optimizer, first, last):
    generator = torch.Generator()
    for t in range(first, last):
        generator.manual_seed(t)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype) + 0.3
        optimizer.step()
    return optimizer


def tensors(optimizer):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return params, [optimizer.state.get(p) for p in params]


ADAMS = {
    "AdamW": AdamW,
    "Adam": partial(Adam, weight_decay=0.1),
    "large eps": partial(AdamW, eps=0.1),
    "no eps": partial(AdamW, eps=0.0),
    "amsgrad": partial(AdamW, amsgrad=True),
    "maximize": partial(AdamW, maximize=True),
    "tensor lr": partial(AdamW, lr=torch.tensor(1e-2)),
    "tensor betas": partial(AdamW, betas=(torch.tensor(0.8), torch.tensor(0.999)), lr=torch.tensor(1e-2)),
    "foreach": partial(AdamW, foreach=True),
    "fused": partial(AdamW, fused=True),
}


@pytest.mark.parametrize("name", ADAMS)
def test_the_next_step_is_adamws(name):
    """Its denominator exactly, and the step but for the newest of 300 terms of b."""
    old = run(ADAMS[name](parameters()), 0, 300)
    twin, before = copy.deepcopy((old, str(old.state_dict())))
    new = from_adamw(old, clip=None)
    group, settings = old.param_groups[0], new.param_groups[0]
    for key in ("lr", "weight_decay", "amsgrad", "maximize", "foreach", "fused", "decoupled_weight_decay"):
        assert settings[key] == group[key], key
    assert settings["delta"] == (group["eps"] or AGDW([torch.ones(1)]).defaults["delta"])
    hyper = Hyper(*settings["betas"])
    for ours, theirs in zip(tensors(new)[1], tensors(old)[1], strict=True):
        mean_square = theirs["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
        denominator = (mean_square / (1 - hyper.beta2**300)).sqrt() + group["eps"]
        torch.testing.assert_close(
            bhat(ours["exp_avg_sq"], 300, hyper, torch.sqrt), denominator, rtol=FLOAT64.state, atol=0
        )
    start = [p.detach().clone() for p in tensors(new)[0]]
    run(twin, 300, 301)
    run(new, 300, 301)
    for p, q, w in zip(tensors(new)[0], tensors(twin)[0], start, strict=True):
        torch.testing.assert_close(p - w, q - w, rtol=2e-2, atol=0)
    assert str(old.state_dict()) == before, "the new one's step has changed the old one's averages"


def test_after_one_step_it_is_the_agdw_that_has_run_from_the_start():
    old, own = AdamW(parameters(), eps=1e-15), AGDW(parameters())
    run(old, 0, 1)
    run(own, 0, 1)
    new = from_adamw(old)
    for one, other in zip(tensors(new)[1], tensors(own)[1], strict=True):
        for key in other:
            torch.testing.assert_close(one[key], other[key], rtol=FLOAT64.state, atol=0)


def test_at_the_start_it_is_an_agdw_of_the_same_groups():
    named = [(f"w{i}", p) for i, p in enumerate(parameters())]
    old = AdamW(
        [{"params": named[:1], "lr": 1e-2, "lr_scale": 0.5}, {"params": named[1:], "weight_decay": 0.0}]
    )
    new = from_adamw(old, seed=7)
    first, second = new.param_groups
    assert (first["lr"], first["lr_scale"], first["param_names"], first["clip"]) == (1e-2, 0.5, ["w0"], 1.0)
    assert (second["lr"], second["weight_decay"], second["seed"]) == (1e-3, 0.0, 7)
    assert "eps" not in first
    assert type(new) is AGDW
    assert not new.state
    assert not any("delta" in group for group in old.param_groups)


def test_bfloat16_averages_become_float32():
    new = from_adamw(run(AdamW(parameters(torch.bfloat16)), 0, 3))
    assert {s["exp_avg_sq"].dtype for s in tensors(new)[1]} == {torch.float32}
    run(new, 3, 5)
    narrow = from_adamw(run(AdamW(parameters(torch.float32)), 0, 3), state_dtype=torch.bfloat16)
    assert {s["exp_avg_sq"].dtype for s in tensors(narrow)[1]} == {torch.bfloat16}


def test_complex_parameters_are_pairs():
    pairs = [Parameter(torch.randn(3, 2)) for _ in range(2)]
    complexes = [Parameter(torch.view_as_complex(p.detach().clone())) for p in pairs]
    one, other = AdamW(pairs), AdamW(complexes)
    for t in range(6):
        if t == 3:
            one, other = from_adamw(one), from_adamw(other)
        for p, z in zip(pairs, complexes, strict=True):
            p.grad = torch.randn(3, 2)
            z.grad = torch.view_as_complex(p.grad.clone())
        one.step()
        other.step()
    for p, z in zip(pairs, complexes, strict=True):
        torch.testing.assert_close(p, torch.view_as_real(z), rtol=1e-6, atol=1e-7)


def test_a_parameter_without_state_starts_as_in_any_agdw():
    old = AdamW(parameters())
    old.param_groups[0]["params"][0].grad = torch.ones(5, 3, dtype=torch.float64)
    old.step()
    new = run(from_adamw(old), 0, 1)
    assert [float(s["step"]) for s in tensors(new)[1]] == [2, 1]


SCHEDULERS = {
    "LambdaLR": lambda opt: schedulers.LambdaLR(opt, lambda t: 1 / (1 + t)),
    "CosineAnnealingLR": lambda opt: schedulers.CosineAnnealingLR(opt, T_max=10),
    "OneCycleLR": lambda opt: schedulers.OneCycleLR(opt, max_lr=0.1, total_steps=10),
    "ReduceLROnPlateau": lambda opt: schedulers.ReduceLROnPlateau(opt, patience=0, factor=0.5),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_are_warned_of_and_can_be_handed_over(name):
    def advance(scheduler):
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))

    old = AdamW(parameters())
    scheduler = SCHEDULERS[name](old)
    for t in range(3):
        run(old, t, t + 1)
        advance(scheduler)
    twin, twin_scheduler = copy.deepcopy((old, scheduler))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        new = from_adamw(old)
    if name != "ReduceLROnPlateau":  # which leaves no mark on what it drives
        (warning,) = seen
        assert "driving the old AdamW: scheduler.optimizer = new" in str(warning.message)
        assert warning.filename == __file__
    scheduler.optimizer = new
    for t in range(3, 6):
        run(new, t, t + 1)
        advance(scheduler)
        run(twin, t, t + 1)
        twin_scheduler.optimizer = twin
        advance(twin_scheduler)
        assert new.param_groups[0]["lr"] == twin.param_groups[0]["lr"] != old.param_groups[0]["lr"]
        assert new.param_groups[0]["betas"] == twin.param_groups[0]["betas"]


SGDS = {
    "plain": partial(SGD, momentum=0.0),
    "momentum": partial(SGD, momentum=0.9),
    "decay": partial(SGD, momentum=0.8, weight_decay=0.1),
    "maximize": partial(SGD, momentum=0.9, maximize=True),
    "tensor lr": partial(SGD, momentum=0.9),
}


@pytest.mark.parametrize("steps", [0, 1, 20])
@pytest.mark.parametrize("name", SGDS)
def test_with_a_large_delta_the_path_is_sgds(name, steps):
    lr = torch.tensor(0.1, dtype=torch.float64) if name == "tensor lr" else 0.1
    old = run(SGDS[name](parameters(), lr=lr), 0, steps)
    twin = copy.deepcopy(old)
    new = from_sgd(old, delta=1e3)
    for t in range(steps, steps + 30):
        run(new, t, t + 1)
        run(twin, t, t + 1)
        for p, q in zip(tensors(new)[0], tensors(twin)[0], strict=True):
            torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-11)


def test_where_bhat_exceeds_delta_steps_are_smaller_than_sgds():
    old = run(SGD(parameters(), lr=0.1, momentum=0.9), 0, 20)
    twin = copy.deepcopy(old)
    new = from_sgd(old, delta=3e-2)  # under noise of size 1 bhat comes to .1
    smaller = []
    for t in range(20, 320):
        starts = [[p.detach().clone() for p in tensors(opt)[0]] for opt in (new, twin)]
        run(new, t, t + 1)
        run(twin, t, t + 1)
        moved, sgds = (
            torch.cat([(p.detach() - w).abs().flatten() for p, w in zip(tensors(opt)[0], start, strict=True)])
            for opt, start in zip((new, twin), starts, strict=True)
        )
        assert (moved <= sgds * (1 + 1e-9)).all()
        smaller.append((moved < 0.99 * sgds).float().mean().item())
    assert smaller[0] == 0
    assert smaller[-1] == 1


def test_sgds_scheduler_is_made_anew():
    old = SGD(parameters(), lr=0.1, momentum=0.9)
    schedulers.StepLR(old, 5)
    with pytest.warns(UserWarning, match="driving the old SGD: make one over this"):
        new = from_sgd(old, delta=1e-2)
    assert new.param_groups[0]["lr"] == pytest.approx(1e-2)
    schedulers.StepLR(new, 5, last_epoch=7)
    assert new.param_groups[0]["initial_lr"] == pytest.approx(1e-2)


def spoilt(change, cls=AdamW, steps=2, **options):
    optimizer = run(cls(parameters(), **options), 0, steps)
    change(optimizer)
    return optimizer


def state(optimizer):
    return optimizer.state[optimizer.param_groups[0]["params"][1]]


class Wrapper:
    def __init__(self):
        self.optimizer = AdamW(parameters())
        self.param_groups = self.optimizer.param_groups


class Bent(AdamW):
    def __init__(self, params, nudge=0.5):
        super().__init__(params)
        self.defaults["nudge"] = nudge
        self.param_groups[0]["nudge"] = nudge


BAD = {
    "not Adam": (lambda: SGD(parameters()), TypeError, ["AdamW or Adam", "SGD"]),
    "NAdam": (lambda: torch.optim.NAdam(parameters()), TypeError, ["AdamW or Adam", "NAdam"]),
    "ours already": (lambda: AGDW(parameters()), TypeError, ["AdamW or Adam", "AGDW"]),
    "wrapped": (Wrapper, TypeError, ["Wrapper", "that it wraps"]),
    "an option we lack": (lambda: Bent(parameters()), ValueError, ["param_groups[0]", "nudge=0.5", "None"]),
    "no exp_avg": (lambda: spoilt(lambda o: state(o).pop("exp_avg")), ValueError, ["exp_avg", "parameter 1"]),
    "no step": (lambda: spoilt(lambda o: state(o).pop("step")), ValueError, ["step", "parameter 1", "None"]),
    "no maximum": (
        lambda: spoilt(lambda o: state(o).pop("max_exp_avg_sq"), amsgrad=True),
        ValueError,
        ["max_exp_avg_sq", "half made"],
    ),
    "half a step": (lambda: spoilt(lambda o: state(o)["step"].fill_(0.5)), ValueError, ["step", "0.5"]),
    "another shape": (
        lambda: spoilt(lambda o: state(o).update(exp_avg_sq=torch.ones(3))),
        ValueError,
        ["exp_avg_sq", "(3,)", "()"],
    ),
}
BAD_SGD = {
    "not SGD": (lambda: AdamW(parameters()), TypeError, ["torch.optim.SGD", "AdamW"]),
    "nesterov": (
        lambda: SGD(parameters(), momentum=0.9, nesterov=True),
        ValueError,
        ["nesterov=True", "set it to 0"],
    ),
    "dampening": (lambda: SGD(parameters(), momentum=0.9, dampening=0.1), ValueError, ["dampening=0.1"]),
    "momentum": (lambda: SGD(parameters(), momentum=1.0), ValueError, ["momentum=1.0", "[0, 1)"]),
    "half made": (
        lambda: spoilt(lambda o: state(o).update(momentum_buffer=torch.ones(3)), SGD, momentum=0.9),
        ValueError,
        ["momentum_buffer", "(3,)"],
    ),
}


@pytest.mark.parametrize(
    ("convert", "case"),
    [(from_adamw, case) for case in BAD.values()]
    + [(partial(from_sgd, delta=1.0), c) for c in BAD_SGD.values()],
    ids=[*BAD, *(f"sgd: {name}" for name in BAD_SGD)],
)
def test_refused_in_words_and_left_as_it_was(convert, case):
    make, error, words = case
    old = make()
    whole = not isinstance(old, Wrapper)
    before = [str(old.state_dict()), *map(torch.clone, tensors(old)[0])] if whole else []
    with pytest.raises(error) as refusal:
        convert(old)
    for word in words:
        assert word in str(refusal.value)
    if before:
        assert str(old.state_dict()) == before[0]
        assert all(map(torch.equal, tensors(old)[0], before[1:]))


def test_options_that_the_old_groups_decide_are_refused():
    with pytest.raises(TypeError, match="not lr"):
        from_adamw(AdamW(parameters()), lr=0.1)
    with pytest.raises(TypeError, match="not betas"):
        from_sgd(SGD(parameters()), delta=1.0, betas=(0.9, 0.99))


# A small network learns scikit-learn's digits with AdamW; for the last 50 steps it goes over, or does not.
def digits_losses(seed, convert, at):
    load_digits = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed").load_digits
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = AdamW(model.parameters(), lr=1e-2)
    losses = []
    for t in range(at + 50):
        if t == at:
            optimizer = convert(optimizer)
        rows = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows].float() / 16), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return statistics.fmean(losses[at:])


def without_averages(optimizer):
    """What a checkpoint without the optimizer does."""
    return AGDW(optimizer.param_groups[0]["params"], lr=1e-2)


def in_the_papers_scale(optimizer):
    """b as AGD's own would stand, in an optimizer that standardizes."""
    new = from_adamw(optimizer)
    for s in new.state.values():
        s["exp_avg_sq"] *= 0.1**2 * 2 / 1.9
    return new


@pytest.mark.parametrize(
    ("convert", "at", "spikes"),
    [
        (from_adamw, 100, False),
        (from_adamw, 600, False),
        (without_averages, 600, True),
        (in_the_papers_scale, 600, True),
    ],
)
def test_changing_over_makes_no_spike(convert, at, spikes):
    """Mean loss of 50 steps, 5 seeds: within twice the standard error of the run that keeps AdamW."""
    kept = [digits_losses(seed, lambda optimizer: optimizer, at) for seed in range(5)]
    changed = [digits_losses(seed, convert, at) for seed in range(5)]
    error = statistics.stdev(kept) / 5**0.5
    assert (statistics.fmean(changed) - statistics.fmean(kept) > 2 * error) == spikes


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.pos_embed, self.token = nn.Parameter(torch.zeros(1, 4, 8)), nn.Parameter(torch.zeros(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, add_bias_kv=True)
        self.norm, self.conv, self.lstm = nn.LayerNorm((4, 8)), nn.Conv2d(1, 2, 3), nn.LSTM(8, 8)
        self.conv.weight.requires_grad_(False)

    def no_weight_decay(self):
        return {"token"}


def test_decay_groups():
    model = Net()
    decayed, bare = decay_groups(model, weight_decay=0.1)
    names = [name for name, _ in decayed["params"]]
    attention = ["attention.in_proj_weight", "attention.out_proj.weight"]
    assert names == [*attention, "conv.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0"]
    optimizer = AGDW(decay_groups(model, weight_decay=0.1), lr=1e-3)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert len(decayed["params"]) + len(bare["params"]) == len(list(model.parameters()))
    assert [g["weight_decay"] for g in decay_groups(nn.BatchNorm2d(3), 0.1)] == [0.0]
