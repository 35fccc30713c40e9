"""A lock file that one process holds at a time; the kernel releases it when its holder ends, however it ends.

The lock is flock's, like that of the library filelock, and the two exclude each other. The library itself is
not used: it empties the file, in which a run records that it holds it, follows a planted link, and takes any
failure of the disk for another holder.
"""

import errno
import fcntl
import logging
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from ernie_pair.core.errors import MachineError

POLL_SECONDS, NOTICE_SECONDS = 0.05, 30.0
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

logger = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, seconds: float, refusal: str = "") -> Iterator[bool]:
    """Lock ``path``, which is created if it is missing; its content does not matter.

    Yields whether the lock is exclusive: False on a file system without locks. Raises MachineError, with
    ``refusal`` as its message, if another process still holds it after ``seconds``.
    """
    descriptor = open_lock(path)
    try:
        yield _hold(descriptor, path, seconds, refusal)
    finally:
        os.close(descriptor)


@contextmanager
def locked_once(path: Path, refusal: str) -> Iterator[bool]:
    """Lock ``path`` as `locked` does, without waiting; at the end the file is gone."""
    descriptor = open_lock(path)
    try:
        is_exclusive = _hold(descriptor, path, 0, refusal)
        if not path.exists() or not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise MachineError(refusal)  # another process held it when this one opened it, and removed it
        try:
            yield is_exclusive
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """Open or make ``path``, no link, nothing in it changed; closing it releases it. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def try_lock(descriptor: int) -> bool:
    """Lock an open file; False if another process holds it. Raises OSError if there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_no_locks(error: OSError) -> bool:
    """Return whether `try_lock` failed because the file system has no locks."""
    return error.errno in _NO_LOCKS_HERE


def _hold(descriptor: int, path: Path, seconds: float, refusal: str) -> bool:
    begun = told = time.monotonic()
    while True:
        try:
            if try_lock(descriptor):
                return True
        except OSError as error:
            if not has_no_locks(error):
                raise
            return False
        now = time.monotonic()
        if now - begun >= seconds:
            busy = f"{path}: another process holds it; wait for that, or stop it, then run again"
            raise MachineError(refusal or busy)
        if now - told >= NOTICE_SECONDS:
            logger.warning("waiting for the process that holds %s", path)
            told = now
        time.sleep(POLL_SECONDS)
