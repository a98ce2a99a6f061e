"""AGDW's candidates: none of them is AGDW, each of them its formula."""

import numpy as np
import pytest
import torch

from agdopt import AGDW
from agdopt.race.candidates import Candidate

LR, DECAY = 0.1, 0.05
OPTIONS = {
    "nesterov": {"nesterov": 0.1},
    "cautious": {"cautious": "plain"},
    "cautious, mean": {"cautious": "mean"},
    "floor": {"floor": 0.5},
    "all": {"nesterov": 0.3, "cautious": "plain", "floor": 2.0, "clip": 0.5},
}


def gradients():
    return np.random.default_rng(0).normal(0.3, size=(12, 50)) * np.geomspace(1e-3, 10, 50)


def run(make):
    p = torch.nn.Parameter(torch.linspace(-1, 1, 50, dtype=torch.float64))
    optimizer, seen = make([p]), []
    for g in gradients():
        p.grad = torch.from_numpy(g)
        optimizer.step()
        seen.append(p.detach().clone())
    return torch.stack(seen)


def formula(nesterov=0.0, cautious="", floor=0.0, clip=1.0, b1=0.9, b2=0.999):
    w, m, b, before, seen = np.linspace(-1, 1, 50), np.zeros(50), np.zeros(50), np.zeros(50), []
    for t, g in enumerate(gradients(), 1):
        noise = (1 + b1 ** (t - 1)) * (1 - b1) / ((1 - b1 ** (t - 1)) * (1 + b1)) if t > 1 else 0.0
        s = (g - before) / np.sqrt(1 + noise)
        m, b = b1 * m + (1 - b1) * g, b2 * b + (1 - b2) * s**2
        mhat, bhat = m / (1 - b1**t), np.sqrt(b / (1 - b2**t))
        low = floor * np.sqrt(np.mean(bhat**2))
        d = np.clip((mhat + nesterov * (g - mhat)) / np.maximum(bhat, low), -clip, clip)
        if cautious:
            agrees = d * g > 0
            d = d * agrees / (agrees.mean() if cautious == "mean" else 1)
        w, before = w * (1 - LR * DECAY) - LR * d, mhat
        seen.append(w)
    return torch.from_numpy(np.stack(seen))


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_is_its_formula(name, capturable):
    ours = run(lambda p: Candidate(p, LR, weight_decay=DECAY, capturable=capturable, **OPTIONS[name]))
    torch.testing.assert_close(ours, formula(**OPTIONS[name]), rtol=1e-9, atol=1e-12)


def test_none_of_them_is_agdw():
    ours = run(lambda p: Candidate(p, LR, weight_decay=DECAY))
    torch.testing.assert_close(ours, run(lambda p: AGDW(p, LR, weight_decay=DECAY)), rtol=1e-9, atol=1e-12)


def test_an_unknown_mask_is_refused():
    with pytest.raises(ValueError, match="cautious must be one of"):
        Candidate([torch.nn.Parameter(torch.ones(1))], cautious="median")
