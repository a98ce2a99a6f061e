"""Cell: one claim of the paper, how to measure it, and what the measurement says of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Numbers = Mapping[str, Any]
HOLDS, DOES_NOT, CANNOT_TELL = "holds", "does not", "cannot tell"


@dataclass(frozen=True)
class Cell:
    claim: str  # one sentence
    paper: str  # the paper's number
    measure: Callable[[], dict[str, Any]]
    judge: Callable[[Numbers], tuple[str, str]]  # ours in words, and the verdict


def verdict(ok: bool) -> str:
    return HOLDS if ok else DOES_NOT


def three(reached: list[int]) -> str:
    """Steps to 0.1 / 1e-2 / 1e-3, a dash for what was not reached."""
    return " / ".join([*map(str, reached), *["-"] * (3 - len(reached))])
