"""What Paddle's compiled core was built for, how it computes, and operators that are not its own.

And `replaced`: nothing in this folder is replaced permanently. Upstream adds operators by
`paddle.utils.cpp_extension`, which needs ninja, setuptools and Python's headers.

`get_cublas_switch`, `set_cublas_switch` and `set_cudnn_switch`, which only builds for GPUs have: whether
float32 products may be computed in TF32, with 10 bits of a factor instead of 23. Paddle turns it on when it
is loaded, and checks it in every product.
"""

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

FORMAT_OF_PADDLE = "[%(asctime)-15s] [%(levelname)8s] "  # how that of its root logger begins


@contextmanager
def replaced(owner, name: str, value) -> Iterator[None]:
    """Replace ``name`` of ``owner``, a module or a class, by ``value`` within this context.

    Raises AttributeError when it has no such name of its own: then Paddle has changed, and a patch without
    effect would not be noticed.
    """
    if name not in vars(owner):
        raise AttributeError(f"{owner.__name__} has no {name}; look up its name in this Paddle")
    known = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, known)


def _core() -> Any:
    import paddle

    return paddle.base.core


def set_math_threads(count: int) -> None:
    """Let the math of this process use ``count`` threads."""
    _core().set_num_threads(count)


def has_process_group(backend: str) -> bool:
    """Return whether this Paddle was built with ``backend``, Gloo or NCCL."""
    return hasattr(_core(), f"ProcessGroup{backend}")


def core_library() -> Path:
    """Return the file of Paddle's compiled core, which an operator is linked to."""
    return Path(_core().__file__)


def register_operators(library: Path) -> None:
    """Make the operators of ``library`` known to static programs. Raises RuntimeError or OSError."""
    import paddle

    paddle.base.core.load_op_meta_info_and_register_op(str(library))


def set_tf32(is_allowed: bool) -> None:
    """Allow TF32, or not; a build without GPUs has none."""
    core = _core()
    if hasattr(core, "set_cublas_switch"):
        core.set_cublas_switch(is_allowed)
        core.set_cudnn_switch(is_allowed)


@contextmanager
def without_tf32() -> Iterator[None]:
    """Compute float32 products in float32 within this context."""
    core = _core()
    before = hasattr(core, "get_cublas_switch") and bool(core.get_cublas_switch())
    set_tf32(False)
    try:
        yield
    finally:
        set_tf32(before)


def quiet_root_logger() -> None:
    """Have Python's root logger show warnings alone, unless it has a handler that is not Paddle's.

    `paddle.distributed.utils.log_utils.get_logger` asks for the logger "root", and in Paddle 3.3
    `paddle.distributed.auto_parallel.random` does so at import, at the level INFO: the lines of all
    libraries, and of this package without a console, would be shown.
    """
    root = logging.getLogger()
    formats = [getattr(handler.formatter, "_fmt", None) or "" for handler in root.handlers]
    if root.level == logging.INFO and all(text.startswith(FORMAT_OF_PADDLE) for text in formats):
        root.setLevel(logging.WARNING)
