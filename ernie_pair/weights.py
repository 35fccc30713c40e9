"""Named arrays in files: safetensors of our own, foreign pickles through an allow-list.

A `.pdparams` file is a pickle of {name: ndarray}. Unpickling runs whatever the file asks for, so
only the few constructors that an array needs are let through.
"""

import io
import pickle
from pathlib import Path
from typing import Dict

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from data_tools.errors import CheckpointError

Arrays = Dict[str, np.ndarray]

ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}
# The two names under which Paddle keeps its own notes beside the arrays.
NOTES = ("StructuredToParameterName@@", "UnpackBigParamInfor@@")


class _AllowList(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in ALLOWED:
            raise CheckpointError(f"blocked global {module}.{name}")
        return super().find_class(module, name)


def to_safetensors(arrays: Arrays) -> bytes:
    """Serialise {name: array}; in C order."""
    return save_safetensors({name: np.asarray(array, order="C") for name, array in arrays.items()})


def from_safetensors(data: bytes, where: str) -> Arrays:
    """The reverse. Raises CheckpointError naming ``where``."""
    try:
        return load_safetensors(data)
    except SafetensorError as error:
        raise CheckpointError(f"{where} is not a safetensors file ({error}); make it again") from None


def read_weights(path: Path) -> Arrays:
    """Read `.safetensors` or a pickle of arrays (`.pdparams`, `.pdopt`).

    Raises CheckpointError when the file is missing, damaged, or asks for more than arrays.
    """
    if not path.is_file():
        raise CheckpointError(f"no weights at {path}; give a folder or prefix that holds them")
    if path.suffix == ".safetensors":
        return from_safetensors(path.read_bytes(), str(path))
    return _read_pickle(path)


def _read_pickle(path: Path) -> Arrays:
    try:
        loaded = _AllowList(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused: {error}; only files of plain arrays are read") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise CheckpointError(f"{path} is damaged ({error.__class__.__name__}); copy it again") from None
    if not isinstance(loaded, dict):
        raise CheckpointError(
            f"{path} holds a {type(loaded).__name__}, not named arrays; give a parameter file"
        )
    arrays = {name: np.asarray(value) for name, value in loaded.items() if name not in NOTES}
    strange = [name for name, array in arrays.items() if array.dtype == object]
    if strange:
        raise CheckpointError(f"{path}: {strange[0]} is not an array of numbers; only plain arrays are read")
    return arrays


def refuse_mismatch(wanted: Dict[str, tuple], found: Arrays, where: str) -> None:
    """Both sides must hold the same names with the same shapes; nothing is set before this passes.

    ``wanted``: {name: shape}. Raises CheckpointError listing up to five names of each kind.
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
