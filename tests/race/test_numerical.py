"""The paper's numerical section and theory: figures reached, checks that can fail, pictures that show."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from agdopt.race.numerical import CELLS, listing, read, reddi, run
from agdopt.race.numerical.__main__ import main
from agdopt.race.numerical.canvas import COLOURS
from agdopt.race.numerical.f1 import _literal
from agdopt.race.numerical.functions import FUNCTIONS
from agdopt.race.numerical.grid import AXES, Check
from agdopt.race.numerical.lemmas import checked
from agdopt.race.numerical.paths import default_lr, walk
from agdopt.race.numerical.pictures import PICTURES, draw, stale
from agdopt.race.numerical.variance import exact, formula

ROOT = Path(__file__).parents[2]
RECORDS = read(ROOT / "results/numerical/records.jsonl")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_autograd(name):
    function = FUNCTIONS[name]
    x, y = (torch.randn(20, dtype=torch.float64, requires_grad=True) for _ in "xy")
    first = torch.autograd.grad(function.value(x, y).sum(), (x, y), create_graph=True)
    second = [
        torch.autograd.grad(g.sum(), at, retain_graph=True)[0] for g, at in zip(first, (x, y), strict=True)
    ]
    points = x.detach().numpy(), y.detach().numpy()
    for ours, theirs in ((function.gradient, first), (function.curvature, second)):
        for a, b in zip(ours(*points), theirs, strict=True):
            np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-10, atol=1e-10)
    assert all(abs(g) < 1e-12 for g in function.gradient(*function.optimum))


@pytest.mark.parametrize(
    ("optimizer", "name", "reached"),
    [
        ("AGD", "beale", [10244, 11843, 12748]),
        ("AGD + AMSGrad", "bowl", [1674, 2623, 3535]),
        ("AdamW", "bowl", [5985, 7101, 7807]),
        ("AdaBelief", "bowl", [1901, 2542, 3011]),
        ("AdaBelief", "beale", [11679, 13283, 14190]),
        ("AdaBound", "bowl", [408, 560, 684]),
        ("AdaBound", "beale", [575, 756, 900]),
        ("AdaBound", "rosenbrock", []),
        ("SGD", "bowl", []),
    ],
)
def test_steps_to_the_optimum(optimizer, name, reached):
    """Beside tests/parity/test_figures.py: the rivals, and the records."""
    steps = 10_000 if not reached else 20_000
    path = walk(optimizer, FUNCTIONS[name], default_lr(optimizer), steps)
    assert path.reached == reached == RECORDS[f"F3.{name}"]["optimizers"][optimizer]["reached"]
    assert path.diverged == (optimizer == "AdaBound" and name == "rosenbrock")


# Quick, and together they pass through every module.
@pytest.mark.parametrize(
    "name",
    ["F1.path", "F1.a", "F1.b", "C3.correlated", "THEORY.lemma3", "THEORY.bounds", "THEORY.slip-debias"],
)
def test_records_are_what_the_code_measures(name):
    def leaves(value):
        if isinstance(value, dict | list | tuple):
            values = value.values() if isinstance(value, dict) else value
            return [leaf for v in values for leaf in leaves(v)]
        return [value]

    recorded = {k: v for k, v in RECORDS[name].items() if k not in ("cell", "schema", "environment")}
    # Another machine's exp and log differ in the last digit, and a path is long.
    assert leaves(CELLS[name].measure()) == [
        pytest.approx(leaf, rel=1e-4) if isinstance(leaf, float) else leaf for leaf in leaves(recorded)
    ]


def test_verdicts():
    """A change of a verdict is news, whichever way."""
    verdicts = {row["cell"]: row["verdict"] for row in listing(RECORDS)}
    assert set(verdicts) == set(CELLS)
    holds = {
        "F1.path",
        "F1.a",
        "F1.b",
        "F3.rosenbrock",
        "F7.adam",
        "F7.agd",
        "C3.independent",
        "C3.correlated",
    }
    theory = "lemma1 lemma2 falling lemma3-proved lemma4 sums regret gradient reddi2"
    holds |= {f"THEORY.{name}" for name in theory.split()}
    assert {cell for cell, verdict in verdicts.items() if verdict == "holds"} == holds


def test_a_claim_that_is_not_true_is_not_said_to_hold():
    records = json.loads(json.dumps(RECORDS))
    records["F1.a"]["step_ratio"] = 1.5
    records["F3.rosenbrock"]["optimizers"]["Adam"]["reached"][0] = 1
    records["THEORY.lemma4"]["checks"]["lemma 4"]["over"] = 1
    records["THEORY.reddi2"]["rows"][0]["ends_at"] = 0.0
    del records["THEORY.sums"]
    verdicts = {row["cell"]: row["verdict"] for row in listing(records)}
    for cell in ("F1.a", "F3.rosenbrock", "THEORY.lemma4", "THEORY.reddi2"):
        assert verdicts[cell] == "does not"
    assert verdicts["THEORY.sums"] == "cannot tell"


def test_only_the_first_gradient_makes_agds_path():
    """The counterfactual's own algorithm is AGD when nothing is taken away."""
    assert _literal(lambda t: 1.0) == walk("AGD", FUNCTIONS["beale"], 1e-3, 20_000).reached


def test_lemma_checks_see_a_broken_bound():
    shape = tuple(map(len, AXES))
    check = Check()
    quantity = np.zeros(shape)
    quantity[1, 2, 0, 3] = 2.0
    check.see(quantity, np.ones(shape), "constant", 7)
    assert (check.tried, check.over, check.largest) == (math.prod(shape), 1, 2.0)
    assert check.where["beta1"] == 0.5
    assert check.where["t"] == 7


def test_algorithm_1_breaks_what_the_proofs_use(monkeypatch):
    monkeypatch.setattr("agdopt.race.numerical.grid.STEPS", 50)
    with_max, without = checked(), checked(amsgrad=False)
    assert with_max["a_t / v_t falls"]["over"] == 0 < without["a_t / v_t falls"]["over"]
    # With beta1 = 0 and G = delta the step is alpha_t G / delta, and the printed bound is a_t.
    printed = with_max["lemma 3, as printed"]
    assert printed["largest"] == pytest.approx(1 / math.sqrt(1 - 0.99999**2), rel=1e-6)
    assert with_max["lemma 3, as proved"]["over"] == 0


def test_reddi_is_lost_by_the_sum_of_three_steps():
    """beta1 = 0, C = 3: b repeats with the period, and the three steps of it say where the path goes."""
    b = np.zeros(3)
    for _ in range(60):
        b = np.array([0.9 * 16 + 0.1 * b[2], 0.9 * 16 + 0.1 * b[0], 0.1 * b[1]])
    drift = 3 / np.sqrt(b[0]) - 1 / np.sqrt(b[1]) - 1 / np.sqrt(b[2])
    assert drift < 0  # w grows, away from -1
    (row,) = [
        r
        for r in RECORDS["THEORY.reddi1"]["rows"]
        if r["C"] == 3 and r["delta"] == 1e-8 and r["optimizer"] == "AGD, Algorithm 1"
    ]
    assert row["ends_at"] > 0.99
    assert reddi.cures([{"delta": d, "ends_at": e} for d, e in ((1, 1.0), (2, -0.9), (3, -1.0))]) == 2


def test_the_formula_is_the_exact_sum_without_correlation():
    for t in (1, 2, 7, 60):
        assert formula(t) == pytest.approx(exact(t, 0.0), rel=1e-12)
        assert exact(t, 1.0) == pytest.approx(1.0)


def test_run_appends_and_the_newest_record_counts(tmp_path, capsys):
    file = tmp_path / "deep" / "records.jsonl"
    run("THEORY.slip-scale", file)
    assert main(["THEORY.slip-scale", "--out", str(file)]) == 0
    assert "THEORY.slip-scale" in capsys.readouterr().out
    assert len(file.read_text().splitlines()) == 2
    record = read(file)["THEORY.slip-scale"]
    assert record["ratio"] == pytest.approx(100)
    assert record["environment"]["versions"]["agdopt"]
    with pytest.raises(SystemExit) as misuse:
        main(["F3.bale"])
    assert misuse.value.code == 2
    assert "F3.beale" in capsys.readouterr().err


def test_pictures_show_the_records(tmp_path):
    draw(RECORDS, tmp_path)
    assert not stale(RECORDS, tmp_path)
    for name in PICTURES:
        assert (tmp_path / f"{name}.svg").stat().st_size < 200_000
    three = (tmp_path / "f3-functions.svg").read_text()
    for name in FUNCTIONS:
        for optimizer in RECORDS[f"F3.{name}"]["optimizers"]:
            assert f'id="path {optimizer}"' in three
    # AGD's path on Beale goes to the right and up, from (-2.5, -2.5) to B.
    (path,) = re.findall(r'<g id="path AGD">\s*<path d="([^"]+)"', (tmp_path / "f1-beale.svg").read_text())
    points = [tuple(map(float, point)) for point in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)]
    assert points[-1][0] - points[0][0] > 100
    assert points[0][1] - points[-1][1] > 50

    changed = json.loads(json.dumps(RECORDS))
    changed["F3.bowl"]["optimizers"]["AGD"]["reached"][0] += 1
    assert stale(changed, tmp_path) == ["f3-functions.svg", "f3-functions.gif"]


def test_the_animation_moves():
    pixels = []
    with Image.open(ROOT / "docs/figures/f3-functions.gif") as gif:
        assert gif.n_frames > 50
        for frame in (0, gif.n_frames - 1):
            gif.seek(frame)
            rgb = np.asarray(gif.convert("RGB"))
            of_agd = np.abs(rgb - np.array(to_rgb(COLOURS["AGD"])) * 255).max(2) < 8
            pixels.append(int(of_agd.sum()))
    assert pixels[1] > pixels[0] + 30  # a path has grown
