"""A file that one process holds at a time; the kernel frees it when its holder ends, however it ends.

The lock is flock's, as that of the library filelock, and the two exclude each other. The library's own is not
used: it empties the file, in which a run says who holds it, follows a link that waits under the name, and
takes any failure of the disk for another holder.
"""

import errno
import fcntl
import logging
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from data_tools.base.errors import MachineError

POLL_SECONDS, NOTICE_SECONDS = 0.05, 30.0
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)

logger = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, seconds: float, refusal: str = "") -> Iterator[bool]:
    """Hold ``path``, which is made when it is not there; what stands in it means nothing.

    Gives whether the holder is alone: False where the file system knows no locks. Raises MachineError, with
    ``refusal`` for its text, when another process still holds it after ``seconds``.
    """
    descriptor = open_lock(path)
    try:
        yield _hold(descriptor, path, seconds, refusal)
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """Open or make ``path`` without following a link and without touching what its holder wrote in it.

    Returns the descriptor; closing it frees the lock. Raises OSError.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file; False when another one has it. Raises OSError where there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _hold(descriptor: int, path: Path, seconds: float, refusal: str) -> bool:
    begun = told = time.monotonic()
    while True:
        try:
            if try_lock(descriptor):
                return True
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            return False
        now = time.monotonic()
        if now - begun >= seconds:
            busy = f"{path}: another process holds it; let that end, or stop it, then run again"
            raise MachineError(refusal or busy)
        if now - told >= NOTICE_SECONDS:
            logger.warning("waiting for the process that holds %s", path)
            told = now
        time.sleep(POLL_SECONDS)
