"""One line a cell: what the paper claims, what stands, and how to repeat it."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agdopt.race import curvature_report, numerical
from agdopt.race.paper.cell import Cell, cells, names, select
from agdopt.race.paper.evidence import DONE, NOT_YET, REDUCED, Evidence, gather, plan_of, records
from agdopt.race.paper.finding import CANNOT_TELL, Finding, Pick, picks
from agdopt.race.paper.measure import costs
from agdopt.race.paper.verdict import judge

NUMERICAL, CURVATURE = "numerical/records.jsonl", "c1"  # below the results


@dataclass(frozen=True)
class Line:
    name: str
    claim: str
    status: str
    verdict: str
    words: str  # what the verdict rests on
    ours: Any
    paper: Any
    why: str  # a reason why it is not done, or what is left out
    cell: Cell | None = None  # None: a numerical one
    evidence: Evidence = dataclasses.field(default_factory=Evidence)
    finding: Finding | None = None

    @property
    def row(self) -> str:
        return self.name.partition(".")[0]

    @property
    def command(self) -> str:
        """What makes, or goes on with, the runs behind it."""
        if self.cell and self.cell.described:
            return "agdopt paper report"
        seeds = ""
        if self.cell and self.cell.plan and len(plan_of(self.cell.plan).seeds) < 3:
            seeds = " --seeds 1,2,3"
        return f"agdopt paper run {self.name}{seeds}"

    @property
    def scale(self) -> str | None:
        return self.evidence.scale or ("paper" if self.status == DONE else None)

    @property
    def hours(self) -> float:
        """Of an H200; 0 where it takes seconds anywhere."""
        return self.cell.hours if self.cell else 0.0

    def json(self) -> dict[str, Any]:
        e = self.evidence
        return {
            "row": self.row,
            "cell": self.name,
            "claim": self.claim,
            "scale": self.scale,
            "status": self.status,
            "seeds": e.seeds,
            "ours": self.ours,
            "paper": self.paper,
            "verdict": self.verdict,
            "plan": self.cell.plan if self.cell else "",
            "words": self.words,
            "why": self.why,
            "duels": [dataclasses.asdict(d) for d in (self.finding.duels if self.finding else ())],
            "missing": list(e.missing),
            "command": self.command,
            "hours": self.hours,
        }


def listing(results: Path, wanted: Iterable[str] = ()) -> list[Line]:
    measured = numerical.read(results / NUMERICAL)
    rows = {row["cell"]: row for row in numerical.listing(measured)}
    known, found = records(results), []
    for name in select(wanted, names()):
        if name in rows:
            row = rows[name]
            done = name in measured
            status, why = (DONE, "") if done else (NOT_YET, "")
            ours = row["ours"] if done else None
            words = row["ours"] if done else ""
            found.append(Line(name, row["claim"], status, row["verdict"], words, ours, row["paper"], why))
        elif cells()[name].judge == "curvature":
            found.append(_curvature(cells()[name], results / CURVATURE))
        else:
            found.append(line(cells()[name], known))
    return found


def _curvature(cell: Cell, folder: Path) -> Line:
    """A question of ours, so its full recipe is ours, too."""
    found = curvature_report.of(curvature_report.lines(folder), cell.name)
    if not found:
        return Line(cell.name, cell.claim, NOT_YET, CANNOT_TELL, "", None, None, "", cell)
    words, verdict = curvature_report.judge(found)
    whole = found[0]["scale"] == "paper" and len(found) >= 3
    why = f"{len(found)} seeds" if whole else f"{len(found)} seeds, scale {found[0]['scale']}"
    return Line(cell.name, cell.claim, DONE if whole else REDUCED, verdict, words, words, None, why, cell)


def line(cell: Cell, known: Iterable[Any]) -> Line:
    evidence = gather(cell, known)
    finding = judge(cell, evidence)
    paper: Any = {c: list(v) for c, v in cell.paper.items()} or None
    ours: Any = None
    if cell.judge == "parameters":
        paper, ours = cell.size, finding.words or None
    elif cell.judge == "cost":
        ours = {c: {"time": a, "memory": b} for c, (a, b) in costs(evidence).items()} or None
    elif cell.judge in ("robust", "switch", "table"):
        ours = finding.words or None
        paper = [list(pair) for pair in cell.table] or cell.says or None
    else:
        ours = {c: _told(p) for c, p in picks(cell, evidence).items()} or None
    if cell.judge == "beyond":
        paper = {**(paper or {}), **{c: [v] for c, v in cell.quoted.items()}}
    return Line(
        cell.name,
        cell.claim,
        evidence.status,
        finding.verdict,
        finding.words,
        ours,
        paper,
        _why(cell, evidence),
        cell,
        evidence,
        finding,
    )


def _told(p: Pick) -> dict[str, Any]:
    diverged = len(p.outcomes) - len(p.numbers)
    return {"entry": p.entry, "mean": p.mean, "sd": p.sd, "seeds": len(p.outcomes), "diverged": diverged}


def _why(cell: Cell, evidence: Evidence) -> str:
    parts = [f"without {', '.join(c)}: {reason}" for reason, c in _by_reason(cell.without).items()]
    if cell.described and cell.reason:
        parts.append(cell.reason)
    if evidence.status != DONE:
        if evidence.changed:
            parts.append("; ".join(evidence.changed))
        if evidence.missing and evidence.runs:
            parts.append(f"no run of {', '.join(evidence.missing)}")
        if evidence.edited:
            parts.append(f"{evidence.edited} runs are of settings that the plan no longer has")
        if evidence.runs and evidence.seeds < 3:
            parts.append(f"{evidence.seeds} seed" + "s" * (evidence.seeds > 1))
        if cell.reason:
            parts.append(cell.reason)
    return ". ".join(part[0].upper() + part[1:] for part in parts)


def _by_reason(without: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for column, reason in without.items():
        found.setdefault(reason, []).append(column)
    return found


def text(value: Any) -> str:
    """Numbers of a cell for people: columns with mean and spread, or what is written there."""
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else "a table"
    parts = []
    for column, v in value.items():
        if isinstance(v, Mapping) and "time" in v:
            parts.append(f"{column} {v['time']:.2f} in time, {v['memory']:.2f} in memory")
            continue
        mean, sd = (v["mean"], v["sd"]) if isinstance(v, Mapping) else (v[0], v[1] if len(v) > 1 else None)
        digits = 4 if mean is not None and abs(mean) < 1 else 2
        spread = "" if sd is None else f" ± {sd:.{digits}f}"
        parts.append(f"{column} diverged" if mean is None else f"{column} {mean:.{digits}f}{spread}")
    return ", ".join(parts)
