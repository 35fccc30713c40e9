"""Turn a class of options into a command line: flags, YAML file, help, one-line errors."""

import os
import select
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Type, TypeVar

from data_tools.base.errors import ErniePairError, InputError, MachineError, Stopped, describe_os_error
from data_tools.base.flag_help import help_text
from data_tools.base.flag_words import flag_names, flags_of_several, given_by, split_words
from data_tools.base.optional_import import missing_of_training
from data_tools.base.options import Given, Options, hints_of, left_out_of, read_given
from data_tools.flags.left_out import left_out_of_command

Config = TypeVar("Config", bound=Options)
LONGEST_MESSAGE = 600  # characters of an error line
_MESSAGE_END = 200  # of these: its end, which says how to fix it
READER_GONE = 141  # the exit code of a process that SIGPIPE has ended


def parse_config(
    config_class: Type[Config], argv: Optional[Sequence[str]] = None, program: str = ""
) -> Config:
    """Read ``config_class`` from ``argv`` and from the YAML file of ``--config``; flags win.

    ``--no-merge`` and ``--no_merge`` are the same flag, and a bare boolean flag means true. ``program``:
    its name in the help and in errors, by default that of the file that runs.
    If a flag is given twice, the last value counts, and a line on stderr says so. Raises InputError for an
    unknown or missing flag, a value of the wrong type, or whatever the dataclass itself refuses.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    split = split_words(words, flag_names(config_class), flags_of_several(config_class))
    named = program or _program_name()
    if "help" in split.flags:
        leave_with_help([config_class], named)
    return build_config(config_class, given_by(split, config_class, program), named)


def build_config(config_class: Type[Config], given: Dict[str, Given], program: str) -> Config:
    """Return the options of ``program`` that the texts specify. Raises InputError."""
    values = _values_of(config_class, without_idle(config_class, given))
    left_out = left_out_of(config_class, values)
    if left_out:
        raise InputError(left_out_of_command(config_class, left_out, program))
    return config_class(**values)


def without_idle(config_class: Type[Options], given: Dict[str, Given]) -> Dict[str, Given]:
    """Return what was given, without entries of a file that have no effect. Raises InputError."""
    idle = config_class.idle_in(_values_of(config_class, given))
    return {name: one for name, one in given.items() if name not in idle or one.where.startswith("--")}


def _values_of(config_class: Type[Options], given: Dict[str, Given]) -> Dict[str, Any]:
    hints = hints_of(config_class)
    return {name: read_given(text, hints[name]) for name, text in given.items()}


def leave_with_help(config_classes: Sequence[Type[Options]], program: str) -> None:
    """Print the help and end the process."""
    sys.stdout.write(help_text(config_classes, program))
    sys.stdout.flush()
    sys.exit(0)


def _program_name() -> str:
    """Return how the program that runs was started, python -m data_tools.prepare for example."""
    path = sys.argv[0]
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.origin == path:
        return f"python -m {spec.name}"
    return f"python {path}" if path.endswith(".py") else Path(path).name


def run_command(command: Callable[[Config], None], config_class: Type[Config], argv=None) -> None:
    """Parse, run ``command`` and exit with 0 or the code of its error, see `errors`.

    An error that a user can fix is one ``error: ...`` line on stderr; a bug keeps its traceback.
    """
    sys.exit(exit_code_of(lambda: command(parse_config(config_class, argv))))


def exit_code_of(action: Callable[[], Optional[int]]) -> int:
    """Run ``action``; report an error that a user can fix as one line, and return the exit code."""
    try:
        code = action() or 0
        sys.stdout.flush()
        return code
    except ErniePairError as error:
        return _report(error.message, error.exit_code)
    except ModuleNotFoundError as error:
        missing = missing_of_training(error)
        if missing is None:
            raise
        return _report(missing.message, missing.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            return READER_GONE
        return _report(describe_os_error(error), MachineError.exit_code)
    except MemoryError:
        return _report("out of memory; process less at a time, or use more memory", MachineError.exit_code)
    except KeyboardInterrupt:
        return _report("interrupted from the keyboard", 130)
    except Stopped as stop:
        sys.stderr.write(f"{stop}\n")
        return stop.exit_code


def _reader_has_gone() -> bool:
    """Return whether the reader of standard output is gone, as after `| head`; then discard the rest."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # of a notebook or a test
        return False
    poll = select.poll()
    poll.register(output, 0)
    has_gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if has_gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return has_gone


def _report(message, code: int) -> int:
    line = "".join(map(_shown, " ".join(str(message).split())))
    sys.stderr.write(f"error: {_shortened(line)}\n")
    return code


def _shortened(line: str) -> str:
    """Cut a line in its middle: a message begins with what and where, and ends with how to fix it."""
    if len(line) <= LONGEST_MESSAGE:
        return line
    mark = " [...] "
    begin = LONGEST_MESSAGE - _MESSAGE_END - len(mark)
    return line[:begin] + mark + line[-_MESSAGE_END:]


def _shown(character: str) -> str:
    """Return ``character``, escaped if a terminal would interpret it."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()
