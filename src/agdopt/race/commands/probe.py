"""agdopt probe: where bhat settles on a task, and which delta and lr the paper's AGD wants there."""

import argparse
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from agdopt.race.task import Task


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "probe", help="measure bhat on a task: which delta and lr the paper's AGD wants"
    )
    parser.add_argument("task", help="a task of the package such as cifar10, or module:task")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="net=resnet32")
    parser.add_argument("--steps", type=int, default=200, help="batches to look at (default: 200)")
    parser.add_argument("--batch", type=int, default=64, help="examples in each (default: 64)")
    parser.add_argument("--lr", type=float, default=1e-3, help="AdamW's, to be matched (default: 1e-3)")
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--share", type=float, action="append", help="a wanted adaptive share; repeat")
    parser.add_argument("--standardize", action="store_true", help="for AGD(standardize=True)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder of the data sets; default: AGDOPT_DATA")
    parser.add_argument("--device", help="default: cuda where there is one")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the distribution")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the numbers to this JSON-lines file")
    parser.add_argument("--json", action="store_true", help="plain numbers as a JSON list, no table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import torch

    from agdopt.race.checks import PlanError, need
    from agdopt.race.plan import override
    from agdopt.race.probe import probe
    from agdopt.race.probe_result import SHARES
    from agdopt.race.record import add_line
    from agdopt.race.recorder import commit, versions
    from agdopt.race.task import make_task

    shares = args.share or SHARES
    need(all(0 < share < 1 for share in shares), f"--share must lie between 0 and 1, got {shares}")
    need(args.lr > 0, f"--lr must be > 0, got {args.lr}")
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    table = {"name": args.task}
    for setting in args.set:
        override(table, setting)
    task = make_task(table, args.batch, device, args.data)
    torch.manual_seed(args.seed)
    model = task.model().to(device)
    batches = _batches(task, model, args.seed)
    try:
        found = probe(model, task.loss, batches, args.steps, (0.9, args.beta2), args.standardize)
    except ValueError as e:
        raise PlanError(str(e)) from e
    if args.plot:
        found.plot(args.plot)
    made = {"task": table, "batch": args.batch, "seed": args.seed}
    record = {**made, "versions": versions(), "commit": commit(), **found.numbers(args.lr, shares)}
    if args.out:
        add_line(args.out, record)
    if args.json:
        print(json.dumps([record]))
    else:
        found.show(args.lr, shares)
    return 0


def _batches(task: "Task", model: "nn.Module", seed: int) -> Iterator[tuple["Tensor", ...]]:
    for epoch in count():
        for step in task.batches(model, seed + epoch):
            yield task.fetch(step.inputs)
