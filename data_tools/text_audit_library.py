"""The libraries of ernie-pair[audit], imported when they are needed."""

from importlib import import_module
from types import ModuleType

from data_tools.errors import InputError


def audit_library(name: str) -> ModuleType:
    """The module ``name``. Raises InputError when it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise InputError(f"{package} is not installed; pip install 'ernie-pair[audit]'") from None
