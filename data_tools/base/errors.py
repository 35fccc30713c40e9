"""The errors a person can mend, each with the exit code of its kind.

A message is one line: what, where (file:line), how to fix it. Anything else that escapes is a bug
and keeps its traceback and exit code 1.
"""


class InputError(ValueError):
    """Bad input or configuration."""

    exit_code = 2


class CheckpointError(InputError):
    """A checkpoint or a weight file that cannot be used."""

    exit_code = 3


class NumbersError(InputError):
    """The training numbers went wrong (NaN or infinity)."""

    exit_code = 4


class MachineError(InputError):
    """The disk, the memory, a permission or a port stands in the way."""

    exit_code = 5


class PeerError(InputError):
    """Another process of the run is lost or hangs."""

    exit_code = 6


class CollectiveError(PeerError):
    """A collective failed, as it does when another process is lost; which one is not known."""


class Stopped(BaseException):
    """A signal asked the process to end; no error, so nothing that catches errors may swallow it."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code
