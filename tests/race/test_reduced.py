"""Every plan of the paper trains at the reduced scale, so that none is found broken on a GPU."""

from pathlib import Path

import pytest
import torch

from agdopt.race.plan import load
from agdopt.race.record import read
from agdopt.race.run import main

FOLDER = Path(__file__).parents[2] / "src/agdopt/plans/paper"
PLANS = sorted(p.stem for p in FOLDER.glob("*.toml") if p.stem != "cells")  # a table of the paper's rows


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_trains_reduced(name, data, tmp_path, capsys):
    for package in ("pytorch_optimizer", "sacrebleu", "tokenizers", "PIL"):
        pytest.importorskip(package)
    torch.set_num_threads(1)
    plan = load(f"paper/{name}", scale="reduced")
    # The first that is not AGD, and the last, which is AGD where the plan has one.
    entries = sorted(plan.optimizers.values(), key=lambda e: e.cls == "agdopt.AGD")
    names = ",".join(dict.fromkeys([entries[0].name, entries[-1].name]))
    where = ["--data", str(data), "--device", "cpu", "--out", str(tmp_path)]
    code = main([f"paper/{name}", "--scale", "reduced", "--seeds", "1", "--optimizers", names, *where])
    said = capsys.readouterr().err
    if code == 2 and "is not there: get it from" in said:
        pytest.skip(said)
    assert code == 0, said
    for record in read(tmp_path).values():
        assert record.diverged_at is None
        assert record.epochs == plan.epochs
        assert all(v is not None for v in record.metrics.values())
