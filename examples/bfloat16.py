"""A bfloat16 model with bfloat16 averages: 4 bytes of state a parameter, nothing frozen."""

import torch
from torch import nn

from agdopt import AGD


def main() -> float:
    torch.manual_seed(0)
    model = nn.Linear(64, 64).to(torch.bfloat16)
    optimizer = AGD(
        model.parameters(), lr=1e-3, standardize=True, state_dtype=torch.bfloat16, stochastic_rounding=True
    )
    truth = torch.randn(64, 64) / 8
    loss = torch.tensor(0.0)
    for _ in range(1000):
        x = torch.randn(256, 64)
        loss = (model(x.to(torch.bfloat16)).float() - x @ truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    held = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim())
    print(
        f"loss {loss.item():.4f}, {held / sum(map(torch.numel, model.parameters())):.0f} bytes of state each"
    )
    return loss.item()


if __name__ == "__main__":
    main()
