"""Exit a process whose C++ threads outlive Python."""

import atexit
import ctypes
import functools


@functools.cache
def skip_destructors() -> None:
    """Let this process end, with its exit code, as soon as Python has: no C++ destructor runs after it.

    The threads of gloo and of its store go on while the C library takes down, in an order that nobody
    knows, what they use; a process that had written everything was seen to abort there. Once is enough:
    further calls do nothing. Without glibc's `on_exit` (man 3 on_exit) the process ends as it always did.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        atexit.register(_leave_first, library)


def _leave_first(library: ctypes.CDLL) -> None:
    # What is registered last is called first, and with the exit code as its first argument.
    library.fflush(None)
    library.on_exit(library._exit, None)
