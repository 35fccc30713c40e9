"""Write JSON, and read untrusted JSON safely.

Refused are what is not UTF-8 or not JSON, NaN and Infinity, numbers beyond the range of floats, duplicate
keys, nesting above MAX_DEPTH and, for a file, what is not a regular file or is too large. What a value
means, and whether it has the right type, is for the caller to check.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Type, Union

from ernie_pair.core.errors import ErniePairError, InputError
from ernie_pair.core.files.atomic_files import FileRefusedError, read_regular

MAX_BYTES = 16 << 20
MAX_DEPTH = 64  # of nested lists and objects
MAX_DIGITS = 300  # of an integer: none of that length overflows a float
_SHOWN = 40  # characters of a number or a key in a message
_BEGIN_OF_OBJECT = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*["}]')


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as an indented JSON document with a line end, in UTF-8. Raises OSError."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def begins_json_lines(content: bytes) -> bool:
    """Return whether the beginning of a file is that of a JSON object, as in a file of JSON lines."""
    return _BEGIN_OF_OBJECT.match(content) is not None


class JsonError(ValueError):
    """Text that is refused as JSON, and why; ``line`` and ``column`` count from 1, and are 0 if unknown."""

    def __init__(self, reason: str, line: int = 0, column: int = 0):
        super().__init__(reason)
        self.line, self.column = line, column


class _TokenError(ValueError):
    """A number or a key inside the text that is refused."""

    def __init__(self, reason: str, token: str):
        super().__init__(reason)
        self.token = token


def parse_json(content: Union[str, bytes]) -> Any:
    """Return the value of the JSON in ``content``. Raises JsonError."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise JsonError(f"not UTF-8 (byte 0x{error.object[error.start]:02x})", line) from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
        )
        too_deep = text.count("[") + text.count("{") > MAX_DEPTH and _measure_depth([value]) > MAX_DEPTH + 1
    except _TokenError as error:
        place = text.find(error.token)
        raise JsonError(str(error), text.count("\n", 0, place) + 1 if place >= 0 else 0) from None
    except json.JSONDecodeError as error:
        raise JsonError(f"not JSON, {error.msg.removesuffix(' at')}", error.lineno, error.colno) from None
    except RecursionError:
        too_deep = True
    if too_deep:
        raise JsonError(f"nested too deep, above {MAX_DEPTH} levels")
    return value


def parse_json_object(content: Union[str, bytes]) -> Dict[str, Any]:
    """Return the object of the JSON in ``content``. Raises JsonError."""
    value = parse_json(content)
    if not isinstance(value, dict):
        raise JsonError(f"{kind_of(value)} instead of a JSON object", 1)
    return value


def read_json_object(
    path: Path,
    hint: str,
    kind: Type[ErniePairError] = InputError,
    most: int = MAX_BYTES,
    follow: bool = True,
    parse: Callable[[bytes], Any] = parse_json_object,
) -> Any:
    """Return the object in a JSON file of at most ``most`` bytes; ``parse``: `parse_json` takes any value.

    Raises ``kind``: the path and the line, the reason, and ``hint``, which says how to fix it. Raises
    OSError if a permission is missing or the machine fails.
    """
    try:
        return parse(read_regular(path, most, follow))
    except FileRefusedError as error:
        raise kind(f"{path}: {error}; {hint}") from None
    except JsonError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise kind(f"{where}: {error}; {hint}") from None


def read_note(path: Path) -> Optional[Dict[str, Any]]:
    """Return the object in a file that can be made again at any time; None if it is missing or damaged."""
    try:
        return parse_json_object(read_regular(path, MAX_BYTES))
    except (OSError, ValueError):
        return None


def as_read(value: Any) -> Any:
    """Return ``value`` as JSON gives it back: tuples as lists, keys as strings."""
    return json.loads(json.dumps(value))


def kind_of(value: Any) -> str:
    """Return what JSON calls a value, in words."""
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null", dict: "an object"}
    return names.get(type(value), "a number")


def shown(value: Any) -> str:
    """Return a value as JSON, cut to fit into a message."""
    return _shorten(json.dumps(value, ensure_ascii=False, default=str))


def is_whole_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether ``value`` is an int, not a bool, from ``least`` to ``most``."""
    return type(value) is int and least <= value <= most


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Return whether ``value`` is a finite int or float, not a bool, from ``least`` to ``most``."""
    return type(value) in (int, float) and math.isfinite(value) and least <= value <= most


def reads_as_number(text: str) -> bool:
    """Return whether Python reads a number of any kind, nan and infinity included, from ``text``."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_texts(value: Any) -> bool:
    """Return whether ``value`` is a list of strings that can be written as UTF-8."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value) and is_utf8(value)


def is_utf8(value: Any) -> bool:
    """Return whether all strings in ``value`` can be UTF-8: JSON can hold half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _unique_keys(pairs: list) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TokenError(f"the key '{_shorten(twice)}' is given twice", f'"{twice}"')
    return found


def _parse_int(token: str) -> int:
    if len(token) > MAX_DIGITS:
        raise _TokenError(f"a number of {len(token)} digits", token)
    return int(token)


def _parse_float(token: str) -> float:
    value = float(token)
    if math.isinf(value):
        raise _TokenError(f"{_shorten(token)} is too large for a number", token)
    return value


def _refuse_constant(token: str):
    raise _TokenError(f"{token} is not JSON", token)


def _measure_depth(value: Any) -> int:
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH + 1:
        inside = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        level = [item for items in inside for item in items if isinstance(item, (dict, list))]
        depth += 1
    return depth


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
