"""AGD for PyTorch."""

from agdopt.torch.convert import from_adamw, from_sgd
from agdopt.torch.groups import decay_groups
from agdopt.torch.optimizer import AGD, AGDW

__all__ = ["AGD", "AGDW", "decay_groups", "from_adamw", "from_sgd"]
