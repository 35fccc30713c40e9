"""Named arrays in files: our own safetensors, foreign pickles through an allow-list, Paddle's variables.

A `.pdparams` file is a pickle of {name: ndarray}. Unpickling runs whatever the file asks for, so
only the few constructors that an array needs are allowed.
"""

import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Dict, List, Optional

import numpy as np

from data_tools.files.errors import CheckpointError
from ernie_pair.weights.paddle_variables import read_variables
from ernie_pair.weights.pickles import as_arrays, load_plain_pickle

BFLOAT16 = np.dtype(np.uint16)
_EXPONENT = np.uint16(0x7F80)  # all ones: infinity or NaN


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """Return the numbers with the bit patterns ``bits`` as float32; no value changes."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Return the nearest bfloat16 of each number as its bits, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(BFLOAT16)


def is_bfloat16_finite(bits: np.ndarray) -> bool:
    """Return whether none of the numbers with the bit patterns ``bits`` is NaN or infinity."""
    return not ((bits & _EXPONENT) == _EXPONENT).any()


Arrays = Dict[str, np.ndarray]

# The two names under which Paddle keeps its own notes beside the arrays.
NOTES = ("StructuredToParameterName@@", "UnpackBigParamInfor@@")
# In the order of a file; bfloat16 is read as its bits, see bf16.py.
SAFETENSORS_TYPES = {
    **{"U64": "<u8", "I64": "<i8", "F64": "<f8", "F32": "<f4", "U32": "<u4", "I32": "<i4", "BF16": "<u2"},
    **{"F16": "<f2", "U16": "<u2", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"},
}
NAMES_OF_TYPES = {np.dtype(kind): name for name, kind in SAFETENSORS_TYPES.items() if name != "BF16"}
ALIGNMENT = 8
WIDE = np.dtype(np.float32)
# What Paddle keeps beside the parameters: AdamW's state, and the scalars of schedule and loss scale.
_STATE = re.compile(
    r".+_(moment[12]|beta[12]_pow_acc|fp32_master)_\d+"
    r"|(learning_rate|loss_scaling|num_good_steps|num_bad_steps|create_global_var|gradient_merge\w*)_\d+"
    r"|.+@GRAD.*|@\w+@"
)

logger = logging.getLogger(__name__)


def safetensors_parts(arrays: Arrays, metadata: Optional[Dict[str, str]] = None) -> List[memoryview]:
    """Return the file of {name: array}, as parts to write one after another; arrays are not copied.

    ``metadata``: additional entries of its header, which other libraries read.

    The bytes are the same as the library's, which copies every array twice. The length of the header as a
    little-endian uint64, the header in JSON, wide types before narrow ones, names in order; see
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


def to_safetensors(arrays: Arrays) -> bytes:
    """Return the file of {name: array} in one piece."""
    return b"".join(safetensors_parts(arrays))


def from_safetensors(data: bytes, where: str) -> Arrays:
    """Read {name: array} from the bytes of a safetensors file; bfloat16 is returned as uint16.

    Raises CheckpointError naming ``where``.
    """
    # Here, because reading the flags of a command, or an exported model, needs no such library.
    from safetensors import SafetensorError  # type: ignore[attr-defined]  # its stub lacks it
    from safetensors import deserialize as open_safetensors

    try:
        entries = open_safetensors(data)
        kinds = {name: np.dtype(SAFETENSORS_TYPES[entry["dtype"]]) for name, entry in entries}
    except SafetensorError as error:
        raise CheckpointError(f"{where} is not a safetensors file ({error}); make it again") from None
    except KeyError as error:
        raise CheckpointError(
            f"{where} holds numbers of type {error}, which is not read; widen them"
        ) from None
    return {name: np.frombuffer(e["data"], kinds[name]).reshape(e["shape"]) for name, e in entries}


def read_weights(path: Path) -> Arrays:
    """Read `.safetensors`, a pickle of arrays (`.pdparams`, `.pdopt`), or a folder of Paddle's variables.

    From a folder only the parameters are read, not the optimizer state among them.
    Raises CheckpointError when the file is missing, damaged, or asks for more than arrays.
    """
    if path.is_dir():
        return read_variables(path, wanted=lambda name: not is_state(name))
    if not path.is_file():
        raise CheckpointError(f"no weights at {path}; give a folder or prefix that holds them")
    if path.suffix == ".safetensors":
        return from_safetensors(path.read_bytes(), str(path))
    return _read_pickle(path)


def _read_pickle(path: Path) -> Arrays:
    content = path.read_bytes()
    try:
        loaded = load_plain_pickle(content)
        named = {name: value for name, value in loaded.items() if name not in NOTES}
        return as_arrays(named, most_bytes=len(content))
    except CheckpointError as error:
        raise CheckpointError(
            f"{path} is refused: {error.message}; only files of plain arrays are read"
        ) from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(f"{path} is damaged ({error.__class__.__name__}); copy it again") from None


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
        wide[name] = _widened(name, array, where)
        if array.dtype != WIDE:
            cast["bfloat16" if array.dtype == BFLOAT16 else array.dtype.name] += 1
        if not np.isfinite(wide[name]).all():
            raise CheckpointError(f"{where}: {name} holds NaN or infinity; give weights of an earlier step")
    for dtype, count in cast.items():
        logger.info("%d of %d arrays of %s are %s: cast to float32", count, len(arrays), where, dtype)
    return wide


def _widened(name: str, array: np.ndarray, where: str) -> np.ndarray:
    if array.dtype == BFLOAT16:
        return bfloat16_to_float32(array)
    if array.dtype.kind != "f":
        raise CheckpointError(
            f"{where}: {name} is of {array.dtype}, which is not a type of weights; give a parameter file"
        )
    with np.errstate(over="ignore"):
        return array.astype(WIDE, copy=False)


def refuse_mismatch(wanted: Dict[str, tuple], found: Arrays, where: str) -> None:
    """Raise CheckpointError if names or shapes differ from the wanted ones; call it before setting any.

    ``wanted``: {name: shape}. The error lists up to five names of each kind.
    """
    problems = [
        _list_names("missing", [name for name in wanted if name not in found]),
        _list_names("unknown", [name for name in found if name not in wanted]),
        _list_names(
            "of another shape",
            [
                f"{name} {found[name].shape} instead of {tuple(shape)}"
                for name, shape in wanted.items()
                if name in found and tuple(found[name].shape) != tuple(shape)
            ],
        ),
    ]
    problems = [problem for problem in problems if problem]
    if problems:
        raise CheckpointError(
            f"{where} holds another model: {'; '.join(problems)}; give weights of this config"
        )


def _list_names(kind: str, names: list) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{len(names)} {kind}: {', '.join(names[:5])}{more}"


def first_not_finite(arrays: Dict[str, np.ndarray]) -> Optional[str]:
    """Return the name of an array that holds NaN or infinity; arrays of uint16 are bfloat16."""
    return next((name for name, array in arrays.items() if not _all_finite(array)), None)


def _all_finite(array: np.ndarray) -> bool:
    if array.dtype == BFLOAT16:
        return is_bfloat16_finite(array)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
