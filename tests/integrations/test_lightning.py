"""The callback in the real Trainer of Lightning, on one linear layer."""

import warnings

import pytest
import torch
from torch import nn

from agdopt import AGD

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")


class Linear(pl.LightningModule):
    def __init__(self, *optimizers):
        super().__init__()
        self.layer, self.optimizers_ = nn.Linear(4, 1), optimizers
        self.automatic_optimization = len(optimizers) == 1

    def training_step(self, batch, i):
        loss = self.layer(batch).square().mean()
        if not self.automatic_optimization:
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
        return loss

    def configure_optimizers(self):
        return [make(self.parameters()) for make in self.optimizers_]


class Kept(pl.loggers.logger.DummyLogger):
    def __init__(self):
        super().__init__()
        self.seen = []

    def log_metrics(self, metrics, step):
        if any(name.startswith("switch") for name in metrics):
            self.seen.append((step, metrics))


def train(tmp_path, module, callback, logger, steps=6):
    trainer = pl.Trainer(
        max_steps=steps,
        callbacks=[callback],
        logger=logger,
        default_root_dir=tmp_path,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer.fit(module, data)
    return trainer


def test_the_switch_is_in_every_logger(tmp_path):
    from agdopt.integrations.lightning import SwitchCallback

    loggers = [Kept(), Kept()]
    trainer = train(tmp_path, Linear(AGD), SwitchCallback(2), loggers)
    for logger in loggers:
        assert [step for step, _ in logger.seen] == [2, 4, 6]
        assert all(0 <= numbers["switch/adaptive"] <= 1 for _, numbers in logger.seen)
    assert not trainer.optimizers[0]._optimizer_step_post_hooks


def test_the_adaptive_ones_of_several_optimizers(tmp_path):
    from agdopt.integrations.lightning import SwitchCallback

    seen = []
    module = Linear(AGD, lambda p: torch.optim.SGD(p, 0.1), AGD)
    train(tmp_path, module, SwitchCallback(2, to=seen.append), None)
    assert {name.partition("/")[0] for numbers in seen for name in numbers} == {"switch", "switch2"}


def test_a_training_that_raises_lets_the_optimizer_go(tmp_path):
    from agdopt.integrations.lightning import SwitchCallback

    def full(numbers):
        raise OSError("disk full")

    callback = SwitchCallback(2, to=full)
    module = Linear(AGD)
    with pytest.raises(OSError, match="disk full"):
        train(tmp_path, module, callback, None)
    assert not module.trainer.optimizers[0]._optimizer_step_post_hooks


def test_another_optimizer_is_refused_in_words(tmp_path):
    from agdopt.integrations.lightning import SwitchCallback

    with pytest.raises(TypeError, match="none of the module's optimizers is an"):
        train(tmp_path, Linear(lambda p: torch.optim.SGD(p, 0.1)), SwitchCallback(), None)
