"""Import the library of an optional extra when it is needed."""

from importlib import import_module
from types import ModuleType

from data_tools.base.errors import InputError
from data_tools.base.installation import install_command


def import_optional(name: str, extra: str) -> ModuleType:
    """Return the module ``name`` of the optional ``extra``. Raises InputError when it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise InputError(f"{package} is not installed; {install_command(extra)}") from None
