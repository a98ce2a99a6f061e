"""What bhat is on a model and data of one's own, and so which delta and lr to give the paper's AGD.

    from agdopt.race.probe import probe

    found = probe(model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), loader)
    delta = found.delta(share=0.5)
    optimizer = AGD(model.parameters(), lr=found.lr(adamw_lr, delta), delta=delta)

AGD itself measures, at lr 0. Two things let few batches tell where bhat settles: s_1, which is a gradient and
no difference, is left out; and differences are measured standardized, which has the same scale at every step,
and brought to the paper's scale at the end (there s_2, s_3, ... are too large for a while as well).
"""

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agdopt import AGD
from agdopt.core import Hyper, bhat
from agdopt.race.probe_result import Layer, Probe, adam_steps, levels

SAMPLE = 2**24  # of more coordinates than this, every so-manieth is looked at


def probe(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batches: Iterable[Any],
    steps: int = 200,
    betas: tuple[float, float] = (0.9, 0.999),
    standardize: bool = False,
) -> Probe:
    """Measure bhat over at most `steps` batches without training.

    Parameters, buffers, gradients and the random numbers of torch, NumPy and Python are afterwards what they
    were (a generator of your own goes on). Takes about seven times the parameters' memory meanwhile.
    """
    if steps < 2:
        raise ValueError(f"steps must be at least 2, got {steps}: one gradient is no difference yet; try 200")
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError("the model has no parameter that requires a gradient: nothing to measure")
    params = list(named.values())
    seen: set[Tensor] = set()
    count = 0
    with _restored(model):
        measure = AGD(params, lr=0.0, betas=betas, standardize=True)
        adamw = torch.optim.AdamW(params, lr=0.0, betas=betas, weight_decay=0.0)
        for count, batch in enumerate(islice(batches, steps), 1):
            measure.zero_grad()
            with torch.enable_grad():
                value = loss(model, batch)
            if not math.isfinite(value.item()):
                raise ValueError(
                    f"the loss of batch {count} is {value.item()}: nothing to measure from there"
                )
            value.backward()  # type: ignore[no-untyped-call]
            adamw.step()
            measure.step()
            for p in params:
                if p.grad is not None and p not in seen:
                    seen.add(p)
                    measure.state[p]["exp_avg_sq"].zero_()
        if count < 2:
            raise ValueError(f"at least 2 batches are needed, got {count}: one gradient is no difference yet")
        return _found(named, measure, adamw, count, betas, standardize)


def _found(
    named: dict[str, nn.Parameter],
    measure: AGD,
    adamw: torch.optim.AdamW,
    count: int,
    betas: tuple[float, float],
    standardize: bool,
) -> Probe:
    hyper = Hyper(*betas)
    unit = 1.0 if standardize else 1 / adam_steps(betas[0])
    stride = -(-sum(p.numel() for p in named.values()) // SAMPLE)
    layers, left_out, columns = [], [], list[Tensor]()
    for name, p in named.items():
        state, adams = measure.state.get(p, {}), adamw.state.get(p, {})
        t = int(state["step"]) if state else 0
        if t < 2:
            left_out.append(name)
            continue
        b, m, v = (_flat(x)[::stride] for x in (state["exp_avg_sq"], state["exp_avg"], adams["exp_avg_sq"]))
        settled = unit * bhat(b, t - 1, hyper, torch.sqrt)
        mhat = m.abs() / (1 - hyper.beta1**t)
        adam = mhat / ((v / (1 - hyper.beta2**t)).sqrt() + adamw.defaults["eps"])
        columns.append(torch.stack((settled, mhat, adam)).cpu())
        layers.append(Layer(name, p.numel(), levels(columns[-1][0].sort().values)))
    if not columns:
        raise ValueError("no parameter had two gradients: does the loss depend on the model?")
    table = torch.cat(columns, 1)
    if not (table[0] > 1e-6 * table[1]).any():
        raise ValueError(
            "every batch has the same gradient, so bhat is rounding alone: give different batches"
        )
    table = table[:, table[0].argsort()]
    coordinates = sum(layer.coordinates for layer in layers)
    return Probe(count, betas, standardize, coordinates, tuple(layers), tuple(left_out), *table)


def _flat(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).flatten()


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Everything that training without moving may change is put back, even after an error."""
    tensors = [(x, x.detach().clone()) for x in (*model.parameters(), *model.buffers())]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    grads = [(p, p.grad) for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    devices = {p.get_device() for p in model.parameters() if p.is_cuda}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  what data loaders draw from
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for module, kept in buffers:
            module._buffers.update(kept)
        with torch.no_grad():
            for x, value in tensors:
                x.copy_(value)
        for p, grad in grads:
            p.grad = grad
