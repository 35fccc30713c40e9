"""Compile the operator's source for the installed Paddle, and keep it in the user's cache.

CACHE/operators/operator-NAME.so     the operator; NAME is a hash of the version of Paddle, of the C library
                                     and of the sources, so that an existing one needs no compiler
CACHE/operators/operator-NAME.json   that key, and the sha256 of the file
CACHE/operators/operator-NAME.lock   held by the process that compiles; others wait

CACHE is $XDG_CACHE_HOME/ernie-pair, or ~/.cache/ernie-pair if that is not set. The files there are executed:
folder and file must belong to this user, and nobody else may be able to write to them.
"""

import contextlib
import ctypes
import logging
import os
import platform
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, NamedTuple

import paddle
from paddle import nn

from ernie_pair.core.errors import MachineError, message_of
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import keep_results, make_folder
from ernie_pair.core.files.keyed_cache import KeyedCache
from ernie_pair.kernels.encoder_layer import parameters_of
from ernie_pair.kernels.library import ACTIVATIONS, PRECISIONS, Kernels
from ernie_pair.runtime.paddle_patches.core_settings import core_library, register_operators
from ernie_pair.runtime.paddle_patches.layers import activation_of, epsilon_of
from ernie_pair.runtime.paddle_patches.static_programs import run_custom

SOURCE = Path(__file__).parent / "cpp" / "fused_operator.cc"
PART = SOURCE.with_name("adamw_operator.h")
HEADER = SOURCE.with_name("fused.h")
FLAGS = ("-std=c++17", "-O2", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-DPADDLE_WITH_CUSTOM_KERNEL")
FOLDER = "operators"
COMPILE_SECONDS, LOCK_SECONDS = 300, 600
_SHOWN = 200  # characters of a compiler's message
OPERATOR = "ernie_pair_encoder_layer"
# The functions that the operator calls, in the order of its `Library`.
FUNCTIONS = (
    "fused_version", "fused_level", "fused_packed_bytes", "fused_saved_bytes", "fused_work_bytes",
    "fused_layer_pack", "fused_layer_forward", "fused_layer_backward", "fused_adamw_step",
)  # fmt: skip
_registered: Dict[str, ctypes.CDLL] = {}  # one for the life of the process: Paddle registers an operator once

logger = logging.getLogger(__name__)


class OperatorError(Exception):
    """There is no operator. The message is the reason, in words."""


def find_operator(cache: Path) -> Path:
    """Return the compiled operator in ``cache``; it is compiled if it is missing or damaged.

    Any number of processes may call this at once: one compiles. Raises OperatorError.
    """
    folder = cache / FOLDER
    key: Dict[str, object] = {
        "paddle": [paddle.__version__, paddle.version.commit, paddle.is_compiled_with_cuda()],
        "flags": list(FLAGS),
        "machine": [platform.machine(), *platform.libc_ver()],
        "sources": {path.name: sha256_of_file(path) for path in (SOURCE, PART, HEADER)},
    }

    def write(compiled: bytes, draft: Path) -> Dict[str, object]:
        draft.write_bytes(compiled)
        draft.chmod(0o600)
        return {"sha256": sha256_of_file(draft)}

    kept: KeyedCache[Any] = KeyedCache(
        folder, key, write, lambda note, path: path, kind="operator-", ending=".so"
    )
    try:
        make_folder(cache)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _check_owner(folder)
        with keep_results():  # it is loaded from its file
            path = kept.get(_compile, LOCK_SECONDS)
        _check_owner(path)
        return path
    except (OSError, MachineError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else message_of(error)
        raise OperatorError(f"{cache} cannot store it ({reason}); set XDG_CACHE_HOME to another") from None


def forget_operator(path: Path, inode: int) -> None:
    """Remove an operator that does not load here, unless another process has replaced it."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            path.unlink()
            path.with_suffix(".json").unlink()


def _check_owner(path: Path) -> None:
    about = path.lstat()
    is_link, is_open = stat.S_ISLNK(about.st_mode), about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_link or is_open or about.st_uid != os.geteuid():
        raise OperatorError(
            f"{path} holds code that is executed, and other users may write there; remove it, or set "
            "XDG_CACHE_HOME to another"
        )


def _compile() -> bytes:
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    headers = Path(paddle.sysconfig.get_include())
    if not (headers / "paddle").is_dir():
        raise OperatorError(f"this Paddle has no headers in {headers}")
    logger.info("compiling the fused operator, once: about 5 s")
    core = core_library()
    includes = [f"-I{folder}" for folder in (HEADER.parent, headers, headers / "third_party")]
    with tempfile.TemporaryDirectory(prefix="ernie-pair-operator.") as folder:
        made = Path(folder) / "operator.so"
        command += [*FLAGS, *includes, str(SOURCE), "-o", str(made), f"-L{core.parent}", f"-l:{core.name}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS
            )
        except FileNotFoundError:
            raise OperatorError(
                f"there is no compiler {command[0]}; install g++, or name one in CXX"
            ) from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperatorError(f"the compiler {command[0]} cannot be run ({error})"[:_SHOWN]) from None
        if done.returncode:
            lines = done.stderr.splitlines()
            reason = next((line for line in lines if "error" in line), lines[0] if lines else "")[:_SHOWN]
            raise OperatorError(f"{command[0]} failed with code {done.returncode}: {reason}")
        return made.read_bytes()


def load_operator(kernels: Kernels, threads: int, cache: Path) -> None:
    """Make the operator over the open ``kernels`` known to static programs. Raises OperatorError."""
    if OPERATOR not in _registered:
        path = find_operator(cache)
        inode = path.stat().st_ino
        try:
            _registered[OPERATOR] = _load(path)
        except OperatorError as error:
            # Machines may share a home, and the one that compiled it may have a later C++ library.
            logger.info("compiling the fused operator again: %s", error)
            forget_operator(path, inode)
            _registered[OPERATOR] = _load(find_operator(cache))
    start = _registered[OPERATOR].fused_operator_open
    start.restype = ctypes.c_char_p
    functions = [ctypes.cast(getattr(kernels.functions, name), ctypes.c_void_p) for name in FUNCTIONS]
    fault = start((ctypes.c_void_p * len(functions))(*functions), threads)
    if fault:
        raise OperatorError(fault.decode())


def _load(path: Path) -> ctypes.CDLL:
    try:
        register_operators(path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError) as error:
        raise OperatorError(f"Paddle cannot load it ({' '.join(str(error).split())[:200]})") from None


class GraphInputs(NamedTuple):
    """The inputs that all layers of a program share.

    ``seed``: int32 [1], of dropout. ``positions``: int64 [P], the tokens among the B x S that are read after
    the last layer, besides the first of each sequence.
    """

    seed: paddle.static.Variable
    positions: paddle.static.Variable


def add_encoder_layer(
    layer: nn.TransformerEncoderLayer,
    number: int,
    precision: str,
    is_last: bool,
    inputs: GraphInputs,
    x: paddle.Tensor,
    mask: paddle.Tensor,
) -> paddle.Tensor:
    """Add ``layer`` to the program as one op and return its output, float32 [B, S, D].

    ``number``: of the layer in its model, so that no two drop the same. ``precision``: fp32 or bf16.
    ``is_last``: only the first token of each sequence and the chosen ones are read; the others come out as 0.
    ``x`` float32 [B, S, D]; ``mask`` float32 [B, 1, 1, S], added to the scores. A layer that is
    evaluated has no dropout.
    """
    settings = {
        "heads": layer.self_attn.num_heads, "layer": number, "activation": ACTIVATIONS[activation_of(layer)],
        "precision": PRECISIONS[precision], "hidden_dropout": float(layer.dropout1.p),
        "attention_dropout": float(layer.self_attn.dropout), "epsilon": epsilon_of(layer.norm1),
        "read_rows_alone": is_last, "is_test": not layer.training,
    }  # fmt: skip
    inputs_of_layer = (x, mask, inputs.seed, inputs.positions, *parameters_of(layer))
    return run_custom(OPERATOR, *inputs_of_layer, *settings.values())[0]
