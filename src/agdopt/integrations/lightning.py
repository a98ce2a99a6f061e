"""The switch in Lightning's loggers."""

from contextlib import ExitStack
from typing import Any

import lightning.pytorch as pl

from agdopt.torch import AGD, SwitchMonitor

__all__ = ["SwitchCallback"]


class SwitchCallback(pl.Callback):
    """Trainer(callbacks=[SwitchCallback()]): into all of the trainer's loggers, or `to` something else.

    The arguments are SwitchMonitor's; `every` counts steps of an optimizer. Where a module has several
    optimizers, the names of the second one's numbers begin with switch1, and so on.
    """

    def __init__(self, every: int = 100, *, to: Any = None, **options: Any) -> None:
        self.to, self.options = to, {"every": every, **options}
        self.monitors = ExitStack()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        def log(numbers: dict[str, float], step: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step)

        found = [(i, opt) for i, opt in enumerate(trainer.optimizers) if isinstance(opt, AGD)]
        if not found:
            raise TypeError("SwitchCallback: none of the module's optimizers is an agdopt.AGD")
        for i, optimizer in found:
            options = {"prefix": f"switch{i}" if i else "switch", **self.options}
            to = log if self.to is None else self.to
            self.monitors.enter_context(SwitchMonitor(optimizer, to=to, **options))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.monitors.close()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self.monitors.close()
