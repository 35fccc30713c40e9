"""One run at a time in an output folder."""

import logging
import os
import re
import socket
import time
from pathlib import Path

from data_tools.base.errors import InputError
from data_tools.files.file_lock import has_no_locks, open_lock, try_lock

LOCK = "run.lock"  # in an output folder

logger = logging.getLogger(__name__)


class RunLock:
    """The lock of a run on ``path``, held until it is released or the process ends, however it ends.

    The file names the holder. Raises InputError when another process has it, or when it is a user's
    file of the same name; OSError if it cannot be opened. A file system without locks gives a warning.
    """

    def __init__(self, path: Path):
        self._descriptor = open_lock(path)
        try:
            _lock(self._descriptor, path)
            self._refuse_other_content(path)
        except BaseException:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        said = f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        os.pwrite(self._descriptor, said.encode(), 0)

    def _refuse_other_content(self, path: Path) -> None:
        if not re.match(rb"(pid \d+ on |\Z)", os.pread(self._descriptor, 200, 0)):
            raise InputError(f"{path} is not the lock of a run; rename it, or use another --output_dir")

    def release(self) -> None:
        """Release the lock; the file stays."""
        os.close(self._descriptor)


def refuse_locked(path: Path) -> None:
    """Raise InputError when another process has the lock on ``path``; nothing is created or changed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _lock(descriptor, path)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Lock an open file; on a file system without locks, only warn.

    Raises InputError if another process has it.
    """
    try:
        is_ours = try_lock(descriptor)
    except OSError as error:
        if not has_no_locks(error):
            raise
        logger.warning("%s: no file can be locked there; start no second run in it", path.parent)
        return
    if not is_ours:
        holder = os.read(descriptor, 200).decode("utf-8", "replace").strip()
        raise InputError(
            f"{path.parent} is locked by another run ({holder or 'unknown'}); wait for it, or use "
            "another --output_dir"
        )
