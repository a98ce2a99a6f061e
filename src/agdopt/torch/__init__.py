"""AGD for PyTorch, and what its switch does."""

from agdopt.torch.agdw import AGDW
from agdopt.torch.convert import from_adamw, from_sgd
from agdopt.torch.groups import decay_groups
from agdopt.torch.monitor import SwitchMonitor
from agdopt.torch.optimizer import AGD
from agdopt.torch.switch import SwitchReport, SwitchRow, switch_report

__all__ = [
    "AGD",
    "AGDW",
    "SwitchMonitor",
    "SwitchReport",
    "SwitchRow",
    "decay_groups",
    "from_adamw",
    "from_sgd",
    "switch_report",
]
