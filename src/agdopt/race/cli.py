"""agdopt: one command line. Exit codes: 0 done, 1 something failed, 2 misuse."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agdopt.race import probe_cli, switch_figure
from agdopt.race.checks import ParityError, PlanError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="agdopt", description="The AGD optimizer: what it does, measured.")
    commands = parser.add_subparsers(required=True, metavar="command")
    speed = commands.add_parser("speed", help="time optimizer steps side by side on this machine")
    speed.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    speed.add_argument("--only", help="works, by commas: large, gpt, resnet20, many (default: all)")
    speed.add_argument("--seconds", type=float, default=8.0, help="of timing for each work (default: 8)")
    speed.add_argument("--all", action="store_true", help="every rival that is installed, not only AdamW")
    speed.add_argument("--out", type=Path, help="append the records to this JSON-lines file")
    speed.add_argument(
        "--json", action="store_true", help="records as a JSON list on standard output, no table"
    )
    speed.set_defaults(run=_speed)
    probe_cli.add(commands)
    switch_figure.add(commands)
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args, parser)
    except PlanError as e:
        print(f"agdopt: {e}", file=sys.stderr)
        return 2
    except (ParityError, OSError) as e:
        print(f"agdopt: {e}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as e:
        print(f'agdopt: {e}: pip install "agdopt[torch]"', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("agdopt: interrupted; what was recorded is kept", file=sys.stderr)
        return 1
    return code


def _speed(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    import torch

    from agdopt.race import speed as timing

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")
    known = list(timing.works(device))
    only = args.only.split(",") if args.only else known
    for work in only:
        if work not in known:
            parser.error(f"--only {work}: choose from {', '.join(known)}")
    if not args.seconds > 0:
        parser.error(f"--seconds must be > 0, got {args.seconds}")
    records = []
    for record in timing.speed(device, only, args.seconds, args.all):
        if args.out:
            timing.save(record, args.out)
        records.append(record)
        if not args.json:
            _table(record, first=len(records) == 1)
    if args.json:
        print(json.dumps(records))
    return 0


def _table(record: dict[str, Any], first: bool) -> None:
    if first:
        steps = record["first_step"]
        print(f"{record['device']}, torch {record['torch']}, {record['threads']} threads; parity is green")
        print(f"first step {steps['cold']:.2f} s, cached {steps['cached']:.2f} s\n")
    print(f"{record['work']}: {record['elements']:,} elements in {record['tensors']} tensors")
    print(f"  {'':28}{'ms':>10}{'p20':>10}{'p80':>10}{'ratio':>8}{'extra MB':>10}")
    for row in record["rows"]:
        extra = row["extra_bytes"] / 1e6
        times = f"{row['ms']:>10.3f}{row['p20']:>10.3f}{row['p80']:>10.3f}"
        print(f"  {row['name']:28}{times}{row['ratio']:>8.2f}{extra:>10.1f}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
