"""THEORY: the lemmas, and the sums inside the proofs."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from agdopt.race.numerical.cell import Cell, Numbers, verdict
from agdopt.race.numerical.grid import (
    AXES,
    BETA1,
    BETA2,
    DELTA,
    ROUNDING,
    SCHEDULES,
    STEPS,
    Check,
    Step,
    axis,
    rate_of,
    walks,
)


def _see(checks: dict[str, Check], name: str, step: Step, quantity: Any, bound: Any) -> None:
    checks.setdefault(name, Check()).see(quantity, bound, step.schedule, step.t)


def checked(amsgrad: bool = True) -> dict[str, dict[str, Any]]:
    """Lemmas 2 to 4 and what their proofs use."""
    checks: dict[str, Check] = {}
    delta, left1 = axis(DELTA, 2), 1 - axis(BETA1, 0)
    left2 = np.sqrt(1 - axis(BETA2, 1))
    total = np.zeros(tuple(map(len, AXES)))
    for k in walks(amsgrad):
        see = partial(_see, checks, step=k)
        see("|m_t| <= G / (1 - beta1)", quantity=np.abs(k.m), bound=1 / left1)
        see("|s_t| <= 2 G / (1 - beta1)^2", quantity=np.abs(k.s), bound=2 / left1**2)
        see("lemma 2", quantity=k.v, bound=(2 + delta) / left1**2)
        if k.schedule == "constant":
            see("|s_t| <= 2 G / (1 + beta1)", quantity=np.abs(k.s), bound=2 / (2 - left1))
        if k.t > 1:
            see("a_t / v_t falls", quantity=k.rate / k.v, bound=k.rate_before / k.v_before)
            now, later = k.beta1 / (1 - k.beta1), k.beta1_next / (1 - k.beta1_next)
            u = np.abs(k.moved * (1 + later) - now * k.moved_before)
            bracket = k.rate * k.beta1 / left1**3 + k.rate_before * k.beta1 / left1**2 + k.rate
            see("lemma 3, as proved", quantity=u, bound=bracket / (delta * left2))
            see("lemma 3, as printed", quantity=u, bound=bracket / delta)
        total = (total if k.t > 1 else 0) + k.rate * k.m**2
        see("lemma 4", quantity=total, bound=2 * math.sqrt(k.t) / left1**3)
    return {name: check.numbers() for name, check in checks.items()}


@cache
def _with_amsgrad() -> dict[str, dict[str, Any]]:
    return checked()


def _some(*names: str) -> dict[str, Any]:
    return {"n": 1, "T": STEPS, "checks": {name: _with_amsgrad()[name] for name in names}}


def _lemma1() -> dict[str, Any]:
    """a_t > a_{t+1}, and what becomes of it when alpha does not fall."""
    t, rows = np.arange(1, 100_001), []
    for schedule in SCHEDULES:
        for beta1 in BETA1:
            for beta2 in BETA2:
                steady = rate_of(t, beta1, beta2, schedule, falling=False)
                falling = rate_of(t, beta1, beta2, schedule)
                rises = np.nonzero(steady[1:] > steady[:-1])[0]
                rows.append(
                    {
                        "schedule": schedule,
                        "beta1": beta1,
                        "beta2": beta2,
                        "least_fall": float((1 - falling[1:] / falling[:-1]).min()),
                        "constant_alpha_rises_at": int(rises[0]) + 1 if rises.size else None,
                    }
                )
    return {"T": len(t), "rows": rows}


def _sums() -> dict[str, Any]:
    """The two sums of a_t that the theorems use, and two comparisons with integrals inside their proofs."""
    T = np.arange(1, 100_001)
    least, most, equal = math.inf, -math.inf, []
    for schedule in SCHEDULES:
        for beta1 in BETA1:
            for beta2 in BETA2:
                a = rate_of(T, beta1, beta2, schedule)
                from_two = np.cumsum(a)[1:] - a[0]
                below = 2 * math.sqrt(1 - beta2) * (np.sqrt(T[1:]) - math.sqrt(2))
                least = min(least, float((from_two - below).min()))
                ratio = np.cumsum(a**2) * (1 - beta1) ** 2 / (np.log(T) + 1)
                most = max(most, float(ratio.max()))
                equal += [{"beta1": beta1, "beta2": beta2, "schedule": schedule}] * bool(ratio[0] >= 1)
    roots, inverses = np.cumsum(1 / np.sqrt(T)), np.cumsum(1 / T)
    return {
        "T": len(T),
        "sum_of_a_over_its_bound_by": least,
        "sum_of_squares_share_of_bound": most,
        "equal_at_T_1": equal,
        "sum_of_roots_wrong_at": T[roots >= 2 * np.sqrt(T - 1) - 1].tolist(),
        "sum_of_inverses_wrong_at": [1, *T[1:][inverses[1:] >= np.log(T[1:] - 1) + 1].tolist()][:10],
    }


def _holds(check: dict[str, Any]) -> str:
    w = check["where"]
    at = f"beta1 {w['beta1']:g}, beta2 {w['beta2']:g}, delta {w['delta']:g}, {w['gradients']}, t = {w['t']}"
    if check["over"]:
        return f"broken in {check['over']} of {check['tried']} places, by up to {check['largest']:.3g} ({at})"
    most = (
        "reaches its bound" if check["largest"] > 0.9995 else f"at most {check['largest']:.3g} of its bound"
    )
    return f"{most} ({at})"


def _judge(*names: str) -> Callable[[Numbers], tuple[str, str]]:
    def judge(n: Numbers) -> tuple[str, str]:
        checks = [n["checks"][name] for name in names]
        return "; ".join(map(_holds, checks)), verdict(not any(check["over"] for check in checks))

    return judge


def _lemma1_judge(n: Numbers) -> tuple[str, str]:
    least = min(row["least_fall"] for row in n["rows"])
    rising = [row for row in n["rows"] if row["constant_alpha_rises_at"] is not None]
    words = f"least relative fall {least:.1e} up to T = {n['T']}; with a constant alpha a_t rises in "
    return f"{words}{len(rising)} of {len(n['rows'])} settings", verdict(least > 0)


CELLS = {
    "THEORY.lemma1": Cell(
        "a_t > a_{t+1}, with alpha_t = alpha / sqrt t.",
        "Lemma 1",
        _lemma1,
        _lemma1_judge,
    ),
    "THEORY.lemma2": Cell(
        "sum_i v_{t,i} < n (2G + delta) / (1 - beta1)^2, with its bounds on m_t and s_t.",
        "Lemma 2",
        lambda: _some(
            "|m_t| <= G / (1 - beta1)",
            "|s_t| <= 2 G / (1 - beta1)^2",
            "lemma 2",
            "|s_t| <= 2 G / (1 + beta1)",
        ),
        _judge("lemma 2"),
    ),
    "THEORY.falling": Cell(
        "a_t / v_t falls in every coordinate, which needs b never to fall (Algorithm 2).",
        "the proofs' third inequality",
        lambda: {**_some("a_t / v_t falls"), "without": checked(amsgrad=False)["a_t / v_t falls"]},
        lambda n: (
            f"{_holds(n['checks']['a_t / v_t falls'])}; with Algorithm 1 {_holds(n['without'])}",
            verdict(not n["checks"]["a_t / v_t falls"]["over"]),
        ),
    ),
    "THEORY.lemma3": Cell(
        "The bound on ||u_{t+1} - u_t|| as the lemma prints it, without sqrt(1 - beta2).",
        "Lemma 3",
        lambda: _some("lemma 3, as printed", "lemma 3, as proved"),
        _judge("lemma 3, as printed"),
    ),
    "THEORY.lemma3-proved": Cell(
        "The same with the sqrt(1 - beta2) of its proof.",
        "Lemma 3, its proof",
        lambda: _some("lemma 3, as proved"),
        _judge("lemma 3, as proved"),
    ),
    "THEORY.lemma4": Cell(
        "sum_t a_t ||m_t||^2 < 2 n alpha G^2 sqrt T / (1 - beta1)^3.",
        "Lemma 4",
        lambda: _some("lemma 4"),
        _judge("lemma 4"),
    ),
    "THEORY.sums": Cell(
        "sum_{2..T} a_t > 2 alpha sqrt(1 - beta2)(sqrt T - sqrt 2) and "
        "sum_{1..T} a_t^2 < alpha^2 (log T + 1) / (1 - beta1)^2.",
        "inside the proof of Theorem 1",
        _sums,
        lambda n: (
            f"the first by at least {n['sum_of_a_over_its_bound_by']:.2g}; the second at most "
            f"{n['sum_of_squares_share_of_bound']:.3g} of its bound, equal to it at T = 1 with beta2 = 0",
            verdict(
                n["sum_of_a_over_its_bound_by"] > 0 and n["sum_of_squares_share_of_bound"] <= 1 + ROUNDING
            ),
        ),
    ),
}
