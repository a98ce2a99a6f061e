"""agdopt report: the arguments of race/report.py."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agdopt.race.checks import need
from agdopt.race.goal import ReportError
from agdopt.race.record import RecordError
from agdopt.race.report import RECORDS, show, write
from agdopt.race.words import rows


def add(commands: Any) -> None:
    p: argparse.ArgumentParser = commands.add_parser(
        "report", help="verdict, table and page from the records of a race"
    )
    p.add_argument("source", nargs="+", type=Path, help="folders or files of records")
    p.add_argument("--out", type=Path, help="merge all sources into one report in this folder")
    p.add_argument("--baseline", help="optimizer to compare with (default: the plan's, else AdamW)")
    p.add_argument("--metric", help="such as test.loss (default: the task's)")
    better = p.add_mutually_exclusive_group()
    better.add_argument("--higher", dest="maximize", action="store_true", default=None, help="is better")
    better.add_argument("--lower", dest="maximize", action="store_false", default=None, help="is better")
    p.add_argument("--target", type=float, help="of the metric: steps and seconds until it is reached")
    p.add_argument("--json", action="store_true", help="rows as a JSON list on standard output, no table")


def run(args: argparse.Namespace) -> int:
    for source in args.source:
        need(source.exists(), f"{source} does not exist")
        need(source.is_dir() or args.out, f"{source} is a file: say with --out where its report goes")
    asked = {k: getattr(args, k) for k in ("baseline", "metric", "maximize", "target")}
    reports = []
    try:
        for folder, sources in _wanted(args.source, args.out):
            reports.append(write(folder, sources, **asked))
            names = [e.runs[0].optimizer for e in reports[-1].entrants]
            if args.baseline not in (None, *names):
                raise ReportError(f"the baseline {args.baseline!r} has no run; there are {', '.join(names)}")
            if not args.json:
                show(reports[-1], folder / "report.html")
    except (ReportError, RecordError) as e:
        print(f"agdopt: {e}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([row for report in reports for row in rows(report)]))
    return 0


def _wanted(sources: Sequence[Path], out: Path | None) -> Iterator[tuple[Path, list[Path]]]:
    """One report of everything, or one in every folder that holds records."""
    if out is not None:
        yield out, list(sources)
        return
    for source in sources:
        below = sorted({f.parent for f in source.rglob(RECORDS)} or {source})
        yield from ((folder, [folder]) for folder in below)
