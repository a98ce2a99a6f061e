"""F3: who reaches the optimum first, on three functions. F7: the same on Beale with other rates."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from agdopt.race.numerical.cell import CANNOT_TELL, Cell, Numbers, three, verdict
from agdopt.race.numerical.functions import FUNCTIONS
from agdopt.race.numerical.paths import OPTIMIZERS, Path, default_lr, thinned, walk

BEALE = FUNCTIONS["beale"]
F3_STEPS, F7_STEPS = 60_000, 20_000
RATES = [10.0**e for e in range(-5, 2)]


def _f3(name: str) -> dict[str, Any]:
    function = FUNCTIONS[name]
    found = {}
    for optimizer in OPTIMIZERS:
        path = walk(optimizer, function, default_lr(optimizer), F3_STEPS)
        found[optimizer] = {
            "lr": default_lr(optimizer),
            "reached": path.reached,
            "diverged": path.diverged,
            "distance": None if path.diverged else math.dist(path.points[-1], function.optimum),
            "points": thinned(path, function),
        }
    return {"steps": F3_STEPS, "optimizers": found}


def _f3_judge(n: Numbers) -> tuple[str, str]:
    found = n["optimizers"]
    agd = found["AGD"]["reached"]
    faster = [name for name, o in found.items() if o["reached"] and o["reached"][0] < agd[0]]
    rivals = [name for name in found if not name.startswith("AGD") and name not in faster]
    best = min((name for name in rivals if found[name]["reached"]), key=lambda k: found[k]["reached"][0])
    gone = [name for name, o in found.items() if o["diverged"]]
    words = f"AGD {three(agd)} steps to 0.1 / 1e-2 / 1e-3"
    words += "".join(f"; {name} is before it: {three(found[name]['reached'])}" for name in faster)
    words += f"; next {best}: {three(found[best]['reached'])}"
    words += "".join(f"; {name} diverges" for name in gone)
    return words, verdict(not faster)


def _sweep(optimizers: list[str], drawn: Callable[[str, float, Path], bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in optimizers:
        found[name] = []
        for lr in RATES:
            path = walk(name, BEALE, lr, F7_STEPS)
            entry = {"lr": lr, "reached": path.reached, "diverged": path.diverged}
            if drawn(name, lr, path):
                entry["points"] = thinned(path, BEALE)
            found[name].append(entry)
    return {"steps": F7_STEPS, "optimizers": found}


def _f7_judge(name: str, n: Numbers) -> tuple[str, str]:
    arrived = [e for e in n["optimizers"][name] if len(e["reached"]) == 3]
    best = min(arrived, key=lambda e: e["reached"][2])
    largest = arrived[-1]
    beyond = [e["lr"] for e in n["optimizers"][name] if e["lr"] > largest["lr"]]
    below = [e["reached"][2] for e in arrived if e["lr"] <= best["lr"]]
    words = f"fastest at {best['lr']:g} ({best['reached'][2]} steps to 1e-3)"
    if beyond:
        words += f"; {beyond[0]:g} does not arrive"
    elif largest is not best:
        words += f"; {largest['lr']:g} takes {largest['reached'][2]}"
    return words, verdict(below == sorted(below, reverse=True) and (bool(beyond) or largest is not best))


def chosen(entries: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The rate that gets to 1e-3 first, and the largest that gets there at all."""
    arrived = [e for e in entries if len(e["reached"]) == 3]
    return (min(arrived, key=lambda e: e["reached"][2]), arrived[-1]) if arrived else (None, None)


def _f7_best() -> dict[str, Any]:
    n = _sweep([name for name in OPTIMIZERS if name != "AGD + AMSGrad"], lambda *_: True)
    for entries in n["optimizers"].values():
        best = chosen(entries)[0] or max(entries, key=lambda e: (not e["diverged"], e["lr"]))
        for entry in entries:
            if entry is not best:
                del entry["points"]
    return n


def _f7_best_judge(n: Numbers) -> tuple[str, str]:
    picks = {name: chosen(entries) for name, entries in n["optimizers"].items()}
    orders = [
        sorted((e[i]["reached"][2], name, e[i]["lr"]) for name, e in picks.items() if e[i] is not None)  # type: ignore[index]
        for i in (0, 1)
    ]
    said = [", ".join(f"{name} {steps} ({lr:g})" for steps, name, lr in order) for order in orders]
    first = [order[0][1] == "AGD" for order in orders]
    words = f"steps to 1e-3 at the best rate: {said[0]}; at the largest rate that arrives at all: {said[1]}"
    return words, verdict(first[0]) if first[0] == first[1] else CANNOT_TELL


CELLS = {
    **{
        f"F3.{name}": Cell(
            f"On {words}, AGD reaches the optimum before every other optimizer.",
            "first",
            partial(_f3, name),
            _f3_judge,
        )
        for name, words in {
            "bowl": "(x + y)^2 + (x - y)^2 / 10",
            "beale": "Beale",
            "rosenbrock": "Rosenbrock",
        }.items()
    },
    **{
        f"F7.{name.lower()}": Cell(
            f"On Beale, larger rates make {name} faster, and the largest unstable.",
            "shown in a picture",
            partial(_sweep, [name], lambda *_: True),
            partial(_f7_judge, name),
        )
        for name in ("Adam", "AGD")
    },
    "F7.best": Cell(
        "With the largest rate that each optimizer can handle, AGD is slightly superior.",
        "slightly superior",
        _f7_best,
        _f7_best_judge,
    ),
}
