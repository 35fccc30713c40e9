"""pytorch_model.bin without torch: a zip archive of one pickle and the bytes of every storage.

    archive/data.pkl     {name: torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...)}
    archive/data/0 ...   the numbers of storage 0, little-endian

The pickle is read as `restricted_pickle` reads those of arrays, with a shorter list of names that may be
called, and functions of our own behind them.
"""

import io
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, NamedTuple, Tuple

import numpy as np

from data_tools.base.errors import CheckpointError
from ernie_pair.weights.restricted_pickle import PlainUnpickler
from ernie_pair.weights.weight_files import Arrays

# What torch calls a storage of each type; bfloat16 comes as its bits, see bf16.py.
STORAGES = {
    **{"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2"},
    **{"LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1"},
    **{"ByteStorage": "u1", "BoolStorage": "?"},
}
CURE = "save the model again as safetensors: model.save_pretrained(folder, safe_serialization=True)"


class _StorageType(NamedTuple):
    kind: str


class _Tensor(NamedTuple):
    """A tensor of the pickle before its numbers are read."""

    key: str
    kind: str
    offset: int
    size: Tuple[int, ...]
    stride: Tuple[int, ...]


def read_torch_pickle(path: Path) -> Arrays:
    """Read {name: array} from a pytorch_model.bin; bfloat16 comes as uint16.

    Raises CheckpointError when it is damaged, of the form before torch 1.6, or asks for more than tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_archive(archive, path.stat().st_size)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused: {error.message}; {CURE}") from None
    except Exception as error:  # a damaged archive or pickle raises nearly anything
        raise CheckpointError(f"{path} cannot be read ({error.__class__.__name__}); {CURE}") from None


def _read_archive(archive: zipfile.ZipFile, most_bytes: int) -> Arrays:
    named = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
    if archive.getinfo(named).file_size > most_bytes:
        raise CheckpointError("it is packed, as torch never does")
    tensors = _TorchUnpickler(io.BytesIO(archive.read(named))).load()
    if not isinstance(tensors, dict) or not all(isinstance(value, _Tensor) for value in tensors.values()):
        raise CheckpointError("it holds more than named tensors")
    folder = named[: -len("data.pkl")]
    stored = {tensor.key: f"{folder}data/{tensor.key}" for tensor in tensors.values()}
    if sum(archive.getinfo(name).file_size for name in stored.values()) > most_bytes:
        raise CheckpointError("it is packed, as torch never does")
    bytes_of = {key: archive.read(name) for key, name in stored.items()}
    return {str(name): _array_of(tensor, bytes_of[tensor.key]) for name, tensor in tensors.items()}


def _array_of(tensor: _Tensor, content: bytes) -> np.ndarray:
    """Return the numbers of a tensor, in an order of its own where it is a transposed view."""
    numbers = np.frombuffer(content, np.dtype(tensor.kind))
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.size, tensor.stride))
    is_inside = min(tensor.size, default=1) > 0 and 0 <= tensor.offset <= last < len(numbers)
    if not is_inside or len(tensor.size) != len(tensor.stride) or min(tensor.stride, default=0) < 0:
        raise CheckpointError("a tensor lies outside of its storage")
    if np.prod(tensor.size, dtype=np.float64) > len(numbers):
        raise CheckpointError("a tensor is larger than its storage")
    steps = tuple(step * numbers.itemsize for step in tensor.stride)
    view = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.size, steps, writeable=False)
    return np.ascontiguousarray(view)


def _rebuild(storage: Any, offset: int, size: tuple, stride: tuple, *_: object) -> _Tensor:
    key, kind = storage
    if not all(type(number) is int for number in (offset, *size, *stride)):
        raise CheckpointError("a tensor whose sizes are no numbers")
    return _Tensor(key, kind, offset, size, stride)


def _rebuild_parameter(tensor: _Tensor, *_: object) -> _Tensor:
    return tensor


OF_TORCH: Dict[tuple, Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("collections", "OrderedDict"): OrderedDict,
    **{("torch", name): _StorageType(kind) for name, kind in STORAGES.items()},
}


class _TorchUnpickler(PlainUnpickler):
    """The unpickler of plain arrays, with the few names of torch that stand for tensors."""

    def find_class(self, module, name):
        if (module, name) not in OF_TORCH:
            raise CheckpointError(f"blocked global {module}.{name}")
        return OF_TORCH[module, name]

    def persistent_load(self, pid):
        kind, storage_type, key, *_ = pid
        if kind != "storage" or not isinstance(storage_type, _StorageType) or not isinstance(key, str):
            raise CheckpointError("a storage of another kind")
        return key, storage_type.kind
