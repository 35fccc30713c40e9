"""The errors that a person can fix, each with the exit code of its kind.

A message is one line: what, where (file:line), how to fix it. Anything else that escapes is a bug
and keeps its traceback and exit code 1.
"""


class ErniePairError(Exception):
    """The root of all of them; what is raised is always one of the kinds below."""

    exit_code = 1


class InputError(ErniePairError, ValueError):
    """Bad input or configuration."""

    exit_code = 2


class CheckpointError(ErniePairError):
    """A checkpoint or a weight file that cannot be used."""

    exit_code = 3


class NumbersError(ErniePairError):
    """The training numbers went wrong (NaN or infinity)."""

    exit_code = 4


class MachineError(ErniePairError):
    """The disk, the memory, a permission or a port stands in the way."""

    exit_code = 5


class LostProcessError(ErniePairError):
    """Another process of the run is lost or hangs."""

    exit_code = 6


class CollectiveError(LostProcessError):
    """A collective failed, as it does when another process is lost; which one is not known."""


class Stopped(BaseException):
    """A signal asked the process to end; no error, so nothing that catches errors may swallow it."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code
