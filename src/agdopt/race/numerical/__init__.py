"""The paper's numerical section and its theory, as code that runs in seconds: F1, F3, F7, C3, THEORY.

    python -m agdopt.race.numerical                      every cell, into results/numerical/records.jsonl
    python -m agdopt.race.numerical F3.beale THEORY.reddi

Everything is float64 and deterministic. Pictures and pages are made from the records by `make docs`.
"""

from agdopt.race.numerical.cell import Cell
from agdopt.race.numerical.cells import CELLS, listing, read, run

__all__ = ["CELLS", "Cell", "listing", "read", "run"]
