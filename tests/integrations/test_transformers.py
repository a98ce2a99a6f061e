"""The callback in the real Trainer, on a GPT of a few thousand parameters made from a config."""

import warnings

import pytest
import torch
from torch.utils.data import Dataset

from agdopt import AGD, switch_report

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")


class Tokens(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        ids = torch.arange(i, i + 8) % 32
        return {"input_ids": ids, "labels": ids}


def train(tmp_path, callback, steps=7, optimizer=AGD):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=steps,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        arguments,
        train_dataset=Tokens(),
        optimizer_cls_and_kwargs=(optimizer, {"lr": 1e-3}),
    )
    trainer.add_callback(callback(trainer))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch.utils.data")  # pinned memory without a GPU
        trainer.train()
    return trainer


def test_the_switch_is_in_the_trainers_own_log(tmp_path):
    from agdopt.integrations.transformers import SwitchCallback

    trainer = train(tmp_path, lambda trainer: SwitchCallback(3, to=trainer.log))
    found = [entry for entry in trainer.state.log_history if "switch/adaptive" in entry]
    assert [(entry["step"], entry["switch/step"]) for entry in found] == [(3, 3.0), (6, 6.0)]
    assert all(0 <= entry["switch/adaptive"] <= 1 for entry in found)
    inner = trainer.optimizer.optimizer
    assert switch_report(trainer.optimizer).overall == switch_report(inner).overall


def test_another_optimizer_is_refused_in_words(tmp_path):
    from agdopt.integrations.transformers import SwitchCallback

    with pytest.raises(TypeError, match="AcceleratedOptimizer has no switch"):
        train(tmp_path, lambda trainer: SwitchCallback(to=trainer.log), optimizer=torch.optim.SGD)
