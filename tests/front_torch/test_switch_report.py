"""The switch, seen: counts against the rule in NumPy, and a monitor's life beside its optimizer."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import OPTIONS, SHAPES
from tests.tolerances import BIN
from tests.twin import agd, array, random_gradients
from torch.nn import Parameter

from agdopt import AGD, SwitchMonitor, switch_report
from agdopt.core import Hyper, bhat, is_adaptive
from agdopt.torch import counting


def stepped(params, optimizer, steps=3):
    for t in range(steps):
        random_gradients(params, seed=t)
        optimizer.step()
    return optimizer


def hyper(group):
    return Hyper(*group["betas"], group["delta"])


def values(optimizer):
    """bhat, and which of it is adaptive, by the float64 rule from the averages as they are."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if optimizer.state.get(p) and p.numel():
                b, t = array(optimizer.state[p]["exp_avg_sq"]).ravel(), int(optimizer.state[p]["step"])
                yield bhat(b, t, hyper(group), np.sqrt), is_adaptive(b, t, hyper(group), np.sqrt)


def assert_row(row, x, adaptive):
    assert row.elements == len(x)
    assert row.adaptive == adaptive.mean()
    for q, value in row.quantiles.items():
        assert value == pytest.approx(np.quantile(x, q, method="inverted_cdf"), rel=BIN)
    assert row.zero == np.mean(x == 0)
    assert row.broken == 0
    assert row.zero + sum(row.decades.values()) == pytest.approx(1)
    reached = row.zero
    for decade in range(-30, 10):
        edge = 10.0**decade
        assert np.mean(x < edge / (1 + 2 * BIN)) - 1e-9 <= reached <= np.mean(x < edge * (1 + 2 * BIN)) + 1e-9
        reached += row.decades.get(decade, 0)


@pytest.mark.parametrize("name", ["switch", "other_betas", "no_memory", "amsgrad", "standardize"])
def test_report_is_the_rules(trainer, name):
    params = [Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = stepped(params, agd(params, trainer, **OPTIONS[name]))
    report, expected = switch_report(optimizer), list(values(optimizer))
    for row, (x, adaptive) in zip(report.rows, expected, strict=True):
        assert_row(row, x, adaptive)
        assert row.step == 3
    assert_row(report.overall, *map(np.concatenate, zip(*expected, strict=True)))
    if name == "switch":
        assert 0 < report.overall.adaptive < 1


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float64, {}),
        (torch.float32, {"state_dtype": torch.bfloat16}),
        (torch.bfloat16, {}),
        (torch.complex64, {}),
    ],
    ids=str,
)
def test_dtypes_and_layouts(dtype, options):
    image = torch.randn(4, 3, 5, 5, dtype=dtype).to(memory_format=torch.channels_last)
    params = [
        Parameter(image),
        Parameter(torch.randn(6, 4, dtype=dtype)[:, ::2]),
        Parameter(torch.randn(9).to(dtype)),
    ]
    optimizer = stepped(params, AGD(params, delta=0.3, **options))
    for row, (x, adaptive) in zip(switch_report(optimizer).rows, values(optimizer), strict=True):
        assert_row(row, x, adaptive)


def test_groups_late_parameters_and_parameters_without_a_step():
    """Each has its own delta, betas and step; a row stands where there is something to tell."""
    a, b, late, frozen = (Parameter(torch.randn(40)) for _ in range(4))
    groups = [
        {"params": [("a", a), ("frozen", frozen)], "delta": 0.3},
        {"params": [("b", b), ("late", late)], "betas": (0.8, 0.9), "delta": 1e-3},
    ]
    optimizer = AGD(groups)
    assert switch_report(optimizer).rows == []
    assert switch_report(optimizer).numbers() == {}
    assert math.isnan(switch_report(optimizer).overall.adaptive)
    assert "no parameter has been stepped" in str(switch_report(optimizer))
    stepped([a, b], optimizer, 4)
    stepped([a, b, late], optimizer, 2)
    report = switch_report(optimizer)
    assert [(row.name, row.step) for row in report.rows] == [("a", 6), ("b", 6), ("late", 2)]
    found = {row.name: row for row in report.rows}
    for name, (x, adaptive) in zip(("a", "b", "late"), values(optimizer), strict=True):
        assert_row(found[name], x, adaptive)
    assert_row(report.overall, *map(np.concatenate, zip(*values(optimizer), strict=True)))
    assert report.overall.step == 6
    assert all(name in str(report) for name in ("overall", "late", "40", "120"))
    late.grad = None
    unnamed = stepped([a, b], AGD([{"params": [a]}, {"params": [late, b]}]))
    assert [row.name for row in switch_report(unnamed).rows] == ["0.0", "1.1"]


# What averages may hold after a hard life; some NaNs carry a sign.
numbers = st.floats(0, width=32) | st.sampled_from(
    [0.0, 1e-45, 1e-12, 1e-6, 3e38, math.inf, math.nan, -math.nan]
)


@given(
    st.lists(st.lists(numbers, min_size=1, max_size=9), min_size=1, max_size=6),
    st.integers(1, 5000),
    st.sampled_from([1e-12, 1e-6, 1e-3]),
    st.integers(1, 20),
)
def test_every_element_counts_once(tensors, t, delta, size):
    """However the elements are cut into pieces, and wherever the step is."""
    params = [Parameter(torch.zeros(len(xs))) for xs in tensors]
    optimizer = AGD(params, delta=delta)
    for p, xs in zip(params, tensors, strict=True):
        b = torch.tensor(xs)
        optimizer.state[p] = {"step": torch.tensor(float(t)), "exp_avg": torch.zeros_like(b), "exp_avg_sq": b}
    averages = [optimizer.state[p]["exp_avg_sq"] for p in params]
    kept, counting._ON_CPU = counting._ON_CPU, size
    try:
        report = switch_report(optimizer)
        table = torch.zeros(len(params), counting._WIDTH, dtype=torch.int64)
        counting._count(
            averages, torch.full((len(params),), float(t), dtype=torch.float64), Hyper(delta=delta), table
        )
    finally:
        counting._ON_CPU = kept
    assert table[:, 1:-1:2].sum(1).tolist() == [round(row.adaptive * row.elements) for row in report.rows]
    everything = [x for xs in tensors for x in xs]
    for row, xs in zip([*report.rows, report.overall], [*tensors, everything], strict=True):
        root = np.sqrt(np.array(xs, np.float32))
        assert row.elements == len(xs)
        assert row.adaptive == np.mean(is_adaptive(root, t, Hyper(delta=delta), lambda x: x))
        assert row.broken == np.mean(~np.isfinite(root))
        assert row.zero == np.mean(root == 0)
        assert row.zero + row.broken + sum(row.decades.values()) == pytest.approx(1)


def test_what_has_no_switch_is_told():
    with pytest.raises(TypeError, match="SGD has no switch to look at"):
        switch_report(torch.optim.SGD([Parameter(torch.ones(1))]))


def test_nothing_is_read_while_a_graph_is_captured(monkeypatch):
    """The report refuses; a monitor waits for the replays, after which its owner calls it."""
    p = Parameter(torch.randn(4))
    optimizer, lines = stepped([p], AGD([p])), []
    monitor = SwitchMonitor(optimizer, 2, to=lines.append, hook=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="take it between two replays"):
        switch_report(optimizer)
    for _ in range(5):
        monitor.step()
    monkeypatch.undo()
    assert lines == []
    for _ in range(5):
        optimizer.step()
        monitor.step()
    assert [line["switch/step"] for line in lines] == [5, 7]


@pytest.fixture
def trained():
    p = Parameter(torch.randn(50))
    return p, stepped([p], AGD([("p", p)], delta=0.3), 1)


def go(trained, steps):
    for t in range(steps):
        random_gradients(trained[:1], seed=t)
        trained[1].step()


def test_json_lines(trained, tmp_path):
    path = tmp_path / "new/switch.jsonl"
    for _ in range(2):  # a resumed run's lines come behind
        with SwitchMonitor(trained[1], 3, to=path, per_parameter=True):
            go(trained, 7)
        go(trained, 5)  # after the end, nothing more
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["switch/step"] for line in lines] == [4, 7, 16, 19]
    for line in lines:
        assert line["switch/adaptive"] == line["switch/adaptive_in/p"]
        shares = [v for k, v in line.items() if k.startswith("switch/decade/")]
        assert sum(shares) + line.get("switch/zero", 0) == pytest.approx(1)
        spread = [line[f"switch/bhat/p{q}"] for q in (5, 25, 50, 75, 95)]
        assert spread == sorted(spread)


def test_summary_writer(trained, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(tmp_path) as writer, SwitchMonitor(trained[1], 2, to=writer):
        go(trained, 4)
        expected = switch_report(trained[1]).overall.adaptive
    events = reader.EventAccumulator(str(tmp_path))
    events.Reload()
    found = [(e.step, e.value) for e in events.Scalars("switch/adaptive")]
    assert [step for step, _ in found] == [3, 5]
    assert found[-1][1] == pytest.approx(expected)


def test_loggers_get_the_step_in_their_own_way(trained):
    seen = {"mlflow": [], "wandb": [], "list": []}

    def mlflow(metrics, step=None, synchronous=None):
        seen["mlflow"].append((step, metrics))

    def wandb(data, step=None, commit=None):
        seen["wandb"].append((step, data))

    for to in (mlflow, wandb, seen["list"].append):
        with SwitchMonitor(trained[1], to=to, every=2, prefix="mine"):
            go(trained, 2)
    assert [step for step, _ in seen["mlflow"]] == [3]
    assert [(step, data["mine/step"]) for step, data in seen["wandb"]] == [(None, 5)]
    assert [data["mine/step"] for data in seen["list"]] == [7]


def test_what_the_sink_raises_is_raised_and_the_next_step_goes_on(trained):
    def full(numbers):
        raise OSError("disk full")

    monitor = SwitchMonitor(trained[1], 2, to=full)
    go(trained, 1)
    with pytest.raises(OSError, match="disk full"):
        go(trained, 1)
    assert trained[1].state[trained[0]]["step"] == 3
    go(trained, 1)
    monitor.close()
    assert trained[1].state[trained[0]]["step"] == 4


def test_late_numbers_are_written_by_the_first_step_that_finds_them(trained, monkeypatch):
    """As on a GPU, where the host is ahead."""
    there, lines = [False], []
    monkeypatch.setattr(counting.Counting, "arrived", lambda self: there[0])
    monitor = SwitchMonitor(trained[1], 3, to=lines.append)
    go(trained, 5)
    assert lines == []
    there[0] = True
    go(trained, 1)
    there[0] = False
    assert [line["switch/step"] for line in lines] == [4, 7]
    go(trained, 3)
    assert len(lines) == 2
    go(trained, 3)  # the next report is due: the one before it is waited for
    assert [line["switch/step"] for line in lines] == [4, 7, 10]
    monitor.close()
    assert [line["switch/step"] for line in lines] == [4, 7, 10, 13]


def test_copies_are_not_monitored(trained):
    lines = []
    with SwitchMonitor(trained[1], 1, to=lines.append):
        for copied in (copy.deepcopy(trained), pickle.loads(pickle.dumps(trained))):
            go(copied, 2)
        assert lines == []
        go(trained, 1)
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"every": 0, "to": print}, ValueError, "every must be a whole number of steps >= 1, got 0"),
        ({"every": 1.5, "to": print}, ValueError, "got 1.5"),
        ({"to": None}, TypeError, "to must be a file name, a SummaryWriter or something to call"),
    ],
)
def test_bad_input(trained, options, error, words):
    with pytest.raises(error, match=words):
        SwitchMonitor(trained[1], **options)
    go(trained, 1)


def test_a_file_that_cannot_be_written_is_told_before_training(trained, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        SwitchMonitor(trained[1], to=tmp_path / "file/switch.jsonl")
