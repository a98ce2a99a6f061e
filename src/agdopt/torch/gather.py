"""From a parameter group to buckets, and whether they still hold at the next step.

Looking at every tensor takes longer than stepping a small model, so buckets are kept and only checked, in a
few C calls a parameter, by address: anything may be replaced, or moved by `.data = ...`. Nothing here keeps a
gradient or an average alive between steps, for others may free them.
"""

import weakref
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agdopt.torch import executor
from agdopt.torch.bucket import Bucket
from agdopt.torch.rounding import salt

_address = torch.Tensor.data_ptr
_grad = attrgetter("grad")
_dtype = attrgetter("dtype")
_AVERAGES = tuple(map(itemgetter, ("exp_avg", "exp_avg_sq", "step")))
_flags = itemgetter("foreach", "fused", "differentiable", "capturable", "state_dtype", "seed")


# params, grads, exp_avgs, exp_avg_sqs, steps
Lists = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def real(x: Tensor) -> Tensor:
    """The local, real tensor behind x (x itself where it is one)."""
    if isinstance(x, DTensor):
        x = x.to_local()
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def in_one_vector(states: list[dict[str, Tensor]]) -> None:
    """Steps as views of one tensor, whose version tells whether anyone but a kernel has written one."""
    bases = {id(state["step"]._base) for state in states}
    if len(bases) > 1 or states[0]["step"]._base is None:
        vector = torch.stack([state["step"] for state in states])
        for state, step in zip(states, vector.unbind(), strict=True):
            state["step"] = step


def sort(group: dict[str, Any], first: int, lists: Lists) -> tuple[list[Bucket], list[list[int]]]:
    """Buckets of one body, device and dtype, and which of the lists' entries each holds."""
    salts = [salt(group["seed"], first + i) for i, p in enumerate(group["params"]) if p.grad is not None]
    reals = [[real(x) for x in column] for column in lists]
    members: dict[Any, list[int]] = {}
    for i, tensors in enumerate(zip(*reals[:4], strict=True)):
        _check_fit(*tensors)
        p, m = tensors[0], tensors[2]
        members.setdefault((executor.choose(p, group).name, p.device, p.dtype, m.dtype), []).append(i)
    buckets = []
    for key, index in members.items():
        p, g, m, b, t = ([column[i] for i in index] for column in reals)
        buckets.append(Bucket(executor.body(key[0]), p, g, m, b, t, [salts[i] for i in index]))
    return buckets, list(members.values())


def _check_fit(p: Tensor, g: Tensor, m: Tensor, b: Tensor) -> None:
    shapes = {x.shape for x in (p, g, m, b)}
    if len(shapes) > 1 or p.dtype != g.dtype or len({x.device for x in (p, g, m, b)}) > 1:
        told = "; ".join(f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in (p, g, m, b))
        raise RuntimeError(
            f"a parameter, its gradient and its two averages do not fit together ({told}): "
            "if the model has been moved or cast, clear the gradients and load the optimizer's state anew"
        )


class Gathered:
    """One parameter group as buckets."""

    def __init__(self, group: dict[str, Any], first: int, lists: Lists, positions: list[int]) -> None:
        """`first`: the index of the group's first parameter; `positions`: of each state among all states."""
        self.all_params = list(group["params"])
        self.flags = _flags(group)
        self.absent = [p.grad is None for p in self.all_params]
        self.buckets, self.members = sort(group, first, lists)
        self.params, self.positions = lists[0], positions
        self.dtypes = list(map(_dtype, lists[1]))
        self.plain = all(real(p) is p for p in self.params)
        self.homes = [list(map(_address, self._real(averages))) for averages in lists[2:]]
        # An address tells memory for as long as that lives: a death makes all this stale.
        self.alive = True
        averages = [real(x) for xs in lists[2:] for x in xs]
        self.refs: list[Any] = [weakref.ref(x.untyped_storage(), self._died) for x in averages]
        for bucket in self.buckets:
            bucket.addresses = list(map(_address, bucket.params))
            bucket.grad_addresses = list(map(_address, bucket.grads))

    def _died(self, _: object) -> None:
        self.alive = False

    def still(self, group: dict[str, Any], states: list[dict[str, Any]]) -> bool:
        """Take this step's tensors; False where anything but the gradients has changed."""
        params = group["params"]
        if len(params) != len(self.all_params) or not all(map(is_, params, self.all_params)):
            return False
        if _flags(group) != self.flags or not self.alive:
            return False
        grads = list(map(_grad, params))
        if True in self.absent:
            if [g is None for g in grads] != self.absent:
                return False
            grads = [g for g in grads if g is not None]
        try:
            if len(self.positions) != len(states):
                states = [states[i] for i in self.positions]
            averages = [self._real(list(map(key, states))) for key in _AVERAGES]
            if [list(map(_address, xs)) for xs in averages] != self.homes:
                return False
            if list(map(_dtype, grads)) != self.dtypes:
                return False
            for bucket, index in zip(self.buckets, self.members, strict=True):
                whole = len(index) == len(grads)
                bucket.grads = self._real(grads if whole else [grads[i] for i in index])
                bucket.grad_addresses = list(map(_address, bucket.grads))
                bucket.params = self._real(self.params if whole else [self.params[i] for i in index])
                if list(map(_address, bucket.params)) != bucket.addresses:
                    return False
                if not bucket.memo:  # a body with a memo knows the averages by address
                    bucket.exp_avgs, bucket.exp_avg_sqs, bucket.steps = (
                        [xs[i] for i in index] for xs in averages
                    )
        except (RuntimeError, TypeError, AttributeError, LookupError):
            # No gradient, a sparse one, no state any more: gathering anew deals with it or finds the words.
            return False
        return True

    def _real(self, xs: list[Tensor]) -> list[Tensor]:
        return xs if self.plain else list(map(real, xs))

    def release(self) -> None:
        for bucket in self.buckets:
            bucket.grads, bucket.exp_avgs, bucket.exp_avg_sqs, bucket.steps = [], [], [], []
