"""What agdopt speed times: shapes of models, and the optimizers that step them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from agdopt import AGD

BASE = "AdamW fused"


def gpt(width: int, layers: int, vocabulary: int, positions: int) -> list[tuple[int, ...]]:
    block = [(3 * width, width), (3 * width,), (width, width), *[(width,)] * 5]
    block += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(vocabulary, width), (positions, width), *block * layers, (width,), (width,)][
        : 2 + 12 * layers + 2
    ]


def resnet20() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (16,)]
    before = 16
    for width in (16, 32, 64):
        for block in range(3):
            first = before if block == 0 else width
            shapes += [(width, first, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
        before = width
    return [*shapes, (10, 64), (10,)]


def works(device: str) -> dict[str, list[tuple[int, ...]]]:
    """What is stepped: sizes that a CPU or a GPU is used for."""
    if device == "cpu":
        return {
            "large": [(16_000_000,)],
            "gpt": gpt(384, 8, 40_000, 256)[:98],
            "resnet20": resnet20(),
            "many": [(1000,)] * 1000,
        }
    return {
        "large": [(128 << 20,)],
        "gpt": gpt(1024, 12, 50_304, 1024)[:146],
        "resnet20": resnet20(),
        "many": [(1000,)] * 1000,
    }


@dataclass
class Candidate:
    """An optimizer over tensors of its own."""

    name: str
    build: Callable[[list[torch.nn.Parameter]], Any]
    dtype: torch.dtype = torch.float32


def candidates(everything: bool) -> list[Candidate]:
    b16, optim = torch.bfloat16, torch.optim
    found = [
        Candidate(BASE, lambda p: optim.AdamW(p, fused=True)),
        Candidate("AGD", lambda p: AGD(p)),
        Candidate("AGD, bf16 states", lambda p: AGD(p, state_dtype=b16)),
        Candidate("AGD, all bf16", lambda p: AGD(p, state_dtype=b16), b16),
        Candidate("AGD foreach", lambda p: AGD(p, foreach=True)),
        Candidate("AdamW foreach", lambda p: optim.AdamW(p, foreach=True)),
    ]
    if everything:
        found += [
            Candidate("AGD loop", lambda p: AGD(p, foreach=False)),
            Candidate("AdamW loop", lambda p: optim.AdamW(p, foreach=False)),
            Candidate("AdamW fused, all bf16", lambda p: optim.AdamW(p, fused=True), b16),
            Candidate("Adam fused", lambda p: optim.Adam(p, fused=True)),
            Candidate("SGD fused, momentum", lambda p: optim.SGD(p, momentum=0.9, fused=True)),
        ]
        try:
            from pytorch_optimizer import AdaBelief, AdaHessian
        except ImportError:
            return found
        found.append(Candidate("AdaBelief", lambda p: AdaBelief(p)))
        found.append(Candidate("AdaHessian, Hessian given", lambda p: _Given(AdaHessian(p), p)))
    return found


class _Given:
    """AdaHessian's step alone: its Hessian costs a second backward pass, which belongs to the model."""

    def __init__(self, optimizer: Any, params: list[torch.nn.Parameter]) -> None:
        self.optimizer, self.hessian = optimizer, [torch.ones_like(p) for p in params]

    def step(self) -> None:
        self.optimizer.step(hessian=self.hessian)
