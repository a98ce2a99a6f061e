"""From a finished training to its record: what was run, on what, with which versions."""

import datetime
import functools
import importlib.metadata
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import agdopt
from agdopt.race.driver import state_bytes
from agdopt.race.plan import Plan
from agdopt.race.record import Record
from agdopt.race.train import Training


def environment(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,  # type: ignore[no-untyped-call]
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


@functools.cache
def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"torch": torch.__version__, "agdopt": agdopt.__version__}
    for package in ("numpy", "pytorch-optimizer", "schedulefree", "optuna"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None  # not there, or on the path without having been installed
    return found


@functools.cache
def commit() -> str | None:
    """AGDOPT_COMMIT for a copy without its history; else what git says, marked where the race has changed."""
    if "AGDOPT_COMMIT" in os.environ:
        return os.environ["AGDOPT_COMMIT"]
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip() + (
            "+changed" if git("status", "--porcelain", "--", ".") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


class Recorder:
    """From a finished training to its record; what is the same for all of them is asked once."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        self.environment, self.versions, self.commit = environment(device), versions(), commit()

    def __call__(self, training: Training, jobs: int) -> Record:
        state, entry = training.state, training.entry
        pace = state.curves.get("ms_per_step", [])
        cuda = self.device.type == "cuda"
        return Record(
            plan=self.plan.name,
            plan_hash=self.plan.hash(entry),
            optimizer=entry.name,
            seed=training.seed,
            recipe=self.plan.recipe(entry),
            environment=self.environment,
            versions=self.versions,
            commit=self.commit,
            parameters=sum(p.numel() for p in training.model.parameters()),
            epochs=state.epoch,
            steps=state.update,
            metrics=_short(state.metrics),
            curves={k: [_round(v) for v in values] for k, values in state.curves.items()},
            seconds=round(state.seconds, 3),
            seconds_per_step=_round(statistics.median(pace) / 1e3) if pace else None,
            peak_memory=torch.cuda.max_memory_allocated(self.device) if cuda else None,
            jobs=jobs,
            graph=training.stepper.built.graph,
            diverged_at=state.diverged_at,
            finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            notes={
                "resumed": state.resumed,
                "averaging": state.averaging,
                "diverged_by": state.diverged_by,
                # What a report needs to know of plan and task beyond the recipe.
                "metric": training.task.metric,
                "maximize": training.task.maximize,
                "target": training.task.target if self.plan.target is None else self.plan.target,
                "baseline": self.plan.baseline or None,
                "state_bytes": state_bytes(training.stepper.built.optimizer.state_dict()["state"]),
            },
        )


def _round(value: float) -> float:
    return float(f"{value:.7g}")


def _short(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {k: _round(v) for k, v in metrics.items()}
