"""What a real GPU computes, each check a function that tells what it saw or fails."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from agdopt import AGD
from agdopt.race import parity
from agdopt.torch import SwitchMonitor, switch_report

DEVICE = "cuda"


def _model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(37, 64), nn.Tanh(), nn.Linear(64, 5)).to(DEVICE)


def _batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator(DEVICE).manual_seed(seed)
    x = torch.randn(32, 37, device=DEVICE, generator=rng)
    return x, torch.randint(5, (32,), device=DEVICE, generator=rng)


def _loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def _backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _train(model: nn.Module, optimizer: AGD, batch: Any) -> None:
    optimizer.zero_grad(set_to_none=True)
    _backward(_loss(model, batch))
    optimizer.step()


def _captured(step: Callable[[], None], optimizer: AGD) -> torch.cuda.CUDAGraph:
    """The step as a CUDA graph, after two steps on a stream of their own."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    return graph


def _difference(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((x - y).detach().abs().max()) for x, y in pairs)


def bodies() -> str:
    """Every dtype and option against the float64 reference."""
    found = parity.gate(DEVICE)
    assert not found.failures, "\n".join(found.failures)
    return f"{found.compared} comparisons, " + ", ".join(f"{k} {v:.1e}" for k, v in found.worst.items())


def graphs() -> str:
    """A replayed CUDA graph of forward, backward and step counts on, and follows a changed lr."""
    eager, captured = _model(), _model()
    a = AGD(eager.parameters(), lr=1e-2, weight_decay=0.1)
    lr = torch.tensor(1e-2, device=DEVICE)
    b = AGD(captured.parameters(), lr=lr, weight_decay=0.1, capturable=True)
    static = [x.clone() for x in _batch(0)]

    graph = _captured(lambda: _train(captured, b, static), b)
    for _ in range(2):
        _train(eager, a, static)
    for t in range(1, 40):
        rate = 1e-2 * 0.9**t
        for group in a.param_groups:
            group["lr"] = rate
        lr.fill_(rate)
        batch = _batch(t)
        for target, source in zip(static, batch, strict=True):
            target.copy_(source)
        graph.replay()
        _train(eager, a, batch)
    steps = {float(state["step"]) for state in b.state.values()}
    worst = _difference(eager, captured)
    assert steps == {41.0}, steps
    assert worst < 1e-5, worst
    return f"39 replays, difference {worst:.1e}"


def many_graphs() -> str:
    """A graph for each shape of the batch, more than there are address tables, all replayed in turn."""
    eager, captured = _model(), _model()
    a, b = AGD(eager.parameters(), lr=1e-2), AGD(captured.parameters(), lr=1e-2, capturable=True)
    graphs = []
    for t in range(20):
        batch, graph = _batch(t), torch.cuda.CUDAGraph()
        _train(eager, a, batch)
        _train(captured, b, batch)
        b.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            _backward(_loss(captured, batch))
            b.step()
        graphs.append((batch, graph))
    for batch, graph in graphs:
        graph.replay()
        _train(eager, a, batch)
    worst = _difference(eager, captured)
    assert worst < 1e-5, worst
    return f"{len(graphs)} graphs, difference {worst:.1e}"


def switch() -> str:
    """Of a step that is one graph, a report counts what a CPU counts, and a monitor waits for nothing."""
    model, lines = _model(), list[dict[str, float]]()
    optimizer = AGD(model.parameters(), lr=torch.tensor(1e-2, device=DEVICE), delta=1e-3, capturable=True)
    batch = _batch(0)

    graph = _captured(lambda: _train(model, optimizer, batch), optimizer)
    switch_report(optimizer)  # a first time, with all that is made once
    with SwitchMonitor(optimizer, 3, to=lines.append, hook=False) as monitor:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(9):
                graph.replay()
                monitor.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    twin = AGD([nn.Parameter(p.detach().cpu()) for p in model.parameters()])
    twin.load_state_dict(optimizer.state_dict())
    there, here = switch_report(optimizer).numbers(), switch_report(twin).numbers()
    assert there == here == lines[-1], (there, here, lines[-1])
    assert [line["switch/step"] for line in lines] == [5.0, 8.0, 11.0], lines
    return f"9 replays, {here['switch/adaptive']:.1%} adaptive"


def scaler() -> str:
    """An overflow leaves all as it was; gradients may be clipped where fused is not claimed."""
    for fused in (True, None):
        model, plain = _model(), _model()
        optimizer, reference = AGD(model.parameters(), fused=fused), AGD(plain.parameters(), fused=False)
        amp = torch.amp.GradScaler(DEVICE, init_scale=2.0**10, growth_interval=10_000)
        for t in range(8):
            overflow = t == 4
            before = [p.detach().clone() for p in model.parameters()]
            _backward(amp.scale(_loss(model, _batch(t)) * (float("inf") if overflow else 1.0)))
            if fused is None:
                amp.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            amp.step(optimizer)
            amp.update()
            optimizer.zero_grad()
            if overflow:
                assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
                continue
            _backward(_loss(plain, _batch(t)))
            if fused is None:
                nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            reference.step()
            reference.zero_grad()
        steps = {float(state["step"]) for state in optimizer.state.values()}
        assert steps == {7.0}, steps
        assert _difference(model, plain) < 1e-5, (fused, _difference(model, plain))
    return "fused=True and fused=None, 8 steps with one overflow"


def sharded() -> str:
    """FSDP2 on one rank equals the plain model."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("nccl", rank=0, world_size=1)
    try:
        plain, wrapped = _model(), _model()
        fully_shard(wrapped, mesh=init_device_mesh(DEVICE, (1,)))
        a, b = AGD(plain.parameters(), lr=1e-2), AGD(wrapped.parameters(), lr=1e-2)
        for t in range(10):
            for model, optimizer in ((plain, a), (wrapped, b)):
                optimizer.zero_grad()
                _backward(_loss(model, _batch(t)))
                optimizer.step()
        whole = [y.full_tensor() for y in wrapped.parameters()]  # type: ignore[attr-defined]
        pairs = zip(plain.parameters(), whole, strict=True)
        worst = max(float((x - y).detach().abs().max()) for x, y in pairs)
        assert "gpu" in b.executor, b.executor
        assert worst < 1e-6, worst
        return f"10 steps, difference {worst:.1e}"
    finally:
        dist.destroy_process_group()
