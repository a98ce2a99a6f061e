"""All cells of the numerical rows, and their records: one JSON line a cell."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agdopt.race.numerical import bounds, f1, gradient, lemmas, races, reddi, regret, slips, variance
from agdopt.race.numerical.cell import Cell
from agdopt.race.record import add_line, tables
from agdopt.race.recorder import commit, versions

CELLS: dict[str, Cell] = {
    name: cell
    for module in (f1, races, variance, lemmas, gradient, regret, reddi, bounds, slips)
    for name, cell in module.CELLS.items()
}


def run(cell: str, out: Path) -> dict[str, Any]:
    """Measures a cell and appends its record to the file `out`."""
    start = time.perf_counter()
    record = {"cell": cell, "schema": 1, **CELLS[cell].measure()}
    record["environment"] = {
        "versions": versions(),
        "commit": commit(),
        "seconds": round(time.perf_counter() - start, 2),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    add_line(out, record)
    return record


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The newest record of every cell in the file."""
    return {record["cell"]: record for record in tables(path)}


def listing(records: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """One plain dict a cell; ours and verdict are those of its record, "not yet run" without one."""
    rows = []
    for name, cell in CELLS.items():
        ours, verdict = cell.judge(records[name]) if name in records else ("not yet run", "cannot tell")
        row = name.partition(".")[0]
        rows.append(
            {
                "row": row,
                "cell": name,
                "claim": cell.claim,
                "paper": cell.paper,
                "ours": ours,
                "verdict": verdict,
            }
        )
    return rows
