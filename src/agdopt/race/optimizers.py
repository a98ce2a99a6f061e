"""Optimizers by their dotted names: taken from the library that owns them, never written here."""

import importlib
import inspect
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from agdopt.race.checks import PlanError, need, unknown
from agdopt.race.plan import Entry

# Known to treat every element alike, so exact on one flat buffer. Muon, SOAP, Shampoo, LAMB, LARS, Adafactor,
# Adam-mini and the like look at shapes, or at norms of tensors.
ELEMENTWISE = {
    *("SGD", "ASGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop"),
    *("AGD", "AGDW", "Ablation", "AdaBelief", "AdaBound", "Lion", "Yogi", "DiffGrad"),
    *("ScheduleFreeSGD", "ScheduleFreeAdamW", "ScheduleFreeRAdam"),
}
# Torch's one-kernel bodies take a rate that lives on the device; the foreach SGD would read it back.
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


def resolve(entry: Entry) -> type[Optimizer]:
    module, _, name = entry.cls.rpartition(".")
    where = f"optimizers.{entry.name}.class = {entry.cls!r}"
    try:
        found = getattr(importlib.import_module(module or "torch.optim"), name, None)
    except ImportError as e:
        package = module.partition(".")[0].replace("_", "-")
        raise PlanError(f"{where}: {e}; install {package}, or leave it out with --optimizers") from e
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        known = [n for n in dir(importlib.import_module(module or "torch.optim")) if n[:1].isupper()]
        raise unknown(f"class in {where}:", name, known) if known else PlanError(f"{where} is no optimizer")
    # **kwargs would swallow a mistyped name without a word, so only names the class declares count.
    parameters = inspect.signature(found.__init__).parameters.values()
    declared = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    settings = {f.name for f in fields(Entry)} - {"name", "cls", "arguments"}
    for key in (*entry.arguments, *entry.search):
        if key not in declared - {"self", "params"}:
            raise unknown(f"key in optimizers.{entry.name}", key, declared - {"self", "params"} | settings)
    if entry.flat and found.__name__ not in ELEMENTWISE:
        raise PlanError(
            f"optimizers.{entry.name}.flat: {name} is not known to be elementwise; leave flat out"
        )
    return found


@dataclass
class Built:
    """An optimizer over a model's parameters, and how much of its step a CUDA graph may hold."""

    optimizer: Optimizer
    graph: str  # step: all of it; backward: all but optimizer.step(); none
    lr: Tensor | None  # the rate on the device, where the graph holds the step
    grads: list[Tensor] | None  # gradients that stay where they are, zeroed instead of freed
    second_order: bool
    shares: list[float]  # of the rate that each group has: Muon's matrices and the rest differ

    def keep_grads(self, params: list[nn.Parameter]) -> None:
        self.grads = [torch.zeros_like(p) for p in params]
        for p, g in zip(params, self.grads, strict=True):
            p.grad = g

    def set_lr(self, lr: float) -> None:
        if self.lr is not None:
            self.lr.fill_(lr)
            return
        for group, share in zip(self.optimizer.param_groups, self.shares, strict=True):
            group["lr"] = lr * share

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = [{k: g[k] for k in self.optimizer.defaults} for g in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state)
        for group, options in zip(self.optimizer.param_groups, own, strict=True):
            # Which body runs and where the rate lives is this machine's matter, not the checkpoint's.
            group.update({k: v for k, v in options.items() if k in ("lr", "capturable", "fused", "foreach")})


def is_second_order(cls: type[Optimizer]) -> bool:
    return hasattr(cls, "compute_hutchinson_hessian") and cls.__name__ in ("AdaHessian", "SophiaH")


def build(entry: Entry, cls: type[Optimizer], model: nn.Module, graph: bool) -> Built:
    """`graph`: CUDA graphs are wanted, and there is a CUDA device."""
    params = [p for p in model.parameters() if p.requires_grad]
    arguments = {
        k: getattr(torch, v, v) if k.endswith("dtype") else v for k, v in entry.arguments.items()
    }  # TOML knows no torch.bfloat16
    second = is_second_order(cls)
    # A graph freezes what Python counts, so only a step that keeps its counter on the device goes in.
    ours = cls.__module__.partition(".")[0] in ("torch", "agdopt")
    capturable = ours and "capturable" in inspect.signature(cls.__init__).parameters
    holds_step = graph and (capturable or cls is torch.optim.SGD)
    mode = "step" if holds_step else "backward" if graph else "none"
    if second and entry.arguments.get("update_period", 1) != 1:
        mode = "none"  # which steps estimate the Hessian is counted in Python
    lr = torch.tensor(entry.lr, device=params[0].device) if holds_step else None
    if holds_step:
        arguments["lr"] = lr
        if capturable:
            arguments.setdefault("capturable", True)
        if cls in FUSED:
            arguments.setdefault("fused", True)
    flat = flatten(params) if entry.flat else None
    grads: list[Tensor] | None = None
    if flat is not None and flat.grad is not None:
        grads = [flat.grad]
    try:
        optimizer = cls([flat] if flat is not None else grouped(cls, model, params), **arguments)
    except (TypeError, ValueError) as e:
        raise PlanError(f"optimizers.{entry.name}: {entry.cls} refuses its arguments: {e}") from e
    shares = [1.0 if entry.lr == 0 else float(g["lr"]) / entry.lr for g in optimizer.param_groups]
    built = Built(optimizer, mode, lr, grads, second, shares)
    if mode == "backward" and grads is None:
        built.keep_grads(params)
    return built


def grouped(cls: type[Optimizer], model: nn.Module, params: list[nn.Parameter]) -> list[Any]:
    """For pytorch_optimizer's Muon, hidden matrices apart from what its AdamW takes; else as they are."""
    if not any(base.__name__ == "MuonBase" for base in cls.__mro__):
        return params
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    tables = {id(m.weight) for m in embeddings}
    matrices = [p for p in params if p.ndim >= 2 and id(p) not in tables]
    # The last one is the head, but where it leads back to the width of an embedding, which is the head then.
    tied = bool(matrices) and len(matrices[-1]) in {m.embedding_dim for m in embeddings}
    hidden = {id(p) for p in (matrices if tied else matrices[:-1])}
    need(bool(hidden), "Muon is for hidden matrices, and this model has none")
    both = [{"params": [p for p in params if (id(p) in hidden) == b], "use_muon": b} for b in (True, False)]
    return [g for g in both if g["params"]]


def flatten(params: list[nn.Parameter]) -> nn.Parameter:
    """One buffer under all parameters, one under their gradients; each keeps its strides (channels-last)."""
    first = params[0]
    need(all(p.dtype == first.dtype for p in params), "flat: the parameters are of several dtypes")
    flat = nn.Parameter(torch.empty(sum(p.numel() for p in params), dtype=first.dtype, device=first.device))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for p in params:
        dense = torch.empty_like(p).stride()  # preserve_format: p's own strides where p is dense
        view = flat.detach().as_strided(p.shape, dense, start)
        view.copy_(p.detach())
        p.data, p.grad = view, flat.grad.as_strided(p.shape, dense, start)
        start += p.numel()
    return flat
