"""From records to verdict, table, page and charts, again and again the same."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from agdopt.race.goal import ReportError
from agdopt.race.record import Record, read
from agdopt.race.show import table
from agdopt.race.standings import Report, build
from agdopt.race.words import columns, headline, sentence

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
    if not files:
        raise ReportError(f"no {RECORDS} in {', '.join(map(str, paths))}: `agdopt race --out DIR` writes one")
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
    return sorted(f for name in (RECORDS, TRIALS) for f in path.rglob(name))


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
    # Here, because drawing needs more than saying does.
    from agdopt.race.charts import draw
    from agdopt.race.page import page

    found = load(sources or [folder])
    wanted = {k: v for k, v in asked.items() if v is not None}
    report = build(found.records, found.trials, {**found.plan, **wanted}, found.notes)
    charts = draw(report)
    (folder / "charts").mkdir(parents=True, exist_ok=True)
    for chart in charts:
        (folder / "charts" / f"{chart.name}.svg").write_text(chart.svg, "utf-8")
    (folder / "report.html").write_text(page(report, charts), "utf-8")
    return report


def show(report: Report, page: Path, stream: TextIO | None = None) -> None:
    """Verdict, table and sentences on the terminal."""
    wanted = columns(report)
    lines = [[cell(e) for cell in wanted.values()] for e in report.entrants]
    table(f"{report.name}: {headline(report)}\n", list(wanted), lines, stream)
    for said in (*(sentence(report, e) for e in report.entrants), *report.notes):
        print(f"- {said}", file=stream)
    print(f"\n{page}", file=stream, flush=True)
