"""THEORY: the paper's slips, where a number can show them."""

from typing import Any

import numpy as np
import torch

from agdopt import AGD
from agdopt.core.reference import Reference
from agdopt.race.numerical.cell import Cell, Numbers, verdict

BETA1 = 0.9


def _sgd_scale() -> dict[str, Any]:
    """A step of agdopt.AGD with every coordinate below delta, over alpha m / (1 - beta1^t)."""
    delta, w = 1e-2, torch.zeros(1, dtype=torch.float64)
    optimizer = AGD([w], lr=1e-3, delta=delta)
    for t in range(1, 6):
        before = w.clone()
        w.grad = torch.full_like(w, 1e-4 * t)
        optimizer.step()
    said = 1e-3 * optimizer.state[w]["exp_avg"] / (1 - BETA1**5)
    return {"delta": delta, "ratio": float((before - w) / said)}


def _debias() -> dict[str, Any]:
    """mhat of a constant gradient 1; it should be 1."""
    rows = []
    for schedule in ("constant", "sqrt", "inverse"):
        for debias in ("power", "product"):
            reference, found = Reference(np.zeros(1), beta1_schedule=schedule, debias=debias), {}
            for t in range(1, 1001):
                reference.step(np.ones(1))
                if t in (1, 2, 3, 10, 100, 1000):
                    found[str(t)] = float(reference.m[0] / np.asarray(reference.c1))
            rows.append({"schedule": schedule, "debias": debias, "mhat": found})
    return {"rows": rows}


def _projection() -> dict[str, Any]:
    """Does a projection ever lead away from a point of the domain, in the v-weighted norm of the proof?"""
    random, trials = np.random.default_rng(0), 200_000
    v = 10 ** random.uniform(-3, 0, (trials, 2))
    outside = random.normal(size=(trials, 2)) * 2
    angle, radius = random.uniform(0, 2 * np.pi, trials), np.sqrt(random.random(trials))
    in_ball = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    in_box = random.uniform(-1, 1, (trials, 2))
    domains = {
        "ball, Euclidean": (outside / np.maximum(np.hypot(*outside.T), 1)[:, None], in_ball),
        "box": (np.clip(outside, -1, 1), in_box),
    }
    found = {}
    for name, (projected, inside) in domains.items():
        before = (v * (outside - inside) ** 2).sum(1)
        after = (v * (projected - inside) ** 2).sum(1)
        away = after > before * (1 + 1e-12)
        found[name] = {"share": float(away.mean()), "worst": float(np.sqrt((after / before).max()))}
    return {"trials": trials, "domains": found}


def _independence() -> dict[str, Any]:
    """E[g / v] beside E[g] E[1 / v], where g is +10 once in ten and -1 otherwise (so E[g] = 0.1)."""
    rows, chains = [], 100_000
    for beta2 in (0.9, 0.999):
        random = np.random.default_rng(0)
        reference = Reference(np.zeros(chains), beta1=0.0, beta2=beta2)
        for t in range(1, 201):
            g = np.where(random.random(chains) < 0.1, 10.0, -1.0)
            reference.step(g)
            if t in (1, 200):
                v = np.maximum(np.sqrt(reference.b / (1 - beta2**t)), 1e-8)
                rows.append(
                    {
                        "beta2": beta2,
                        "t": t,
                        "together": float((g / v).mean()),
                        "apart": float(0.1 * (1 / v).mean()),
                    }
                )
    return {"chains": chains, "true_mean": 0.1, "rows": rows}


def _lipschitz() -> dict[str, Any]:
    """-sqrt(sin(x)^2 + e^2) is bounded, and curved upwards by at most about 1."""
    e = 1e-3
    x = np.concatenate([np.linspace(-4, 4, 100_001), np.linspace(-5 * e, 5 * e, 100_001)])
    root = np.sqrt(np.sin(x) ** 2 + e**2)
    second = -np.cos(2 * x) / root + (np.sin(2 * x) / 2) ** 2 / root**3
    return {"e": e, "upwards": float(second.max()), "downwards": float(-second.min())}


def _bracket() -> dict[str, Any]:
    """The share of steps with <w_t - w*, g_t> < 0, on Reddi's problem and on fair coins."""
    random, found = np.random.default_rng(0), {}
    slopes = {
        "Reddi's problem": np.where(np.arange(3000) % 3 == 0, 3.0, -1.0),
        "a fair coin": random.choice([-1.0, 1.0], 3000),
    }
    for name, c in slopes.items():
        reference = Reference(np.zeros(1), lr=0.1, amsgrad=True, lr_schedule="sqrt", box=(-1.0, 1.0))
        best, negative = -np.sign(c.sum()), 0
        for slope in c:
            negative += int((float(reference.w[0]) - best) * slope < 0)
            reference.step(np.array([slope]))
        found[name] = negative / len(c)
    return {"share": found}


def _debias_judge(n: Numbers) -> tuple[str, str]:
    off = {(r["schedule"], r["debias"]): max(abs(m - 1) for m in r["mhat"].values()) for r in n["rows"]}
    said = ", ".join(f"{off[s, 'power']:.1%} (beta1/{w})" for s, w in (("sqrt", "sqrt t"), ("inverse", "t")))
    product = max(off[s, "product"] for s in ("sqrt", "inverse"))
    words = f"mhat of a constant gradient is off by up to {said}; with 1 - prod beta1_i by {product:.0e}"
    return words, verdict(max(off["sqrt", "power"], off["inverse", "power"]) < 1e-9)


def _independence_judge(n: Numbers) -> tuple[str, str]:
    seen = {(row["beta2"], row["t"]): row for row in n["rows"]}
    said = [
        f"{row['together']:+.3f} and {row['apart']:+.3f} at t = {t}, beta2 {beta2:g}"
        for (beta2, t), row in seen.items()
        if t > 1 or beta2 == 0.999
    ]
    opposite = any(row["together"] * row["apart"] < 0 for row in n["rows"])
    return f"E[g/v] and E[g] E[1/v]: {'; '.join(said)}", verdict(not opposite)


CELLS = {
    "THEORY.slip-scale": Cell(
        "Below delta the step is m_t at the constant scale alpha / (1 - beta1^t).",
        "alpha / (1 - beta1^t)",
        _sgd_scale,
        lambda n: (
            f"{n['ratio']:.6g} times that at delta {n['delta']:g}: 1/delta is missing",
            verdict(abs(n["ratio"] - 1) < 0.01),
        ),
    ),
    "THEORY.slip-debias": Cell(
        "1 - beta1_t^t debiases m_t when beta1_t varies.", "used in both theorems", _debias, _debias_judge
    ),
    "THEORY.slip-projection": Cell(
        "w may be projected onto any bounded domain.",
        "Pi_W",
        _projection,
        lambda n: (
            f"in the norm of the proof a ball's projection leads away from a point of the ball in "
            f"{n['domains']['ball, Euclidean']['share']:.0%} of {n['trials']} random cases, by up to "
            f"{n['domains']['ball, Euclidean']['worst']:.1f} times; a box's in "
            f"{n['domains']['box']['share']:.0%}",
            verdict(n["domains"]["ball, Euclidean"]["share"] == 0),
        ),
    ),
    "THEORY.slip-independence": Cell(
        "E<grad f, g_t / v_t> = E<grad f, grad f / v_t>.",
        "proof of Theorem 1",
        _independence,
        _independence_judge,
    ),
    "THEORY.slip-lipschitz": Cell(
        "f(u) <= f(v) + <grad f(v), u - v> + L/2 ||u - v||^2 makes grad f L-Lipschitz.",
        "proof of Theorem 1, P3",
        _lipschitz,
        lambda n: (
            f"a bounded function curved upwards by at most {n['upwards']:.3f} is curved downwards by "
            f"{n['downwards']:.0f}",
            verdict(n["downwards"] <= n["upwards"] * 1.001),
        ),
    ),
    "THEORY.slip-bracket": Cell(
        "The bracket that Theorem 2's proof multiplies by 1/(1 - beta1) is never negative.",
        "first inequality of the proof",
        _bracket,
        lambda n: (
            "negative at "
            + ", ".join(f"{share:.0%} of the steps on {name}" for name, share in n["share"].items()),
            verdict(max(n["share"].values()) == 0),
        ),
    ),
}
