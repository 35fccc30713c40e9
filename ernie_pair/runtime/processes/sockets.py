"""Sockets: of a service that listens, of Python's own processes."""

import os
import socket
import tempfile
from multiprocessing import util

from ernie_pair.core.errors import InputError, MachineError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises MachineError when the port cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, because asyncio sends small answers at once only where it sees TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise MachineError(f"--host {host} --port {port}: {error.strerror or error}; choose others") from None
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the address of a listening socket for a browser, http://HOST:PORT."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
