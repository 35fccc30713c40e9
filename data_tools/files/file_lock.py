"""A file that one process holds at a time; the kernel frees it when its holder ends, however it ends."""

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
def locked(path: Path, seconds: float) -> Iterator[bool]:
    """Hold ``path``, which is made when it is not there; what stands in it means nothing.

    Gives whether the holder is alone: False where the file system knows no locks. Raises MachineError
    when another process still holds it after ``seconds``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        yield _hold(descriptor, path, seconds)
    finally:
        os.close(descriptor)


def _hold(descriptor: int, path: Path, seconds: float) -> bool:
    begun = told = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            now = time.monotonic()
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            return False
        if now - begun >= seconds:
            raise MachineError(f"{path}: another process holds it; let that end, or stop it, then run again")
        if now - told >= NOTICE_SECONDS:
            logger.warning("waiting for the process that holds %s", path)
            told = now
        time.sleep(POLL_SECONDS)
