"""Attention with heads, the part that the language model and the translator share."""

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """From x to x, or to `source`. Four matrices, each its own parameter: some optimizers look at shapes."""

    def __init__(self, width: int, heads: int, bias: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias) for _ in range(4))

    def forward(
        self, x: Tensor, source: Tensor | None = None, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """`mask` (batch, 1, 1 or queries, keys): true where a key may be looked at."""
        source = x if source is None else source
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, y in ((self.query, x), (self.key, source), (self.value, source))
        )
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out
