"""The compiled kernels: where they are, whether they work here, and if not, why not.

ERNIE_PAIR_KERNELS_LEVEL, one of LEVELS, can only lower what the processor offers.
"""

import ctypes
import platform
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple, Optional

from ernie_pair.kernels.c_interface import VERSION, declare_functions
from ernie_pair.runtime.cpu import LEVEL_ASKED, LEVELS, asked_level, has_bf16, why_no_bf16

PROCESSOR = "x86_64"
FOLDER = Path(__file__).parent
OPENMP, ONEDNN = "libiomp5.so", "libdnnl.so.3"  # of Paddle's wheel


class Kernels(NamedTuple):
    """The opened library and its level, one of LEVELS; at ``none`` there is no library, and a reason."""

    library: Optional[ctypes.CDLL]
    level: str
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
        offered = LEVELS[self.functions.fused_processor_level()]
        possible = min(offered, asked_level(), key=LEVELS.index)
        if LEVELS.index(self.level) >= LEVELS.index(possible):
            return ""
        return f"no {possible}: it was not compiled, or the system does not grant its registers"


def open_kernels() -> Kernels:
    """Return the kernels of this process, opened once. Raises InputError for an unknown level."""
    return _open(FOLDER, asked_level())


@lru_cache(maxsize=1)  # the library has one level at a time
def _open(folder: Path, most: str) -> Kernels:
    """Return the kernels in ``folder``, at most of level ``most``."""
    if most == "none":
        return _none(f"{LEVEL_ASKED}=none is set")
    if platform.machine() != PROCESSOR:
        return _none(f"the fused kernels are for x86-64 processors, and this one is {platform.machine()}")
    found = _compiled_in(folder)
    if found is None:
        return _none("the package was built without its compiled kernels")
    libraries = _paddle_libraries()
    for name in (OPENMP, ONEDNN):
        if not (libraries / name).is_file():
            return _none(f"this Paddle has no {name}")
    try:
        ctypes.CDLL(str(libraries / OPENMP), mode=ctypes.RTLD_GLOBAL)  # one OpenMP in a process, Paddle's
        library = ctypes.CDLL(str(found))
        declare_functions(library)
    except (OSError, AttributeError) as error:
        return _none(f"{found.name} cannot be used ({' '.join(str(error).split())[:200]})")
    version = library.fused_version()
    if version != VERSION:
        return _none(f"{found.name} has version {version} of the kernels, not {VERSION}")
    level = library.fused_open(str(libraries / ONEDNN).encode(), LEVELS.index(most))
    if level == 0:
        is_old = library.fused_processor_level() == 0
        return _none("this processor has no AVX2" if is_old else f"{ONEDNN} of this Paddle does not work")
    return Kernels(library, LEVELS[level])


def _compiled_in(folder: Path) -> Optional[Path]:
    """Return the compiled file, or None; that of this Python first, because others may be stale."""
    of_this = [folder / f"_fused{suffix}" for suffix in EXTENSION_SUFFIXES]
    return next((path for path in (*of_this, *sorted(folder.glob("_fused*.so"))) if path.is_file()), None)


def _none(reason: str) -> Kernels:
    return Kernels(None, "none", reason)


def _paddle_libraries() -> Path:
    import paddle

    return Path(paddle.__file__).parent / "libs"
