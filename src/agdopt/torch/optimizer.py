"""class AGD: parameter groups, state, saving and loading. The arithmetic is in core and in the executors."""

import warnings
from collections.abc import Callable
from operator import is_
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from agdopt.core import Hyper
from agdopt.torch import executor
from agdopt.torch.bucket import Options
from agdopt.torch.foreach import step as _multi_tensor_agd
from agdopt.torch.gather import Gathered, real, sort

__all__ = ["AGD"]


class AGD(Optimizer):
    """AGD as in the paper (Algorithm 1; Algorithm 2 with amsgrad=True).

        mhat, bhat: bias-corrected averages of the gradient and (root of) of mhat's squared change
        w -= lr * mhat / max(bhat, delta)

    Where bhat > delta the step is adaptive; elsewhere it is momentum SGD of rate lr / delta.

    Args:
        params: parameters, named parameters or groups, as for every torch optimizer.
        lr: the learning rate, a number or a one-element tensor.
        betas: how much of the old averages of the gradient and of its squared change is kept.
        delta: the switch (> 0).
        weight_decay: decoupled as in AdamW, or added to the gradient with decoupled_weight_decay=False.
        amsgrad: Algorithm 2: the average b never falls.
        foreach, fused: which body runs. By default the fastest that can run, and `executor` tells which.
            fused=True also takes over a gradient scaler's unscaling, as torch's fused optimizers do,
            and trainers then refuse to clip gradients.
        maximize: climb instead of descend.
        capturable: keep step and lr on the device, for CUDA graphs.
        differentiable: let autograd see the step.
        state_dtype: None keeps float32 averages for parameters of 32 bits and fewer; torch.bfloat16 halves
            them, stochastically rounded.
        standardize: measure the change in units of the gradient's noise, which gives steps Adam's scale.
        clip: bound on |mhat / max(bhat, delta)|.
        stochastic_rounding: round the new value of bfloat16 parameters stochastically.
        seed: of stochastic rounding.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        delta: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = True,
        state_dtype: torch.dtype | None = None,
        standardize: bool = False,
        clip: float | None = None,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "delta": delta,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "foreach": foreach,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
            "state_dtype": state_dtype,
            "standardize": standardize,
            "clip": clip,
            "stochastic_rounding": stochastic_rounding,
            "seed": seed,
        }
        _check(defaults)
        super().__init__(params, defaults)
        self._kept: tuple[list[Any], dict[int, Gathered]] = ([], {})
        if fused:
            # Read by torch's GradScaler, and by trainers, which then refuse gradient clipping.
            self._step_supports_amp_scaling = True

    @property
    def executor(self) -> dict[str, str]:
        """The bodies that run for the parameters as they are now, each with its reason."""
        return {
            choice.name: choice.reason
            for group in self.param_groups
            for choice in (executor.choose(real(p.detach()), group) for p in group["params"])
        }

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        group = {**self.defaults, **param_group}
        _check(group)
        super().add_param_group(param_group)
        try:
            _check_params(self.param_groups)
        except (ValueError, RuntimeError):
            self.param_groups.pop()
            raise

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step. A closure is run first, with gradients enabled, and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            if torch.compiler.is_compiling():
                self._step_compiled()
            else:
                self._step()
        return loss

    def _step(self) -> None:
        states, kept = self._kept
        if len(states) != len(self.state) or not all(map(is_, states, self.state.values())):
            kept.clear()  # somebody has put another state in place
        kept_all = bool(kept)
        stepped = []  # everything is looked at before anything is changed
        first = 0
        for index, group in enumerate(self.param_groups):
            gathered = kept.get(index)
            if gathered is None or not gathered.still(group):
                lists: tuple[list[Tensor], ...] = ([], [], [], [], [])
                self._init_group(group, *lists)
                kept_all = False
                gathered = kept[index] = Gathered(group, first, lists, [self.state[p] for p in lists[0]])
            stepped.append((gathered, self._options(group)))
            first += len(group["params"])
        try:
            for gathered, options in stepped:
                for bucket in gathered.buckets:
                    bucket.body(bucket, options)
        finally:
            for gathered, _ in stepped:
                gathered.release()
        if len(states) != len(self.state) or not kept_all:
            self._kept = (list(self.state.values()), kept)

    def _step_compiled(self) -> None:
        """What torch.compile traces: no addresses, nothing kept."""
        first = 0
        for group in self.param_groups:
            lists: tuple[list[Tensor], ...] = ([], [], [], [], [])
            self._init_group(group, *lists)
            for bucket in sort(group, first, lists)[0]:
                bucket.body(bucket, self._options(group))
            first += len(group["params"])

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        steps: list[Tensor],
    ) -> None:
        """Fill the lists, and create the state of parameters whose first gradient this is.

        torch.compile knows optimizers by this method and runs it outside the graph.
        """
        for p in group["params"]:
            if p.grad is not None and p.grad.layout != torch.strided:
                raise RuntimeError(
                    "AGD does not take sparse gradients: use sparse=False in the embedding, "
                    "or torch.optim.SparseAdam for that parameter"
                )
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            on_device = group["capturable"] or executor.choose(real(p.detach()), group).name == "gpu"
            if "step" not in state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                for key in ("exp_avg", "exp_avg_sq"):
                    state[key] = torch.zeros_like(p, dtype=_state_dtype(p, group), memory_format=torch.preserve_format)
            # A body that counts on the host must not wait for the device, nor the other way round.
            home = p.device if on_device else torch.device("cpu")
            if state["step"].device != home:
                state["step"] = state["step"].to(home)
            params.append(p)
            grads.append(p.grad)
            exp_avgs.append(state["exp_avg"])
            exp_avg_sqs.append(state["exp_avg_sq"])
            steps.append(state["step"])

    def _options(self, group: dict[str, Any]) -> Options:
        lr = group["lr"]
        on_device = group["capturable"] or torch.compiler.is_compiling()
        if isinstance(lr, Tensor):
            keep = on_device or group["differentiable"] or group["fused"] is not False
            lr = lr.reshape(()) if keep else float(lr)
        beta1, beta2 = group["betas"]
        return Options(
            hyper=Hyper(beta1, beta2, group["delta"], group["amsgrad"], group["standardize"], group["clip"]),
            lr=lr,
            weight_decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"],
            maximize=group["maximize"],
            on_device=on_device,
            stochastic_rounding=group["stochastic_rounding"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but averages come back in their own dtype (torch casts them to the parameter's)."""
        # The last hook to run: it sees the dict as other hooks leave it, before anything is loaded.
        handle = self.register_load_state_dict_pre_hook(_protect)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            for p in group["params"]:
                kept = self.state.get(p, {})
                for key, value in kept.items():
                    if isinstance(value, _AsSaved):
                        kept[key] = value.tensor.to(device=p.device, dtype=_state_dtype(p, group))
                if "step" in kept and not isinstance(kept["step"], Tensor):
                    kept["step"] = torch.tensor(float(kept["step"]), dtype=torch.float32)
        self._kept = ([], {})
        if self.defaults.get("fused"):
            self._step_supports_amp_scaling = True


class _AsSaved:
    """Carries an average through torch's loader, which would cast a bare tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


# What schedulers and torch itself put into groups.
_FOREIGN = {"params", "param_names", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr", "name"}


def _protect(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Refuse what does not fit, name what is not ours, wrap the averages."""
    unknown: set[str] = set()
    saved_groups = state_dict["param_groups"]
    for group in saved_groups:
        if "delta" not in group:
            raise ValueError(
                f"this state_dict is not AGD's: its groups have no delta, but {sorted(set(group) - {'params'})}; "
                "the averages of another optimizer have another scale"
            )
        if not group.keys() >= optimizer.defaults.keys():  # not written by this version
            unknown |= {f"group option {key!r}" for key in group.keys() - optimizer.defaults.keys() - _FOREIGN}
            if group.get("clip") is not None:
                unknown.add(f"clip={group['clip']} (here it bounds |mhat / max(bhat, delta)|; other versions differ)")
    saved = [i for group in saved_groups for i in group["params"]]
    params = [p for group in optimizer.param_groups for p in group["params"]]
    states = dict(state_dict["state"])
    for i, p in zip(saved, params, strict=False):  # torch's loader compares the lengths
        if i not in states:
            continue
        entry = dict(states[i])
        unknown |= {f"state {key!r}" for key in entry.keys() - {"step", "exp_avg", "exp_avg_sq"}}
        for key in ("exp_avg", "exp_avg_sq"):
            if key not in entry or entry[key].shape != p.shape:
                found = tuple(entry[key].shape) if key in entry else "nothing"
                raise ValueError(f"{key} of parameter {i} has shape {found}, the parameter {tuple(p.shape)}")
            entry[key] = _AsSaved(entry[key])
        states[i] = {key: entry[key] for key in ("step", "exp_avg", "exp_avg_sq") if key in entry}
    if unknown:
        warnings.warn(f"AGD has no {', '.join(sorted(unknown))}: left out when loading", stacklevel=4)
    return {**state_dict, "state": states}


def _state_dtype(p: Tensor, group: dict[str, Any]) -> torch.dtype:
    if p.dtype in (torch.float64, torch.complex128):
        return p.dtype
    wide = torch.complex64 if p.is_complex() else torch.float32
    return group["state_dtype"] or wide


def _check(group: dict[str, Any]) -> None:
    """Every number of a group: a sentence with the value, the bound and the remedy."""
    lr, betas, decay = group["lr"], group["betas"], group["weight_decay"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    if not 0.0 <= lr < float("inf"):
        raise ValueError(f"lr must be a finite number >= 0, got {lr}; to climb, use maximize=True")
    if len(betas) != 2:
        raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")
    Hyper(*betas, group["delta"], group["amsgrad"], group["standardize"], group["clip"])
    if not 0.0 <= decay < float("inf"):
        raise ValueError(f"weight_decay must be a finite number >= 0, got {decay}; 0 switches it off")
    if group["state_dtype"] not in (None, torch.float32, torch.bfloat16):
        raise ValueError(
            f"state_dtype must be None, torch.float32 or torch.bfloat16, got {group['state_dtype']}: "
            "narrower or integer averages would round small changes away"
        )
    if not isinstance(group["seed"], int):
        raise ValueError(f"seed must be an integer, got {group['seed']!r}")
    if group["fused"] and group["foreach"]:
        raise RuntimeError("fused=True and foreach=True exclude each other: give one of them")
    if group["differentiable"] and (group["fused"] or group["foreach"]):
        raise RuntimeError("differentiable=True runs a body of its own: leave fused and foreach at None")


def _check_params(groups: list[dict[str, Any]]) -> None:
    """The group added last, against its options and itself."""
    group = groups[-1]
    params = group["params"]
    if len(set(params)) != len(params):
        raise ValueError("a parameter is there twice in a group: it would be stepped twice; give each once")
    for p in params:
        if group["state_dtype"] is not None and (p.is_complex() or p.dtype == torch.float64):
            raise ValueError(
                f"state_dtype={group['state_dtype']} does not suit {p.dtype} parameters: leave None for those"
            )
        if group["fused"]:
            if not p.is_floating_point():
                raise RuntimeError(f"fused=True takes real floating-point parameters, got {p.dtype}; leave fused=None")
            executor.choose(real(p.detach()), group)
    if group["stochastic_rounding"] and not any(p.dtype == torch.bfloat16 for p in params):
        raise ValueError("stochastic_rounding=True is for bfloat16 parameters, and this group has none")
