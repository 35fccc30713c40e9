"""A class of options is a command line: flags, YAML file, help, one-line errors."""

import os
import select
import sys
from pathlib import Path
from typing import Callable, Dict, Optional, Sequence, Type, TypeVar

from data_tools.base.errors import ErniePairError, MachineError, Stopped, describe_os_error
from data_tools.base.flag_help import help_text
from data_tools.base.flag_words import flag_names, flags_of_several, given_by, split_words
from data_tools.base.optional_import import missing_of_training
from data_tools.base.options import Given, Options, hints_of, read_given

Config = TypeVar("Config", bound=Options)
LONGEST_MESSAGE = 600  # characters of an error line
_MESSAGE_END = 200  # of these: its cure
READER_GONE = 141  # as of a process that SIGPIPE has ended


def parse_config(
    config_class: Type[Config], argv: Optional[Sequence[str]] = None, program: str = ""
) -> Config:
    """Read ``config_class`` from ``argv`` and from the YAML file of ``--config``; flags win.

    ``--no-merge`` and ``--no_merge`` are the same flag, and a bare boolean flag means true. ``program``:
    its name in the help; left out, it is that of the file that runs.
    Of a flag that is given twice the last value counts, and a line on stderr says so. Raises InputError: an
    unknown or missing flag, a value of the wrong type, or whatever the dataclass itself refuses.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    split = split_words(words, flag_names(config_class), flags_of_several(config_class))
    if "help" in split.flags:
        leave_with_help([config_class], program or _program_name())
    return build_config(config_class, given_by(split, config_class))


def build_config(config_class: Type[Config], given: Dict[str, Given]) -> Config:
    """Return the options that texts stand for. Raises InputError."""
    hints = hints_of(config_class)
    return config_class(**{name: read_given(text, hints[name]) for name, text in given.items()})


def leave_with_help(config_classes: Sequence[Type[Options]], program: str) -> None:
    """Print the help and end the process."""
    sys.stdout.write(help_text(config_classes, program))
    sys.stdout.flush()
    sys.exit(0)


def _program_name() -> str:
    """Return the name of the file that runs, with its folder: scripts/train_pair.py."""
    path = Path(sys.argv[0])
    return "/".join(path.parts[-2:]) if path.suffix == ".py" else path.name


def run_command(command: Callable[[Config], None], config_class: Type[Config], argv=None) -> None:
    """Parse, run ``command`` and leave the process with the exit code of `reliability`'s table.

    A fault that a person can fix is one ``error: ...`` line on stderr; a bug keeps its traceback.
    """
    sys.exit(exit_code_of(lambda: command(parse_config(config_class, argv))))


def exit_code_of(action: Callable[[], Optional[int]]) -> int:
    """Run ``action``; report what a person can fix as one line and return the exit code."""
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
        return _report("out of memory; take less at a time, or a larger machine", MachineError.exit_code)
    except KeyboardInterrupt:
        return _report("stopped by the keyboard", 130)
    except Stopped as stop:
        sys.stderr.write(f"{stop}\n")
        return stop.exit_code


def _reader_has_gone() -> bool:
    """Return whether nobody reads the standard output any more, as behind `| head`; its rest is then lost."""
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
    """Cut in its middle: what and where stand at the beginning of a message, the cure at its end."""
    if len(line) <= LONGEST_MESSAGE:
        return line
    mark = " [...] "
    begin = LONGEST_MESSAGE - _MESSAGE_END - len(mark)
    return line[:begin] + mark + line[-_MESSAGE_END:]


def _shown(character: str) -> str:
    """Return ``character``, escaped where a terminal would obey it."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()
