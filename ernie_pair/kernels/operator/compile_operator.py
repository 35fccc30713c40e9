"""Compile the operator's source for the installed Paddle, and keep it in the user's cache.

CACHE/operators/operator-NAME.so     the operator; NAME is a hash of the version of Paddle, of the C library
                                     and of the sources, so that an existing one needs no compiler
CACHE/operators/operator-NAME.json   that key, and the sha256 of the file
CACHE/operators/operator-NAME.lock   held by the process that compiles; others wait

CACHE is $XDG_CACHE_HOME/ernie-pair, or ~/.cache/ernie-pair if that is not set. The files there are executed:
folder and file must belong to this user, and nobody else may be able to write to them.
"""

import contextlib
import logging
import os
import platform
import shlex
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import paddle

from data_tools.base.errors import MachineError, message_of
from data_tools.files.atomic_files import make_folder
from data_tools.files.keyed_cache import KeyedCache
from data_tools.files.nothing_kept import something_kept
from data_tools.files.npy_stream import sha256_of_file
from ernie_pair.device.paddle_patches.core_settings import core_library

SOURCE = Path(__file__).with_name("fused_operator.cc")
PART = SOURCE.with_name("adamw_operator.h")
HEADER = Path(__file__).parents[1] / "cpp" / "fused.h"
FLAGS = ("-std=c++17", "-O2", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-DPADDLE_WITH_CUSTOM_KERNEL")
FOLDER = "operators"
COMPILE_SECONDS, LOCK_SECONDS = 300, 600
_SHOWN = 200  # characters of a compiler's message

logger = logging.getLogger(__name__)


class OperatorError(Exception):
    """There is no operator. The message is the reason, in words."""


def find_operator(cache: Path) -> Path:
    """Return the compiled operator in ``cache``; it is compiled if it is missing or damaged.

    Any number of processes may call this at once: one compiles. Raises OperatorError.
    """
    folder = cache / FOLDER
    kept: KeyedCache[Any] = KeyedCache(
        folder, _key(), _write, lambda note, path: path, kind="operator-", ending=".so"
    )
    try:
        make_folder(cache)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _refuse_of_others(folder)
        with something_kept():  # it is loaded from its file
            path = kept.get(_compile, LOCK_SECONDS)
        _refuse_of_others(path)
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


def _refuse_of_others(path: Path) -> None:
    """Raise OperatorError when others could have put code there, OSError when nothing is there."""
    about = path.lstat()
    is_link, is_open = stat.S_ISLNK(about.st_mode), about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_link or is_open or about.st_uid != os.geteuid():
        raise OperatorError(
            f"{path} holds code that is executed, and other users may write there; remove it, or set "
            "XDG_CACHE_HOME to another"
        )


def _key() -> Dict[str, object]:
    return {
        "paddle": [paddle.__version__, paddle.version.commit, paddle.is_compiled_with_cuda()],
        "flags": list(FLAGS),
        "machine": [platform.machine(), *platform.libc_ver()],
        "sources": {path.name: sha256_of_file(path) for path in (SOURCE, PART, HEADER)},
    }


def _compile() -> bytes:
    """Compile the sources with g++, or the compiler that CXX names. Raises OperatorError."""
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    headers = Path(paddle.sysconfig.get_include())
    if not (headers / "paddle").is_dir():
        raise OperatorError(f"this Paddle has no headers in {headers}")
    logger.info("compiling the fused operator, once: about 5 s")
    core = core_library()
    includes = [f"-I{folder}" for folder in (HEADER.parent, headers, headers / "third_party")]
    with tempfile.TemporaryDirectory(prefix="ernie-pair-operator.") as folder:
        made = Path(folder) / "operator.so"
        link = ["-o", str(made), f"-L{core.parent}", f"-l:{core.name}"]
        _run([*command, *FLAGS, *includes, str(SOURCE), *link])
        return made.read_bytes()


def _run(command: List[str]) -> str:
    """Return the output of a command. Raises OperatorError when it cannot be run or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS
        )
    except FileNotFoundError:
        raise OperatorError(f"there is no compiler {command[0]}; install g++, or name one in CXX") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatorError(f"the compiler {command[0]} cannot be run ({error})"[:_SHOWN]) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise OperatorError(f"{command[0]} failed with code {done.returncode}: {''.join(said[:1])[:_SHOWN]}")
    return done.stdout


def _write(compiled: bytes, draft: Path) -> Dict[str, object]:
    draft.write_bytes(compiled)
    draft.chmod(0o600)
    return {"sha256": sha256_of_file(draft)}
