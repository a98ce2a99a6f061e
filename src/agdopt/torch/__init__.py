"""AGD for PyTorch, and what its switch does."""

from agdopt.torch.monitor import SwitchMonitor
from agdopt.torch.optimizer import AGD
from agdopt.torch.switch import SwitchReport, SwitchRow, switch_report

__all__ = ["AGD", "SwitchMonitor", "SwitchReport", "SwitchRow", "switch_report"]
