"""The four cells of C2 against their formulas, and the two that exist against the libraries'."""

import itertools

import numpy as np
import pytest
import torch

from agdopt import AGD
from agdopt.race.ablation import DENOMINATORS, SQUARES, Ablation

LR, B1, B2, DELTA, DECAY = 0.1, 0.9, 0.99, 0.3, 0.05  # some coordinates above delta, some below


def gradients(steps=12):
    return np.random.default_rng(0).normal(size=(steps, 50)) * np.geomspace(1e-3, 10, 50)


def run(optimizer, p):
    seen = []
    for g in gradients():
        p.grad = torch.from_numpy(g)
        optimizer.step()
        seen.append(p.detach().clone())
    return torch.stack(seen)


def start():
    return torch.nn.Parameter(torch.linspace(-1, 1, 50, dtype=torch.float64))


def formula(square, denominator):
    """The paper's Algorithm 1 written out, with the two parts exchanged."""
    w = np.linspace(-1, 1, 50)
    m, b, before, seen = np.zeros(50), np.zeros(50), np.zeros(50), []
    for t, g in enumerate(gradients(), 1):
        g = g + DECAY * w
        m = B1 * m + (1 - B1) * g
        mhat = m / (1 - B1**t)
        s = g if square == "gradient" else mhat - before
        b = B2 * b + (1 - B2) * s**2
        bhat = np.sqrt(b / (1 - B2**t))
        w = w - LR * mhat / (np.maximum(bhat, DELTA) if denominator == "max" else bhat + DELTA)
        before = mhat
        seen.append(w)
    return torch.from_numpy(np.stack(seen))


@pytest.mark.parametrize(("square", "denominator"), list(itertools.product(SQUARES, DENOMINATORS)))
def test_each_cell_is_its_formula(square, denominator):
    p = start()
    ours = run(Ablation([p], LR, (B1, B2), DELTA, DECAY, square, denominator), p)
    torch.testing.assert_close(ours, formula(square, denominator), rtol=1e-10, atol=1e-12)


def test_two_cells_are_agd_and_adam():
    p, q = start(), start()
    agd = AGD([q], LR, (B1, B2), DELTA, weight_decay=DECAY, decoupled_weight_decay=False)
    torch.testing.assert_close(run(Ablation([p], LR, (B1, B2), DELTA, DECAY), p), run(agd, q))
    p, q = start(), start()
    adam = torch.optim.Adam([q], LR, (B1, B2), DELTA, weight_decay=DECAY)
    ours = run(Ablation([p], LR, (B1, B2), DELTA, DECAY, "gradient", "add"), p)
    torch.testing.assert_close(ours, run(adam, q))


def test_a_cell_that_is_none_is_refused():
    with pytest.raises(ValueError, match="got 'gradients', 'max'"):
        Ablation([start()], square="gradients")
