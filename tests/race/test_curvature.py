"""C1: Hessians that are known, signals that are AGD's own, and a verdict that can go either way."""

from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from tests.race.tiny import Tiny
from torch import nn

from agdopt import AGD
from agdopt.race.curvature import main, run, trace, windows
from agdopt.race.curvature_report import FILE, judge, lines, of
from agdopt.race.hessian import Objective, Signals, flat, rank_correlation
from agdopt.race.plan import from_table
from agdopt.race.task import Task
from agdopt.race.train import Training

CPU = torch.device("cpu")


class Weights(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(start.clone())


@dataclass
class Bowl(Task):
    """w H w / 2 with this diagonal, and rows of noise that add x w: the Hessian is H whatever the batch."""

    diagonal: torch.Tensor = field(default_factory=lambda: torch.ones(1))
    noise: float = 0.0
    rows: int = 8

    def load(self):
        random = torch.Generator().manual_seed(1)
        x = self.noise * torch.randn(self.rows, len(self.diagonal), generator=random)
        return {"train": (x.to(self.diagonal),), "valid": (x[:1].to(self.diagonal),)}

    def model(self):
        return Weights(torch.linspace(-1, 1, len(self.diagonal)).to(self.diagonal))

    def loss(self, model, batch):
        return (self.diagonal * model.w.square()).sum() / 2 + (batch[0] @ model.w).mean()


def traced(task, epochs, looks, **agd):
    entry = {"class": "agdopt.AGD", **agd}
    table = {"name": "c1", "task": {"name": "bowl"}, "optimizers": {"agd": entry}}
    plan = from_table({**table, "epochs": epochs, "batch": task.batch})
    training = Training(task, plan, plan.optimizers["agd"], 1)
    return trace(training, Objective(task, training.model, 2, 0), looks, probes=1)


def test_without_averaging_and_noise_s_is_h_dw():
    task = Bowl(CPU, 8, diagonal=torch.linspace(-0.5, 2, 40, dtype=torch.float64))
    path = traced(task, 60, (5, 3), lr=1e-3, betas=[0.0, 0.999])
    assert len(path["t"]) == 5
    assert path["t"][0] == 4
    for key in ("cosine.s", "cosine.g - g'", "cosine.exact", "share"):
        assert path["curves"][key] == [pytest.approx(1, abs=1e-5)] * 5
    assert max(path["curves"]["cosine.g"]) < 0.99
    assert path["layers"]["w"]["cosine.s"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("trace_of_h", "expected"), [(1.0, 0.2236), (0.0, 0.0)])
def test_of_noise_alone_s_shows_only_the_step_that_it_contains(trace_of_h, expected):
    """With V = Var(mhat) / Var(g), s = k (g - mhat') has the cosine sqrt(V / (1 + V)) with dw = -mhat'."""
    diagonal = torch.ones(4000)
    diagonal[::2] = 2 * trace_of_h - 1
    task = Bowl(CPU, 1, diagonal=1e-9 * diagonal, noise=1.0, rows=150)
    path = traced(task, 1, (5, 3), lr=1e-3, delta=1e3)
    last = {key: values[-1] for key, values in path["curves"].items()}
    assert last["cosine.s"] == pytest.approx(expected, abs=0.04)
    assert last["cosine.unmoved"] == pytest.approx(last["cosine.s"], abs=1e-4)
    assert last["cosine.g"] == pytest.approx(0, abs=0.04)
    assert last["share"] < 1e-6


class Net(Tiny):
    """Everything that could make the loss another function: BatchNorm, dropout, a choice of rows."""

    def model(self):
        torch.manual_seed(3)
        layers = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1)
        return nn.Sequential(*layers).double()

    def loss(self, model, batch):
        x, y = batch
        return F.mse_loss(model(x.double()), y.double())


@pytest.mark.parametrize("dropout", [False, True])
def test_products_are_those_of_finite_differences(dropout):
    task = Net(CPU, 16)
    model = task.model()
    objective = Objective(task, model, 4, 0, dropout)
    params = list(model.parameters())
    v = torch.randn(sum(p.numel() for p in params), dtype=torch.float64)
    buffers, drawn = [b.clone() for b in model.buffers()], torch.get_rng_state()
    middle = objective.look(v, probes=3)  # the probes' random numbers are not the masks'
    start, ends = flat(params), []
    for side in (1e-5, -1e-5):
        nn.utils.vector_to_parameters(start + side * v, params)
        ends.append(objective.look(v).gradient)
    torch.testing.assert_close(middle.product, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-7)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))
    assert torch.equal(drawn, torch.get_rng_state())


def test_hutchinson_is_exact_where_h_is_diagonal():
    task = Bowl(CPU, 4, diagonal=torch.linspace(-3, 5, 50, dtype=torch.float64))
    look = Objective(task, task.model(), 2, 0).look(torch.ones(50, dtype=torch.float64), probes=1)
    torch.testing.assert_close(look.diagonals, task.diagonal.expand(2, -1))


def test_signals_are_agds_own():
    p = nn.Parameter(torch.zeros(30, dtype=torch.float64))
    optimizer = AGD([p], lr=1e-3)
    signals = Signals(p.detach(), 0.9, 0.999)
    for _ in range(20):
        p.grad = torch.randn_like(p)
        m = signals.m
        found = signals.step(p.grad)
        optimizer.step()
    torch.testing.assert_close(signals.squares["s"], optimizer.state[p]["exp_avg_sq"])
    torch.testing.assert_close(signals.m, optimizer.state[p]["exp_avg"])
    torch.testing.assert_close(found["s"], signals.weight * (p.grad - m / (1 - 0.9**19)))


def test_ties_share_their_rank():
    a, b = torch.randint(0, 5, (2, 200)).double()
    a[:100] = b[:100] = 0
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert rank_correlation(a, torch.ones(200)) is None


def test_windows_lie_within_the_training_and_apart():
    for total in (3, 10, 16, 1000):
        seen = [t for w in windows(total, 20, 4) for t in w]
        assert len(set(seen)) == len(seen)
        assert min(seen) == 2
        assert max(seen) <= max(total, 5)


def test_the_command_measures_once_and_draws(tmp_path, capsys):
    pytest.importorskip("sklearn")
    command = ["C1.digits", "--scale", "reduced", "--device", "cpu", "--out"]
    for out in (tmp_path / "a", tmp_path / "a", tmp_path / "b"):
        assert main([*command, str(out)]) == 0
    assert "cannot tell" in capsys.readouterr().out  # a single seed, reduced
    (once,), (again,) = lines(tmp_path / "a"), lines(tmp_path / "b")
    assert once["paths"] == again["paths"]
    assert once["environment"]["versions"]["agdopt"]
    for path in ("AGD", "AdamW"):
        assert len(once["paths"][path]["t"]) == 4
        assert once["paths"][path]["mean"]["halves.product"] > 0.5
    svg = (tmp_path / "a" / "c1.digits.svg").read_text()
    assert 'id="AGD s"' in svg
    assert 'id="AdamW g - m"' in svg
    assert main(["C1.digit", "--out", str(tmp_path)]) == 2
    assert "C1.digits" in capsys.readouterr().err


@pytest.mark.parametrize("cell", ["C1.resnet20", "C1.lstm"])
def test_the_papers_models_at_the_reduced_scale(cell, data, tmp_path):
    from agdopt.race.task import MissingData

    try:
        (line,) = run(cell, tmp_path, data, "reduced", "cpu")
    except MissingData as missing:
        pytest.skip(str(missing))
    mean = line["paths"]["AGD"]["mean"]
    assert mean["cosine.exact"] > 0.2  # the products are those of the very loss
    assert mean["halves.product"] > 0.1


def test_verdicts_need_seeds_a_lead_and_a_cosine_of_ones_own():
    def fake(s, g, unmoved, scale="paper"):
        found = []
        for seed in range(5):
            jitter = 0.001 * seed
            keys = {"s": s, "g": g, "g - m": s, "g - g'": 0.0, "mhat": -0.1, "unmoved": unmoved, "exact": 1.0}
            mean = {f"cosine.{k}": v + jitter * (k == "s") for k, v in keys.items()}
            mean |= {"share": 0.1, "halves.product": 0.9}
            mean |= {f"rank.{k}": 0.5 for k in ("bhat", "Adam's sqrt(vhat)", "AdaBelief's")}
            found.append({"cell": "C1", "scale": scale, "seed": seed, "paths": {"AGD": {"mean": mean}}})
        return found

    assert judge(fake(0.5, 0.1, 0.1))[1] == "holds"
    assert judge(fake(0.5, -0.6, 0.1))[1] == "does not"
    assert judge(fake(0.5, 0.1, 0.4))[1] == "does not"
    assert judge(fake(0.5, 0.502, 0.1))[1] == "cannot tell"
    assert judge(fake(0.5, 0.1, 0.1)[:3])[1] == "cannot tell"
    assert judge(fake(0.5, 0.1, 0.1, "reduced"))[1] == "cannot tell"
    both = [*fake(0.4, 0.1, 0.1), *fake(0.1, 0.1, 0.1, "reduced"), *fake(0.5, 0.1, 0.1)]
    assert of(both, "C1") == fake(0.5, 0.1, 0.1)
    assert of(both, "C2") == []
    assert FILE != "records.jsonl"  # which are races'
