"""agdopt speed: the arguments and the table of race/speed.py."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from agdopt.race import speed, timed
from agdopt.race.checks import need
from agdopt.race.record import add_line
from agdopt.race.show import table


def add(commands: Any) -> None:
    p: argparse.ArgumentParser = commands.add_parser("speed", help=speed.__doc__)
    p.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    p.add_argument("--only", help="works, by commas: large, gpt, resnet20, many (default: all)")
    p.add_argument("--seconds", type=float, default=8.0, help="of timing for each work (default: 8)")
    p.add_argument("--all", action="store_true", help="every rival that is installed, not only AdamW")
    p.add_argument("--out", type=Path, help="append the records to this JSON-lines file")
    p.add_argument("--json", action="store_true", help="records as a JSON list on standard output, no table")


def run(args: argparse.Namespace) -> int:
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    need(device == "cpu" or torch.cuda.is_available(), "--device cuda: torch sees no GPU here")
    known = list(timed.works(device))
    only = args.only.split(",") if args.only else known
    for work in only:
        need(work in known, f"--only {work}: choose from {', '.join(known)}")
    need(args.seconds > 0, f"--seconds must be > 0, got {args.seconds}")
    records = []
    for record in speed.speed(device, only, args.seconds, args.all):
        if args.out:
            add_line(args.out, record)
        records.append(record)
        if not args.json:
            _show(record, first=len(records) == 1)
    if args.json:
        print(json.dumps(records))
    return 0


def _show(record: dict[str, Any], first: bool) -> None:
    if first:
        steps = record["first_step"]
        print(f"{record['device']}, torch {record['torch']}, {record['threads']} threads; parity is green")
        print(f"first step {steps['cold']:.2f} s, cached {steps['cached']:.2f} s\n")
    rows = [
        [
            r["name"],
            *(f"{r[k]:.3f}" for k in ("ms", "p20", "p80")),
            f"{r['ratio']:.2f}",
            f"{r['extra_bytes'] / 1e6:.1f}",
        ]
        for r in record["rows"]
    ]
    title = f"{record['work']}: {record['elements']:,} elements in {record['tensors']} tensors"
    table(title, ["", "ms", "p20", "p80", "ratio", "extra MB"], rows)
