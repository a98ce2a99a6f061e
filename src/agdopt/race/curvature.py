"""C1: does s_t follow the Hessian?  python -m agdopt.race.curvature C1.resnet20 --data DIR --out results/c1

The paper's reason for s_t = mhat_t - mhat_{t-1} is that it is about H (w_t - w_{t-1}). Here both are measured
along a training by AGD, and along AdamW's for comparison: the cosine of H dw with s, with Adam's g, with
AdaBelief's g - m, with the difference g - g' of two gradients, and with mhat; and how |diag H| ranks
coordinates beside bhat and the rivals' averages. Two things to know when reading it:

- s_t = k (g_t - mhat_{t-1}) with k = (1 - beta1) / (1 - beta1^t), and g_t - m_t = beta1 (g_t - m_{t-1}): once
  beta1^t is gone, AdaBelief's difference is s_t but for its length. Only in the first steps can they differ.
- dw is about -mhat_{t-1}, which s_t contains, so where H is positive s_t has a positive cosine with H dw even
  if the gradient did not change at all. What it would have had then is `unmoved`, the cosine of s_t - k H dw.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from agdopt.race.checks import PlanError, need, seeds_of, unknown
from agdopt.race.curvature_report import FILE, Line, judge, lines, picture
from agdopt.race.hessian import Objective, Signals, compare, flat, mean_of, means
from agdopt.race.plan import SCALES, canonical, load
from agdopt.race.record import add_line
from agdopt.race.recorder import commit, environment, versions
from agdopt.race.task import make_task
from agdopt.race.train import STEP, Training, mix


@dataclass(frozen=True)
class Cell:
    plan: str
    settings: tuple[str, ...]  # that change it
    reduced: tuple[str, ...]  # and these too, at the reduced scale
    agd: str = "agd-decoupled"  # with coupled decay the gradient would not be the loss's alone
    batches: int = 8  # of the training's own size, the same at every look
    probes: int = 8  # a batch
    dropout: bool = False
    cudnn: bool = True


# The paper's recipe, but shorter; in float32, and without CUDA graphs, which hide gradients.
SHORT = ("epochs=20", "schedule.milestones=[10, 15]")
TINY = ("epochs=2", "seeds=[1]")
LSTM = ("epochs=10", "schedule.milestones=[5, 7]")
LSTM_TINY = (*TINY, "schedule.milestones=[1]", "task.words=5000", "task.embedding=64", "task.bptt=20")
RESNET_TINY = (*TINY, "schedule.milestones=[1]", "task.images=512", "batch=32")
RATES = ("optimizers.agd.lr=3e-4", "optimizers.adamw.lr=3e-3")
CELLS = {
    "C1.resnet20": Cell("paper/t4-resnet20", SHORT, RESNET_TINY),
    "C1.lstm": Cell("paper/t3-ptb1", LSTM, LSTM_TINY, probes=4, cudnn=False),
    # Training's loss has its masks; without them H is that of a net that nobody trains.
    "C1.lstm-dropout": Cell("paper/t3-ptb1", LSTM, LSTM_TINY, probes=4, cudnn=False, dropout=True),
    "C1.digits": Cell("digits", RATES, TINY, agd="agd", batches=16),
}
LOOKS = {"paper": (20, 4), "reduced": (4, 2)}  # points, each of so many steps in a row
FEW: Mapping[str, Any] = {"batches": 2, "probes": 1}  # at the reduced scale


def windows(total: int, points: int, steps: int) -> list[range]:
    """What to look at in a training of so many steps; the first that follows another is the second."""
    points = max(1, min(points, (total - 1) // steps))
    room = (total - 1 - steps) / max(1, points - 1)
    return [range(2 + int(i * room), 2 + int(i * room) + steps) for i in range(points)]


def trace(training: Training, objective: Objective, looks: tuple[int, int], probes: int) -> dict[str, Any]:
    """One training, looked at as it goes."""
    per_epoch = len(training.task.batches(training.model, training.seed))
    # Epochs of random windows differ in length by a little, so the end is not waited for.
    wanted = windows(max(3, int(0.98 * per_epoch * training.plan.epochs)), *looks)
    steps, last = {t for w in wanted for t in w}, {w[-1] for w in wanted}
    params = objective.params
    w = flat(params)
    signals = Signals(w, *training.stepper.built.optimizer.param_groups[0]["betas"])
    layers, start = {}, 0
    for name, p in training.model.named_parameters():
        if p.requires_grad:
            layers[name] = slice(start, start := start + p.numel())
    whole: list[dict[str, float | None]] = []
    parts: dict[str, list[dict[str, float | None]]] = {name: [] for name in layers}
    path, curves = [], dict[str, list[float | None]]()
    look = before = None
    for event in training.advance():
        if event != STEP:
            continue
        t = training.state.update
        with training.here():
            # The gradient at w_t is there; the weights have gone on to w_{t+1}.
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            found = dict(signals.step(flat(grads)))
            if look is not None:
                if before is not None:
                    found["exact"] = look.gradient - before.gradient  # below 1: the curvature has changed
                whole.append(compare(found, signals, look, t in last, slice(None)))
                for name, part in layers.items():
                    parts[name].append(compare(found, signals, look, t in last, part))
            if t in last:
                path.append(t)
                for key, value in means(whole).items():
                    curves.setdefault(key, []).append(value)
                whole = []
            before, w_before, w = look, w, flat(params)
            look = objective.look(w - w_before, probes * (t + 1 in last)) if t + 1 in steps else None
    state = training.state
    which = f"{training.entry.name}, seed {training.seed}"
    need(state.diverged_at is None, f"{which}: diverged at step {state.diverged_at}; a lower lr may not")
    return {
        "t": path,
        "steps": state.update,
        "metrics": state.metrics,
        "mean": {key: mean_of(values) for key, values in curves.items()},
        "curves": curves,
        "layers": {name: means(rows) for name, rows in parts.items()},
    }


def run(
    cell: str,
    out: Path,
    data: Path | None = None,
    scale: str = "paper",
    device: str = "",
    seeds: Sequence[int] = (),
) -> list[Line]:
    """Measures a cell, a line of out/cells.jsonl for each seed; what has a line is not measured again."""
    if cell not in CELLS:
        raise unknown("cell", cell, CELLS)
    c = dataclasses.replace(CELLS[cell], **FEW) if scale == "reduced" else CELLS[cell]
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    settings = [*c.settings, *(c.reduced if scale == "reduced" else ()), "precision='fp32'", "graph=false"]
    plan = load(c.plan, settings)
    entries = {"AGD": plan.optimizers[c.agd], "AdamW": plan.optimizers["adamw"]}
    what: dict[str, Any] = {"cell": cell, "schema": 1, "scale": scale}
    what["recipe"] = {name: canonical(plan.recipe(entry)) for name, entry in entries.items()}
    what["measured"] = {"batches": c.batches, "probes": c.probes, "dropout": c.dropout}
    # A line of another recipe does not count, so that an edited plan is measured anew.
    known = {line["seed"]: line for line in lines(out) if what.items() <= line.items()}
    seeds, task = seeds or plan.seeds, None
    for seed in (s for s in seeds if s not in known):
        task = task or make_task(plan.task, plan.batch, where, data)
        start, paths = time.perf_counter(), {}
        for name, entry in entries.items():
            training = Training(task, plan, entry, seed)
            with training.here():
                chosen = mix(seed, "objective")  # the same for both paths
                objective = Objective(task, training.model, c.batches, chosen, c.dropout, c.cudnn)
            paths[name] = trace(training, objective, LOOKS[scale], c.probes)
        line = {**what, "seed": seed, "paths": paths}
        line["environment"] = {
            **environment(where),
            "versions": versions(),
            "commit": commit(),
            "seconds": round(time.perf_counter() - start, 1),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        add_line(out / FILE, line)
        known[seed] = line
    return [known[seed] for seed in seeds]


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m agdopt.race.curvature", description="C1: does s_t follow H dw?"
    )
    p.add_argument("cells", nargs="*", metavar="CELL", help=f"{', '.join(CELLS)}; default: all")
    p.add_argument("--data", type=Path, help="folder of the data sets; default: AGDOPT_DATA")
    p.add_argument("--out", type=Path, default=Path("results/c1"), help="folder of the records and pictures")
    p.add_argument("--scale", choices=SCALES, default="paper")
    p.add_argument("--device", default="", help="cpu, cuda; default: cuda where there is one")
    p.add_argument("--seeds", default="", help="1,2,3; default: the plan's")
    args = p.parse_args(argv)
    try:
        seeds = seeds_of(args.seeds)
        for cell in args.cells or CELLS:
            found = run(cell, args.out, args.data, args.scale, args.device, seeds)
            words, verdict = judge(found)
            print(f"{cell}, {args.scale} scale, {len(found)} seeds: {verdict}. {words}", flush=True)
            picture(found, args.out / f"{cell.lower()}.svg")
    except PlanError as e:
        print(e, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
