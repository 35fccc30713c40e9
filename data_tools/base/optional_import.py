"""Import the library of an optional extra when it is needed, or say which extra brings it."""

from importlib import import_module
from types import ModuleType
from typing import Optional

from data_tools.base.errors import InputError
from data_tools.base.installation import install_command

# What [cpu] and [gpu] bring, by the names that the code imports it under: an installation that only asks
# exported models has none of it.
OF_TRAINING = frozenset(
    "cloudpickle datasets jinja2 matplotlib onnx paddle paddlenlp pyarrow rjieba safetensors scipy"
    " sklearn visualdl werkzeug zstandard".split()
)


def import_optional(name: str, extra: str) -> ModuleType:
    """Return the module ``name`` of the optional ``extra``. Raises InputError when it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise _not_installed(name, extra) from None


def missing_of_training(error: ModuleNotFoundError) -> Optional[InputError]:
    """Return what to tell of an absent library of training; None for a module that is none of them."""
    library = (error.name or "").partition(".")[0]
    return _not_installed(library, "cpu") if library in OF_TRAINING else None


def _not_installed(name: str, extra: str) -> InputError:
    package = name.partition(".")[0]
    return InputError(f"{package} is not installed; {install_command(extra)}")
