"""The trainers' blocks of docs/from-adamw.md, run as they stand there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from agdopt import AGDW

# Their warnings are not ours to judge.
pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = (Path(__file__).parents[2] / "docs/from-adamw.md").read_text()
BLOCKS = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")


def shown(name: str, **names: Any) -> dict[str, Any]:
    """What the block has defined, given what a user would have by then."""
    exec(compile(BLOCKS[name], f"docs/from-adamw.md, {name}", "exec"), names)
    return names


def task() -> tuple[nn.Module, torch.utils.data.DataLoader]:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    data = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), torch.utils.data.DataLoader(data, 8)


def loss_over(model: nn.Module, loader: torch.utils.data.DataLoader) -> float:
    with torch.no_grad():
        return torch.stack([F.cross_entropy(model(x), y) for x, y in loader]).mean().item()


def test_every_block_has_a_test():
    assert {f"test_{name}" for name in BLOCKS} <= globals().keys()


def test_transformers(tmp_path):
    transformers = library("transformers")
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 16, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    ids = torch.arange(16).roll(3)
    data = [{"input_ids": ids.roll(i), "labels": ids.roll(i)} for i in range(32)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=20,
        weight_decay=0.1,
        use_cpu=True,
        report_to=[],
        logging_steps=5,
        disable_tqdm=True,
    )
    trainer = shown("transformers", model=model, arguments=arguments, data=data)["trainer"]
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    assert type(optimizer) is AGDW
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.1}
    assert {group["clip"] for group in optimizer.param_groups} == {1.0}
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]
    trainer.args.max_steps = 22
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 22


def test_lightning(tmp_path):
    lightning = library("lightning")
    model, loader = task()
    module = shown("lightning", model=model, loss=F.cross_entropy)["Lit"]()
    before = loss_over(model, loader)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, gradient_clip_val=1.0, **quiet
    )
    trainer.fit(module, loader)
    assert type(trainer.optimizers[0]) is AGDW
    assert loss_over(model, loader) < 0.8 * before


def test_accelerate(tmp_path):
    library("accelerate")
    model, loader = task()
    before = loss_over(model, loader)
    names = shown("accelerate", model=model, loader=loader, loss=F.cross_entropy)
    assert type(names["optimizer"].optimizer) is AGDW
    assert loss_over(names["model"], loader) < 0.8 * before
    names["accelerator"].save_state(str(tmp_path))
    names["accelerator"].load_state(str(tmp_path))


def test_timm():
    timm = library("timm")
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=4)
    optimizer = shown("timm", model=model)["optimizer"]
    assert type(optimizer) is AGDW
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.05}
    x, y = torch.randn(16, 3, 32, 32), torch.arange(16) % 4
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
