"""AGD, the optimizer that switches each coordinate between adaptive steps and momentum SGD.

Importing this package imports no framework: a name is looked up when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agdopt.torch import AGD, AGDW, SwitchMonitor, switch_report

__all__ = ["AGD", "AGDW", "SwitchMonitor", "__version__", "switch_report"]

# Held here and read by pyproject.toml, so that it is known without an installation too.
__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        room = importlib.import_module("agdopt.torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f'agdopt.{name} needs PyTorch: pip install "agdopt[torch]"', name="torch") from None
    return getattr(room, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
