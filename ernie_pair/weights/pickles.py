"""A pickle of named arrays, read without trusting it.

Unpickling runs whatever the file asks for, so only the few constructors that an array needs are allowed.
They take bounded arguments: a file of 300 bytes can hold lists that share lists, which have 2^50 items when
traversed.
"""

import io
import pickle
from typing import Any, Dict

import numpy as np

from data_tools.files.errors import CheckpointError

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
MOST_ITEMS = 10_000  # in the arguments of a constructor, including nested ones
PLAIN_KEYS = (str, bytes, int)  # their hash is not recursive
PLAIN_VALUES = (np.ndarray, np.generic, bool, int, float)


def load_plain_pickle(content: bytes) -> Dict[str, Any]:
    """Return the dictionary that is pickled in ``content``.

    Raises CheckpointError if it asks for more than arrays need, any other exception if it is damaged.
    """
    loaded = PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
    if not isinstance(loaded, dict):
        raise CheckpointError(f"it holds a {type(loaded).__name__}, not named arrays")
    return loaded


def as_arrays(values: Dict[str, Any], most_bytes: int) -> Dict[str, np.ndarray]:
    """Return ``values`` as arrays of at most ``most_bytes`` together, shared ones counted once.

    Raises CheckpointError naming a value that is not an array of numbers.
    """
    for name, value in values.items():
        if not isinstance(value, PLAIN_VALUES) or np.asarray(value).dtype.hasobject:
            raise CheckpointError(f"{str(name)[:100]} is not an array of numbers")
    arrays = {name: np.asarray(value) for name, value in values.items()}
    held = {id(value): array.nbytes for value, array in zip(values.values(), arrays.values())}
    if sum(held.values()) > most_bytes:
        raise CheckpointError("its arrays are larger than the file")
    return arrays


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


def _refuse_keys(keys: list) -> None:
    if not all(isinstance(key, PLAIN_KEYS) for key in keys):
        raise CheckpointError("a key that is not a name")


def _refuse_large(stack: list) -> None:
    """Raise CheckpointError when the topmost value has more items than any array needs."""
    waiting, seen = [stack[-1]], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen + len(waiting) > MOST_ITEMS:
            raise CheckpointError("lists that share lists without end")
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value


for _code in (pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD):
    _checked(_code, _refuse_large)
for _code in (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EMPTY_SET, pickle.FROZENSET, pickle.ADDITEMS):
    _checked(_code, _refuse)
_checked(pickle.SETITEM, lambda stack: _refuse_keys(stack[-2:-1]))
_checked(pickle.SETITEMS, lambda stack: _refuse_keys(stack[::2]))
_checked(pickle.DICT, lambda stack: _refuse_keys(stack[::2]))
