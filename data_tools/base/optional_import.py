"""Import the library of an optional extra when it is needed, or say which extra provides it."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Optional

from data_tools.base.errors import InputError
from data_tools.base.installation import install_command

# What [cpu] and [gpu] install, by the names under which the code imports it: an installation that only runs
# exported models has none of it.
OF_TRAINING = frozenset(
    "cloudpickle jinja2 matplotlib onnx paddle paddlenlp pyarrow rjieba safetensors scipy"
    " sklearn visualdl werkzeug zstandard".split()
)


def import_optional(name: str, extra: str) -> ModuleType:
    """Return the module ``name`` of the optional ``extra``. Raises InputError when it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise _not_installed(name, extra) from None


def missing_of_training(error: ModuleNotFoundError) -> Optional[InputError]:
    """Return the error for a missing library of training; None for any other module."""
    library = (error.name or "").partition(".")[0]
    return _not_installed(library, "cpu") if library in OF_TRAINING else None


def refuse_without_training() -> None:
    """Raise InputError when a library of training is not installed; none is imported."""
    for library in ("paddle", *sorted(OF_TRAINING)):
        if find_spec(library) is None:
            raise _not_installed(library, "cpu")


def _not_installed(name: str, extra: str) -> InputError:
    package = name.partition(".")[0]
    return InputError(f"{package} is not installed; {install_command(extra)}")
