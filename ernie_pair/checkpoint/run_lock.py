"""One run at a time in an output folder."""

import os
import re
import socket
import time
from pathlib import Path

from data_tools.base.errors import InputError
from data_tools.files.file_lock import open_lock, try_lock

LOCK = "run.lock"  # in an output folder


class RunLock:
    """The lock of a run on ``path``, held until it is released or the process ends, however it ends.

    The file names the holder. Raises InputError when another process has it, or when it is a file of the
    user that only has this name; OSError where it cannot be opened.
    """

    def __init__(self, path: Path):
        self._descriptor = open_lock(path)
        if not try_lock(self._descriptor):
            holder = os.read(self._descriptor, 200).decode("utf-8", "replace").strip()
            os.close(self._descriptor)
            raise _locked_by(path, holder)
        self._refuse_other_content(path)
        os.ftruncate(self._descriptor, 0)
        said = f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        os.pwrite(self._descriptor, said.encode(), 0)

    def _refuse_other_content(self, path: Path) -> None:
        if not re.match(rb"(pid \d+ on |\Z)", os.pread(self._descriptor, 200, 0)):
            os.close(self._descriptor)
            raise InputError(f"{path} is no lock of a run; rename it, or use another --output_dir")

    def release(self) -> None:
        """Release the lock; the file stays."""
        os.close(self._descriptor)


def refuse_locked(path: Path) -> None:
    """Raise InputError when another process has the lock on ``path``; nothing is made or changed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not try_lock(descriptor):
            raise _locked_by(path, os.read(descriptor, 200).decode("utf-8", "replace").strip())
    finally:
        os.close(descriptor)


def _locked_by(path: Path, holder: str) -> InputError:
    return InputError(
        f"{path.parent} is locked by another run ({holder or 'it has not said which'}); wait for it, or use "
        "another --output_dir"
    )
