"""The usual parameter groups: weight decay for matrices and kernels only."""

import re
from typing import Any

from torch import nn

_NORM = re.compile(r"norm(\dd)?$", re.IGNORECASE)  # LayerNorm, BatchNorm2d, LlamaRMSNorm, ...


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two named groups: everything that decays, and what does not.

        optimizer = AGDW(decay_groups(model, weight_decay=0.1), lr=1e-3)

    No decay on norms, biases, embeddings, whatever has fewer than two dimensions, and what the model itself
    names in `no_weight_decay()`. A matrix shared with an embedding is one. Frozen parameters are there too,
    so that they can be unfrozen.
    """
    spared = set(getattr(model, "no_weight_decay", set)())
    bare = set()
    for path, module in model.named_modules():
        for leaf, p in module.named_parameters(recurse=False):
            if (
                p.dim() < 2
                or isinstance(module, nn.Embedding | nn.EmbeddingBag)
                or _NORM.search(type(module).__name__)
                or re.search("bias|embed", leaf)
                or f"{path}.{leaf}".lstrip(".") in spared
            ):
                bare.add(p)
    named = list(model.named_parameters())
    groups = (
        {"params": [(name, p) for name, p in named if p not in bare], "weight_decay": weight_decay},
        {"params": [(name, p) for name, p in named if p in bare], "weight_decay": 0.0},
    )
    return [group for group in groups if group["params"]]
