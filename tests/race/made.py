"""Records of a race that never was, for tests of what is said about races."""

import numpy as np

from agdopt.race.record import Record

EPOCHS, STEPS = 20, 10  # steps an epoch


def made(optimizer, seed, final=0.9, lr=1e-2, diverged_at=None, hashed=None, judge=None, **changes):
    """A run whose accuracy comes near `final` with its own noise on the way, and is it in the last epoch."""
    r = np.random.default_rng([seed, *optimizer.encode()])
    epochs = EPOCHS if diverged_at is None else diverged_at // STEPS
    way = final * (1 - np.exp(-np.arange(1, EPOCHS + 1) / 4)) + r.normal(0, 0.01, EPOCHS)
    way[-1] = final
    curves = {
        "train.loss": list(2.5 * np.exp(-np.arange(1, EPOCHS + 1) / 5)),
        "valid.accuracy": list(way),
        "test.accuracy": list(way),
        "ms_per_step": [2.0] * EPOCHS,
    }
    if optimizer.startswith("agd"):
        curves["switch.adaptive"] = list(0.2 + 0.6 * np.exp(-np.arange(EPOCHS) / 6))
    cls = {"agd": "agdopt.AGD", "adamw": "torch.optim.AdamW"}.get(optimizer, "torch.optim.SGD")
    values = {
        "plan": "made", "plan_hash": hashed or optimizer, "optimizer": optimizer, "seed": seed,
        "recipe": {
            "task": {"name": "digits"}, "epochs": EPOCHS,
            "optimizer": {"cls": cls, "arguments": {"lr": lr}}, **({"judge": judge} if judge else {}),
        },
        "environment": {"device": "a <device> & more"}, "versions": {"torch": "2.13"}, "commit": "abc",
        "parameters": 10, "epochs": epochs, "steps": epochs * STEPS,
        "metrics": {} if diverged_at else {"test.accuracy": final, "test.loss": 1 - final},
        "curves": {k: [float(x) for x in v[:epochs]] for k, v in curves.items()}, "seconds": 3.0,
        "seconds_per_step": 0.002, "peak_memory": 4_000_000, "jobs": 1, "graph": "none",
        "diverged_at": diverged_at, "finished": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Record(**{**values, **changes})


NOISE = (0.011, -0.009, 0.004, -0.006, 0.002, 0.007)


def runs(optimizer, mean, shift=0, seeds=5, **changes):
    """Five seeds about a mean; `shift` turns the noise, so that optimizers do not share it."""
    return [made(optimizer, s, mean + NOISE[(s + shift) % 6], **changes) for s in range(1, seeds + 1)]


def race():
    """AGD ahead, SGD level, RMSprop behind, one whose runs diverge now and then."""
    flaky = [*runs("flaky", 0.92, 3)[:3], made("flaky", 4, diverged_at=43), made("flaky", 5, diverged_at=112)]
    return [
        *runs("sgd", 0.901, 4), *runs("agd", 0.95, 2), *runs("adamw", 0.90), *runs("rms", 0.84, 1), *flaky,
    ]  # fmt: skip


def trials():
    """A grid of learning rates for two of them: one peaked, one flat."""
    peaks = {"agd": 0.3, "adamw": 0.05}
    return [
        made(name, 0, 0.9 - width * abs(np.log10(lr) + 2), lr=lr, hashed=f"{name}{lr}",
             diverged_at=31 if lr > 0.5 and name == "agd" else None, judge="valid")
        for name, width in peaks.items() for lr in (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)
    ]  # fmt: skip
