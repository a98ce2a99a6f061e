"""The paper's three functions of two variables, with gradient and diagonal of the Hessian.

Each takes numbers or arrays. The paper states no start. Beale's is fixed by its numbers at points A and B;
the others are those of a public reproduction of AdaBelief's figure, whose settings the paper says it uses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Function:
    value: Callable[[Any, Any], Any]
    gradient: Callable[[Any, Any], Pair]
    curvature: Callable[[Any, Any], Pair]  # the diagonal of the Hessian
    start: tuple[float, float]
    optimum: tuple[float, float]
    view: tuple[float, float, float, float]  # what pictures show: left, right, bottom, top
    formula: str


def _beale(x: Any, y: Any) -> Any:
    return (1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2


def _beale_gradient(x: Any, y: Any) -> Pair:
    r = (1.5 - x + x * y, 2.25 - x + x * y**2, 2.625 - x + x * y**3)
    return (
        2 * (r[0] * (y - 1) + r[1] * (y**2 - 1) + r[2] * (y**3 - 1)),
        2 * x * (r[0] + 2 * r[1] * y + 3 * r[2] * y**2),
    )


def _beale_curvature(x: Any, y: Any) -> Pair:
    r1, r2 = 2.25 - x + x * y**2, 2.625 - x + x * y**3
    return (
        2 * ((y - 1) ** 2 + (y**2 - 1) ** 2 + (y**3 - 1) ** 2),
        2 * (x**2 + (2 * x * y) ** 2 + 2 * x * r1 + (3 * x * y**2) ** 2 + 6 * x * y * r2),
    )


FUNCTIONS = {
    "bowl": Function(
        lambda x, y: (x + y) ** 2 + (x - y) ** 2 / 10,
        lambda x, y: (2 * (x + y) + (x - y) / 5, 2 * (x + y) - (x - y) / 5),
        lambda x, y: (2.2 + 0 * x, 2.2 + 0 * y),
        start=(2.5, 0.0),
        optimum=(0.0, 0.0),
        view=(-1.0, 3.0, -2.0, 1.0),
        formula="(x + y)² + (x - y)²/10",
    ),
    "beale": Function(
        _beale,
        _beale_gradient,
        _beale_curvature,
        start=(-2.5, -2.5),
        optimum=(3.0, 0.5),
        view=(-4.0, 4.0, -4.0, 4.0),
        formula="Beale",
    ),
    "rosenbrock": Function(
        lambda x, y: (1 - x) ** 2 + 100 * (y - x**2) ** 2,
        lambda x, y: (-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)),
        lambda x, y: (2 - 400 * (y - 3 * x**2), 200.0 + 0 * y),
        start=(-4.0, -4.0),
        optimum=(1.0, 1.0),
        view=(-4.5, 3.0, -4.5, 4.5),
        formula="Rosenbrock",
    ),
}
