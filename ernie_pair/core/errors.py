"""The errors that a user can fix, each with the exit code of its kind.

A message is one line: what, where (file:line), how to fix it; of several problems each has its own. It
writes an option as its flag on the command line, --learning_rate 0.1; a caller from Python reads
learning_rate=0.1 instead.
Anything else that escapes is a bug and keeps its traceback and exit code 1.
"""

import errno
import os
import re
import resource
import shlex
import shutil
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Mapping, Sequence, Union

# A command to be copied, which is kept; or one of our flags, with its value if that is true, false, a number
# before the end of a word, in quotes or a label map. Ours contain no dash, so pip's --no-deps is kept.
_COMMAND_OR_FLAG = re.compile(
    r"(?:ernie-pair|python -m|hf download|modelscope download|curl) [^;,()]*"
    r"|(?<![\w/.-])--(?P<name>[A-Za-z]\w*)(?![\w-])"
    r"(?: (?P<value>true|false|[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf)|'[^']*'|\d+=[^\s;:)?]+)"
    r"(?=[.,]?(?:[\s;:)?]|$)))?"
)


# What a command that runs another one puts into its environment: its own name, and its flags.
OUTER = "ERNIE_PAIR_OUTER"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class ErniePairError(Exception):
    """The base class; what is raised is always one of the kinds below."""

    exit_code = 1

    @property
    def message(self) -> str:
        """Return the text for the command line, with options as flags."""
        return super().__str__()

    def __str__(self) -> str:
        return without_flags(self.message)


class InputError(ErniePairError, ValueError):
    """Bad input or configuration."""

    exit_code = 2


class OpenError(InputError):
    """Input that the command would take with other ``flags``; the message ends with that command.

    ``others``: the flags of further answers, whose commands stand behind it.
    """

    def __init__(self, reason: str, flags: Mapping[str, str], *others: Mapping[str, str]):
        again = " or ".join(filter(None, (again_with({}, **each) for each in (flags, *others))))
        super().__init__(f"{reason}: {again}" if again else reason)
        self.reason, self.flags = reason, dict(flags)


class SeveralErrors(InputError):
    """Several ``errors``, a line each, and a last line with the one command that has all of their flags.

    It says which of them no flag cures.
    """

    def __init__(self, errors: Sequence[ErniePairError]):
        self.errors = [one for error in errors for one in getattr(error, "errors", [error])]
        flags = {n: value for error in self.errors for n, value in getattr(error, "flags", {}).items()}
        told = [getattr(error, "reason", error.message) for error in self.errors]
        lines = [f"{len(told)} things to fix, nothing was written:"]
        lines += [f"  ({number}) {one}" for number, one in enumerate(told, start=1)]
        again = again_with({}, **flags) if flags else ""
        others = [f"({n})" for n, error in enumerate(self.errors, start=1) if not getattr(error, "flags", {})]
        first = f", once {' and '.join(others)} {'are' if others[1:] else 'is'} fixed" if others else ""
        super().__init__("\n".join([*lines, *([f"  all of it{first}: {again}"] if again else [])]))


def one_error(errors: Sequence[ErniePairError]) -> ErniePairError:
    """Return the one error that there is, or one with everything that several say."""
    return errors[0] if len(errors) == 1 else SeveralErrors(errors)


class CheckpointError(ErniePairError):
    """A checkpoint or a weight file that cannot be used."""

    exit_code = 3


class NumbersError(ErniePairError):
    """The training numbers went wrong (NaN or infinity)."""

    exit_code = 4


class MachineError(ErniePairError):
    """A failure of the disk, the memory, a permission or a port."""

    exit_code = 5


class LostProcessError(ErniePairError):
    """Another process of the run is lost or hangs."""

    exit_code = 6


class CollectiveError(LostProcessError):
    """A collective failed, as it does when another process is lost; which one is not known."""


class Stopped(BaseException):
    """A signal asked the process to end; not an error, so that no error handler swallows it."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def counted(count: int, thing: str, things: str = "") -> str:
    """Return `1 file` or `2 files`; ``things``: the plural, unless it is ``thing`` and an s."""
    return f"{count} {thing if count == 1 else things or thing + 's'}"


def printable(text: str) -> str:
    """Return ``text`` with every character escaped that a terminal would interpret, or not show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def message_of(error: BaseException) -> str:
    """Return what an error says on the command line."""
    return error.message if isinstance(error, ErniePairError) else str(error)


def without_flags(message: str) -> str:
    """Return a message as Python reads it: seed=3 for `--seed 3`, use_amp=True for `--use_amp true`."""

    def as_python(match: "re.Match[str]") -> str:
        name, value = match["name"], match["value"]
        if value is None:
            return name or match[0]
        if "=" in value and not value.startswith("'"):
            return f"{name}={value!r}"
        return f"{name}={value.capitalize() if value in ('true', 'false') else value}"

    return _COMMAND_OR_FLAG.sub(as_python, message)


def for_outer(message: str, outer: str) -> str:
    """Return a message without advice that ``outer``, "pipeline train_file dev_file ...", has no flag for.

    What an inner command calls --output_dir is a folder within that of the outer one.
    """
    name, *flags = outer.split()
    what, *advice = message.split("; ")
    of_outer = [set(re.findall(r"--(\w+)", one)) <= {*flags} - {"output_dir"} for one in advice]
    if all(of_outer):
        return message
    reasons = re.findall(r" \([^()]*\)$", message)  # of a refusal, behind its advice
    kept = [one for one, is_kept in zip(advice, of_outer) if is_kept]
    return "; ".join([what + "".join(reasons), *kept, f"give {name} another --output_dir for what is new"])


def dangling(path: Union[str, os.PathLike]) -> str:
    """Return what a link to nothing links to, in words; '' for anything else."""
    if not os.path.islink(path) or os.path.exists(path):
        return ""
    target = os.path.realpath(path)
    return "a loop of links" if os.path.islink(target) else f"links to {target}, which does not exist"


def again_with(replaced: Mapping[str, str] = MappingProxyType({}), **flags: str) -> str:
    """Return the command that is running, as it would be typed, with other ``flags``, or words ``replaced``.

    A word that is replaced by '' is left out, and a slash at the end of one does not count. From Python,
    which has no such command, the flags or the new words alone. A flag of '' is left out.
    """
    given = " ".join(f"--{name} {shlex.quote(value)}" for name, value in flags.items() if value)
    program = Path(sys.argv[0] if sys.argv else "")
    if program.name != "ernie-pair" and program.parts[-2:] != ("ernie_pair", "__main__.py"):
        return given or " ".join(replaced.values())
    words: list[str] = ["ernie-pair"]
    for word in sys.argv[1:]:
        before, name = (one.removeprefix("--").replace("-", "_") for one in (words[-1], word))
        if words[-1].startswith("--") and before in flags:
            words.pop()  # the flag whose value this is
        elif not (word.startswith("--") and "=" in word and name.partition("=")[0] in flags):
            flag, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
            new = replaced.get(value.rstrip("/") or value)
            if new is None:
                new = ",".join(replaced.get(one, one) for one in value.split(","))
            words += [f"{flag}{equals}{new}"] if new or not value else []
    return " ".join(filter(None, [shlex.join(words), given]))


def describe_os_error(error: OSError) -> str:
    """Return what the system refused, where, and what may be wrong, as the message of a MachineError."""
    where = f" at {error.filename}" if error.filename else ""
    fault = dangling(error.filename) if isinstance(error, FileNotFoundError) and error.filename else ""
    if fault:
        return f"{error.filename}: {fault}; correct the link"
    if error.errno == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        allowed = "" if limit == resource.RLIM_INFINITY else f", where a file may have {limit} bytes"
        return f"{error.strerror}{where}{allowed}; raise the limit (ulimit -f), or use another file system"
    path = Path(str(error.filename or ""))
    if error.errno in NO_ROOM and path.parent != Path() and not path.is_char_device():
        where += f", where {free_room(path)}"
    return f"{error.strerror or error}{where}; check the free space, the permissions and the path"


def free_room(path: Path) -> str:
    """Return in words what is left of the file system of ``path``: 4096 bytes are free."""
    folder = standing_folder(path)
    room = os.statvfs(folder)
    has_inodes = room.f_favail or not room.f_files
    return f"{shutil.disk_usage(folder).free} bytes are free" if has_inodes else "no inodes are free"


def standing_folder(path: Path) -> Path:
    """Return the deepest folder above ``path`` that exists."""
    return next(folder for folder in path.absolute().parents if folder.is_dir())
