"""class AGD: parameter groups, state, saving and loading. The arithmetic is in core and in the executors."""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from agdopt.core import Hyper
from agdopt.torch import executor
from agdopt.torch.bucket import Bucket, Options, layout
from agdopt.torch.checks import check_group, check_params, state_dtype
from agdopt.torch.foreach import step as _foreach
from agdopt.torch.gather import Gathered, Lists, in_one_vector, real, sort
from agdopt.torch.loop import step as _loop
from agdopt.torch.saving import AsSaved, protect

__all__ = ["AGD"]


_hyper = lru_cache(Hyper)  # checked once, not at every step


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
        check_group(defaults)
        super().__init__(params, defaults)
        self._gathered: dict[int, Gathered] = {}
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
        check_group({**self.defaults, **param_group})
        super().add_param_group(param_group)
        try:
            check_params(self.param_groups)
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
        states = list(self.state.values())
        stepped: list[tuple[Gathered, Options]] = []
        first = 0
        try:
            for index, group in enumerate(self.param_groups):  # all is looked at before anything is changed
                gathered = self._gathered.get(index)
                if gathered is None or not gathered.still(group, states):
                    lists = self._lists(group)
                    places = {id(p): i for i, p in enumerate(self.state)}
                    gathered = Gathered(group, first, lists, [places[id(p)] for p in lists[0]])
                    self._gathered[index] = gathered
                stepped.append((gathered, self._options(group)))
                first += len(group["params"])
            for gathered, options in stepped:
                for bucket in gathered.buckets:
                    _run(bucket, options)
        finally:
            for gathered, _ in stepped:
                gathered.release()

    def _step_compiled(self) -> None:
        """What torch.compile traces: no addresses, nothing kept."""
        first = 0
        for group in self.param_groups:
            for bucket in sort(group, first, self._lists(group))[0]:
                _run(bucket, self._options(group))
            first += len(group["params"])

    def _lists(self, group: dict[str, Any]) -> Lists:
        lists: Lists = ([], [], [], [], [])
        self._init_group(group, *lists)
        return lists

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
        on_gpu: dict[torch.device, list[dict[str, Tensor]]] = {}
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            name = executor.choose(real(p.detach()), group).name
            on_device = group["capturable"] or name == "gpu"
            if "step" not in state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                for key in ("exp_avg", "exp_avg_sq"):
                    state[key] = torch.zeros_like(
                        p, dtype=state_dtype(p, group), memory_format=torch.preserve_format
                    )
            for key in ("exp_avg", "exp_avg_sq"):
                # The model may have been cast, or laid out anew: fused bodies take elements as they lie.
                x, dtype = state[key], state_dtype(p, group)
                lies = name not in ("cpu", "gpu") or layout(real(x)) == layout(real(p.detach()))
                if x.shape == p.shape and not (lies and x.dtype == dtype):
                    state[key] = torch.empty_like(p, dtype=dtype).copy_(x)
            # A body that counts on the host must not wait for the device, nor the other way round.
            home = p.device if on_device else torch.device("cpu")
            if state["step"].device != home:
                state["step"] = state["step"].to(home)
            if name == "gpu":
                on_gpu.setdefault(home, []).append(state)
            params.append(p)
            grads.append(p.grad)
            exp_avgs.append(state["exp_avg"])
            exp_avg_sqs.append(state["exp_avg_sq"])
        for states in on_gpu.values():
            in_one_vector(states)
        steps.extend(self.state[p]["step"] for p in params)

    def _options(self, group: dict[str, Any]) -> Options:
        lr = group["lr"]
        on_device = group["capturable"] or torch.compiler.is_compiling()
        if isinstance(lr, Tensor):
            keep = on_device or group["differentiable"] or group["fused"] is not False
            lr = lr.reshape(()) if keep else float(lr)
        beta1, beta2 = group["betas"]
        hyper = Hyper if torch.compiler.is_compiling() else _hyper  # a cache would break the graph
        return Options(
            hyper=hyper(beta1, beta2, group["delta"], group["amsgrad"], group["standardize"], group["clip"]),
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
        unknown: list[str] = []
        # The last hook to run: it sees the dict as other hooks leave it, before anything is loaded.
        handle = self.register_load_state_dict_pre_hook(partial(protect, unknown))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        if unknown:
            warnings.warn(f"AGD has no {', '.join(unknown)}: left out when loading", stacklevel=2)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            for p in group["params"]:
                kept = self.state.get(p, {})
                for key, value in kept.items():
                    if isinstance(value, AsSaved):
                        kept[key] = value.tensor.to(device=p.device, dtype=state_dtype(p, group))
                if "step" in kept and not isinstance(kept["step"], Tensor):
                    kept["step"] = torch.tensor(float(kept["step"]), dtype=torch.float32)
        self._gathered = {}
        if self.defaults.get("fused"):
            self._step_supports_amp_scaling = True


def _multi_tensor_agd(bucket: Bucket, options: Options) -> None:
    """The foreach body, under the name by which torch's own tests look for it."""
    _foreach(bucket, options)


def _run(bucket: Bucket, options: Options) -> None:
    if bucket.body in (_foreach, _loop) and options.found_inf is not None:
        # With fused=True the scaler leaves the unscaling to us, also for what takes another body.
        if float(options.found_inf):
            return
        if options.grad_scale is not None:
            bucket.grads = list(torch._foreach_div(bucket.grads, options.grad_scale))
    (_multi_tensor_agd if bucket.body is _foreach else bucket.body)(bucket, options)
