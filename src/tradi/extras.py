"""Optional dependencies, imported where they are used and nowhere else."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra of this package installs it.

    Args:
        module: dotted name of the module.
        extra: the extra that installs it, as in `pip install 'tradi[extra]'`.

    Raises:
        ImportError: if the module cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{module} could not be imported ({error}): pip install 'tradi[{extra}]'") from error
