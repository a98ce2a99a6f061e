"""Task: data, model, loss, metric, target. It knows no optimizer.

A task of one's own is about twenty lines; `agdopt race --new-task FILE.py` writes them:

    class Digits(Task):
        metric: ClassVar[str] = "accuracy"
        maximize: ClassVar[bool] = True

        def load(self) -> dict[str, Batch]:
            x, y = map(torch.as_tensor, load_digits(return_X_y=True))
            return split(x.float() / 16, y)

        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            x, y = batch
            return F.cross_entropy(model(x), y)

        def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
            x, y = batch
            return {"accuracy": (model(x).argmax(1) == y).float().mean()}
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from agdopt.race.checks import PlanError, need, unknown

Batch = tuple[Tensor, ...]


class MissingData(PlanError):
    """A data set that is not there: says where to get it and where to put it."""


class Step(NamedTuple):
    """What one update is fed: tensors on the device (a CUDA graph per set of shapes), a factor on lr."""

    inputs: Batch
    lr_scale: float = 1.0


@dataclass
class Task:
    device: torch.device
    batch: int
    data: Path | None = None  # the folder of --data or AGDOPT_DATA

    metric: ClassVar[str] = "loss"
    maximize: ClassVar[bool] = False
    target: ClassVar[float | None] = None
    epochs: ClassVar[int | None] = (
        None  # its budget, where no plan says otherwise; `batch` may have a default
    )
    eval_batch: ClassVar[int] = 2000

    def __post_init__(self) -> None:
        # The whole set lives on the device: a host copy per batch would cost more than small models do.
        self.splits = {k: tuple(t.to(self.device) for t in _tensors(v)) for k, v in self.load().items()}

    def load(self) -> Mapping[str, Batch | Dataset[Any]]:
        """The splits: `train`, and those to judge by. First dimension: examples. Or Datasets of tuples."""
        raise NotImplementedError

    def model(self) -> nn.Module:
        """A fresh model; the caller has seeded torch's generator and moves it to the device."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What is minimised. Under CUDA graphs: no `.item()`, no Python branch on a tensor's value."""
        raise NotImplementedError

    def score(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Metrics as means over the batch."""
        return {"loss": self.loss(model, batch)}

    def batches(self, model: nn.Module, seed: int) -> Sequence[Step]:
        """One epoch, decided by the seed alone: here each batch's rows. Any carried state starts anew."""
        order = torch.randperm(len(self.splits["train"][0]), generator=torch.Generator().manual_seed(seed))
        return [Step((rows,)) for rows in torch.split(order.to(self.device), self.batch)]

    def fetch(self, inputs: Batch) -> Batch:
        """From a step's inputs to what `loss` takes; part of the captured graph, so augment here."""
        (rows,) = inputs
        return tuple(t.index_select(0, rows) for t in self.splits["train"])

    def watch(self) -> Sequence[str]:
        """The splits judged after every epoch, for the curves."""
        return [s for s in self.splits if s != "train"]

    def final(self) -> Sequence[str]:
        """The splits judged once, after the last epoch."""
        return self.watch()

    def evaluate(self, model: nn.Module, split: str) -> Mapping[str, Tensor]:
        """Metrics of a whole split, left on the device: reading them would make other runs wait."""
        tensors, totals = self.splits[split], dict[str, Tensor]()
        for batch in zip(*(torch.split(t, self.eval_batch) for t in tensors), strict=True):
            for key, value in self.score(model, batch).items():
                totals[key] = totals.get(key, torch.zeros_like(value)) + value * len(batch[0])
        return {key: value / len(tensors[0]) for key, value in totals.items()}


def _tensors(data: Batch | Dataset[Any]) -> Batch:
    if not isinstance(data, Dataset):
        return data
    rows: Any = data
    return tuple(default_collate([rows[i] for i in range(len(rows))]))


def split(*tensors: Tensor, valid: float = 0.2, test: float = 0.2) -> dict[str, Batch]:
    """The examples as train, valid and test, shuffled the same way every time."""
    count = len(tensors[0])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    ends = [round(count * (1 - valid - test)), round(count * (1 - test))]
    parts = zip(("train", "valid", "test"), order.tensor_split(ends), strict=True)
    return {name: tuple(t[rows] for t in tensors) for name, rows in parts}


def find_data(root: Path | None, paths: Sequence[str], what: str, where_from: str) -> Path:
    """The first of `paths` below --data (or AGDOPT_DATA)."""
    folder = root or Path(os.environ.get("AGDOPT_DATA", "data"))
    for path in paths:
        if (folder / path).exists():
            return folder / path
    raise MissingData(
        f"{what} is not there: get it from {where_from} and put it at {folder / paths[0]}"
        " (another folder: --data DIR or AGDOPT_DATA)"
    )


def source_of(name: str) -> str:
    """A hash of the file of a task of one's own (`module:attribute`), which may change any day."""
    module, _, attribute = name.partition(":")
    try:
        spec = importlib.util.find_spec(module) if attribute else None
    except (ImportError, ValueError):
        spec = None  # make_task will say it
    if spec is None or spec.origin is None or not spec.has_location:
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:12]


def find_task(name: str) -> Callable[..., Task]:
    """The task a plan names: one of agdopt.race.tasks, or `module:attribute` (a Task class or factory)."""
    need(isinstance(name, str), f"task.name must be text, got {name!r}")
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module if attribute else f"agdopt.race.tasks.{name}")
    except ModuleNotFoundError as e:
        own = sorted(p.stem for p in Path(__file__).with_name("tasks").glob("[!_]*.py"))
        raise (PlanError(f"task {name!r}: {e}") if attribute else unknown("task", name, own)) from e
    factory: Callable[..., Task] | None = getattr(found, attribute or "TASK", None)
    if factory is None:
        near = [n for n in vars(found) if not n.startswith("_")]
        raise unknown(f"task {name!r}: in {found.__name__} there is no", attribute or "TASK", near)
    need(callable(factory), f"task {name!r} must be a Task class or a function, got {factory!r}")
    return factory


def budget(name: str) -> dict[str, int]:
    """The epochs and the batch that a task asks for, as far as it does."""
    factory = find_task(name)
    defaults = {k: p.default for k, p in inspect.signature(factory).parameters.items()}
    asked = {k: getattr(factory, k, defaults.get(k)) for k in ("epochs", "batch")}
    return {k: v for k, v in asked.items() if isinstance(v, int)}


def make_task(table: Mapping[str, Any], batch: int, device: torch.device, data: Path | None = None) -> Task:
    name, options = table["name"], {k: v for k, v in table.items() if k != "name"}
    factory = find_task(name)
    given = {"device": device, "batch": batch, "data": data}
    if isinstance(factory, type) and dataclasses.is_dataclass(factory):
        known = {f.name for f in dataclasses.fields(factory)} - set(given)
    else:
        taken = set(inspect.signature(factory).parameters)
        known = taken - set(given)
        given = {k: v for k, v in given.items() if k in taken}
    for key in options:
        if key not in known:
            raise unknown("key in [task]", key, known)
    try:
        task = factory(**given, **options)
    except PlanError:
        raise
    except Exception as e:
        raise PlanError(f"task {name!r} cannot be made: {type(e).__name__}: {e}") from e
    need(
        isinstance(task, Task), f"task {name!r} must make an agdopt.race.task.Task, got {type(task).__name__}"
    )
    return task
