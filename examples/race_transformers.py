"""A model of transformers, built from its configuration (nothing is downloaded), raced:

agdopt race --task race_transformers:make_task --optimizers agd,adamw --trials 4
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from agdopt.race.task import Batch, Task, split

WORDS, LENGTH = 32, 16


class Bert(Task):
    metric: ClassVar[str] = "accuracy"
    maximize: ClassVar[bool] = True
    epochs: ClassVar[int | None] = 5
    batch: int = 32

    def load(self) -> dict[str, Batch]:
        """Does the word 1 stand in the sentence more often than the word 2? Yours: the tokenizer's ids."""
        words = torch.randint(3, WORDS, (2000, LENGTH), generator=torch.Generator().manual_seed(0))
        words[:, ::2] = words[:, ::2] % 2 + 1
        label = ((words == 1).sum(1) > (words == 2).sum(1)).long()
        return split(words, label)

    def model(self) -> nn.Module:
        config = BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
            num_labels=2,
        )
        return BertForSequenceClassification(config)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        words, label = batch
        loss: Tensor = model(input_ids=words, labels=label).loss
        return loss

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        words, label = batch
        out = model(input_ids=words, labels=label)
        return {"accuracy": 100 * (out.logits.argmax(1) == label).float().mean(), "loss": out.loss}


make_task = Bert
