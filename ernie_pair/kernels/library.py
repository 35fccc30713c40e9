"""The compiled kernels: their C interface (cpp/fused.h), where they are, and why they do not work here.

ERNIE_PAIR_KERNELS_LEVEL, one of LEVELS, can only lower what the processor offers.

The memory that they work in is aligned buffers, taken for a call or from forward to backward, and reused.
Sizes are rounded up, by a quarter at most, so that batches of many lengths share buffers. All buffers
together never exceed one and a quarter times the peak of use, or 16 MB: of the free ones, the one unused for
longest is returned to the system.
"""

import ctypes
import platform
from collections import deque
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from threading import Lock
from typing import Any, Deque, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.runtime.cpu import LEVEL_ASKED, LEVELS, asked_level, has_bf16, why_no_bf16

VERSION = 7  # FUSED_VERSION
PRECISIONS = {"fp32": 0, "bf16": 1}
ACTIVATIONS = {"gelu": 0, "relu": 1}
FOLDER = Path(__file__).parent
OPENMP, ONEDNN = "libiomp5.so", "libdnnl.so.3"  # of Paddle's wheel
ALIGNMENT = 64
SMALLEST = 1 << 12
FREE_AT_LEAST = 1 << 24


class LayerCall(ctypes.Structure):
    """fused_layer: one call of an encoder layer."""

    _fields_ = [
        ("batch", c_int32), ("length", c_int32), ("hidden", c_int32), ("heads", c_int32), ("inner", c_int32),
        ("precision", c_int32), ("first_token_only", c_int32), ("forward_only", c_int32),
        ("threads", c_int32),
        ("hidden_dropout", c_float), ("attention_dropout", c_float), ("epsilon", c_float),
        ("seed", c_uint32), ("layer", c_uint32), ("activation", c_int32), ("out_rows", c_int32),
        ("rows", c_void_p), ("starts", c_void_p),
    ]  # fmt: skip


class EmbeddingCall(ctypes.Structure):
    """fused_embedding: one call of the embeddings."""

    _fields_ = [
        ("batch", c_int32), ("length", c_int32), ("hidden", c_int32), ("vocab_size", c_int32),
        ("num_positions", c_int32), ("num_types", c_int32), ("threads", c_int32),
        ("dropout", c_float), ("epsilon", c_float), ("seed", c_uint32), ("padding_id", c_int64),
    ]  # fmt: skip


class AdamwCall(ctypes.Structure):
    """fused_adamw: one step over many tensors."""

    _fields_ = [
        ("beta1", c_float), ("beta2", c_float), ("epsilon", c_float), ("power1", c_float),
        ("power2", c_float), ("gradient_factor", c_float), ("threads", c_int32),
    ]  # fmt: skip


_LAYER, _EMBEDDING = POINTER(LayerCall), POINTER(EmbeddingCall)
FUNCTIONS: List[Tuple[str, Any, Sequence[Any]]] = [
    ("fused_version", c_int, []),
    ("fused_processor_level", c_int, []),
    ("fused_open", c_int, [c_char_p, c_int]),
    ("fused_packed_bytes", c_size_t, [_LAYER]),
    ("fused_saved_bytes", c_size_t, [_LAYER]),
    ("fused_work_bytes", c_size_t, [_LAYER]),
    ("fused_layer_pack", None, [_LAYER, c_void_p, c_void_p]),
    ("fused_layer_forward", c_int, [_LAYER, *[c_void_p] * 7]),
    ("fused_layer_backward", c_int, [_LAYER, *[c_void_p] * 8]),
    ("fused_embedding_saved_bytes", c_size_t, [_EMBEDDING]),
    ("fused_embedding_work_bytes", c_size_t, [_EMBEDDING]),
    ("fused_embedding_forward", None, [_EMBEDDING, *[c_void_p] * 11]),
    ("fused_embedding_backward", None, [_EMBEDDING, *[c_void_p] * 13]),
    ("fused_adamw_step", None, [POINTER(AdamwCall), c_int64, *[c_void_p] * 7]),
    ("fused_product_work_bytes", c_size_t, [*[c_int64] * 3, c_int]),
    ("fused_product", c_int, [*[c_int64] * 3, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p]),
    ("fused_sum_of_squares", c_double, [c_int64, c_void_p, c_void_p, c_int]),
]


def pointers_of(tensors: Sequence[Any]) -> Any:
    """Return a C array of the data addresses of ``tensors``."""
    return (c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


class Kernels(NamedTuple):
    """The opened library and its level, one of LEVELS; at ``none`` there is no library, and a reason."""

    library: Optional[ctypes.CDLL] = None
    level: str = "none"
    reason: str = ""

    @property
    def functions(self) -> ctypes.CDLL:
        """Return the library, which must be open."""
        assert self.library is not None, self.reason
        return self.library

    @property
    def has_bf16(self) -> bool:
        """Return whether the processor itself computes products of bfloat16."""
        return has_bf16(self.level)

    @property
    def why_no_bf16(self) -> str:
        """Return why it does not, in words, or ''; the library must be open."""
        if self.has_bf16:
            return ""
        reason = why_no_bf16(LEVELS[self.functions.fused_processor_level()])
        return reason or f"the kernels were compiled without it, or {ONEDNN} of this Paddle has none"

    @property
    def why_lower(self) -> str:
        """Return why the level is lower than the processor's and the environment's, in words, or ''."""
        possible = min(LEVELS[self.functions.fused_processor_level()], asked_level(), key=LEVELS.index)
        if LEVELS.index(self.level) >= LEVELS.index(possible):
            return ""
        return f"no {possible}: it was not compiled, or the system does not grant its registers"


def open_kernels() -> Kernels:
    """Return the kernels of this process, opened once. Raises InputError for an unknown level."""
    return _open(FOLDER, asked_level())


@lru_cache(maxsize=1)  # the library has one level at a time
def _open(folder: Path, most: str) -> Kernels:
    if most == "none":
        return Kernels(reason=f"{LEVEL_ASKED}=none is set")
    machine = platform.machine()
    if machine != "x86_64":
        return Kernels(reason=f"the fused kernels are for x86-64 processors, and this one is {machine}")
    # That of this Python first, because others may be stale.
    of_this = [folder / f"_fused{suffix}" for suffix in EXTENSION_SUFFIXES]
    candidates = (*of_this, *sorted(folder.glob("_fused*.so")))
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        return Kernels(reason="the package was built without its compiled kernels")
    libraries = _paddle_libraries()
    for name in (OPENMP, ONEDNN):
        if not (libraries / name).is_file():
            return Kernels(reason=f"this Paddle has no {name}")
    try:
        ctypes.CDLL(str(libraries / OPENMP), mode=ctypes.RTLD_GLOBAL)  # one OpenMP in a process, Paddle's
        library = ctypes.CDLL(str(found))
        for name, result, arguments in FUNCTIONS:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return Kernels(reason=f"{found.name} cannot be used ({' '.join(str(error).split())[:200]})")
    version = library.fused_version()
    if version != VERSION:
        return Kernels(reason=f"{found.name} has version {version} of the kernels, not {VERSION}")
    level = library.fused_open(str(libraries / ONEDNN).encode(), LEVELS.index(most))
    if level:
        return Kernels(library, LEVELS[level])
    is_old = library.fused_processor_level() == 0
    return Kernels(
        reason="this processor has no AVX2" if is_old else f"{ONEDNN} of this Paddle does not work"
    )


def _paddle_libraries() -> Path:
    import paddle

    return Path(paddle.__file__).parent / "libs"


class Workspace:
    """A buffer of ``size`` bytes at ``address``; returned by `release`, or when it is garbage collected.

    That may happen anywhere: in another thread, or in the middle of any line, also of the pool itself. So it
    then only joins a queue, which is atomic and takes no lock.
    """

    def __init__(self, pool: "WorkspacePool", buffer: np.ndarray):
        self._pool = pool
        self._buffer: Optional[np.ndarray] = buffer
        self.address = int(buffer.ctypes.data)
        self.size = int(buffer.size)

    def release(self) -> None:
        """Return the buffer to the pool; once is enough."""
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            self._pool.take_back(buffer)

    def __del__(self) -> None:
        if self._buffer is not None:
            self._pool.forgotten.append(self._buffer)


class WorkspacePool:
    """Buffers that are free, and counts of bytes, for any number of threads."""

    def __init__(self) -> None:
        self.peak_bytes, self.free_bytes = 0, 0
        self.forgotten: Deque[np.ndarray] = deque()  # to be added to the free ones by the next caller
        self._in_use = 0
        self._free: List[np.ndarray] = []  # in the order of their return, the oldest first
        self._lock = Lock()

    @property
    def in_use(self) -> int:
        """Return the bytes of the workspaces in use."""
        with self._lock:
            self._collect()
            return self._in_use

    def take(self, size: int) -> Workspace:
        """Return a workspace of at least ``size`` bytes, uninitialised."""
        rounded = rounded_size(size)
        with self._lock:
            self._collect()
            index = next((i for i in reversed(range(len(self._free))) if self._free[i].size == rounded), None)
            if index is None:
                whole = np.empty(rounded + ALIGNMENT, dtype=np.uint8)
                start = -whole.ctypes.data % ALIGNMENT
                buffer = whole[start : start + rounded]
            else:
                buffer = self._free.pop(index)
                self.free_bytes -= rounded
            assert buffer.size == rounded
            self._in_use += rounded
            self.peak_bytes = max(self.peak_bytes, self._in_use)
            self._shrink()
        return Workspace(self, buffer)

    def take_back(self, buffer: np.ndarray) -> None:
        """Keep a buffer for reuse."""
        self.forgotten.append(buffer)
        with self._lock:
            self._collect()

    def _collect(self) -> None:
        while self.forgotten:
            buffer = self.forgotten.popleft()
            self._in_use -= buffer.size
            self.free_bytes += buffer.size
            self._free.append(buffer)
            self._shrink()

    def _shrink(self) -> None:
        """Free the oldest free buffers while all together exceed the peak of use by over a quarter."""
        most = max(self.peak_bytes, FREE_AT_LEAST)
        while self._free and self._in_use + self.free_bytes > most + most // 4:
            self.free_bytes -= self._free.pop(0).size


def rounded_size(size: int) -> int:
    """Return ``size`` rounded up to 4, 5, 6 or 7 times a power of two."""
    quarter = max(SMALLEST, 1 << max(size - 1, 1).bit_length() - 1) // 4
    return max(SMALLEST, -(-size // quarter) * quarter)


POOL = WorkspacePool()


class DropoutSeed:
    """The number of the current forward pass; the same for all layers of a model.

    The training loop sets it before a pass, from run, rank, step and micro-batch. Passes for which nobody
    sets it still differ from each other.
    """

    def __init__(self) -> None:
        self._set, self._passes, self.value = 0, 0, 0

    def set(self, seed: int) -> None:
        """Set the seed of the next forward pass, 32 bits."""
        self._set, self._passes = seed, 0

    def begin_pass(self) -> None:
        """Begin a forward pass: the first uses the seed that was set, later ones other seeds."""
        entropy = np.random.SeedSequence([self._set, self._passes])
        self.value = int(entropy.generate_state(1)[0]) if self._passes else self._set
        self._passes += 1
