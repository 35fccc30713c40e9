"""Read files of unknown origin, without blocking and with a limit on their size."""

import errno
import os
import stat
from pathlib import Path
from typing import Union

# Errors of open() for something that is not a readable file; any other is a fault of the machine.
NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG)

CONFIG_YAML = "config.yaml"  # beside the outputs of a command; it contains a time, so no two are equal
ABOUT = "about"  # what a command adds to its config.yaml, below the flags
MOST_CONFIG_BYTES = 1 << 18


class FileRefusedError(ValueError):
    """A path that is not a regular file, or is too large a one; the message is the reason."""


def read_regular(path: Union[str, Path], most: int, follow: bool = True) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    A pipe, a device or a socket is refused at once instead of being waited for; so is a link, unless
    ``follow``. Raises FileRefusedError, and OSError if a permission is missing or the machine fails.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        raise FileRefusedError(f"cannot be read ({error.strerror})") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileRefusedError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise FileRefusedError(f"above {most} bytes")
    return content
