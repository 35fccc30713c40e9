"""The listening socket of a service, and the address to reach it."""

import socket

from data_tools.base.errors import MachineError

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
