"""An optimizer's life: schedulers and averaged models around it, copies, growth, scalers, memory."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from tests.tolerances import FLOAT64
from tests.twin import agd, random_gradients, step_beside_reference
from torch import nn
from torch.nn import Parameter
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from agdopt import AGD, AGDW


def model_and_data(dtype=torch.float32):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    return model, torch.randn(16, 4, dtype=dtype), torch.randn(16, 1, dtype=dtype)


SCHEDULERS = {
    "StepLR": lambda opt: schedulers.StepLR(opt, step_size=2, gamma=0.5),
    "LambdaLR": lambda opt: schedulers.LambdaLR(opt, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda opt: schedulers.MultiplicativeLR(opt, lambda t: 0.9),
    "OneCycleLR": lambda opt: schedulers.OneCycleLR(opt, max_lr=0.1, total_steps=10),
    "CyclicLR": lambda opt: schedulers.CyclicLR(opt, base_lr=0.01, max_lr=0.1, step_size_up=3),
    "CosineAnnealingLR": lambda opt: schedulers.CosineAnnealingLR(opt, T_max=10),
    "ReduceLROnPlateau": lambda opt: schedulers.ReduceLROnPlateau(opt, patience=1, factor=0.5),
    "SequentialLR": lambda opt: schedulers.SequentialLR(
        opt, [schedulers.ConstantLR(opt), schedulers.ExponentialLR(opt, 0.9)], milestones=[3]
    ),
    "SWALR": lambda opt: SWALR(opt, swa_lr=0.05, anneal_epochs=3),
}


@pytest.mark.parametrize("lr", [0.02, torch.tensor(0.02)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name, lr):
    """The step uses the rate the scheduler has set, momentum of the cyclic ones (betas) included."""
    params = [Parameter(torch.randn(5)) for _ in range(2)]
    optimizer = AGD(params, lr=copy.deepcopy(lr))
    scheduler = SCHEDULERS[name](optimizer)
    rates = set()
    for t in range(8):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer)
        rates.add((float(optimizer.param_groups[0]["lr"]), optimizer.param_groups[0]["betas"]))
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    assert len(rates) > 1


def test_onecycle_cycles_beta1():
    optimizer = AGD([Parameter(torch.ones(1))])
    schedulers.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    assert optimizer.param_groups[0]["betas"] == (0.95, 0.999)


@pytest.mark.parametrize("average", [None, get_ema_multi_avg_fn(0.9)], ids=["swa", "ema"])
def test_averaged_model(trainer, average):
    """AveragedModel reads the parameters right after the step: it must find them written."""
    model, x, y = model_and_data()
    averaged = AveragedModel(model, multi_avg_fn=average)
    optimizer = agd(model.parameters(), trainer, lr=0.05)
    by_hand = [p.detach().clone() for p in model.parameters()]
    for t in range(5):
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        averaged.update_parameters(model)
        for kept, p in zip(by_hand, model.parameters(), strict=True):
            weight = 1.0 if t == 0 else 1 / (t + 1) if average is None else 0.1
            kept.lerp_(p.detach(), weight)
    for kept, p in zip(by_hand, averaged.module.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), kept)


def test_deepcopy_of_model_and_optimizer(body):
    """A copy has a life of its own."""
    params = [Parameter(torch.randn(4)) for _ in range(2)]
    optimizer = agd(params, body)
    random_gradients(params, seed=0)
    optimizer.step()
    twin_params, twin = copy.deepcopy((params, optimizer))
    assert twin.param_groups[0]["params"][0] is twin_params[0]
    for t in range(3):
        for one, opt in ((params, optimizer), (twin_params, twin)):
            random_gradients(one, seed=t)
            opt.step()
        assert all(map(torch.equal, params, twin_params))
    before = [p.detach().clone() for p in params]
    twin.step()
    assert all(map(torch.equal, params, before))
    assert optimizer.state[params[0]]["step"] == 4
    assert twin.state[twin_params[0]]["step"] == 5


@pytest.mark.parametrize("cls", [AGD, AGDW])
def test_pickle(body, cls):
    params = [Parameter(torch.randn(4)) for _ in range(2)]
    narrow = {} if body == "differentiable" else {"state_dtype": torch.bfloat16}
    optimizer = agd(params, body, cls, clip=2.0, **narrow)
    random_gradients(params, seed=0)
    optimizer.step()
    twin_params, twin = pickle.loads(pickle.dumps((params, optimizer)))
    assert type(twin) is cls
    assert twin.param_groups[0]["params"][0] is twin_params[0]
    for one, opt in ((params, optimizer), (twin_params, twin)):
        random_gradients(one, seed=1)
        opt.step()
    assert all(map(torch.equal, params, twin_params))


def test_late_unfreezing(trainer):
    """A frozen layer takes no part, then starts at its own first step."""
    model, x, y = model_and_data()
    optimizer = agd(model.parameters(), trainer, lr=0.05, weight_decay=0.1)
    model[0].requires_grad_(False)
    frozen = [p.detach().clone() for p in model[0].parameters()]
    for t in range(6):
        if t == 3:
            assert all(map(torch.equal, model[0].parameters(), frozen))
            assert not any(p in optimizer.state and optimizer.state[p] for p in model[0].parameters())
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        step_beside_reference(optimizer)
    assert [int(optimizer.state[p]["step"]) for p in model.parameters()] == [3, 3, 6, 6]


def test_zero_grad_in_both_ways(trainer):
    for set_to_none in (True, False):
        p = Parameter(torch.randn(3))
        optimizer = agd([p], trainer)
        for t in range(3):
            random_gradients([p], seed=t)
            step_beside_reference(optimizer)
            optimizer.zero_grad(set_to_none=set_to_none)
        assert (p.grad is None) == set_to_none


def test_gradients_accumulate_in_place(trainer):
    """The same gradient tensor, written anew before each step."""
    p, x = Parameter(torch.ones(3)), torch.randn(3)
    p.grad = torch.zeros(3)
    optimizer = agd([p], trainer)
    for _ in range(3):
        (p * x).sum().backward()
        step_beside_reference(optimizer)


def test_gradients_die_when_the_user_lets_them_go(body):
    params = [Parameter(torch.randn(4)) for _ in range(2)]
    optimizer = agd(params, body)
    for t in range(3):
        random_gradients(params, seed=t)
        optimizer.step()
        refs = [weakref.ref(p.grad) for p in params]
        optimizer.zero_grad(set_to_none=True)
        assert [ref() for ref in refs] == [None, None]


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq", "step"])
def test_averages_die_when_they_are_replaced(body, key):
    """Without a step in between: whoever offloads averages frees memory there and then."""
    params = [Parameter(torch.randn(4)) for _ in range(2)]
    optimizer = agd(params, body)
    for t in range(2):
        random_gradients(params, seed=t)
        optimizer.step()
    ref = weakref.ref(optimizer.state[params[0]][key])
    optimizer.state[params[0]][key] = optimizer.state[params[0]][key].clone()
    assert ref() is None


def test_averages_die_when_the_state_is_cleared(body):
    params = [Parameter(torch.randn(4)) for _ in range(2)]
    optimizer = agd(params, body)
    for t in range(2):
        random_gradients(params, seed=t)
        optimizer.step()
    refs = [weakref.ref(x) for state in optimizer.state.values() for x in state.values()]
    optimizer.state.clear()
    assert all(ref() is None for ref in refs)


def test_the_optimizer_dies_with_its_last_reference(body):
    """No global table keeps models alive."""
    p = Parameter(torch.randn(4))
    optimizer = agd([p], body)
    random_gradients([p], seed=0)
    optimizer.step()
    refs = [weakref.ref(x) for x in (p, p.grad, optimizer, *optimizer.state[p].values())]
    del p, optimizer
    gc.collect()
    assert not any(ref() is not None for ref in refs)


def test_a_raising_closure_changes_nothing(body):
    p = Parameter(torch.randn(4))
    optimizer = agd([p], body)
    random_gradients([p], seed=0)
    optimizer.step()
    before = p.detach().clone()

    def closure():
        raise KeyError("data")

    with pytest.raises(KeyError):
        optimizer.step(closure)
    assert torch.equal(p, before)
    assert optimizer.state[p]["step"] == 1
    step_beside_reference(optimizer)


def test_no_hidden_state():
    """All that a run needs is in state and param_groups; the rest can be dropped at any time."""
    params = [Parameter(torch.randn(4)) for _ in range(2)]
    optimizer = AGD(params)
    for t in range(2):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer)
    public = {key for key in vars(optimizer) if not key.startswith("_")}
    assert public == {"defaults", "state", "param_groups"}
    assert set(optimizer.__getstate__()) == {"defaults", "state", "param_groups"}


def test_two_optimizers_over_the_same_parameters(trainer):
    """They share parameters and nothing else."""
    params = [Parameter(torch.randn(4)) for _ in range(2)]
    optimizers = agd(params, trainer), agd(params, trainer, delta=0.3)
    for t in range(4):
        random_gradients(params, seed=t)
        step_beside_reference(optimizers[t % 2])


def test_optimizers_in_threads(trainer):
    """One optimizer a thread, as parameter servers and hyperparameter searches have it."""
    if trainer == "gpu":
        pytest.skip("Triton's interpreter is for one thread")
    results = [None] * 3

    def work(i):
        p = Parameter(torch.linspace(-1, 1, 50_000))
        optimizer = agd([p], trainer)
        for t in range(20):
            p.grad = (p.detach() * (t + 1)).cos()
            optimizer.step()
        results[i] = p.detach()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[0], x) for x in results[1:])


# Gradient scalers: torch.amp on the CPU, with an overflow in the second of three steps.
def scaled_run(optimizer, p, scaler, grads):
    seen = []
    for g in grads:
        p.grad = None
        loss = (p * g).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        state = optimizer.state[p]
        seen.append(
            [p.detach().clone(), *(state[key].clone() for key in ("step", "exp_avg", "exp_avg_sq") if state)]
        )
    return seen


@pytest.mark.parametrize(
    "flags", [{"fused": True}, {"fused": None}, {"foreach": True}, {"foreach": False}], ids=str
)
def test_gradient_scaler(flags):
    """An overflow leaves p, m, b and the counter untouched; other steps are those of unscaled gradients."""
    torch.manual_seed(0)
    good = [torch.randn(5, dtype=torch.float64) for _ in range(3)]
    p, q = (Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))
    optimizer = AGD([p], lr=0.01, **flags)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = scaled_run(optimizer, p, scaler, [good[0], torch.full((5,), float("inf")), good[1], good[2]])
    for before, after in zip(seen[0], seen[1], strict=True):
        assert torch.equal(before, after)
    assert scaler.get_scale() == 512.0
    plain = AGD([q], lr=0.01, foreach=False)
    for g in good:
        q.grad = g.clone()
        plain.step()
    torch.testing.assert_close(p, q, rtol=10 * FLOAT64.p, atol=0)
    assert optimizer.state[p]["step"] == 3


@pytest.mark.parametrize("flags", [{"fused": True}, {}], ids=str)
def test_overflow_in_the_first_step(flags):
    p = Parameter(torch.ones(5))
    optimizer = AGD([p], lr=0.01, **flags)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaled_run(optimizer, p, scaler, [torch.full((5,), float("nan"))])
    assert torch.equal(p, torch.ones(5))
    p.grad = torch.full((5,), 2.0)
    step_beside_reference(optimizer)
    assert optimizer.state[p]["step"] == 1


def test_unscale_then_clip_gradients(trainer):
    """The documented way to clip under a scaler: unscale_, clip, step."""
    p = Parameter(torch.ones(5))
    optimizer = agd([p], trainer, lr=1.0, delta=10.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale((p * 100.0).sum()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([p], 1.0)
    scaler.step(optimizer)
    torch.testing.assert_close(p.detach(), torch.full((5,), 1 - 5**-0.5 / 10), rtol=1e-5, atol=0)


def test_autocast_with_scaler(trainer):
    """float32 weights under bfloat16 autocast, an overflow on the way: training goes on."""
    model, x, y = model_and_data()
    optimizer, scaler = (
        agd(model.parameters(), trainer, lr=0.02),
        torch.amp.GradScaler("cpu", init_scale=256.0),
    )
    losses = []
    for t in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x if t != 4 else x * float("inf")).float() - y).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert {int(state["step"]) for state in optimizer.state.values()} == {11}


def test_only_fused_true_takes_over_the_scaling():
    """Trainers refuse to clip gradients for optimizers with this mark."""
    p = Parameter(torch.ones(2))
    for flags, marked in (({}, False), ({"fused": True}, True), ({"foreach": True}, False)):
        optimizer = AGD([p], **flags)
        for opt in (optimizer, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
            assert getattr(opt, "_step_supports_amp_scaling", False) == marked


def test_scaling_holds_for_every_group():
    """Where one group opts out of the fused body, it is unscaled all the same, or that is refused."""
    p, q = Parameter(torch.ones(3)), Parameter(torch.ones(3))
    try:
        optimizer = AGD([{"params": [p]}, {"params": [q], "fused": False}], fused=True, lr=1.0, delta=10.0)
    except (RuntimeError, ValueError) as refused:
        assert "fused" in str(refused)  # noqa: PT017
        return
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaler.scale((p + q).sum()).backward()
    scaler.step(optimizer)
    assert torch.equal(p, q)


def test_executor_tells_what_runs_and_why(body):
    p = Parameter(torch.ones(2))
    optimizer = agd([p], body)
    ((name, reason),) = optimizer.executor.items()
    assert name == body
    assert reason


def test_executor_reasons():
    def told(p, **flags):
        return AGD([p], **flags).executor

    assert told(Parameter(torch.ones(2)), foreach=True) == {"foreach": "foreach=True"}
    assert told(Parameter(torch.ones(2)), foreach=False) == {"loop": "foreach=False"}
    assert told(Parameter(torch.ones(2)), fused=False) == {"foreach": "fused=False"}
    (reason,) = told(Parameter(torch.ones(2).half())).values()
    assert reason == "float16 parameters on cpu have no fused kernel"
    (reason,) = told(Parameter(torch.ones(2, device="meta"))).values()
    assert reason == "parameters on meta have no fused kernel"
    (reason,) = told(Parameter(torch.ones(4, 2)[:, 0])).values()
    assert reason == "a parameter is not dense in memory"

    class Odd(torch.Tensor):
        pass

    (reason,) = told(torch.ones(2).as_subclass(Odd)).values()
    assert reason == "Odd is a tensor subclass"
