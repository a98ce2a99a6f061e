"""Click logs: the paper's models, its splits, the features, AUC."""

import gzip

import numpy as np
import pytest
import torch

from agdopt.race.checks import PlanError
from agdopt.race.task import MissingData
from agdopt.race.tasks import clicks
from agdopt.race.tasks._clicks import AVAZU, CRITEO, category, fields
from agdopt.race.tasks.clicks import NETS, Clicks, auc, merge

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("log", "features", "parameters"), [("avazu", 9_450_000, "151M"), ("criteo", 33_760_000, "270M")]
)
def test_the_models_have_the_papers_parameters(log, features, parameters):
    with torch.device("meta"):
        model = NETS[log](features, len(fields(log)))
    assert f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M" == parameters


def test_auc_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    scores = torch.randn(500).round(decimals=1)  # with ties
    click = (torch.rand(500) < 0.2).float()
    assert auc(scores, click).item() == pytest.approx(metrics.roc_auc_score(click, scores), abs=1e-12)


def avazu(folder, days, name="train"):
    """Rows of some days, 100 an hour's worth; device_ip is another on each."""
    (folder / "avazu").mkdir(exist_ok=True)
    rows = [",".join(AVAZU)]
    for i, day in enumerate(days):
        row = dict.fromkeys(AVAZU, "x") | {
            "id": str(i),
            "click": str(i % 2),
            "hour": f"1410{day}{i % 24:02d}",
        }
        rows.append(",".join((row | {"device_ip": f"ip{i}"}).values()))
    (folder / "avazu" / name).write_text("\n".join(rows) + "\n")
    return folder


def test_avazu_is_split_by_its_last_day(tmp_path):
    data = avazu(tmp_path, [21] * 5 + [22] * 3 + [30] * 4)
    task = Clicks(device=CPU, batch=2, data=data)
    assert {k: len(v[0]) for k, v in task.splits.items()} == {"train": 8, "test": 4}
    assert task.splits["train"][1].tolist() == [0, 1] * 4
    assert task.splits["train"][0].shape[1] == 22
    assert task.features == 12 + 12 + 20  # hours of the day, device_ip, and one value in each other field
    avazu(tmp_path, [21] * 5)
    with pytest.raises(PlanError, match=r"set task\.test_share"):
        Clicks(device=CPU, batch=2, data=data)
    assert len(Clicks(device=CPU, batch=2, data=data, test_share=0.4).splits["test"][0]) == 2


def test_criteo_is_read_in_its_own_form(tmp_path):
    (tmp_path / "criteo").mkdir()
    lines = [[str(i % 2), *["5"] * 13, *[f"{i:08x}"] * 26] for i in range(14)]
    lines[3][2] = ""
    text = "\n".join("\t".join(r) for r in lines) + "\n"
    (tmp_path / "criteo/train.txt.gz").write_bytes(gzip.compress(text.encode()))
    task = Clicks(device=CPU, batch=2, data=tmp_path, log="criteo")
    assert {k: len(v[0]) for k, v in task.splits.items()} == {"train": 12, "test": 2}
    assert task.features == 26 * 14 + 13 + 1
    assert clicks.main(["--log", "criteo", "--data", str(tmp_path), "--out", str(tmp_path / "made")]) == 0
    again = Clicks(device=CPU, batch=2, data=tmp_path / "made", log="criteo")
    assert torch.equal(again.splits["train"][0], task.splits["train"][0])
    (tmp_path / "criteo/train.txt").write_text("1\t2\n")
    with pytest.raises(MissingData, match=r"train\.txt, line 1: criteo has 40 columns, this line 2"):
        Clicks(device=CPU, batch=2, data=tmp_path, log="criteo", file="train.txt")
    with pytest.raises(MissingData, match=r"kaggle\.com/c/avazu"):
        Clicks(device=CPU, batch=2, data=tmp_path)


def test_counts_become_categories():
    given = {"": "", "-2": "-2", "2": "2", "3": "log 1", "1000": "log 47"}
    assert {v: category("I4", v) for v in given} == given
    assert category("C4", "1000") == "1000"
    assert category("hour", "14102107") == "07"
    assert len(CRITEO) == 40


def test_features_may_be_merged():
    ids, sizes = np.array([[0, 0], [0, 1], [1, 1], [2, 1]], np.int32), np.array([3, 2])
    whole, n = merge(ids, sizes, 3, 0, 0)
    assert (whole.tolist(), n) == ([[0, 3], [0, 4], [1, 4], [2, 4]], 5)
    rare, n = merge(ids, sizes, 3, 2, 0)  # counted in the first three rows, those of training
    assert (rare.tolist(), n) == ([[1, 2], [1, 3], [0, 3], [0, 3]], 4)
    hashed, n = merge(ids, sizes, 3, 0, 1000)
    assert n == 1000
    assert len(np.unique(hashed)) == 5
    assert ((hashed >= 0) & (hashed < 1000)).all()


def test_the_models_learn(tmp_path):
    """Clicks that are a field's value, read off by both."""
    for log in NETS:
        torch.manual_seed(0)
        ids = torch.randint(0, 6, (400, 3)) + torch.tensor([0, 6, 12])
        click = (ids[:, 1] > 8).float()
        model = NETS[log](18, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(60):
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(model(ids), click).backward()
            optimizer.step()
        assert auc(model(ids), click) > 0.99


def test_cross_layers_are_the_papers():
    model = NETS["criteo"](10, 2, width=3)
    x = x0 = model.embedding(torch.tensor([[1, 7]])).flatten().detach()
    for w, b in zip(model.weights, model.biases, strict=True):
        with torch.no_grad():
            b.normal_()
        x = torch.outer(x0, x) @ w.detach() + b.detach() + x
    deep = model.deep(x0).detach()
    expected = model.out(torch.cat([x, deep]))
    torch.testing.assert_close(model(torch.tensor([[1, 7]])), expected)
