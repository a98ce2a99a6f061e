"""agdopt: one command line. Exit codes: 0 done, 1 something failed, 2 misuse."""

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence

import agdopt
from agdopt.race.checks import ParityError, PlanError

# A command's module is imported when the command is given, so that --help needs no torch.
COMMANDS = {
    "paper": (
        "agdopt.race.commands.paper",
        "the paper's tables and figures: what holds, and how to repeat it",
    ),
    "probe": (
        "agdopt.race.commands.probe",
        "measure bhat on a task: which delta and lr the paper's AGD wants",
    ),
    "race": ("agdopt.race.commands.race", "compare optimizers on a task, with equal tuning and fresh seeds"),
    "report": ("agdopt.race.commands.report", "verdict, table and page from the records of a race"),
    "speed": ("agdopt.race.commands.speed", "time optimizer steps side by side on this machine"),
    "switch": ("agdopt.race.switch_figure", "draw what a SwitchMonitor has written"),
}


def main(argv: Sequence[str] | None = None) -> int:
    sys.path.insert(0, os.getcwd())  # where a task of one's own lies
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="agdopt",
        description="The AGD optimizer: what it does, measured.",
        epilog="Exit codes: 0 done, 1 something failed, 2 misuse.",
    )
    parser.add_argument("--version", action="version", version=f"agdopt {agdopt.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command", dest="command")
    warnings.formatwarning = lambda message, *_: f"agdopt: {message}\n"
    try:
        modules = {}
        for name, (module, about) in COMMANDS.items():
            if name in words[:1]:
                modules[name] = importlib.import_module(module)
                modules[name].add(commands)
            else:
                commands.add_parser(name, help=about)
        args = parser.parse_args(words)
        code: int = modules[args.command].run(args)
    except PlanError as e:
        return _say(e, 2)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        return _say(f"{e.filename}: {e.strerror}" if e.filename else e, 1)
    except ParityError as e:
        return _say(e, 1)
    except ModuleNotFoundError as e:
        extra = "torch" if e.name == "torch" else "race"
        return _say(f'{e}: pip install "agdopt[{extra}]"', 1)
    except KeyboardInterrupt:
        return _say("interrupted; what was recorded is kept", 1)
    return code


def _say(what: object, code: int) -> int:
    print(f"agdopt: {what}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
