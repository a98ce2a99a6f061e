"""What is refused: in a sentence with value, bound and remedy, before anything is changed."""

import math
import warnings

import pytest
import torch
from tests.twin import agd, random_gradients, step_beside_reference
from torch import nn
from torch.nn import Parameter

from agdopt import AGD

INF, NAN = math.inf, math.nan
BETA = ["[0, 1)", "share"]
DELTA = ["1e-30", "divide by zero", "1e-12"]
LR = ["lr", ">= 0", "maximize=True"]

# options, error, what the sentence says
BAD = [
    ({"lr": -0.1}, ValueError, [*LR, "-0.1"]),
    ({"lr": NAN}, ValueError, [*LR, "nan"]),
    ({"lr": INF}, ValueError, [*LR, "inf"]),
    ({"lr": "1e-3"}, (ValueError, TypeError), ["lr", "1e-3"]),
    ({"lr": None}, (ValueError, TypeError), ["lr", "None"]),
    ({"lr": torch.tensor([1e-3, 1e-3])}, ValueError, ["Tensor lr must be 1-element", "(2,)"]),
    ({"lr": torch.tensor(-1.0)}, ValueError, [*LR, "-1"]),
    ({"betas": (1.0, 0.999)}, ValueError, ["beta1", "1.0", *BETA]),
    ({"betas": (0.9, 1.0)}, ValueError, ["beta2", "1.0", *BETA]),
    ({"betas": (-0.1, 0.999)}, ValueError, ["beta1", "-0.1", *BETA]),
    ({"betas": (0.9, NAN)}, ValueError, ["beta2", "nan", *BETA]),
    ({"betas": (0.9,)}, ValueError, ["betas", "two numbers", "(0.9,)"]),
    ({"betas": (0.9, 0.99, 0.999)}, ValueError, ["betas", "two numbers", "0.999"]),
    ({"betas": 0.9}, (ValueError, TypeError), ["betas", "0.9"]),
    ({"betas": ("0.9", "0.999")}, (ValueError, TypeError), ["beta", "0.9"]),
    ({"delta": 0.0}, ValueError, ["delta", "0.0", *DELTA]),
    ({"delta": -1e-8}, ValueError, ["delta", "-1e-08", *DELTA]),
    ({"delta": NAN}, ValueError, ["delta", "nan", *DELTA]),
    ({"delta": INF}, ValueError, ["delta", "inf", *DELTA]),
    ({"delta": 1e-46}, ValueError, ["delta", "1e-46", *DELTA]),
    ({"delta": "1e-8"}, (ValueError, TypeError), ["delta", "1e-8"]),
    ({"weight_decay": -0.1}, ValueError, ["weight_decay", ">= 0", "-0.1"]),
    ({"weight_decay": NAN}, ValueError, ["weight_decay", ">= 0", "nan"]),
    ({"weight_decay": INF}, ValueError, ["weight_decay", ">= 0", "inf"]),
    ({"weight_decay": "0.1"}, (ValueError, TypeError), ["weight_decay", "0.1"]),
    ({"clip": 0.0}, ValueError, ["clip", "> 0", "0.0", "None"]),
    ({"clip": -1.0}, ValueError, ["clip", "> 0", "-1.0", "None"]),
    ({"clip": NAN}, ValueError, ["clip", "> 0", "nan", "None"]),
    ({"clip": "1"}, (ValueError, TypeError), ["clip", "1"]),
    ({"state_dtype": torch.float16}, ValueError, ["state_dtype", "torch.float16", "torch.bfloat16"]),
    ({"state_dtype": torch.int8}, ValueError, ["state_dtype", "torch.int8", "torch.float32"]),
    ({"state_dtype": "bfloat16"}, ValueError, ["state_dtype", "bfloat16", "torch.float32"]),
    ({"seed": 1.5}, ValueError, ["seed", "1.5", "integer"]),
    ({"fused": True, "foreach": True}, RuntimeError, ["fused", "foreach"]),
    ({"fused": True, "differentiable": True}, RuntimeError, ["differentiable", "fused"]),
    ({"foreach": True, "differentiable": True}, RuntimeError, ["differentiable", "foreach"]),
]


@pytest.mark.parametrize(
    ("options", "error", "words"), BAD, ids=lambda x: str(x) if isinstance(x, dict) else ""
)
@pytest.mark.parametrize("where", ["constructor", "probe", "group", "added"])
def test_errors(where, options, error, words):
    """As an argument (before `params` is looked at: callers probe with None), in a group, added later."""
    p, q = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    optimizer = AGD([p])
    groups = list(optimizer.param_groups)
    with pytest.raises(error) as refusal:
        {
            "constructor": lambda: AGD([q], **options),
            "probe": lambda: AGD(None, **options),
            "group": lambda: AGD([{"params": [q], **options}]),
            "added": lambda: optimizer.add_param_group({"params": [q], **options}),
        }[where]()
    for word in words:
        assert word in str(refusal.value)
    assert optimizer.param_groups == groups


def duplicates(params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of it; here it is an error
        return AGD(params)


P, Q = Parameter(torch.ones(2)), Parameter(torch.ones(2))
BAD_PARAMS = {
    "none": (lambda: AGD(None), TypeError, ["iterable"]),
    "a tensor": (lambda: AGD(P), TypeError, ["params argument given to the optimizer should be an iterable"]),
    "no params": (lambda: AGD([]), ValueError, ["empty parameter list"]),
    "numbers": (lambda: AGD([1.0]), TypeError, ["can only optimize Tensors", "float"]),
    "a model": (lambda: AGD(nn.Linear(2, 2)), TypeError, []),
    "not a leaf": (lambda: AGD([P * 2]), ValueError, ["non-leaf"]),
    "twice in a group": (lambda: duplicates([P, P]), ValueError, ["twice", "each once"]),
    "in two groups": (
        lambda: AGD([{"params": P}, {"params": P}]),
        ValueError,
        ["more than one parameter group"],
    ),
    "half named": (lambda: AGD([("p", P), Q]), ValueError, ["names"]),
    "bfloat16 averages of float64": (
        lambda: AGD([P, Parameter(torch.ones(2).double())], state_dtype=torch.bfloat16),
        ValueError,
        ["state_dtype=torch.bfloat16", "torch.float64", "None"],
    ),
    "bfloat16 averages of complex": (
        lambda: AGD([Parameter(torch.ones(2).to(torch.complex64))], state_dtype=torch.bfloat16),
        ValueError,
        ["state_dtype=torch.bfloat16", "torch.complex64", "None"],
    ),
    "stochastic rounding of float32": (
        lambda: AGD([P], stochastic_rounding=True),
        ValueError,
        ["stochastic_rounding=True", "bfloat16"],
    ),
    "differentiable stochastic rounding": (
        lambda: AGD([Parameter(torch.ones(2).bfloat16())], stochastic_rounding=True, differentiable=True),
        (ValueError, RuntimeError),
        ["stochastic_rounding", "differentiable"],
    ),
    "differentiable bfloat16 averages": (
        lambda: AGD([P], state_dtype=torch.bfloat16, differentiable=True),
        (ValueError, RuntimeError),
        ["state_dtype", "differentiable"],
    ),
    "fused float16 on the CPU": (
        lambda: AGD([P, Parameter(torch.ones(2).half())], fused=True),
        RuntimeError,
        ["fused=True", "float16", "cpu", "fused=None"],
    ),
    "fused complex": (
        lambda: AGD([Parameter(torch.ones(2).to(torch.complex64))], fused=True),
        RuntimeError,
        ["fused=True", "torch.complex64", "fused=None"],
    ),
    "fused integers": (
        lambda: AGD([torch.ones(2, dtype=torch.int64)], fused=True),
        RuntimeError,
        ["fused=True", "torch.int64", "fused=None"],
    ),
    "fused on meta": (
        lambda: AGD([Parameter(torch.ones(2, device="meta"))], fused=True),
        RuntimeError,
        ["fused=True", "meta", "fused=None"],
    ),
    "fused with gaps": (
        lambda: AGD([Parameter(torch.ones(4, 2)[:, 0])], fused=True),
        RuntimeError,
        ["fused=True", "not dense", "fused=None"],
    ),
}


@pytest.mark.parametrize("name", BAD_PARAMS)
def test_bad_params(name):
    make, error, words = BAD_PARAMS[name]
    with pytest.raises(error) as refusal:
        make()
    for word in words:
        assert word in str(refusal.value)


def test_a_refused_group_leaves_no_trace():
    """The optimizer goes on as before; the parameter may be added properly afterwards."""
    p, q = Parameter(torch.ones(2)), Parameter(torch.ones(2).half())
    optimizer = AGD([p], fused=True)
    random_gradients([p, q], seed=0)
    optimizer.step()
    with pytest.raises(RuntimeError, match="fused=True"):
        optimizer.add_param_group({"params": [q]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [q], "fused": False})
    step_beside_reference(optimizer)


def test_sparse_gradients(body):
    """Refused by name of what takes them, before the dense ones have stepped; also in a later step."""
    dense, other, sparse = Parameter(torch.ones(3)), Parameter(torch.ones(3)), Parameter(torch.ones(4, 2))
    optimizer = agd([{"params": [dense]}, {"params": [other, sparse]}], body)
    for steps_before in (0, 1):
        dense.grad, other.grad, sparse.grad = torch.ones(3), torch.ones(3), torch.eye(4, 2).to_sparse()
        before = [p.detach().clone() for p in (dense, other, sparse)]
        with pytest.raises(RuntimeError, match=r"sparse gradients: .*sparse=False.*SparseAdam"):
            optimizer.step()
        assert all(map(torch.equal, (dense, other, sparse), before))
        for p in (dense, other, sparse):
            assert float(optimizer.state[p].get("step", 0)) == steps_before
        sparse.grad = torch.ones(4, 2)
        step_beside_reference(optimizer)


def test_an_embedding_says_it_too(trainer):
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = agd(embedding.parameters(), trainer)
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


EDITS = [
    ("delta", 0.0, ["delta", "0.0"]),
    ("betas", (1.0, 0.9), ["beta1", "1.0"]),
    ("clip", -1.0, ["clip", "-1.0"]),
]


@pytest.mark.parametrize(("key", "value", "words"), EDITS)
def test_a_group_edited_badly_stops_the_step(body, key, value, words):
    """In the second group: the first must not have stepped."""
    p, q = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    optimizer = agd([{"params": [p]}, {"params": [q]}], body)
    random_gradients([p, q], seed=0)
    optimizer.step()
    before = [p.detach().clone(), q.detach().clone()]
    optimizer.param_groups[1][key] = value
    with pytest.raises(ValueError, match=key.rstrip("s")) as refusal:
        optimizer.step()
    for word in words:
        assert word in str(refusal.value)
    assert torch.equal(p, before[0])
    assert torch.equal(q, before[1])
    assert [int(optimizer.state[x]["step"]) for x in (p, q)] == [1, 1]


MISFITS = {
    "average of another shape": lambda p, state: state.update(exp_avg=torch.zeros(3)),
    "square of another shape": lambda p, state: state.update(exp_avg_sq=torch.zeros(1)),
    "parameter of another shape": lambda p, state: setattr(p, "data", torch.ones(5)),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_tensors_that_do_not_fit_are_refused(body, misfit):
    """Told before anything is written: the fused bodies work on bare addresses."""
    p, q = Parameter(torch.ones(4)), Parameter(torch.ones(4))
    optimizer = agd([{"params": [q]}, {"params": [p]}], body)
    random_gradients([p, q], seed=0)
    optimizer.step()
    if misfit == "parameter of another shape":
        p.grad = None
    MISFITS[misfit](p, optimizer.state[p])
    if p.grad is None:
        p.grad = torch.ones_like(p)
    before = q.detach().clone()
    with pytest.raises((RuntimeError, ValueError), match=r"\(4,\)"):
        optimizer.step()
    assert torch.equal(q, before)
    assert optimizer.state[q]["step"] == 1
