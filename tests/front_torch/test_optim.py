"""What torch's own test/test_optim.py checks, under its names."""

import inspect
import io
import json
import warnings
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from unittest.mock import patch

import pytest
import torch
from tests.cases import BODIES, OPTIONS
from tests.tolerances import FLOAT32, GRADCHECK
from tests.twin import agd, step_beside_reference
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD
from torch.optim import lr_scheduler as schedulers
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from agdopt import AGD

NO_CUDA = "needs a CUDA device: `make gpu` runs such checks"
SCHEDULERS = {
    "none": lambda opt: [],
    "StepLR": lambda opt: [schedulers.StepLR(opt, gamma=0.9, step_size=10)],
    "ReduceLROnPlateau": lambda opt: [schedulers.ReduceLROnPlateau(opt)],
    "LinearLR+ExponentialLR": lambda opt: [
        schedulers.LinearLR(opt, start_factor=0.4, total_iters=4),
        schedulers.ExponentialLR(opt, gamma=0.9),
    ],
    "PolynomialLR+ReduceLROnPlateau": lambda opt: [
        schedulers.PolynomialLR(opt, power=0.9, total_iters=4),
        schedulers.ReduceLROnPlateau(opt),
    ],
}


def options(name: str) -> dict:
    """A case with a learning rate of its own, since schedulers write into tensor ones."""
    return deepcopy({"lr": 1e-2, **OPTIONS[name]})


class Problem:
    """torch's: |weight input + bias|^2."""

    def __init__(self, contiguous=True, dtype=torch.float32):
        def randn(*shape):
            return (
                torch.randn(shape, dtype=dtype)
                if contiguous
                else torch.randn((*shape, 2), dtype=dtype)[..., 0]
            )

        self.weight, self.bias, self.input = Parameter(randn(10, 5)), Parameter(randn(10)), randn(5)
        self.params = [self.weight, self.bias]

    def loss(self) -> Tensor:
        return (self.weight.mv(self.input) + self.bias).pow(2).sum()

    def backward(self) -> Tensor:
        for p in self.params:
            p.grad = None
        loss = self.loss()
        loss.backward()
        return loss

    def copy(self) -> "Problem":
        return deepcopy(self)


def train(problem, optimizer, steps, scheduled=()):
    for _ in range(steps):
        loss = optimizer.step(problem.backward)
        for scheduler in scheduled:
            scheduler.step(*([loss.detach()] if isinstance(scheduler, schedulers.ReduceLROnPlateau) else []))


def equal(one: AGD, other: AGD) -> bool:
    """Same parameters and state, bit for bit."""
    params, others = ([p for group in opt.param_groups for p in group["params"]] for opt in (one, other))
    states, other_states = one.state_dict()["state"], other.state_dict()["state"]
    return (
        all(map(torch.equal, params, others))
        and states.keys() == other_states.keys()
        and all(
            states[i].keys() == other_states[i].keys()
            and all(
                torch.equal(x, other_states[i][key]) and x.dtype == other_states[i][key].dtype
                for key, x in states[i].items()
            )
            for i in states
        )
    )


def test_optim_infos_do_not_specify_global_cliquey_kwargs():
    """Which body runs is each test's own business."""
    for name in OPTIONS:
        assert not OPTIONS[name].keys() & {"foreach", "fused", "differentiable"}


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("contiguous", [True, False])
def test_forloop_goes_right_direction(contiguous, schedule):
    for name in (name for name in OPTIONS if name != "no_memory"):  # which divides by the last change alone
        problem = Problem(contiguous)
        optimizer = AGD(problem.params, foreach=False, **options(name))
        initial = problem.loss().item()
        train(problem, optimizer, 20, SCHEDULERS[schedule](optimizer))
        assert (problem.loss().item() > initial) == optimizer.defaults["maximize"], name


@pytest.mark.parametrize("contiguous", [True, False])
def test_every_body_goes_right_direction(trainer, contiguous):
    for name in ("default", "all"):
        problem = Problem(contiguous)
        optimizer = agd(problem.params, trainer, **options(name))
        initial = problem.loss().item()
        train(problem, optimizer, 20)
        assert (problem.loss().item() > initial) == optimizer.defaults["maximize"]


@pytest.mark.skip(reason="needs two CUDA devices")
def test_forloop_goes_right_direction_multigpu(): ...


@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_param_group_with_lrscheduler_goes_right_direction(trainer, schedule):
    problem = Problem()
    optimizer = agd([{"params": [problem.weight]}, {"params": [problem.bias], "lr": 0.01}], trainer)
    initial = problem.loss().item()
    train(problem, optimizer, 20, SCHEDULERS[schedule](optimizer))
    assert problem.loss().item() < initial


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_tensor_lr(trainer, shape):
    """The same numbers as a float's, to a rounding: the tensor is float32."""
    for name in ("default", "weight_decay", "coupled", "all"):
        problem = Problem()
        twin = problem.copy()
        number = agd(problem.params, trainer, **{**options(name), "lr": 2**-7})
        tensor = agd(twin.params, trainer, **{**options(name), "lr": torch.full(shape, 2**-7)})
        train(problem, number, 5)
        train(twin, tensor, 5)
        for p, q in zip(problem.params, twin.params, strict=True):
            torch.testing.assert_close(p, q, rtol=20 * FLOAT32.p, atol=0)
        assert isinstance(tensor.param_groups[0]["lr"], Tensor)
        assert tensor.param_groups[0]["lr"].shape == shape


def test_tensor_lr_is_read_anew(trainer):
    """Schedulers fill the tensor in place."""
    p = Parameter(torch.zeros(3))
    lr = torch.tensor(0.5)
    optimizer = agd([p], trainer, lr=lr)
    p.grad = torch.ones(3)
    optimizer.step()
    lr.fill_(0.0)
    optimizer.step()
    assert p.tolist() == pytest.approx([-0.5] * 3)


@pytest.mark.skip(reason="AGD refuses sparse gradients in words: test_bad_input.py")
def test_rosenbrock_sparse(): ...


@pytest.mark.skip(reason="for optimizers that call their closure more than once")
def test_second_order_optims_return_consistent_types(): ...


def test_complex(body):
    """A complex parameter is its view_as_real twin; a real one may stand beside it."""
    for name in ("default", "amsgrad", "weight_decay", "maximize", "clip"):
        generator = torch.Generator().manual_seed(0)
        shapes = ((10, 5), (10,), ())
        complexes = [torch.randn(shape, dtype=torch.complex64, generator=generator) for shape in shapes]
        params = [*map(Parameter, complexes), Parameter(torch.randn(10, 5, generator=generator))]
        twins = [Parameter((torch.view_as_real(p) if p.is_complex() else p).detach().clone()) for p in params]
        optimizers = agd(params, body, **options(name)), agd(twins, body, **options(name))
        for _ in range(4):
            for p, twin in zip(params, twins, strict=True):
                p.grad = torch.randn(p.shape, dtype=p.dtype, generator=generator)
                twin.grad = (torch.view_as_real(p.grad) if p.is_complex() else p.grad).clone()
            for optimizer in optimizers:
                optimizer.step()
            for p, twin in zip(params, twins, strict=True):
                assert torch.equal(torch.view_as_real(p) if p.is_complex() else p, twin)
        for p in params:
            assert optimizers[0].state[p]["exp_avg"].dtype == p.dtype


def test_complex_2d(trainer):
    """... and equals its real and imaginary part as two parameters, on a holomorphic Rosenbrock function."""

    def rosenbrock(z):
        x, y = z
        return ((1 - x) ** 2 + 100 * (y - x**2) ** 2).abs()

    a = torch.randn(2, dtype=torch.complex64, requires_grad=True)
    real, imag = a.real.detach().clone().requires_grad_(), a.imag.detach().clone().requires_grad_()
    one, two = agd([a], trainer), agd([real, imag], trainer)
    for _ in range(3):
        for optimizer, z in ((one, a), (two, torch.complex(real, imag))):
            optimizer.zero_grad()
            rosenbrock(z).backward()
        assert torch.equal(torch.complex(real.grad, imag.grad), a.grad)
        one.step()
        two.step()
        assert torch.equal(torch.complex(real, imag), a)


def _matches_forloop(dtype, **flags):
    """torch's _test_derived_optimizers: a layer frozen and thawed on the way, a step without gradients.

    Both are held to the rule at every step, since paths of nearly constant gradients (s = 0) fan out.
    """
    for name in OPTIONS:
        steps = []
        for flag in ({"foreach": False}, flags):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1), nn.Sigmoid()).to(dtype)
            scalar = Parameter(torch.ones((), dtype=dtype))
            optimizer = AGD([*model.parameters(), scalar], **flag, **options(name))
            x = torch.linspace(0.1, 0.6, 6, dtype=dtype).reshape(3, 2)
            for i in range(7):
                optimizer.zero_grad()
                model[2].requires_grad_(not 3 <= i < 5)
                if i != 2:
                    (model(x).sum() * scalar).backward()
                step_beside_reference(optimizer)
            steps.append([int(state["step"]) for state in optimizer.state.values()])
        assert steps == [[6, 6, 4, 4, 6]] * 2


def test_foreach_matches_forloop():
    _matches_forloop(torch.float64, foreach=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_matches_forloop(dtype):
    _matches_forloop(dtype, fused=True)


@pytest.mark.parametrize("default", [torch.float64, torch.float16])
@pytest.mark.parametrize("flag", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_set_default_dtype_works_with_foreach(default, flag):
    """Nothing that the optimizer makes takes the default dtype."""
    torch.set_default_dtype(default)
    try:
        params = [Parameter(torch.randn(3, dtype=torch.float32)) for _ in range(2)]
        optimizer = AGD(params, **flag)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn_like(p)
            step_beside_reference(optimizer)
        for p in params:
            assert {x.dtype for x in optimizer.state[p].values()} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.skip(reason="needs 72 GB of device memory")
def test_foreach_large_tensor(): ...


@pytest.mark.skip(reason="needs 64 GB of memory")
def test_fused_large_tensor(): ...


def peak_bytes(step, tmp_path) -> int:
    """The most memory that was allocated at once during step(), beyond what was there before."""
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        step()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    memory = sorted(
        (e for e in events if e["name"] == "[memory]"), key=lambda e: (e["ts"], e["args"].get("Ev Idx", 0))
    )
    now = peak = 0
    for event in memory:
        now += event["args"]["Bytes"]
        peak = max(peak, now)
    return peak


# Another gradient (negated, or with the decay added) is another list, as in torch's own foreach bodies.
PEAKS = dict.fromkeys(OPTIONS, 1) | {"capturable": 1, "coupled": 2, "maximize": 2, "all": 2}


@pytest.mark.parametrize("name", PEAKS)
def test_peak_memory_foreach(tmp_path, name):
    """At most one temporary list, and one more where the gradient is not taken as it is."""
    params = [Parameter(torch.randn(64, 1024)) for _ in range(10)]
    whole = sum(p.numel() * p.element_size() for p in params)
    optimizer = AGD(params, foreach=True, **OPTIONS.get(name, {"capturable": True}))
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    assert peak_bytes(optimizer.step, tmp_path) <= PEAKS[name] * whole + 100_000


@pytest.mark.parametrize("name", ["loop", "cpu"])
def test_peak_memory_of_the_others(tmp_path, name):
    """The loop needs one temporary of the largest parameter, the fused body none."""
    params = [Parameter(torch.randn(64, 1024)) for _ in range(10)]
    optimizer = agd(params, name)
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    largest = params[0].numel() * params[0].element_size()
    assert peak_bytes(optimizer.step, tmp_path) <= {"loop": largest, "cpu": 0}[name] + 100_000


def test_the_peak_is_measured(tmp_path):
    x = torch.randn(64, 1024)
    one = x.numel() * x.element_size()
    assert one <= peak_bytes(lambda: [x * 2, x * 3][:0], tmp_path) <= 2 * one + 10_000
    assert peak_bytes(lambda: x.mul_(2), tmp_path) < 10_000


def test_fused_error_on_params_on_meta():
    with torch.device("meta"):
        model = nn.Linear(2, 3)
    with pytest.raises(
        RuntimeError, match="fused=True cannot be kept: parameters on meta have no fused kernel"
    ):
        optimizer = AGD(model.parameters(), fused=True)
    # Without the demand they may come later, as deferred initialisation has it.
    optimizer = AGD(model.parameters())
    model.to_empty(device="cpu")
    for p in optimizer.param_groups[0]["params"]:
        nn.init.ones_(p)
        p.grad = torch.ones_like(p)
    if all(p is q for p, q in zip(model.parameters(), optimizer.param_groups[0]["params"], strict=True)):
        step_beside_reference(optimizer)


@pytest.mark.parametrize("scale", [None, 2.0])
def test_fused_does_not_step_if_foundinf(scale):
    for name in OPTIONS:
        params = [Parameter(torch.ones(1)) for _ in range(5)]
        optimizer = AGD(params, fused=True, **options(name))
        assert optimizer._step_supports_amp_scaling
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.grad_scale = None if scale is None else torch.full((1,), scale)
        for overflow in (1.0, 0.0):
            before = [p.detach().clone() for p in params]
            optimizer.found_inf = torch.full((), overflow)
            optimizer.step()
            moved = [not torch.equal(p, old) for p, old in zip(params, before, strict=True)]
            assert moved == [overflow == 0] * 5
            for p in params:
                state = optimizer.state[p]
                assert state["step"] == 1 - overflow
                assert (state["exp_avg"] == 0) == (state["exp_avg_sq"] == 0) == bool(overflow)


@pytest.mark.parametrize("impl", ["fused", "capturable"])
def test_cpu_load_state_dict(impl):
    """A checkpoint that says fused or capturable, and holds CPU tensors."""
    for name in ("default", "all"):
        p = Parameter(torch.tensor([0.1, 0.2]))
        p.grad = torch.rand_like(p)
        optimizer = AGD([p], **options(name))
        optimizer.step()
        saved = deepcopy(optimizer.state_dict())
        saved["param_groups"][0][impl] = True
        q = Parameter(p.detach().clone())
        other = AGD([q], **{**options(name), impl: True})
        other.load_state_dict(saved)
        q.grad = torch.rand_like(q)
        step_beside_reference(other)
        assert other.state[q]["step"] == 2


def test_param_groups_weight_decay(trainer):
    problem = Problem()
    groups = [
        {"params": [problem.weight], "weight_decay": 0.1},
        {"params": [problem.bias], "weight_decay": 0.0},
    ]
    optimizer = agd(groups, trainer)
    initial = problem.loss().item()
    train(problem, optimizer, 20)
    assert problem.loss().item() < initial
    # The decay is the group's: it acts without any gradient, on the weight only.
    for p in problem.params:
        p.grad = torch.zeros_like(p)
    optimizer.state.clear()
    before = [p.detach().clone() for p in problem.params]
    optimizer.step()
    torch.testing.assert_close(problem.weight.detach(), before[0] * (1 - 1e-3 * 0.1), rtol=2e-7, atol=0)
    assert torch.equal(problem.bias, before[1])


def test_param_groups_lr(trainer):
    problem, irrelevant = Problem(), Parameter(torch.randn(2))
    before = irrelevant.detach().clone()
    groups = [{"params": problem.params, "lr": 1e-3}, {"params": [irrelevant]}]
    optimizer = agd(groups, trainer, lr=1e-28)
    initial = problem.loss().item()
    for _ in range(20):
        irrelevant.grad = torch.rand_like(irrelevant)
        optimizer.step(problem.backward)
    assert problem.loss().item() < initial
    assert torch.equal(irrelevant, before)


def test_step_is_noop_when_params_have_no_grad(body):
    params = [Parameter(torch.randn(2, 3)) for _ in range(2)]
    before = [p.detach().clone() for p in params]
    for name in OPTIONS:
        optimizer = agd(params, body, **options(name))
        assert optimizer.step(lambda: torch.tensor([1.0])) == 1.0
        assert all(map(torch.equal, params, before))
        assert not any(optimizer.state.values())


def test_step_is_noop_for_zero_grads(body):
    for name in OPTIONS:
        if OPTIONS[name].get("weight_decay"):
            continue
        p = Parameter(torch.randn(5, 1))
        before = p.detach().clone()
        optimizer = agd([p], body, **options(name))
        for _ in range(3):
            p.grad = torch.zeros_like(p)
            optimizer.step()
        assert torch.equal(p, before), name


@pytest.mark.parametrize("lr", [0.0, torch.tensor(0.0)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_lr_zero_leaves_parameters_alone(body, dtype, lr):
    """Exactly, in every mode: checkpoint tools create state with zero gradients and lr = 0."""
    for name, capturable in ((name, capturable) for name in OPTIONS for capturable in (False, True)):
        if body == "gpu" and name not in ("default", "all"):
            continue  # the interpreter is slow
        p = Parameter(torch.randn(7).to(dtype))
        before = p.detach().clone()
        rounding = dtype == torch.bfloat16 and body != "differentiable"
        optimizer = agd(
            [p],
            body,
            **{**OPTIONS[name], "lr": lr},
            capturable=capturable,
            stochastic_rounding=rounding,
        )
        for grad in (torch.zeros_like(p), torch.randn_like(p)):
            p.grad = grad.detach()
            optimizer.step()
        assert torch.equal(p, before), (name, capturable)
        assert optimizer.state[p]["step"] == 2


def test_optimizer_can_be_printed(body):
    optimizer = agd([Parameter(torch.randn(2))], body, lr=torch.tensor(0.25), clip=2.0)
    text = repr(optimizer)
    assert text.startswith("AGD (\nParameter Group 0\n")
    for words in ("amsgrad: False", "clip: 2.0", "delta: 1e-08", "lr: 0.25"):
        assert words in text


def named(params, named):
    return [(f"name{i}", p) for i, p in enumerate(params)] if named else params


def without_names(state_dict):
    return [{k: v for k, v in group.items() if k != "param_names"} for group in state_dict["param_groups"]]


@pytest.mark.parametrize("is_named_optim0", [True, False])
@pytest.mark.parametrize("is_named_optim1", [True, False])
def test_state_dict_deterministic(trainer, is_named_optim0, is_named_optim1):
    for name in ("default", "tensor_lr", "all") if trainer != "gpu" else ("all",):
        problem = Problem()
        optimizer = agd(named(problem.params, is_named_optim0), trainer, **options(name))
        train(problem, optimizer, 5)
        twin = problem.copy()
        loaded = agd(named(twin.params, is_named_optim1), trainer, **options(name))
        loaded.load_state_dict(deepcopy(optimizer.state_dict()))
        for _ in range(5):
            train(problem, optimizer, 1)
            train(twin, loaded, 1)
            assert equal(optimizer, loaded)
        assert without_names(optimizer.state_dict()) == without_names(loaded.state_dict())
        # Repeated parameters have one number.
        loaded.param_groups.extend(loaded.param_groups)
        assert without_names(optimizer.state_dict())[-1] == without_names(loaded.state_dict())[-1]


# What the published AGD has.
OLD_KEYS = {"params", "lr", "betas", "delta", "weight_decay", "amsgrad"}


def test_can_load_older_state_dict(trainer):
    """Without warnings: options that did not exist then get their defaults."""
    for name in ("default", "amsgrad", "weight_decay", "tensor_lr"):
        problem = Problem()
        optimizer = agd(problem.params, trainer, **options(name))
        train(problem, optimizer, 3)
        old = deepcopy(optimizer.state_dict())
        for group in old["param_groups"]:
            for key in group.keys() - OLD_KEYS:
                del group[key]
        optimizer.load_state_dict(old)
        problem.backward()
        step_beside_reference(optimizer)
        assert set(optimizer.param_groups[0]) == set(AGD(problem.params).param_groups[0])


@pytest.mark.parametrize("is_named_optim0", [True, False])
@pytest.mark.parametrize("is_named_optim1", [True, False])
def test_can_load_from_to_named_state_dict(is_named_optim0, is_named_optim1):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(4, 2, 1, stride=2), nn.BatchNorm2d(2))
    x = torch.rand(1, 4, 16, 16)
    optimizers = []
    for is_named in (is_named_optim0, is_named_optim1):
        optimizer = AGD(model.named_parameters() if is_named else model.parameters())
        if optimizers:
            optimizer.load_state_dict(deepcopy(optimizers[0].state_dict()))
        for _ in range(3):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        optimizers.append(optimizer)
    if is_named_optim0 or is_named_optim1:
        names = optimizers[1].state_dict()["param_groups"][0]["param_names"]
        assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("is_named_optim", [True, False])
def test_save_load_equality_with_weights_only(is_named_optim):
    for name in OPTIONS:
        problem = Problem()
        optimizer = AGD(named(problem.params, is_named_optim), **options(name), state_dtype=torch.bfloat16)
        train(problem, optimizer, 3)
        saved, file = optimizer.state_dict(), io.BytesIO()
        torch.save(saved, file)
        for weights_only in (False, True):
            file.seek(0)
            loaded = torch.load(file, weights_only=weights_only)
            assert loaded["param_groups"] == saved["param_groups"]
            assert loaded["state"].keys() == saved["state"].keys()
            for i, state in saved["state"].items():
                assert all(torch.equal(x, loaded["state"][i][key]) for key, x in state.items())


def test_load_nontensor_step(trainer):
    problem = Problem()
    optimizer = agd(problem.params, trainer)
    train(problem, optimizer, 3)
    for number in (float, int):
        saved = deepcopy(optimizer.state_dict())
        for state in saved["state"].values():
            state["step"] = number(state["step"])
        optimizer.load_state_dict(saved)
        problem.backward()
        step_beside_reference(optimizer)
        for state in optimizer.state.values():
            assert isinstance(state["step"], Tensor)
            assert state["step"].dtype == torch.float32
    assert state["step"] == 5


@pytest.mark.skip(reason=NO_CUDA)
def test_state_dict_with_cuda_params(): ...


@pytest.mark.skip(reason=NO_CUDA)
def test_fused_cpu_matches_cuda(): ...


def fresh(**flags):
    return AGD([torch.rand(2, 3, requires_grad=True)], **flags)


def put_test(optimizer):
    optimizer.state["test"] = 1


def take_test(optimizer, state_dict):
    state_dict["ran_state_dict_pre_hook"] = state_dict["state"].pop("test", None) is not None
    return state_dict


def test_state_dict_pre_hook():
    optimizer = fresh()
    optimizer.register_state_dict_pre_hook(put_test)
    assert optimizer.state_dict()["state"]["test"] == 1


def test_state_dict_post_hook():
    optimizer = fresh()
    optimizer.register_state_dict_post_hook(take_test)
    assert not optimizer.state_dict()["ran_state_dict_pre_hook"]


def test_state_dict_pre_post_hook():
    optimizer = fresh()
    optimizer.register_state_dict_pre_hook(put_test)
    optimizer.register_state_dict_post_hook(take_test)
    state_dict = optimizer.state_dict()
    assert "test" not in state_dict["state"]
    assert state_dict["ran_state_dict_pre_hook"]


def lr_in_place(optimizer, state_dict):
    state_dict["param_groups"][0]["lr"] = 0.002


def lr_in_a_copy(optimizer, state_dict):
    state_dict = deepcopy(state_dict)
    state_dict["param_groups"][0]["lr"] = 0.003
    return state_dict


def note_what_ran(optimizer):
    optimizer.state["ran_load_state_dict_pre_hook2"] = optimizer.param_groups[0]["lr"] == 0.003
    optimizer.state["ran_load_state_dict_post_hook"] = True


def test_load_state_dict_pre_hook_and_prepend():
    optimizer = fresh()
    state_dict = optimizer.state_dict()
    optimizer.register_load_state_dict_pre_hook(lr_in_place)
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["lr"] == 0.002
    optimizer.register_load_state_dict_pre_hook(lr_in_a_copy, prepend=True)
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["lr"] == 0.002  # prepended, so the other one has the last word


def test_load_state_dict_post_hook():
    optimizer = fresh()
    optimizer.register_load_state_dict_post_hook(note_what_ran)
    optimizer.load_state_dict(optimizer.state_dict())
    assert not optimizer.state["ran_load_state_dict_pre_hook2"]
    assert optimizer.state["ran_load_state_dict_post_hook"]


def test_load_state_dict_pre_post_hook():
    optimizer = fresh()
    optimizer.register_load_state_dict_pre_hook(lr_in_a_copy)
    optimizer.register_load_state_dict_post_hook(note_what_ran)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state["ran_load_state_dict_pre_hook2"]
    assert optimizer.state["ran_load_state_dict_post_hook"]


def test_load_state_dict_hooks_are_left_as_they_were():
    """Loading uses a hook of its own, and takes it away: also when it refuses."""
    optimizer = fresh()
    registered = len(optimizer._optimizer_load_state_dict_pre_hooks)
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="delta"):
        optimizer.load_state_dict(torch.optim.Adam([torch.ones(2, 3)]).state_dict())
    assert len(optimizer._optimizer_load_state_dict_pre_hooks) == registered


def counting(register):
    calls = []
    optimizer = fresh()
    handle = getattr(optimizer, register)(lambda *args: calls.append(args))
    optimizer.step()
    optimizer.step(lambda: 1)
    handle.remove()
    optimizer.step()
    return calls


def test_step_pre_hook():
    assert len(counting("register_step_pre_hook")) == 2


def test_step_post_hook():
    assert len(counting("register_step_post_hook")) == 2


def test_step_pre_hook_may_change_the_gradients(trainer):
    """As gradient clipping by hook does; the step sees what the hook left."""
    p = Parameter(torch.zeros(3))
    optimizer = agd([p], trainer, lr=1.0, delta=1.0)
    p.grad = torch.full((3,), 8.0)

    def clip(*_):
        p.grad.clamp_(max=0.5)

    optimizer.register_step_pre_hook(clip)
    optimizer.step()
    assert p.tolist() == pytest.approx([-0.5] * 3)


def test_step_all_hooks():
    data = []
    params = [torch.tensor([1.0, 1.0])]
    optimizers = AGD(params), SGD(params)
    handles = [
        register_optimizer_step_pre_hook(lambda *args: data.append(0)),
        register_optimizer_step_post_hook(lambda *args: data.append(5)),
    ]
    for optimizer in optimizers:
        handles.append(optimizer.register_step_pre_hook(lambda *args: data.append(1)))
        handles.append(optimizer.register_step_post_hook(lambda *args: data.append(2)))
    for n, optimizer in enumerate((*optimizers, optimizers[0]), start=1):
        optimizer.step()
        assert data == [0, 1, 2, 5] * n
    for handle in handles:
        handle.remove()
    for optimizer in optimizers:
        optimizer.step()
    assert len(data) == 12


def test_deepcopy_copies_all_public_attrs(body):
    def public(x):
        return {key for key in vars(x) if not key.startswith("_")}

    params = [Parameter(torch.randn(2, 3)) for _ in range(2)]
    for name in OPTIONS:
        optimizer = agd(params, body, **options(name))
        for p in params:
            p.grad = torch.rand_like(p)
        optimizer.step()
        assert public(optimizer) == public(deepcopy(optimizer))


@contextmanager
def watched(grads):
    """Gradients are neither written to (their bits) nor marked as written (their versions)."""
    before = [(g.clone(), g._version) for g in grads]
    yield
    for g, (old, version) in zip(grads, before, strict=True):
        assert torch.equal(g, old)
        assert g._version == version


def test_grads_are_never_inplaced_into(body):
    for name in OPTIONS if body != "gpu" else ("default", "all"):  # the interpreter is slow
        for dtype in (torch.float32, torch.bfloat16, torch.complex64):
            params = [Parameter(torch.randn(2, 3, dtype=dtype)), Parameter(torch.randn(9, dtype=dtype))]
            optimizer = agd(params, body, **options(name))
            for _ in range(2):
                for p in params:
                    p.grad = torch.randn_like(p)
                with watched([p.grad for p in params]):
                    optimizer.step()


def test_defaults_changed_to_foreach():
    """torch patches this name to see that the foreach body is what runs; here where foreach is asked for."""
    problem = Problem()
    optimizer = AGD(problem.params, foreach=True)
    problem.backward()
    module = inspect.getmodule(AGD)
    with patch.object(module, "_multi_tensor_agd") as mocked:
        optimizer.step()
    assert mocked.called


def test_non_empty_state(body):
    problem = Problem()
    optimizer = agd(problem.params, body)
    for p in problem.params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert len(optimizer.state) == 2
    for p, state in optimizer.state.items():
        assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
        assert all(isinstance(x, Tensor) for x in state.values())
        assert state["step"].shape == ()
        assert state["exp_avg"].shape == state["exp_avg_sq"].shape == p.shape
        assert not any(x.requires_grad for x in state.values())


def test_empty_grad(trainer):
    """An embedding of which no row was asked for."""
    embedding = nn.Embedding(5, 1, padding_idx=0)
    before = embedding.weight.detach().clone()
    optimizer = agd(embedding.parameters(), trainer)
    embedding(torch.tensor([], dtype=torch.long)).sum().backward()
    optimizer.step()
    assert torch.equal(embedding.weight, before)


def test_versions_tell_that_parameters_were_written(trainer):
    """Backward through a graph older than the step must say so, not return wrong gradients."""
    p = Parameter(torch.ones(3))
    optimizer = agd([p], trainer)
    loss = (p**2).sum()
    p.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# differentiable=True: torch's TestDifferentiableOptimizer.
DIFFERENTIABLE = [name for name in OPTIONS if name not in ("tensor_lr",)]


def step_of(p, grad, *averages, t, **flags):
    """Everything after a step as a function of everything before it."""
    p = p.clone()
    p.grad = grad
    optimizer = AGD([p], differentiable=True, **flags)
    if averages:
        m, b = (x.clone() for x in averages)
        optimizer.state[p] = {"step": torch.tensor(float(t)), "exp_avg": m, "exp_avg_sq": b}
    optimizer.step()
    return p, optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"]


def leaves(n=6):
    """p, gradient, and averages away from the kinks of max and clip."""
    generator = torch.Generator().manual_seed(4)
    p, grad, m, b = (torch.randn(n, dtype=torch.float64, generator=generator) for _ in range(4))
    return [x.requires_grad_() for x in (p, grad, m, b.abs() + 0.1)]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("capturable", [False, True])
def test_differentiable_agd(name, capturable):
    flags = {**options(name), "capturable": capturable}
    assert torch.autograd.gradcheck(partial(step_of, t=9, **flags), leaves(), **GRADCHECK)
    assert torch.autograd.gradcheck(partial(step_of, t=0, **flags), leaves()[:2], **GRADCHECK)


@pytest.mark.parametrize(
    "name", ["default", "weight_decay", "coupled", "standardize", "clip", "amsgrad", "maximize"]
)
def test_second_order(name):
    """The loss after three steps as a function of the start and the learning rate: a meta-gradient."""

    def last_loss(w, lr):
        w = w.clone()
        optimizer = AGD([w], differentiable=True, **{**options(name), "lr": lr, "delta": 1e-2})
        for _ in range(3):
            now = w.clone()  # the step writes into w, and backward needs what w was
            loss = (now**4 + 3 * now.sin()).sum()
            (w.grad,) = torch.autograd.grad(loss, now, create_graph=True)
            optimizer.step()
        return (w**2).sum()

    w = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    lr = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(last_loss, (w, lr), **GRADCHECK)


def test_differentiable_has_finite_slopes_at_zero_gradients():
    """sqrt's slope at b = 0 is infinite; the floor decides there."""
    p, grad = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    sum(x.sum() for x in step_of(p, grad, t=0, delta=0.1)).backward()
    assert grad.grad.isfinite().all()
    assert p.grad.isfinite().all()


def test_closure_runs_with_gradients_and_its_loss_comes_back(body):
    """As Lightning does; also inside no_grad."""
    p = Parameter(torch.ones(3))
    optimizer = agd([p], body)

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = (p.detach().requires_grad_() ** 2).sum()
        p.grad = torch.ones(3)
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
    assert loss.requires_grad
    assert loss == 3
    assert optimizer.step() is None
    assert optimizer.state[p]["step"] == 2


def test_no_warnings_and_no_globals():
    """An ordinary run warns of nothing and leaves torch's settings alone."""
    settings = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.get_rng_state(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for body in BODIES.keys() - {"gpu"}:
            p = Parameter(torch.ones(3))
            optimizer = agd([p], body)
            p.grad = torch.ones(3)
            optimizer.step()
    after = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state()
    assert settings[:3] == after[:3]
    assert torch.equal(settings[3], after[3])
