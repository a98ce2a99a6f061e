"""The switch in transformers.Trainer's logs."""

from typing import Any

from transformers import TrainerCallback

from agdopt.torch import SwitchMonitor

__all__ = ["SwitchCallback"]


class SwitchCallback(TrainerCallback):
    """trainer.add_callback(SwitchCallback(to=trainer.log)): with the Trainer's own numbers, wherever they go.

    The arguments are SwitchMonitor's; `every` counts steps of the optimizer.
    """

    def __init__(self, every: int = 100, *, to: Any, **options: Any) -> None:
        self.options = {"every": every, "to": to, **options}
        self.monitor: SwitchMonitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Not by its hook: when the optimizer steps, the Trainer's own counter is still at the step before.
        self.monitor = SwitchMonitor(kwargs["optimizer"], hook=False, **self.options)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.close()
            self.monitor = None
