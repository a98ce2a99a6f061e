"""agdopt report: from records to verdict, table, page and charts, again and again the same."""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agdopt.race.goal import ReportError
from agdopt.race.record import Record, RecordError, read
from agdopt.race.standings import Report, build
from agdopt.race.words import columns, headline, rows, sentence

RECORDS, TRIALS, PLAN = "records.jsonl", "trials.jsonl", "plan.json"


@dataclass(frozen=True)
class Found:
    """What lies in folders and files."""

    records: list[Record]
    trials: list[Record]
    plan: Mapping[str, Any]
    notes: list[str]  # what was left out, and why


def load(paths: Sequence[Path]) -> Found:
    files = [f for path in paths for f in _files(path)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        every = read(*files).values()
    plans = [_plan(p) for path in paths if path.is_dir() for p in sorted(path.rglob(PLAN))]
    return Found(
        [r for r in every if not r.trial],
        [r for r in every if r.trial],
        plans[0] if plans else {},
        [f"{w.message}." for w in caught],
    )


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(f for name in (RECORDS, TRIALS) for f in path.rglob(name))
    if not files:
        raise ReportError(f"no {RECORDS} in {path}: `agdopt race --out {path}` writes one")
    return files


def _plan(path: Path) -> Mapping[str, Any]:
    try:
        table = json.loads(path.read_text("utf-8"))
    except ValueError as e:
        raise ReportError(f"{path} is no JSON: {e}") from e
    if not isinstance(table, dict):
        raise ReportError(f"{path} holds no table: remove it, and the records are asked instead")
    return table


def write(folder: Path, sources: Sequence[Path] = (), **asked: Any) -> Report:
    """Page and charts in `folder`, of its records or of `sources`; what is asked goes before the plan."""
    try:
        from agdopt.race.charts import draw
        from agdopt.race.page import page
    except ModuleNotFoundError as e:
        raise ReportError(f'{e}: a report needs pip install "agdopt[race]"') from e
    found = load(sources or [folder])
    wanted = {k: v for k, v in asked.items() if v is not None}
    report = build(found.records, found.trials, {**found.plan, **wanted}, found.notes)
    charts = draw(report)
    (folder / "charts").mkdir(parents=True, exist_ok=True)
    for chart in charts:
        (folder / "charts" / f"{chart.name}.svg").write_text(chart.svg, "utf-8")
    (folder / "report.html").write_text(page(report, charts), "utf-8")
    return report


def show(report: Report, path: Path) -> None:
    """Verdict and table on the terminal."""
    print(f"{report.name}: {headline(report)}\n")
    table = columns(report)
    lines = [[cell(e) for cell in table.values()] for e in report.entrants]
    if sys.stdout.isatty():
        _rich(list(table), lines)
    else:
        _plain(list(table), lines)
    print()
    for said in (*(sentence(report, e) for e in report.entrants), *report.notes):
        print(f"- {said}")
    print(f"\n{path}", flush=True)


def _rich(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*(head[:1]), box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for title in head[1:]:
        table.add_column(title, justify="right")
    styles = {"better": "bold green", "worse": "bold red"}
    for line in lines:
        table.add_row(*(Text(cell, styles.get(cell, "")) for cell in line))
    Console(highlight=False).print(table)


def _plain(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        first, *rest = (cell.rjust(w) for cell, w in zip(line, widths, strict=True))
        print("  ".join([line[0].ljust(len(first)), *rest]).rstrip())


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("report", help="verdict, table and page from the records of a race")
    parser.add_argument("source", nargs="+", type=Path, help="folders or files of records")
    parser.add_argument("--out", type=Path, help="merge all sources into one report in this folder")
    parser.add_argument("--baseline", help="optimizer to compare with (default: the plan's, else AdamW)")
    parser.add_argument("--metric", help="such as test.loss (default: the task's)")
    better = parser.add_mutually_exclusive_group()
    better.add_argument("--higher", dest="maximize", action="store_true", default=None, help="is better")
    better.add_argument("--lower", dest="maximize", action="store_false", default=None, help="is better")
    parser.add_argument(
        "--target", type=float, help="value of the metric: steps and seconds until it is reached"
    )
    parser.add_argument(
        "--json", action="store_true", help="one list of objects on standard output, no table"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    for source in args.source:
        if not source.exists():
            parser.error(f"{source} does not exist")
        if not (source.is_dir() or args.out):
            parser.error(f"{source} is a file: say with --out in which folder the report shall be")
    asked = {k: getattr(args, k) for k in ("baseline", "metric", "maximize", "target")}
    reports = []
    try:
        for folder, sources in _wanted(args.source, args.out):
            reports.append(write(folder, sources, **asked))
            if not args.json:
                show(reports[-1], folder / "report.html")
    except (ReportError, RecordError) as e:
        print(f"agdopt: {e}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([row for report in reports for row in rows(report)], indent=1))
    return 0


def _wanted(sources: Sequence[Path], out: Path | None) -> Iterator[tuple[Path, list[Path]]]:
    """One report of everything, or one in every folder that holds records."""
    if out is not None:
        yield out, list(sources)
        return
    for source in sources:
        below = sorted({f.parent for f in source.rglob(RECORDS)} or {source})
        yield from ((folder, [folder]) for folder in below)
