"""The probe measures what AGD comes to, changes nothing, and says what follows."""

import copy
import json
import random

import numpy as np
import pytest
import torch
from tests.race.tiny import Tiny
from torch import nn

from agdopt import AGD
from agdopt.core import Hyper, bhat, scalars
from agdopt.race.cli import main
from agdopt.race.probe import probe
from agdopt.race.probe_result import adabelief_steps, adam_steps


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9, 0.99])
def test_the_constant_is_the_rules(beta1):
    """sigma / bhat, where all bias corrections are over: 9.75 at beta1 = 0.9."""
    paper, unit = (scalars(10_000, Hyper(beta1, standardize=s)).g for s in (False, True))
    assert adam_steps(beta1) == pytest.approx(unit / paper, rel=1e-12)
    assert f"{adam_steps(0.9):.2f}" == "9.75"


def test_the_constant_of_adabelief():
    """By its own code: the same gradients, once both have forgotten their first steps."""
    library = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")
    p, q = (nn.Parameter(torch.zeros(2000)) for _ in range(2))
    ours = AGD([p], lr=1e-3, betas=(0.9, 0.9))
    theirs = library.AdaBelief([q], lr=1e-3, betas=(0.9, 0.9), eps=1e-16)
    for _ in range(400):
        before = p.detach().clone(), q.detach().clone()
        p.grad, q.grad = (torch.randn(2000),) * 2
        ours.step()
        theirs.step()
    moved = [(x.detach() - start).abs().sum().item() for x, start in zip((p, q), before, strict=True)]
    assert moved[0] / moved[1] == pytest.approx(adabelief_steps(0.9), rel=1e-3)


def noise(model, batch):
    return (model.weight * batch).sum()


def noises(n, sigma, mean=0.0):
    return (torch.randn(len(sigma)) * sigma + mean for _ in range(n))


def one_weight(n):
    model = nn.Linear(n, 1, bias=False)
    model.weight.data = model.weight.data[0]
    return model


@pytest.mark.parametrize("steps", [10, 50, 200])
def test_noise_is_measured_from_few_batches(steps):
    """bhat is sigma / 9.75 at once, with a mean in the gradient too, which s_1 would bring in."""
    sigma = torch.full((20_000,), 3.0)
    found = probe(one_weight(20_000), noise, noises(steps, sigma, mean=5.0), steps)
    assert found.bhat.square().mean().sqrt().item() == pytest.approx(3 / adam_steps(0.9), rel=0.01)
    in_noise = probe(one_weight(20_000), noise, noises(steps, sigma), steps, standardize=True)
    assert in_noise.bhat.square().mean().sqrt().item() == pytest.approx(3, rel=0.01)


def batches(task, model):
    while True:
        for step in task.batches(model, 0):
            yield task.fetch(step.inputs)


def test_it_is_what_agds_own_bhat_comes_to():
    """Exactly, once AGD has forgotten its first steps."""
    task = Tiny(torch.device("cpu"), 32)
    torch.manual_seed(1)
    model = task.model()
    found = probe(model, task.loss, batches(task, model), 400, betas=(0.9, 0.95))
    assert found.batches == 400
    optimizer = AGD(model.parameters(), lr=0.0, betas=(0.9, 0.95))
    torch.manual_seed(1)
    task.model()
    for _, batch in zip(range(400), batches(task, model), strict=False):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    own = torch.cat(
        [
            bhat(optimizer.state[p]["exp_avg_sq"], 400, Hyper(0.9, 0.95), torch.sqrt).flatten()
            for p in model.parameters()
        ]
    )
    torch.testing.assert_close(found.bhat, own.sort().values, rtol=1e-5, atol=1e-9)
    assert [layer.name for layer in found.layers] == [name for name, _ in model.named_parameters()]


class Restless(nn.Module):
    """Changes all it can: running statistics, a buffer by another, every generator."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        noise = random.random() + np.random.rand()  # noqa: NPY002
        return self.net(x + noise)


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_put_back(fails):
    model = Restless()
    x = torch.randn(16, 4)
    model(x).square().mean().backward()
    first = next(model.parameters())
    grad, calls, before = first.grad, model.calls, copy.deepcopy(model.state_dict())
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002

    def loss(model, batch):
        assert not (fails and model.calls > 5), "the loss has had enough"
        return model(batch).square().mean()

    def run():
        return probe(model, loss, (x + i for i in range(10)))

    if fails:
        with pytest.raises(AssertionError, match="had enough"):
            run()
    else:
        assert run().batches == 10
    assert first.grad is grad
    assert model.calls is calls
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert random.getstate() == generators[1]
    assert (np.random.get_state()[1] == generators[2]).all()  # noqa: NPY002


def test_a_delta_gives_its_share():
    sigma = torch.logspace(-3, 1, 1000)
    sigma[:100] = 0.0
    found = probe(one_weight(1000), noise, noises(100, sigma))
    for share in (0.01, 0.3, 0.9):
        assert found.share(found.delta(share)) == pytest.approx(share, abs=1e-6)
    assert found.delta(0.95) is None
    assert found.numbers(1e-3)["changing"] == pytest.approx(0.9)
    assert found.choices(1e-3, [0.95]) == [{"share": 0.95, "delta": None, "lr": None}]
    with pytest.raises(ValueError, match=r"share must lie between 0 and 1, got 1\.5"):
        found.delta(1.5)


def test_the_rate_moves_as_far_as_adamw():
    """By the optimizers themselves: from the same averages, both steps are as long on average."""
    found = probe(one_weight(5000), noise, noises(300, torch.logspace(-2, 0, 5000)))
    delta = found.delta(0.5)
    lr = found.lr(1e-3, delta)
    agd, adamw = (one_weight(5000).weight for _ in range(2))
    ours = AGD([agd], lr=0.0, delta=delta, betas=(0.9, 0.99))
    theirs = torch.optim.AdamW([adamw], lr=0.0, weight_decay=0.0, betas=(0.9, 0.99))
    moved = []
    for t, g in enumerate(noises(600, torch.logspace(-2, 0, 5000))):
        for p, optimizer, rate in ((agd, ours, lr), (adamw, theirs, 1e-3)):
            p.grad = g.clone()
            optimizer.param_groups[0]["lr"] = rate if t == 599 else 0.0
            before = p.detach().clone()
            optimizer.step()
            moved.append((p.detach() - before).abs().mean().item())
    assert moved[-2] == pytest.approx(moved[-1], rel=0.05)
    assert found.lr(1e-3, 1e-12) == pytest.approx(1e-3 / adam_steps(0.9), rel=0.03)


def test_parameters_without_two_gradients_are_left_out():
    model = nn.ModuleDict({"used": nn.Linear(3, 1), "idle": nn.Linear(3, 1), "late": nn.Linear(3, 1)})

    def loss(model, i):
        x = torch.randn(5, 3)
        return (model["used"](x) + (model["late"](x) if i == 9 else 0)).square().mean()

    found = probe(model, loss, range(10))
    assert found.left_out == ("idle.weight", "idle.bias", "late.weight", "late.bias")
    assert found.coordinates == 4


BAD = {
    "one step": (lambda: probe(one_weight(3), noise, noises(9, torch.ones(3)), 1), "at least 2, got 1"),
    "one batch": (lambda: probe(one_weight(3), noise, noises(1, torch.ones(3))), "at least 2 batches"),
    "nan": (
        lambda: probe(one_weight(3), noise, noises(3, torch.ones(3) * torch.nan)),
        "loss of batch 1 is nan",
    ),
    "the same batch": (
        lambda: probe(one_weight(3), noise, [torch.ones(3) / 3] * 50),
        "every batch has the same gradient",
    ),
    "frozen": (
        lambda: probe(one_weight(3).requires_grad_(False), noise, noises(3, torch.ones(3))),
        "no parameter that requires",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        call()


TINY = ["probe", "tests.race.tiny:Tiny", "--batch", "32", "--steps", "20"]


def test_command_line(tmp_path, capsys):
    out, plot = tmp_path / "probe.jsonl", tmp_path / "p.png"
    options = ["--share", "0.5", "--set", "rows=90", "--plot", str(plot), "--out", str(out)]
    assert main([*TINY, *options, "--json"]) == 0
    (numbers,) = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == numbers
    assert numbers["task"] == {"name": "tests.race.tiny:Tiny", "rows": 90}
    ((choice,), middle) = numbers["choices"], numbers["bhat"]["0.5"]
    assert choice["delta"] == pytest.approx(middle, rel=0.05)
    assert plot.stat().st_size > 1000
    assert main(TINY) == 0
    table = capsys.readouterr().out
    assert "0.weight" in table
    assert "adaptive share" in table


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--share", "2"], "--share must lie between 0 and 1"),
        (["--lr", "0"], "--lr must be > 0"),
        (["--steps", "1"], "at least 2, got 1"),
        (["--set", "rows"], "key=value"),
        (["--set", "rous=3"], "did you mean 'rows'"),
        (["--beta2", "1.5"], "beta2"),
    ],
)
def test_misuse_is_exit_code_2(arguments, words, capsys):
    assert main([*TINY, *arguments]) == 2
    assert words in capsys.readouterr().err
