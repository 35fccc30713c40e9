"""The libraries of the optional extras, imported when they are needed."""

from importlib import import_module
from types import ModuleType

from data_tools.errors import InputError


def optional_library(name: str, extra: str) -> ModuleType:
    """The module ``name``. Raises InputError when it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise InputError(f"{package} is not installed; pip install 'ernie-pair[{extra}]'") from None
