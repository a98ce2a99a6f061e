"""AGD for PyTorch."""

from agdopt.torch.optimizer import AGD

__all__ = ["AGD"]
