"""Read the files of Paddle's C++ save ops, one per variable, from `save_vars` and `save_persistables`.

u32 version 0, u64 levels of detail (0 for a parameter), u32 version 0, i32 size of the description,
the description (protobuf: 1 type of the numbers, 2 the shape), the numbers; all little-endian. Every
length is checked against the file before it is used, and the file must end where the numbers end.
"""

import math
import stat
import struct
from pathlib import Path
from typing import Callable, Dict, Iterator, Tuple

import numpy as np

from data_tools.files.errors import CheckpointError

# Paddle's VarType numbers; bfloat16 (22) is kept as its two bytes, as in Paddle's pickles.
KINDS = {1: "<i2", 2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8", 20: "u1", 21: "i1", 22: "<u2"}
LONGEST_DESCRIPTION, MOST_DIMENSIONS = 1024, 16
_HEADER = struct.Struct("<IQIi")


def read_variables(folder: Path, wanted: Callable[[str], bool]) -> Dict[str, np.ndarray]:
    """Read the files in ``folder`` whose name is ``wanted``: {name: array}; a file has its variable's name.

    Raises CheckpointError naming the first file that is not a variable, or is truncated or too long.
    """
    names = sorted(path.name for path in folder.iterdir() if wanted(path.name))
    if not names:
        raise CheckpointError(f"{folder} holds no parameters; give the folder that save_persistables wrote")
    return {name: read_variable(folder / name) for name in names}


def read_variable(path: Path) -> np.ndarray:
    """Read the array in one file; bfloat16 is returned as uint16. Raises CheckpointError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path} is not a file; a folder of parameters holds nothing else")
    content = path.read_bytes()
    try:
        return _parse(content)
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is not a variable of Paddle's ({error}); copy it again") from None


def _parse(content: bytes) -> np.ndarray:
    if len(content) < _HEADER.size:
        raise ValueError(f"{len(content)} bytes hold no header")
    version, levels, tensor_version, length = _HEADER.unpack_from(content)
    if version or levels or tensor_version:
        raise ValueError(f"versions {version} and {tensor_version}, {levels} levels, all of them must be 0")
    if not 0 <= length <= min(LONGEST_DESCRIPTION, len(content) - _HEADER.size):
        raise ValueError(f"a description of {length} bytes")
    begin = _HEADER.size + length
    kind, shape = _description(content[_HEADER.size : begin])
    if kind not in KINDS:
        raise ValueError(f"numbers of type {kind}")
    dtype, count = np.dtype(KINDS[kind]), math.prod(shape)
    if len(content) - begin != count * dtype.itemsize:
        raise ValueError(
            f"{len(content) - begin} bytes, where {shape} of {dtype} takes {count * dtype.itemsize}"
        )
    return np.frombuffer(content, dtype, count, begin).reshape(shape)


def _description(message: bytes) -> Tuple[int, Tuple[int, ...]]:
    """Return the type of the numbers and the shape; the shape is packed, or one field per dimension."""
    kind, shape, place = -1, [], 0
    while place < len(message):
        tag, place = _varint(message, place)
        value, place = _varint(message, place)
        if tag == 0x08:
            kind = value
        elif tag == 0x10:
            shape.append(value)
        elif tag == 0x12 and place + value <= len(message):
            shape += _varints(message[place : place + value])
            place += value
        else:
            raise ValueError(f"field {tag} in the description")
    if len(shape) > MOST_DIMENSIONS or any(size >= 1 << 63 for size in shape):
        raise ValueError("a shape that no tensor has")
    return kind, tuple(shape)


def _varints(message: bytes) -> Iterator[int]:
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value


def _varint(message: bytes, place: int) -> Tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte = message[place]
        value, place = value | (byte & 0x7F) << shift, place + 1
        if not byte & 0x80:
            return value, place
    raise ValueError("a number without an end")
