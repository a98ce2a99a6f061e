"""Goal: what a report compares, which way is better, and what is to be reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agdopt.race.checks import PlanError
from agdopt.race.record import Record

# Only for records that do not say themselves whether more of their metric is better.
HIGHER = {"accuracy", "acc", "top1", "top5", "f1", "auc", "bleu", "map", "iou", "r2", "reward"}
LOWER = {"loss", "error", "perplexity", "ppl", "nll", "mse", "mae", "rmse", "bpc", "bpb", "wer", "cer"}


class ReportError(PlanError):
    """Records that no report can be made of; the message says what to do."""


@dataclass(frozen=True)
class Goal:
    metric: str  # such as test.accuracy
    watched: str  # its curve, on the split that is judged after every epoch
    searched: str  # what trials are chosen by
    maximize: bool
    target: float | None = None


def goal(runs: Sequence[Record], asked: Mapping[str, Any]) -> Goal:
    """The metric asked for, else the first that is no loss; on the test split, where there is one."""
    known = dict.fromkeys(m for r in sorted(runs, key=_diverged) for m in (*r.metrics, *_judged(r)))
    if not known:
        raise ReportError("no run holds a metric: nothing to compare")
    metric = _metric(list(known), asked.get("metric"))
    name = metric.partition(".")[2]
    maximize = asked.get("maximize")
    if maximize is None:
        if name not in HIGHER | LOWER:
            raise ReportError(f"is more of {name!r} better? Say --higher or --lower")
        maximize = name in HIGHER
    watched = f"valid.{name}" if any(f"valid.{name}" in r.curves for r in runs) else metric
    return Goal(metric, watched, f"valid.{name}", bool(maximize), asked.get("target"))


def outcome(record: Record, metric: str) -> float | None:
    """The number a run ended with; None where it diverged."""
    if record.diverged_at is not None:
        return None
    curve = record.curves.get(metric)
    value = record.metrics.get(metric, curve[-1] if curve else None)
    if value is None:
        has = ", ".join(k for k, v in record.metrics.items() if v is not None) or "none"
        raise ReportError(f"{record.optimizer}, seed {record.seed} has no finite {metric}; it has {has}")
    return value


def _judged(record: Record) -> list[str]:
    """Metrics that only curves hold, where not one run got to its end."""
    return [c for c in record.curves if c.startswith(("test.", "valid."))]


def _diverged(record: Record) -> bool:
    return record.diverged_at is not None


def _metric(known: Sequence[str], wanted: str | None) -> str:
    split = min((m.partition(".")[0] for m in known), key=lambda s: (s != "test", s != "valid", s))
    own = [m for m in known if m.startswith(f"{split}.")]
    if wanted is None:
        return next((m for m in own if not m.endswith("loss")), own[0])
    for full in (wanted, f"{split}.{wanted}"):
        if full in known:
            return full
    raise ReportError(f"no metric {wanted!r} in the records; they have {', '.join(known)}")
