"""python -m agdopt.race.numerical [CELL ...] [--out FILE]"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agdopt.race.numerical import CELLS, listing, run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m agdopt.race.numerical", description=__doc__)
    parser.add_argument(
        "cells", nargs="*", metavar="CELL", help="F3.beale, or a whole row: F3 (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("results/numerical/records.jsonl"))
    args = parser.parse_args(argv)
    wanted = [c for c in CELLS if not args.cells or c in args.cells or c.partition(".")[0] in args.cells]
    for name in args.cells:
        if not any(name in (c, c.partition(".")[0]) for c in CELLS):
            parser.error(f"no cell {name!r}; there are {', '.join(CELLS)}")
    for name in wanted:
        record = run(name, args.out)
        (line,) = (row for row in listing({name: record}) if row["cell"] == name)
        print(
            f"{name} ({record['environment']['seconds']:.1f} s): {line['verdict']}. {line['ours']}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
