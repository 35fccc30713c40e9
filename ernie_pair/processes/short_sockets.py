"""Give the sockets of Python's processes names that the system accepts, however long TMPDIR is."""

import os
import tempfile
from multiprocessing import util

from data_tools.base.errors import InputError

LONGEST = 107  # bytes of the name of a Unix socket
ADDED = len("/pymp-12345678/listener-12345678")  # to the folder of temporary files
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")


def shorten_socket_names() -> None:
    """Let `multiprocessing` of this process, and of those that it forks, make sockets in a short folder.

    A manager, such as Paddle starts for gloo, ends with a bare EOFError if the name of its socket is too
    long. All other temporary files stay where they belong. Does nothing where the names fit. Raises
    InputError if no folder is short and can be written.
    """
    usual = tempfile.gettempdir()
    if _fits(usual):
        return
    short = next((folder for folder in SHORT_FOLDERS if _fits(folder) and os.access(folder, os.W_OK)), None)
    if short is None:
        raise InputError(
            f"TMPDIR {usual} is too long for the sockets of several processes; name a folder of at most "
            f"{LONGEST - ADDED} characters"
        )
    tempfile.tempdir = short
    try:
        util.get_temp_dir()  # makes a folder of this process, and remembers it
    finally:
        tempfile.tempdir = usual


def _fits(folder: str) -> bool:
    return len(os.fsencode(folder)) + ADDED <= LONGEST
