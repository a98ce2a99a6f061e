"""One update at a time, as a CUDA graph where the optimizer allows it; each run on a stream of its own."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agdopt.race.optimizers import Built
from agdopt.race.task import Batch, Step, Task

# With more graphs than this, gradients stay at one place for all of them. Fewer may each have their own: it
# saves adding every gradient to a zero, which tells in a small model.
MANY = 3


class Place:
    """A run's device, stream, random numbers and precision; runs beside it keep theirs."""

    def __init__(self, device: torch.device, precision: str, graph: bool) -> None:
        self.device, self.precision = device, precision
        self.cuda = device.type == "cuda"
        self.graph = graph and self.cuda
        self.rng = torch.get_rng_state()
        if self.cuda:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.generator = torch.Generator(device)
            torch.cuda.synchronize(device)  # the task's tensors come from another stream

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.precision != "fp32"
        torch.backends.cudnn.benchmark = self.graph
        if not self.cuda:
            outside = torch.get_rng_state()
            torch.set_rng_state(self.rng)
            try:
                yield
            finally:
                self.rng = torch.get_rng_state()
                torch.set_rng_state(outside)
            return
        default = torch.cuda.default_generators[self.stream.device_index]
        shared = default.graphsafe_get_state()
        # A graph captured meanwhile stays bound to this run's generator, whatever is the default at replay.
        default.graphsafe_set_state(self.generator)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            default.graphsafe_set_state(shared)

    def autocast(self) -> torch.autocast:
        bf16 = self.precision == "bf16"
        # Without the cache of casts: one that outlived a capture would be read by a later replay.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)

    def caught_up(self) -> Iterator[None]:
        """Goes on yielding until the device has done what was asked so far."""
        if self.cuda:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self.stream)
            while not done.query():  # type: ignore[no-untyped-call]
                yield


@dataclass
class Captured:
    """The static inputs of one set of shapes, and the graph over them once it has been captured."""

    inputs: Batch
    graph: torch.cuda.CUDAGraph | None = None


class Stepper:
    """Forward, backward, optimizer. To be called inside its place."""

    def __init__(self, place: Place, task: Task, model: nn.Module, clip: float | None, update: int) -> None:
        self.place, self.task, self.model, self.clip = place, task, model, clip
        self.params = [p for p in model.parameters() if p.requires_grad]
        # Read once an epoch: the sum of the losses, and the first update whose loss was not finite.
        self.loss_sum = torch.zeros((), device=place.device)
        self.counter = torch.full((), update, device=place.device)
        self.first_bad = torch.zeros_like(self.counter)

    def use(self, built: Built) -> None:
        """From here on with this optimizer; graphs hold the old one's step, so they go."""
        self.built = built
        self.graphs: dict[tuple[torch.Size, ...], Captured] = {}
        # One pool for all these graphs: they never run at once, and nothing in it outlives a replay. A new
        # one each time, for a pool dies with the last of its graphs.
        self.pool = torch.cuda.graph_pool_handle() if self.place.cuda else None
        self.plain_before = False
        self.lr: float | None = None

    def step(self, step: Step, lr: float) -> None:
        if lr != self.lr:
            self.built.set_lr(lr)
            self.lr = lr
        if self.built.graph == "none":
            self._backward(step.inputs)
            self._optimize()
            if self.built.second_order:
                for p in self.params:
                    p.grad = None  # lets the graph of the first backward go
            return
        shapes = tuple(t.shape for t in step.inputs)
        known = self.graphs.get(shapes)
        if known is None:
            # The first step of its shapes runs as it is: it warms libraries up and creates states, and shapes
            # that never come again are not worth a graph.
            known = self.graphs[shapes] = Captured(tuple(t.clone() for t in step.inputs))
            if len(self.graphs) > MANY and self.built.grads is None:
                self.built.keep_grads(self.params)
        else:
            for static, given in zip(known.inputs, step.inputs, strict=True):
                static.copy_(given)
            # Never twice without a plain step between: only there can an optimizer make room for its tables.
            if known.graph is None and self.plain_before:
                known.graph = self._capture(known.inputs)
                self.plain_before = False
        if known.graph is not None:
            known.graph.replay()
        else:
            self._captured_part(known.inputs)
            self.plain_before = True
        if self.built.graph == "backward":
            self._optimize()

    def _capture(self, inputs: Batch) -> torch.cuda.CUDAGraph:
        # torch.cuda.graph() would also synchronise and empty the cache: too dear for one graph per length.
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            self._captured_part(inputs)
        finally:
            graph.capture_end()
        return graph

    def _captured_part(self, inputs: Batch) -> None:
        self._backward(inputs)
        if self.built.graph == "step":
            self._optimize()

    def _backward(self, inputs: Batch) -> None:
        built = self.built
        if built.grads is not None and not built.second_order:
            torch._foreach_zero_(built.grads)
        else:
            for p in self.params:
                p.grad = None
        with self.place.autocast():
            loss = self.task.loss(self.model, self.task.fetch(inputs))
        if built.second_order:
            with warnings.catch_warnings():
                # Torch warns of a reference cycle; it is broken when the gradients are let go.
                warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph=True")
                loss.backward(create_graph=True)  # type: ignore[no-untyped-call]
            if built.grads is not None:
                self._hessian(built.grads)
        else:
            loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.counter += 1
            self.loss_sum += loss.detach()
            bad = ~torch.isfinite(loss) & (self.first_bad == 0)
            self.first_bad.copy_(torch.where(bad, self.counter, self.first_bad))
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.params, self.clip)

    def _hessian(self, grads: list[Tensor]) -> None:
        """The library's own estimate, made where a graph can hold it; its step() then takes it ready made."""
        optimizer: Any = self.built.optimizer
        groups, state = optimizer.param_groups, optimizer.state
        optimizer.zero_hessian(groups, state)
        optimizer.compute_hutchinson_hessian(
            groups, state, num_samples=optimizer.num_samples, distribution=optimizer.distribution
        )
        for p, g in zip(self.params, grads, strict=True):
            assert p.grad is not None
            g.copy_(p.grad.detach())
            p.grad = g

    def _optimize(self) -> None:
        optimizer: Any = self.built.optimizer
        if self.built.second_order and self.built.grads is not None:
            optimizer.step(hessian=[optimizer.state[p]["hessian"] for p in self.params])
        else:
            optimizer.step()

    def read(self) -> tuple[float, int]:
        """The sum of the losses since the last read, and the first bad update (0: none)."""
        loss, bad = float(self.loss_sum), int(self.first_bad)
        self.loss_sum.zero_()
        return loss, bad
