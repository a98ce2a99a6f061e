"""What an executor gets: the tensors of one device and dtype, and what their group says."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agdopt.core import Hyper


class Options(NamedTuple):
    """One parameter group, read anew at each step."""

    hyper: Hyper
    lr: float | Tensor
    weight_decay: float
    decoupled: bool
    maximize: bool
    on_device: bool  # step, and the numbers made from it, stay tensors: CUDA graphs, torch.compile
    stochastic_rounding: bool
    grad_scale: Tensor | None  # of a gradient scaler that leaves the unscaling to the step
    found_inf: Tensor | None

    @property
    def shrink(self) -> Any:
        """The factor of a decoupled decay."""
        return 1 - self.lr * self.weight_decay if self.decoupled else 1.0

    @property
    def l2(self) -> float:
        """The weight of a coupled decay."""
        return 0.0 if self.decoupled else self.weight_decay


@dataclass(slots=True)
class Bucket:
    """Parallel lists. Tensors are real and local: complex ones are seen as pairs, DTensors by their shard."""

    body: Callable[["Bucket", Options], None]
    params: list[Tensor]
    grads: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    steps: list[Tensor]
    salts: list[int]  # for stochastic rounding
    addresses: list[int] = field(default_factory=list)  # of params
    grad_addresses: list[int] = field(default_factory=list)
    memo: dict[str, Any] = field(
        default_factory=dict
    )  # an executor's own, kept while params and averages stay put

    @property
    def wide(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return torch.float64 if self.params[0].dtype == torch.float64 else torch.float32


def dense(p: Tensor) -> bool:
    """Whether p fills its memory without gaps or overlaps, in whatever order of dimensions."""
    order = sorted(range(p.dim()), key=lambda i: (p.stride(i), p.shape[i] > 1), reverse=True)
    return p.permute(order).is_contiguous()


def layout(x: Tensor) -> list[int]:
    """How x lies in memory: the strides that matter."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1]
