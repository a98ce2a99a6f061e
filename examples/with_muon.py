"""AGDW beside Muon: hidden matrices to Muon, embeddings, head, norms and biases to AGDW."""

import torch
from torch import Tensor, nn
from torch.optim import Muon

from agdopt import AGDW


class Reverser(nn.Module):
    """Reads eight symbols, writes them backwards."""

    def __init__(self, symbols: int = 10, length: int = 8, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.position = nn.Embedding(length, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.hidden = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, symbols)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x) + self.position.weight
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x + self.hidden(x))


def main() -> float:
    torch.manual_seed(0)
    model = Reverser()
    ends = {*model.embedding.parameters(), *model.position.parameters(), *model.head.parameters()}
    hidden = [p for p in model.parameters() if p.dim() == 2 and p not in ends]
    rest = [p for p in model.parameters() if p.dim() != 2 or p in ends]
    # Muon's steps in AdamW's size, so that one rate and one schedule serve both.
    muon = Muon(hidden, lr=3e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    optimizers = [muon, AGDW(rest, lr=3e-3)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=200) for o in optimizers]

    loss = torch.tensor(0.0)
    for _ in range(200):
        x = torch.randint(10, (64, 8))
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten())
        model.zero_grad()
        loss.backward()
        for each in (*optimizers, *schedules):
            each.step()
    print(f"loss {loss.item():.3f}; {len(hidden)} matrices to Muon, {len(rest)} tensors to AGDW")
    return loss.item()


if __name__ == "__main__":
    main()
