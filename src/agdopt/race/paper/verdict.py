"""What records say of a claim: pure functions, and cautious ones.

A claim holds when nothing that ran speaks against it, and all that it needs was clear.
"""

from agdopt.race.paper import duel, measure
from agdopt.race.paper.cell import Cell
from agdopt.race.paper.evidence import Evidence
from agdopt.race.paper.finding import CANNOT_TELL, Finding

JUDGES = {
    "best": duel.best,
    "beyond": duel.beyond,
    "robust": measure.robust,
    "switch": measure.switch,
    "cost": measure.cost,
    "parameters": measure.parameters,
    "table": measure.table,
}


def judge(cell: Cell, evidence: Evidence) -> Finding:
    found = (
        JUDGES[cell.judge](cell, evidence) if evidence.runs or cell.described else Finding(CANNOT_TELL, "")
    )
    if evidence.scale == "reduced" and cell.judge != "cost":
        # Other data or a shorter run is no answer to the claim, whatever it shows.
        words = f"at the reduced scale it {found.verdict}" if found.verdict != CANNOT_TELL else "reduced"
        return Finding(CANNOT_TELL, f"{words}: {found.words}", found.duels)
    return found
