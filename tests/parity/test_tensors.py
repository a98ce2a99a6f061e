"""Which tensors: layouts, dtypes side by side, late gradients, tied and moved ones. All against the rule."""

import pytest
import torch
from tests.twin import agd, random_gradients, step_beside_reference
from torch import Tensor
from torch.nn import Parameter


def steps(params, body, n=3, **options):
    optimizer = agd(params, body, lr=0.05, **options)
    for t in range(n):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer, truncates=body == "gpu")
    return optimizer


LAYOUTS = {
    "non_contiguous": lambda: torch.randn(10, 5, 2)[..., 0],
    "transposed": lambda: torch.randn(5, 7).t(),
    "permuted": lambda: torch.randn(4, 5, 6).permute(2, 0, 1),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.randn(2, 3, 2, 4, 5).contiguous(memory_format=torch.channels_last_3d),
    "offset": lambda: torch.randn(40)[3:],  # an address that is no multiple of 16 bytes
    "sliced_rows": lambda: torch.randn(8, 6)[::2],
    "column": lambda: torch.randn(8, 1).expand(8, 1)[:, :1],
    "no_elements": lambda: torch.randn(3, 0, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_the_parameter(body, layout):
    """Alone and beside an ordinary parameter; gradients laid out likewise, and contiguous."""
    for contiguous in (False, True):
        p, q = Parameter(LAYOUTS[layout]()), Parameter(torch.randn(6))
        optimizer = agd([p, q], body, lr=0.05)
        for t in range(3):
            random_gradients([p, q], seed=t)
            if contiguous:
                p.grad = p.grad.contiguous()
            step_beside_reference(optimizer)


GRADIENTS = {
    "expanded": lambda p: torch.randn(()).expand_as(p),
    "expanded_rows": lambda p: torch.randn(p.shape[-1:]).expand_as(p),
    "transposed": lambda p: torch.randn(p.shape[::-1]).permute(tuple(reversed(range(p.dim())))),
    "strided": lambda p: torch.randn(*p.shape, 2)[..., 1],
    "channels_last": lambda p: torch.randn(p.shape).contiguous(memory_format=torch.channels_last),
    "conjugated_view": lambda p: torch.randn(p.shape, dtype=torch.complex64).conj().imag,  # negative bit
}


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_layout_of_the_gradient(body, gradient):
    """It need not lie as the parameter does, and may change from step to step."""
    p = Parameter(torch.randn(2, 3, 4, 5))
    optimizer = agd([p], body, lr=0.05)
    for make in (GRADIENTS[gradient], torch.randn_like, GRADIENTS[gradient]):
        p.grad = make(p.detach())
        step_beside_reference(optimizer)


def test_gradient_in_another_dtype(body):
    """`grad_dtype` lets a bfloat16 parameter have a float32 gradient: taken as it is, or refused in words."""
    p = Parameter(torch.randn(7).bfloat16())
    if not hasattr(p, "grad_dtype"):
        pytest.skip("this PyTorch ties a gradient's dtype to its parameter's")
    p.grad_dtype = torch.float32
    before, optimizer = p.detach().clone(), agd([p], body, lr=0.05)
    for _ in range(3):
        p.grad = torch.randn(7)
        try:
            step_beside_reference(optimizer, truncates=body == "gpu")
        except RuntimeError as error:
            assert "torch.bfloat16 (7,)" in str(error)  # noqa: PT017
            assert "torch.float32 (7,)" in str(error)  # noqa: PT017
            assert torch.equal(p, before)


def test_mixed_device_dtype(body):
    """All dtypes in one list. (One kind of device is here; buckets are by device as they are by dtype.)"""
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
    params = [Parameter(torch.randn(2, 3).to(dtype)) for dtype in dtypes * 2]
    optimizer = steps(params, body, weight_decay=0.1)
    for p in params:
        wide = {
            torch.float64: torch.float64,
            torch.complex128: torch.complex128,
            torch.complex64: torch.complex64,
        }
        assert optimizer.state[p]["exp_avg"].dtype == wide.get(p.dtype, torch.float32)


def test_mixed_groups(body):
    params = [Parameter(torch.randn(5)) for _ in range(3)]
    groups = [
        {"params": params[:1], "lr": 0.1, "delta": 0.3},
        {"params": params[1:2], "betas": (0.5, 0.9), "amsgrad": True},
        {"params": params[2:], "weight_decay": 0.3, "decoupled_weight_decay": False, "standardize": True},
    ]
    optimizer = agd(groups, body, lr=0.05)
    for t in range(4):
        random_gradients(params, seed=t)
        step_beside_reference(optimizer)


def test_late_gradients_count_their_own_steps(body):
    """The counter is the parameter's, so a late one starts like any other."""
    params = [Parameter(torch.randn(4)) for _ in range(4)]
    optimizer = agd(params, body, lr=0.05)
    present = ["ab", "ab", "abc", "c", "", "abcd", "bd"]
    for t, names in enumerate(present):
        random_gradients(params, seed=t)
        for p, name in zip(params, "abcd", strict=True):
            if name not in names:
                p.grad = None
        untouched = {p: p.detach().clone() for p in params if p.grad is None}
        step_beside_reference(optimizer)
        assert all(torch.equal(p, old) for p, old in untouched.items())
    assert [int(optimizer.state[p]["step"]) for p in params] == [4, 5, 3, 2]


@pytest.mark.parametrize(
    "key", ["lr", "betas", "delta", "weight_decay", "amsgrad", "maximize", "standardize", "clip"]
)
def test_options_are_read_at_each_step(body, key):
    other = {"lr": 0.2, "betas": (0.5, 0.9), "delta": 0.4, "weight_decay": 0.2, "clip": 0.3}
    p = Parameter(torch.randn(6))
    optimizer = steps([p], body)
    optimizer.param_groups[0][key] = other.get(key, True)
    for t in range(2):
        random_gradients([p], seed=t)
        step_beside_reference(optimizer)


@pytest.mark.parametrize("key", ["foreach", "state_dtype", "capturable"])
def test_flags_are_read_at_each_step(key):
    other = {"foreach": False, "state_dtype": torch.bfloat16, "capturable": True}
    p = Parameter(torch.randn(6))
    optimizer = steps([p], "foreach")
    optimizer.param_groups[0][key] = other[key]
    if key == "state_dtype":
        optimizer.step()  # casts what is there, once; from then on only the new values are rounded
    random_gradients([p], seed=1)
    step_beside_reference(optimizer)


def test_tied_parameter_steps_once(body):
    """One tensor under two names is one parameter."""
    model = torch.nn.Module()
    model.embedding, model.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    model.head.weight = model.embedding.weight
    optimizer = steps(list(model.parameters()), body)
    assert len(optimizer.state) == 1
    assert optimizer.state[model.head.weight]["step"] == 3


@pytest.mark.parametrize("to", [torch.float64, torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_model_is_cast_between_steps(body, dtype, to):
    """model.to(dtype) keeps the parameter and changes its data; the averages go on from where they were."""
    params = [Parameter(torch.randn(6).to(dtype)), Parameter(torch.randn(2, 2).to(dtype))]
    optimizer = steps(params, body)
    old = {p: optimizer.state[p]["exp_avg"].clone() for p in params}
    for p in params:
        p.grad = None
        p.data = p.data.to(to)
    for t in range(3):
        random_gradients(params, seed=10 + t)
        step_beside_reference(optimizer, truncates=body == "gpu")
    for p in params:
        assert not torch.equal(optimizer.state[p]["exp_avg"].double(), old[p].double())


def moved_p(p: Parameter, state: dict[str, Tensor]) -> list[Tensor]:
    old = p.data
    p.data = p.data.clone()
    return [old]


def moved_states(*keys: str):
    def move(p: Parameter, state: dict[str, Tensor]) -> list[Tensor]:
        old = [state[key].data for key in keys]
        for key in keys:
            state[key].data = state[key].data.clone()
        return old

    return move


def replaced_states(*keys: str):
    def replace(p: Parameter, state: dict[str, Tensor]) -> list[Tensor]:
        old = [state[key] for key in keys]
        state.update({key: state[key].clone() for key in keys})
        return old

    return replace


MOVES = {
    "p.data": moved_p,
    "averages.data": moved_states("exp_avg", "exp_avg_sq"),
    "all.data": moved_states("exp_avg", "exp_avg_sq", "step"),
    "exp_avg.data": moved_states("exp_avg"),
    "exp_avg_sq.data": moved_states("exp_avg_sq"),
    "step.data": moved_states("step"),
    "exp_avg": replaced_states("exp_avg"),
    "exp_avg_sq": replaced_states("exp_avg_sq"),
    "step": replaced_states("step"),
    "all": replaced_states("exp_avg", "exp_avg_sq", "step"),
}


@pytest.mark.parametrize("old_lives", [False, True])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("which", [0, 1])
def test_moved_tensors_are_followed(body, which, move, old_lives):
    """The new tensor is stepped; the memory of the old one, if somebody still holds it, is left alone."""
    params = [Parameter(torch.randn(6)), Parameter(torch.randn(2, 2))]
    optimizer = steps(params, body)
    old = MOVES[move](params[which], optimizer.state[params[which]])
    was = [x.clone() for x in old]
    if not old_lives:
        old, was = [], []
    for t in range(2):
        random_gradients(params, seed=10 + t)
        step_beside_reference(optimizer)
    assert all(map(torch.equal, old, was))


def test_written_steps_are_followed(body):
    """In place, between steps: to one number for all, to several, and for one parameter alone."""
    params = [Parameter(torch.randn(6)), Parameter(torch.randn(2, 2)), Parameter(torch.empty(0))]
    optimizer = steps(params, body)
    for written in ((40.0,) * 3, (7.0, 2.0, 2.0), (3.0, None, None), (9.0,) * 3):
        for p, t in zip(params, written, strict=True):
            if t is not None:
                optimizer.state[p]["step"].fill_(t)
        for seed in range(3):
            random_gradients(params, seed=seed)
            step_beside_reference(optimizer)
    assert [float(optimizer.state[p]["step"]) for p in params] == [12.0] * 3


def test_state_is_cleared(body):
    params = [Parameter(torch.randn(6)), Parameter(torch.randn(2, 2))]
    optimizer = steps(params, body)
    optimizer.state.clear()
    step_beside_reference(optimizer)
    assert all(optimizer.state[p]["step"] == 1 for p in params)
    del optimizer.state[params[1]]
    step_beside_reference(optimizer)
    assert [int(optimizer.state[p]["step"]) for p in params] == [2, 1]
    state = dict(optimizer.state[params[0]])
    optimizer.state[params[0]] = {key: x.clone() for key, x in state.items()}
    step_beside_reference(optimizer)
    assert state["step"] == 2


def test_parameters_come_and_go(body):
    """Groups may grow, shrink and swap members between steps."""
    params = [Parameter(torch.randn(4)) for _ in range(4)]
    optimizer = steps(params[:2], body)
    random_gradients(params, seed=7)
    optimizer.add_param_group({"params": params[2:3], "lr": 0.5})
    if body == "differentiable":
        for p in params:
            p.requires_grad_(False)
    step_beside_reference(optimizer)
    optimizer.param_groups[0]["params"][1] = params[3]
    step_beside_reference(optimizer)
    del optimizer.param_groups[0]["params"][0]
    step_beside_reference(optimizer)
    del optimizer.param_groups[0]
    step_beside_reference(optimizer)
    assert [int(optimizer.state[p]["step"]) for p in params] == [5, 4, 4, 2]


def test_first_gradient_of_an_unchanging_list_may_vanish(body):
    """Gradients that go away and come back between steps, in lists that stay the same."""
    params = [Parameter(torch.randn(4)) for _ in range(3)]
    optimizer = steps(params, body)
    for absent in (0, 2, 1):
        random_gradients(params, seed=absent)
        params[absent].grad = None
        step_beside_reference(optimizer)
    for p in params:
        p.grad = None
    before = [p.detach().clone() for p in params]
    optimizer.step()
    assert all(map(torch.equal, params, before))
