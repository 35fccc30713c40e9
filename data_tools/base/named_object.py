"""Import objects of the user's own code that a flag names: package.module:name."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from data_tools.base.errors import InputError


def import_named(name: str, flag: str, kind: str) -> Any:
    """Return the callable, a ``kind`` such as function, that ``name``, the value of ``flag``, names.

    Modules are found as Python finds them, then in the working folder. Raises InputError if there is none.
    """
    module_name, colon, inner_name = name.partition(":")
    if not (colon and module_name and inner_name):
        raise InputError(f"{flag} {name} is not package.module:{kind}; write a {kind} like that")
    if module_name.startswith("."):
        plain = module_name.strip(".") or "module"
        raise InputError(
            f"{flag} {name}: a name with leading dots is relative to a package, and there is none; "
            f"write {plain}:{inner_name} for {plain.replace('.', '/')}.py of the working folder"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(import_module(module_name), inner_name, None)
    except ImportError as error:
        raise InputError(f"{flag} {name}: {error}; set PYTHONPATH or fix the name") from None
    except SyntaxError as error:
        raise InputError(
            f"{flag} {name}: {error.filename}:{error.lineno}: {error.msg}; fix the line"
        ) from None
    if not callable(found):
        raise InputError(f"{flag} {name}: {module_name} has no {kind} {inner_name}; fix the name")
    return found
