"""The files in which torch keeps weights, read without it: safetensors, or a pickle beside storages.

Unpickling runs whatever the file asks for: only the few names of torch that stand for tensors are allowed,
and every number that says where a tensor lies is checked against the storage.
"""

import io
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, NamedTuple, Tuple

import numpy as np

from ernie_pair.core.errors import CheckpointError
from ernie_pair.weights.weight_files import Arrays, PlainUnpickler, read_weights

# What torch calls a storage of each type; bfloat16 comes as its bits.
STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
# What torch before 1.6 begins a file with.
MAGIC_BEFORE_ZIP, VERSION_BEFORE_ZIP = 0x1950A86A20F9469CFC6C, 1001
HINT = "save the model again as safetensors: model.save_pretrained(folder, safe_serialization=True)"


class _Tensor(NamedTuple):
    """A tensor of the pickle before its numbers are read."""

    key: str
    kind: np.dtype
    offset: int
    size: Tuple[int, ...]
    stride: Tuple[int, ...]


def read_torch_file(path: Path) -> Arrays:
    """Read {name: array} from a safetensors file or a pytorch_model.bin; bfloat16 comes as uint16.

    Raises CheckpointError when it is damaged, or asks for more than tensors.
    """
    if path.suffix == ".safetensors":
        return read_weights(path)
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return _read_before_zip(file, path.stat().st_size)
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            _check_unpacked(archive, [pickled], path)
            tensors = _read_tensors(io.BytesIO(archive.read(pickled)))
            begin = f"{pickled[: -len('data.pkl')]}data/"
            stored = {tensor.key: f"{begin}{tensor.key}" for tensor in tensors.values()}
            _check_unpacked(archive, stored.values(), path)
            contents = {key: archive.read(name) for key, name in stored.items()}
            return {str(name): _build_array(tensor, contents[tensor.key]) for name, tensor in tensors.items()}
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused: {error.message}; {HINT}") from None
    except Exception as error:  # a damaged archive or pickle raises nearly anything
        raise CheckpointError(f"{path} cannot be read ({error.__class__.__name__}); {HINT}") from None


def _read_tensors(pickled: BinaryIO) -> Dict[str, _Tensor]:
    tensors = _TorchUnpickler(pickled).load()
    if not isinstance(tensors, dict) or not all(isinstance(t, _Tensor) for t in tensors.values()):
        raise CheckpointError("it holds more than named tensors")
    return tensors


def _read_before_zip(file: BinaryIO, size: int) -> Arrays:
    """Read what torch wrote before version 1.6, a pickle after the other, and then the storages one by one.

    They are a number that names the form, its version, facts of the machine, the tensors, and the keys of the
    storages; each of these is its length, int64, and its numbers.
    """
    magic, version, machine = (PlainUnpickler(file).load() for _ in range(3))
    if (magic, version) != (MAGIC_BEFORE_ZIP, VERSION_BEFORE_ZIP):
        raise CheckpointError("it is no file of torch")
    if machine.get("little_endian") is not True:
        raise CheckpointError("it was written by a machine of another byte order")
    tensors = _read_tensors(file)
    kinds = {tensor.key: tensor.kind for tensor in tensors.values()}
    contents: Dict[str, bytes] = {}
    for key in PlainUnpickler(file).load():
        length = int.from_bytes(file.read(8), "little", signed=True) * kinds[key].itemsize
        if not 0 <= length <= size - file.tell():
            raise CheckpointError("a storage is longer than the file")
        contents[key] = file.read(length)
    return {str(name): _build_array(tensor, contents[tensor.key]) for name, tensor in tensors.items()}


def _check_unpacked(archive: zipfile.ZipFile, names: Iterable[str], path: Path) -> None:
    if sum(archive.getinfo(name).file_size for name in names) > path.stat().st_size:
        raise CheckpointError("it is packed, as torch never does")


def _build_array(tensor: _Tensor, content: bytes) -> np.ndarray:
    """Return the numbers of a tensor, in an order of its own where it is a transposed view."""
    numbers = np.frombuffer(content, tensor.kind)
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.size, tensor.stride))
    is_inside = min(tensor.size, default=1) > 0 and 0 <= tensor.offset <= last < len(numbers)
    is_inside = is_inside and float(np.prod(tensor.size, dtype=np.float64)) <= len(numbers)
    if not is_inside or len(tensor.size) != len(tensor.stride) or min(tensor.stride, default=0) < 0:
        raise CheckpointError("a tensor lies outside of its storage")
    steps = tuple(step * numbers.itemsize for step in tensor.stride)
    view = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.size, steps, writeable=False)
    return np.asarray(view, order="C")  # a number on its own keeps its shape


def _rebuild(storage: Any, offset: int, size: tuple, stride: tuple, *_: object) -> _Tensor:
    key, kind = storage
    if not all(type(number) is int for number in (offset, *size, *stride)):
        raise CheckpointError("a tensor whose sizes are no numbers")
    return _Tensor(key, kind, offset, size, stride)


OF_TORCH: Dict[tuple, Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor"): _rebuild,  # of torch 0.3
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("collections", "OrderedDict"): OrderedDict,
    **{("torch", name): np.dtype(kind) for name, kind in STORAGES.items()},
}


class _TorchUnpickler(PlainUnpickler):
    """The unpickler of plain arrays, with the few names of torch that stand for tensors."""

    def find_class(self, module, name):
        if (module, name) not in OF_TORCH:
            raise CheckpointError(f"blocked global {module}.{name}")
        return OF_TORCH[module, name]

    def persistent_load(self, pid):
        kind, storage_type, key, _, _, *views = pid
        if (
            kind != "storage"
            or any(view is not None for view in views)
            or not isinstance(storage_type, np.dtype)
            or not isinstance(key, str)
        ):
            raise CheckpointError("a storage of another kind")
        return key, storage_type
