"""docs/results.md and its five lines in the README: pure functions of the lines of the listing."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agdopt.race.paper import figures
from agdopt.race.paper.evidence import DONE, NOT_YET, REDUCED
from agdopt.race.paper.finding import CANNOT_TELL, DOES_NOT, HOLDS, decimals, number
from agdopt.race.paper.listing import Line, listing, text

NUMBERS = {  # rows that no plan's runs answer
    "F1": "Beale's path",
    "F3": "three functions",
    "F7": "larger rates",
    "C3": "the variance of mhat",
    "C1": "s and the Hessian",
}
HEADS = {
    HOLDS: "Holds",
    DOES_NOT: "Does not hold",
    CANNOT_TELL: "Nobody can tell, from these runs",
}
NOTES = """\
**Status** is computed from the records. *Done*: the plan's recipe, which is the paper's, to the letter (a
record's hash is the present plan's), and at least three seeds of every optimizer of the cell. *Reduced*: a
shortened recipe, other data, fewer seeds, or an optimizer that has not run yet; what differs is named. A
reduced recipe gives no verdict on the paper's claim, whatever it shows (but on what a step costs).

**Verdict.** From five shared seeds on, the 95% interval of the paired differences (the wider of Student's t
and a studentized bootstrap) and a t-test corrected for all rivals of the cell must agree. Fewer seeds carry
no interval; then a difference counts only where all runs of one side beat all of the other, by six standard
deviations of a run. *Holds*: against every rival that the claim names. *Does not*: some rival is the better
one. Differences are in the favour of AGD, or of the champion named, where they are positive. Where the
paper leaves a setting open, each reading runs, and every optimizer is judged by its better one: chosen on
validation where the plan has such a split, else on the test split, as the paper must have done."""


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def row(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([row(head), row(["---"] * len(head)), *map(row, rows)])


def results(lines: Sequence[Line]) -> str:
    drawn = figures.pictures(lines)
    parts = [
        "# What stands of the paper",
        "Made by `agdopt paper report` from the records in `results/`, no number by hand. The command beside "
        "a cell makes its records again, or goes on with what is missing.",
        summary(lines),
        opening(lines),
        "## Every cell",
        NOTES,
        cell_table(lines),
        *_details(lines),
    ]
    if drawn:
        parts.append("## Figures")
        parts += [f"![{p.title}](figures/{p.name}.svg)" for p in drawn]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(lines: Sequence[Line]) -> str:
    count = {s: sum(line.status == s for line in lines) for s in (DONE, REDUCED, NOT_YET)}
    return (
        f"{len(lines)} cells: {count[DONE]} done, {count[REDUCED]} reduced, {count[NOT_YET]} not yet run "
        f"(about {sum(line.hours for line in _open(lines)):.0f} hours of one H200, by our estimate)."
    )


def _open(lines: Iterable[Line]) -> list[Line]:
    """What is left to run, each plan once."""
    waiting = sorted((x for x in lines if x.hours and x.status != DONE), key=lambda x: x.hours)
    return list({line.cell.plan or line.name: line for line in waiting if line.cell}.values())


def judged(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """By verdict, what has run; cells that rest on the same comparison of the same records once."""
    found: dict[str, list[Line]] = {v: [] for v in HEADS}
    said: set[tuple[str, str]] = set()
    for line in lines:
        plan = line.cell.plan if line.cell else line.name
        if line.status != NOT_YET and (plan, line.words) not in said:
            said.add((plan, line.words))
            found[line.verdict].append(line)
    return found


def opening(lines: Sequence[Line]) -> str:
    """One screen: what was trained first, what has a page of its own last."""
    parts = []
    for verdict, found in judged(lines).items():
        told = [f"- {_bullet(line)}" for line in found if line.evidence.runs]
        told += [f"- {_bullet(line)}" for line in found if line.row in NUMBERS]
        for row, more in (("THEORY", "[theory.md](theory.md)"), ("T2", "parameters, below"), ("T1", "below")):
            names = [line.name.partition(".")[2] for line in found if line.row == row]
            told += [f"- {' '.join([f'**{row}**', ', '.join(names)]).strip()} ({more})"] if names else []
        parts.append(f"## {HEADS[verdict]}\n\n" + ("\n".join(told) or "Nothing yet."))
    waiting = [line.name for line in lines if line.status == NOT_YET]
    if waiting:
        parts.append(f"**Not yet run**: {', '.join(waiting)}.")
    return "\n\n".join(parts)


def _bullet(line: Line) -> str:
    words = "; ".join(line.words.split("; ")[:2]) if line.cell is None else line.words
    scale = f" *Reduced: {line.why}.*" if line.status == REDUCED else ""
    numbers = f"{text(line.ours)}. " if line.finding and line.finding.duels else ""
    return f"**{line.name}**. {line.claim} Here: {numbers}{words}.{scale}"


def cell_table(lines: Sequence[Line]) -> str:
    rows = []
    for line in lines:
        status = line.status
        if line.evidence.seeds:
            status += f", {line.evidence.seeds} seeds" if line.evidence.seeds > 1 else ", 1 seed"
        status += f": {line.why}" if line.why else ""
        again = f"`{line.command}`" + (f", {line.hours:g} h" if line.hours else "")
        paper = line.paper if not isinstance(line.paper, Mapping) else _paper(line)
        verdict = f"**{line.verdict}**" if line.status != NOT_YET else ""
        rows.append(
            (
                line.name,
                line.claim,
                text(paper),
                text(line.ours),
                status,
                verdict,
                again if line.command else "",
            )
        )
    return table(["cell", "claim", "the paper", "here", "status", "verdict", "again"], rows)


def _paper(line: Line) -> Any:
    if line.cell and line.cell.judge == "cost":
        base = line.paper["AdamW"]
        return {c: {"time": v[0] / base[0], "memory": v[1] / base[1]} for c, v in line.paper.items()}
    return line.paper


def _details(lines: Sequence[Line]) -> list[str]:
    parts = []
    for line in lines:
        if line.cell and line.cell.table:
            parts.append(f"### {line.name}. {line.claim}")
            parts.append(table(["preconditioner", "optimizers"], line.cell.table))
    for found in judged(lines).values():
        for line in (x for x in found if x.finding and x.finding.duels):
            parts += [f"### {line.name}, in numbers", _readings(line), _duels(line)]
    return parts


def _readings(line: Line) -> str:
    assert line.cell is not None
    rows = []
    for column, entries in line.evidence.runs.items():
        for name, runs in entries.items():
            values = [v for r in runs if (v := number(r, line.cell.metric)) is not None]
            counted: dict[str, Any] = {"mean": None, "sd": None, "entry": name}
            if values:
                centre = sum(values) / len(values)
                sd = (
                    (sum((v - centre) ** 2 for v in values) / (len(values) - 1)) ** 0.5
                    if values[1:]
                    else None
                )
                counted |= {"mean": centre, "sd": sd}
            told = text({"": counted}).strip() if runs else "not yet run"
            rows.append((column, name, told, len(runs), len(runs) - len(values)))
    return table(["optimizer", "setting", line.cell.metric, "runs", "diverged"], rows)


def _duels(line: Line) -> str:
    assert line.cell is not None
    assert line.finding is not None
    digits = decimals(line.cell)
    rows = [
        (
            d.rival,
            "" if d.difference is None else f"{d.difference:+.{digits}f}",
            f"{d.interval[0]:+.{digits}f} to {d.interval[1]:+.{digits}f}" if d.interval else "none",
            d.seeds,
            d.found,
        )
        for d in line.finding.duels
    ]
    return table([f"{line.cell.champion} against", "difference", "95% interval", "seeds", "it is"], rows)


def readme(lines: Sequence[Line]) -> str:
    """Five lines."""
    found = judged(lines)

    def named(verdict: str) -> str:
        told = [f"{line.name}: {line.words}" for line in found[verdict] if line.evidence.runs]
        for row, title in NUMBERS.items():
            names = [line.name.partition(".")[2] for line in found[verdict] if line.row == row]
            told += [f"{row}, {title} ({', '.join(names)})"] if names else []
        theory = sum(line.row == "THEORY" for line in found[verdict])
        told += [f"{theory} statements of the theory"] if theory else []
        return "; ".join(told) or "nothing yet"

    return "\n".join(
        [
            f"- **Holds**: {named(HOLDS)}.",
            f"- **Does not hold**: {named(DOES_NOT)}.",
            f"- **Nobody can tell, from our runs**: {named(CANNOT_TELL)}.",
            f"- {summary(lines)}",
            "- [docs/results.md](docs/results.md) has every claim, number, interval and command.",
        ]
    )


def write(folder: Path, out: Path) -> list[Path]:
    lines = listing(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(results(lines), "utf-8")
    return [out, *figures.save(figures.pictures(lines), out.parent / "figures")]
