"""The paper's small Transformer for translation, and beam search with it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agdopt.race.tasks._attention import Attention

PAD, EOS, UNK = 0, 1, 2  # EOS also begins what the decoder reads


class Layer(nn.Module):
    """Pre-norm: attention to itself, to the source if it is the decoder's, then a hidden layer [S]."""

    def __init__(self, width: int, hidden: int, heads: int, dropout: float, decoder: bool) -> None:
        super().__init__()
        self.dropout, count = dropout, 3 if decoder else 2
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(count)])
        attentions = [Attention(width, heads, bias=True, dropout=0.1) for _ in range(count - 1)]
        self.attentions = nn.ModuleList(attentions)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
        """`mask`: which places of the source are words. The decoder sees its own past only."""
        y = self.norms[0](x)
        y = self.attentions[0](y, mask=mask) if memory is None else self.attentions[0](y, causal=True)
        x = x + F.dropout(y, self.dropout, self.training)
        if memory is not None:
            y = self.attentions[1](self.norms[1](x), memory, mask)
            x = x + F.dropout(y, self.dropout, self.training)
        y = F.dropout(F.relu(self.up(self.norms[-1](x))), 0.1, self.training)
        return x + F.dropout(self.down(y), self.dropout, self.training)


class Transformer(nn.Module):
    """Source embedding, target embedding and output layer are one matrix; positions are sines."""

    def __init__(self, words: int, width: int, hidden: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.width, self.dropout = width, dropout
        self.embedding = nn.Embedding(words, width)
        sizes = (width, hidden, heads, dropout)
        self.encoder = nn.ModuleList([Layer(*sizes, decoder=False) for _ in range(layers)])
        self.decoder = nn.ModuleList([Layer(*sizes, decoder=True) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.register_buffer("sines", _sines(1024, width), persistent=False)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def _embed(self, words: Tensor) -> Tensor:
        x = self.embedding(words) * math.sqrt(self.width) + self.get_buffer("sines")[: words.shape[1]]
        return F.dropout(x, self.dropout, self.training)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        x, mask = self._embed(source), (source != PAD)[:, None, None]
        for layer in self.encoder:
            x = layer(x, mask)
        return self.norms[0](x), mask

    def decode(self, words: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Before the output layer."""
        x = self._embed(words)
        for layer in self.decoder:
            x = layer(x, mask, memory)
        out: Tensor = self.norms[1](x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embedding.weight)

    def forward(self, source: Tensor, words: Tensor) -> Tensor:
        return self.logits(self.decode(words, *self.encode(source)))


def _sines(length: int, width: int) -> Tensor:
    rates = torch.exp(torch.arange(width // 2) * (-math.log(10_000) / (width // 2 - 1)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def search(model: Transformer, source: Tensor, beam: int, penalty: float, limit: int) -> Tensor:
    """Beam search: the best ended hypothesis by log probability / length**penalty, without its first EOS.

    A sentence is done when as many hypotheses have ended as the beam is wide; at `limit` words all must end.
    """
    memory, mask = (t.repeat_interleave(beam, 0) for t in model.encode(source))
    n, device = len(source), source.device
    words = torch.full((n * beam, 1), EOS, device=device)
    scores = torch.full((n, beam), -math.inf, device=device)
    scores[:, 0] = 0  # all beams are the same at first
    best, best_score = (
        torch.full((n, limit + 1), PAD, device=device),
        torch.full((n,), -math.inf, device=device),
    )
    ended = torch.zeros(n, dtype=torch.long, device=device)
    for length in range(1, limit + 1):
        logp = model.logits(model.decode(words, memory, mask)[:, -1]).float().log_softmax(-1)
        logp[:, PAD] = -math.inf
        if length == limit:
            logp[:, :EOS] = logp[:, EOS + 1 :] = -math.inf
        # Twice the beam: should half of them end, a whole beam still goes on.
        top, at = (
            (scores[:, :, None] + logp.view(n, beam, -1)).flatten(1).topk(min(2 * beam, logp.shape[1] * beam))
        )
        row = at // logp.shape[1] + beam * torch.arange(n, device=device)[:, None]
        words = torch.cat([words[row], (at % logp.shape[1])[..., None]], -1)
        end = words[..., -1] == EOS
        new = (top / length**penalty).masked_fill(~end, -math.inf)[:, :beam]
        new = new.masked_fill((ended >= beam)[:, None], -math.inf)
        score, which = new.max(1)
        better = score > best_score
        best_score = torch.where(better, score, best_score)
        found = words[torch.arange(n, device=device), which]
        best[better, : length + 1] = found[better]
        ended += (end[:, :beam] & top[:, :beam].isfinite()).sum(1)
        scores, keep = top.masked_fill(end, -math.inf).topk(beam)
        words = words.gather(1, keep[..., None].expand(-1, -1, length + 1)).flatten(0, 1)
        if bool((ended >= beam).all()):
            break
    return best[:, 1:]
