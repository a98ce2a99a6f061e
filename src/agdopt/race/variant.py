"""What rules that exist only to be raced have in common; one parameter after the other, for nothing else."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from agdopt.core import Hyper, Scalars, scalars


class Variant(Optimizer):
    """A step, m and b for each parameter, and the rule's numbers of that step."""

    hyper: Hyper

    @abstractmethod
    def update(
        self, p: Tensor, g: Tensor, m: Tensor, b: Tensor, k: Scalars, group: dict[str, Any]
    ) -> None: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    home = p.device if group["capturable"] else "cpu"
                    state.update(step=torch.zeros((), device=home))
                    state.update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                t = state["step"].add_(1)
                on_device = group["capturable"]
                k = scalars(t.double(), self.hyper, torch) if on_device else scalars(float(t), self.hyper)
                self.update(p, p.grad, state["exp_avg"], state["exp_avg_sq"], k, group)
        return loss
