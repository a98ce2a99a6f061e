"""FSDP2 and torch.distributed.checkpoint on one rank, in a process of its own: the same run as without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

COMMON = """
import copy, sys, traceback, torch, torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from agdopt import AGD
from tests.cases import BODIES

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def train(m, optimizer, first, last):
    for t in range(first, last):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(t))
        optimizer.zero_grad()
        m(x).pow(2).mean().backward()
        optimizer.step()

def whole(x):
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach()

def same(m, other, *optimizers):
    for p, q in zip(m.parameters(), other.parameters(), strict=True):
        assert torch.equal(whole(p), whole(q))
        if optimizers:
            states = [opt.state[x] for opt, x in zip(optimizers, (p, q))]
            for key in ("step", "exp_avg", "exp_avg_sq"):
                assert torch.equal(*(whole(state[key]) for state in states)), key
"""

FSDP = """
for body in ("loop", "foreach", "cpu"):
    for options in ({}, {"amsgrad": True, "weight_decay": 0.1, "clip": 0.5}, {"state_dtype": torch.bfloat16}):
        plain, sharded = model(), model()
        fully_shard(sharded, mesh=mesh)
        one = AGD(plain.parameters(), lr=0.01, **BODIES[body], **options)
        other = AGD(sharded.parameters(), lr=0.01, **BODIES[body], **options)
        assert all(isinstance(p, DTensor) for p in sharded.parameters())
        train(plain, one, 0, 5)
        train(sharded, other, 0, 5)
        same(plain, sharded, one, other)
        for p in sharded.parameters():
            assert isinstance(other.state[p]["exp_avg"], DTensor)
            assert other.state[p]["exp_avg"].placements == p.placements
        assert set(other.executor) == {body}, other.executor
"""

CHECKPOINT = """
# The documented way: state_dict functions that first make state by a step with lr = 0 and zero gradients.
for shard in (False, True):
    for options in ({}, {"weight_decay": 0.1}, {"lr": torch.tensor(0.02)}, {"state_dtype": torch.bfloat16}):
        runs = []
        for _ in range(2):
            m = model()
            if shard:
                fully_shard(m, mesh=mesh)
            runs.append((m, AGD(m.parameters(), **{"lr": 0.01, **options})))
        (m, one), (n, two) = runs
        train(m, one, 0, 5)
        n.load_state_dict(m.state_dict())
        before = [whole(p).clone() for p in n.parameters()]
        saved = get_optimizer_state_dict(m, one)
        names = {name for name, _ in m.named_parameters()}
        assert set(saved["state"]) == names
        for state in saved["state"].values():
            assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
        set_optimizer_state_dict(n, two, copy.deepcopy(saved))
        assert all(torch.equal(whole(p), q) for p, q in zip(n.parameters(), before))
        same(m, n, one, two)
        train(m, one, 5, 10)
        train(n, two, 5, 10)
        same(m, n, one, two)
"""

FRESH = """
# Asking for the state of an optimizer that has not stepped makes state, and moves nothing.
m = model()
optimizer = AGD(m.parameters(), weight_decay=0.1)
before = [p.detach().clone() for p in m.parameters()]
state = get_optimizer_state_dict(m, optimizer)
assert all(torch.equal(p, q) for p, q in zip(m.parameters(), before))
assert set(state["state"]) == {name for name, _ in m.named_parameters()}
"""

MIXED = """
# DTensors and plain tensors in one list; an odd size; and a shard without elements.
torch.manual_seed(0)
values = [torch.randn(6, 3), torch.randn(5), torch.randn(0, 4), torch.randn(())]
for body in ("loop", "foreach", "cpu"):
    plain = [nn.Parameter(v.clone()) for v in values]
    mixed = [nn.Parameter(distribute_tensor(v.clone(), mesh, [Shard(0)]) if v.dim() and i != 1 else v.clone())
             for i, v in enumerate(values)]
    optimizers = [AGD(params, lr=0.01, **BODIES[body]) for params in (plain, mixed)]
    for t in range(4):
        for p, q in zip(plain, mixed):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(t))
            q.grad = distribute_tensor(p.grad, mesh, [Shard(0)]) if isinstance(q, DTensor) else p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(plain, mixed):
        assert torch.equal(p, whole(q))
"""

SWITCH = """
# Each process reports its own shards: here the only one, so all.
from agdopt import switch_report
plain, sharded = model(), model()
fully_shard(sharded, mesh=mesh)
one, other = AGD(plain.named_parameters(), delta=1e-2), AGD(sharded.named_parameters(), delta=1e-2)
train(plain, one, 0, 5)
train(sharded, other, 0, 5)
report = switch_report(one)
assert report.rows == switch_report(other).rows and len(report.rows) == 4
assert 0 < report.overall.adaptive < 1, report.overall
"""

MIXED_PRECISION = """
from torch.distributed.fsdp import MixedPrecisionPolicy
m = model()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
fully_shard(m, mesh=mesh, mp_policy=policy)
optimizer = AGD(m.parameters(), lr=0.01)
x = torch.randn(16, 4)
losses = []
for _ in range(20):
    optimizer.zero_grad()
    loss = m(x).float().pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0]
assert all(optimizer.state[p]["exp_avg"].dtype == torch.float32 for p in m.parameters())
"""

CHANGE_OVER = """
from agdopt.torch import from_adamw, from_sgd
for make, convert in (
    (lambda params: torch.optim.AdamW(params, lr=0.01), from_adamw),
    (lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9), lambda old: from_sgd(old, delta=0.01)),
):
    plain, sharded = model(), model()
    fully_shard(sharded, mesh=mesh)
    optimizers = [make(m.parameters()) for m in (plain, sharded)]
    for first in (0, 5):
        for m, optimizer in zip((plain, sharded), optimizers):
            train(m, optimizer, first, first + 5)
        if first == 0:
            optimizers = list(map(convert, optimizers))
    same(plain, sharded, *optimizers)
    assert all(isinstance(optimizers[1].state[p]["exp_avg_sq"], DTensor) for p in sharded.parameters())
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_one_rank_is_the_plain_run():
    parts = {
        "FSDP": FSDP,
        "CHECKPOINT": CHECKPOINT,
        "FRESH": FRESH,
        "MIXED": MIXED,
        "SWITCH": SWITCH,
        "MIXED_PRECISION": MIXED_PRECISION,
        "CHANGE_OVER": CHANGE_OVER,
    }
    code = COMMON + "\nfailed = []\n"
    for name, part in parts.items():
        body = "\n".join("    " + line for line in part.splitlines())
        code += f"try:\n{body}\nexcept Exception:\n    failed.append({name!r}); traceback.print_exc()\n"
    code += "dist.destroy_process_group()\nsys.exit(f'failed: {failed}' if failed else 0)\n"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
