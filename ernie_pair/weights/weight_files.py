"""Named arrays in files: our own safetensors, foreign pickles through an allow-list, Paddle's variables.

A `.pdparams` file is a pickle of {name: ndarray}. Unpickling runs whatever the file asks for, so only the few
constructors that an array needs are allowed. They take bounded arguments: a file of 300 bytes can hold lists
that share lists, which have 2^50 items when traversed.

Paddle's C++ save ops (`save_vars`, `save_persistables`) write one file per variable: u32 version 0, u64
levels of detail (0 for a parameter), u32 version 0, i32 size of the description, the description (protobuf:
1 type of the numbers, 2 the shape), the numbers; all little-endian. Every length is checked against the file
before it is used, and the file must end where the numbers end.
"""

import io
import json
import logging
import math
import pickle
import re
import stat
import struct
from collections import Counter
from pathlib import Path
from typing import Dict, List, Optional, Tuple

import numpy as np

from ernie_pair.core.errors import CheckpointError

ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("collections", "OrderedDict"),
}  # fmt: skip
MAX_ITEMS = 10_000  # in the arguments of a constructor, including nested ones
PLAIN_KEYS = (str, bytes, int)  # their hash is not recursive
PLAIN_VALUES = (np.ndarray, np.generic, bool, int, float)
# Paddle's VarType numbers; bfloat16 (22) is kept as its two bytes, as in Paddle's pickles.
KINDS = {1: "<i2", 2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8", 20: "u1", 21: "i1", 22: "<u2"}
MAX_DESCRIPTION, MAX_DIMENSIONS = 1024, 16
_HEADER = struct.Struct("<IQIi")
BFLOAT16 = np.dtype(np.uint16)
_EXPONENT = np.uint16(0x7F80)  # all ones: infinity or NaN
Arrays = Dict[str, np.ndarray]
# The two names under which Paddle keeps its own notes beside the arrays.
NOTES = ("StructuredToParameterName@@", "UnpackBigParamInfor@@")
# In the order of a file; bfloat16 is read as its bits.
SAFETENSORS_TYPES = {
    "U64": "<u8", "I64": "<i8", "F64": "<f8", "F32": "<f4", "U32": "<u4", "I32": "<i4", "BF16": "<u2",
    "F16": "<f2", "U16": "<u2", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?",
}  # fmt: skip
NAMES_OF_TYPES = {np.dtype(kind): name for name, kind in SAFETENSORS_TYPES.items() if name != "BF16"}
ALIGNMENT = 8
MODEL_STATE = "model_state.pdparams"
WRAPPERS = ("module.", "_orig_mod.")  # before all names of a model that was wrapped: DataParallel, compile
WIDE = np.dtype(np.float32)
# What Paddle keeps beside the parameters: AdamW's state, and the scalars of schedule and loss scale.
_STATE = re.compile(
    r".+_(moment[12]|beta[12]_pow_acc|fp32_master)_\d+"
    r"|(learning_rate|loss_scaling|num_good_steps|num_bad_steps|create_global_var|gradient_merge\w*)_\d+"
    r"|.+@GRAD.*|@\w+@"
)

logger = logging.getLogger(__name__)


class PlainUnpickler(pickle._Unpickler):
    """Python's own unpickler in Python, because the one in C has no hook before it calls something.

    Raises CheckpointError for a name outside of ALLOWED, for opcodes that arrays do not need, and for
    arguments larger than any of theirs.
    """

    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module, name):
        """Return the object of this name, if it is in ALLOWED. Raises CheckpointError otherwise."""
        if (module, name) not in ALLOWED:
            raise CheckpointError(f"blocked global {module}.{name}")
        return super().find_class(module, name)


def _checked(code: bytes, check) -> None:
    """Let ``check`` inspect the unpickler before it executes ``code``."""
    load = pickle._Unpickler.dispatch[code[0]]

    def load_checked(unpickler):
        check(unpickler.stack)
        load(unpickler)

    PlainUnpickler.dispatch[code[0]] = load_checked


def _refuse(stack: list) -> None:
    raise CheckpointError("it asks for objects that no array needs")


def _check_keys(keys: list) -> None:
    if not all(isinstance(key, PLAIN_KEYS) for key in keys):
        raise CheckpointError("a key that is not a name")


def _check_size(stack: list) -> None:
    """Raise CheckpointError when the topmost value has more items than any array needs."""
    waiting, seen = [stack[-1]], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen + len(waiting) > MAX_ITEMS:
            raise CheckpointError("lists that share lists without end")
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value


for _code in (pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD):
    _checked(_code, _check_size)
for _code in (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EMPTY_SET, pickle.FROZENSET, pickle.ADDITEMS):
    _checked(_code, _refuse)
_checked(pickle.SETITEM, lambda stack: _check_keys(stack[-2:-1]))
_checked(pickle.SETITEMS, lambda stack: _check_keys(stack[::2]))
_checked(pickle.DICT, lambda stack: _check_keys(stack[::2]))


def read_variable(path: Path) -> np.ndarray:
    """Read the array in a file, bfloat16 as uint16. Raises CheckpointError if it is not a whole variable."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path} is not a file; a folder of parameters holds nothing else")
    content = path.read_bytes()
    try:
        version, levels, tensor_version, length = _HEADER.unpack_from(content)
        if version or levels or tensor_version:
            raise ValueError(
                f"versions {version} and {tensor_version}, {levels} levels, all of them must be 0"
            )
        if not 0 <= length <= min(MAX_DESCRIPTION, len(content) - _HEADER.size):
            raise ValueError(f"a description of {length} bytes")
        begin = _HEADER.size + length
        kind, shape = _description(content[_HEADER.size : begin])
        if kind not in KINDS:
            raise ValueError(f"numbers of type {kind}")
        dtype, count = np.dtype(KINDS[kind]), math.prod(shape)
        there, takes = len(content) - begin, count * dtype.itemsize
        if there != takes:
            raise ValueError(f"{there} bytes, where {shape} of {dtype} takes {takes}")
        return np.frombuffer(content, dtype, count, begin).reshape(shape)
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is not a variable of Paddle's ({error}); copy it again") from None


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
        elif tag == 0x12:
            end = place + value
            while place < end:
                size, place = _varint(message[:end], place)
                shape.append(size)
        else:
            raise ValueError(f"field {tag} in the description")
    if len(shape) > MAX_DIMENSIONS or any(size >= 1 << 63 for size in shape):
        raise ValueError("a shape that no tensor has")
    return kind, tuple(shape)


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


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """Return the numbers with the bit patterns ``bits`` as float32; no value changes."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def is_bfloat16_finite(bits: np.ndarray) -> bool:
    """Return whether none of the numbers with the bit patterns ``bits`` is NaN or infinity."""
    return not ((bits & _EXPONENT) == _EXPONENT).any()


def safetensors_parts(arrays: Arrays, metadata: Optional[Dict[str, str]] = None) -> List[memoryview]:
    """Return the file of {name: array}, as parts to write one after another; arrays are not copied.

    ``metadata``: additional entries of its header, which other libraries read. The bytes are the same as the
    library's, which copies every array twice. The length of the header as a little-endian uint64, the header
    in JSON, wide types before narrow ones, names in order; see
    https://github.com/huggingface/safetensors#format.
    """
    rank = {kind: place for place, kind in enumerate(NAMES_OF_TYPES)}
    ordered = sorted(arrays.items(), key=lambda item: (rank[item[1].dtype], item[0]))
    ordered = [(name, np.asarray(array, order="C")) for name, array in ordered]
    header: Dict[str, object] = {"__metadata__": metadata} if metadata else {}
    place = 0
    for name, array in ordered:
        offsets = [place, place + array.nbytes]
        kind = NAMES_OF_TYPES[array.dtype]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        place = offsets[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    data = [array.reshape(-1).view(np.uint8).data for _, array in ordered]
    return [memoryview(len(text).to_bytes(8, "little") + text), *data]


def write_for_torch(path: Path, arrays: Arrays) -> None:
    """Write a safetensors file whose header says, as transformers asks, that its arrays are torch's."""
    with open(path, "wb") as file:
        file.writelines(safetensors_parts(arrays, {"format": "pt"}))


def write_weights(folder: Path, weights: Arrays) -> None:
    """Write model_state.pdparams, a pickle of {name: array} as `paddle.save` writes a state dict."""
    arrays = {id(array): np.ascontiguousarray(array) for array in weights.values()}
    with open(folder / MODEL_STATE, "wb") as file:  # which holds an array under two names once
        pickle.dump({name: arrays[id(weights[name])] for name in sorted(weights)}, file, protocol=4)


def from_safetensors(data: bytes, where: str) -> Arrays:
    """Read {name: array} of safetensors, bfloat16 as uint16. Raises CheckpointError naming ``where``."""
    # Here, because reading the flags of a command, or an exported model, needs no such library.
    import safetensors

    try:
        entries = safetensors.deserialize(data)
        kinds = {name: np.dtype(SAFETENSORS_TYPES[entry["dtype"]]) for name, entry in entries}
    except getattr(safetensors, "SafetensorError") as error:  # noqa: B009 - which some stubs lack
        raise CheckpointError(f"{where} is not a safetensors file ({error}); make it again") from None
    except KeyError as error:
        raise CheckpointError(
            f"{where} holds numbers of type {error}, which is not read; widen them"
        ) from None
    return {name: np.frombuffer(e["data"], kinds[name]).reshape(e["shape"]) for name, e in entries}


def read_weights(path: Path) -> Arrays:
    """Read `.safetensors`, a pickle of arrays (`.pdparams`, `.pdopt`), or a folder of Paddle's variables.

    From a folder, whose files have the names of their variables, only the parameters are read, not the
    optimizer state among them. Raises CheckpointError for one missing, damaged, or not of arrays.
    """
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir() if not is_state(file.name))
        if not names:
            raise CheckpointError(f"{path} holds no parameters; give the folder that save_persistables wrote")
        return {name: read_variable(path / name) for name in names}
    if not path.is_file():
        raise CheckpointError(f"no weights at {path}; give a folder or prefix that holds them")
    if path.suffix == ".safetensors":
        return from_safetensors(path.read_bytes(), str(path))
    return _read_pickle(path)


def _read_pickle(path: Path) -> Arrays:
    content = path.read_bytes()
    try:
        loaded = PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
        if not isinstance(loaded, dict):
            raise CheckpointError(f"it holds a {type(loaded).__name__}, not named arrays")
        arrays, sizes = {}, {}
        for name, value in loaded.items():
            if name in NOTES:
                continue
            if not isinstance(value, PLAIN_VALUES) or np.asarray(value).dtype.hasobject:
                raise CheckpointError(f"{str(name)[:100]} is not an array of numbers")
            arrays[name] = np.asarray(value)
            sizes[id(value)] = arrays[name].nbytes  # a shared one counts once
        if sum(sizes.values()) > len(content):
            raise CheckpointError("its arrays are larger than the file")
        return arrays
    except CheckpointError as error:
        raise CheckpointError(
            f"{path} is refused: {error.message}; only files of plain arrays are read"
        ) from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(f"{path} is damaged ({error.__class__.__name__}); copy it again") from None


def unwrapped(arrays: Arrays, where: str) -> Arrays:
    """Return {name: array} of a model that was saved inside another, DataParallel for example, as its own.

    What the outer one, of ``WRAPPERS``, puts before all names is left out, and said in a line.
    """
    for wrapper in WRAPPERS:
        if arrays and all(name.startswith(wrapper) for name in arrays):
            logger.info("%s: all names begin with %s, which a wrapper added: it is left out", where, wrapper)
            arrays = {name[len(wrapper) :]: array for name, array in arrays.items()}
    return arrays


def is_state(name: str) -> bool:
    """Return whether ``name`` is, by Paddle's naming, a variable of an optimizer or of its schedule."""
    return _STATE.fullmatch(name) is not None


def as_float32(arrays: Arrays, where: str) -> Arrays:
    """Return ``arrays`` in float32, where uint16 is bfloat16; log what was cast from other types.

    Raises CheckpointError naming what is not a floating-point number, or holds NaN or infinity.
    """
    wide: Arrays = {}
    cast: Counter = Counter()
    for name, array in arrays.items():
        is_half = array.dtype == BFLOAT16
        if not is_half and array.dtype.kind != "f":
            raise CheckpointError(
                f"{where}: {name} is of {array.dtype}, which is not a type of weights; give a parameter file"
            )
        with np.errstate(over="ignore"):
            wide[name] = bfloat16_to_float32(array) if is_half else array.astype(WIDE, copy=False)
        if array.dtype != WIDE:
            cast["bfloat16" if is_half else array.dtype.name] += 1
        if not np.isfinite(wide[name]).all():
            raise CheckpointError(f"{where}: {name} holds NaN or infinity; give weights of an earlier step")
    for dtype, count in cast.items():
        logger.info("%d of %d arrays of %s are %s: cast to float32", count, len(arrays), where, dtype)
    return wide


def check_match(wanted: Dict[str, tuple], found: Arrays, where: str) -> None:
    """Raise CheckpointError if names or shapes differ from the wanted ones; call it before setting any.

    ``wanted``: {name: shape}. The error lists up to five names of each kind.
    """
    kinds = {
        "missing": [name for name in wanted if name not in found],
        "unknown": [name for name in found if name not in wanted],
        "of another shape": [
            f"{name} {found[name].shape} instead of {tuple(shape)}"
            for name, shape in wanted.items()
            if name in found and tuple(found[name].shape) != tuple(shape)
        ],
    }
    problems = []
    for kind, names in kinds.items():
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        problems += [f"{len(names)} {kind}: {', '.join(names[:5])}{more}"] if names else []
    if problems:
        raise CheckpointError(
            f"{where} holds another model: {'; '.join(problems)}; give weights of this config"
        )


def first_not_finite(arrays: Dict[str, np.ndarray]) -> Optional[str]:
    """Return the name of an array that holds NaN or infinity; arrays of uint16 are bfloat16."""
    for name, array in arrays.items():
        if array.dtype == BFLOAT16:
            is_finite = is_bfloat16_finite(array)
        else:
            is_finite = array.dtype.kind != "f" or np.isfinite(array).all()
        if not is_finite:
            return name
    return None
