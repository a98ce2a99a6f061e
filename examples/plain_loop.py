"""AGD in a plain training loop, with a schedule, a checkpoint in the middle, and a look at what runs."""

import io

import torch
from torch import nn

from agdopt import AGD


def main() -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = AGD(model.parameters(), lr=2e-3, weight_decay=1e-2, standardize=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    print(optimizer.executor)

    truth = torch.randn(20, 3)
    loss = torch.tensor(0.0)
    for step in range(200):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step == 100:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
    print(f"loss {loss.item():.3f}")
    return loss.item()


if __name__ == "__main__":
    main()
