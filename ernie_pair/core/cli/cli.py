"""Turn a class of options into a command line: flags, YAML file, help, one-line errors."""

import os
import re
import select
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from io import TextIOWrapper, UnsupportedOperation
from pathlib import Path
from textwrap import fill, wrap
from typing import Any, Callable, Optional, TypeVar, get_origin

from ernie_pair.core.cli.flag_words import read_flags, split_words
from ernie_pair.core.cli.options import (
    GROUPS,
    Options,
    RawValue,
    describe_missing,
    hints_of,
    kind_of,
    missing_options,
    parse_value,
    path_of,
)
from ernie_pair.core.cli.standard_streams import with_models
from ernie_pair.core.errors import (
    OUTER,
    ErniePairError,
    InputError,
    MachineError,
    Stopped,
    describe_os_error,
    for_outer,
    printable,
)
from ernie_pair.core.installation import missing_of_training

MAX_WIDTH = 100  # columns
MAX_SHORT_HELP = 26  # flags; the short help of a command with more shows the usual ones
ALL = "all"  # --help all
_BESIDE = 32  # the column at which the meaning of a flag begins
_MAX_CHOICES = 40  # characters; a longer list of them is in the text instead of after the flag
_METAVARS = {bool: "true|false", int: "N", float: "NUMBER"}


def help_text(config_class: type[Options], program: str, shows_all: bool = True) -> str:
    """Return the help of a program, as wide as the terminal; the short one of many flags shows the usual."""
    width = max(40, min(shutil.get_terminal_size().columns, MAX_WIDTH) - 2)
    hints = hints_of(config_class)
    # In a group what is required comes first, what is of one start alone last.
    items = sorted(fields(config_class), key=help_order)
    needed = [_flag_of(item, hints[item.name]) for item in items if item.default is MISSING]
    shown = [item for item in items if item.default is MISSING or item.metadata["usual"]]
    if shows_all or len(items) <= MAX_SHORT_HELP:
        shown = items
    rows = [(item.metadata["group"], *_row_of(item, hints[item.name])) for item in shown]
    hidden = len(items) - len(shown)
    indent = " " * len("usage: ")
    usage = f"\n{indent}".join(_wrapped([program, *needed, "[flags]"], width - len(indent)))
    example, purpose = config_class.EXAMPLE, config_class.PURPOSE
    purposes = [fill(" ".join(part.split()), width) for part in purpose.split("\n\n")]
    about = "a YAML file of these flags; flags on the command line override it"
    more = f"; --help all shows {hidden} more flags" if hidden else ""
    rows += [
        (GROUPS[-1], "--config FILE", about),
        (GROUPS[-1], "-h, --help", f"show this help and exit{more}"),
    ]
    beside = min(_BESIDE, max(width - 20, 4), max(len(flag) + 4 for _, flag, _ in rows))
    parts = [f"usage: {usage}", *filter(None, purposes)]
    for group in GROUPS:
        lines = []
        for flag, meaning in [row[1:] for row in rows if row[0] == group]:
            beginning = f"  {flag}".ljust(beside)
            first, *more_lines = wrap(" ".join(meaning.split()), max(width - beside, 11))
            lines += [beginning + first] if len(flag) + 4 <= beside else [f"  {flag}", " " * beside + first]
            lines += [" " * beside + line for line in more_lines]
        parts += ["\n".join([f"{group}:", *lines])] if lines else []
    if example:  # as continuation lines of a shell, broken before flags
        lines_of_example = " \\\n  ".join(_wrapped(re.split(r" (?=--)", f"{program} {example}"), width - 4))
        parts.append(f"example:\n  {lines_of_example}")
    return "\n\n".join(parts) + "\n"


def help_order(item: Field) -> tuple[bool, bool, bool]:
    """Return where an option stands in its group: what is required first, what is of one start last."""
    about = item.metadata
    return not about["positional"], item.default is not MISSING, "start" in about["affects"]


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Join parts, none of which is broken, to lines; all but the first are indented."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 1 + len(part) > width:
            lines.append(" " * 4 + part)
        else:
            lines[-1] += f" {part}"
    return lines


def _row_of(item: Field, hint) -> tuple[str, str]:
    """Return how an option is written, and what it means: its choices if too long to stand there, default."""
    about, choices = item.metadata, kind_of(hint).words
    text = about["help"]
    if len("|".join(choices)) > _MAX_CHOICES and not all(choice in text for choice in choices):
        text += f"; one of {', '.join(choices)}"
    if (about["stdin"] or about["stdout"]) and "-: " not in about["help"]:
        text += f"; -: standard {'input' if about['stdin'] else 'output'}"
    named = {"None": "none", "": "empty", "True": "true", "False": "false"}
    usual = f"default: {named.get(str(item.default), item.default)}"
    if item.default is MISSING:
        usual = f"required, or --{about['unless']}" if about["unless"] else "required"
    elif about["unit"]:
        usual = f"{about['unit']}, {usual}"
    return _flag_of(item, hint), f"{text} ({usual})"


def _flag_of(item: Field, hint) -> str:
    """Return how an option is written: INPUT, --seed N or --pair TEXT TEXT."""
    if item.metadata["positional"]:
        return item.name.upper()
    return " ".join([f"--{item.name}", *[metavar_of(item, hint)] * item.metadata["values"]])


def metavar_of(item: Field, hint) -> str:
    """Return the placeholder for the value of an option: N, FILE, or its choices if they are short."""
    base, choices, _ = kind_of(hint)
    if len("|".join(choices)) > _MAX_CHOICES:
        return "NAME"
    is_text = base is str or get_origin(base) is list
    word = (path_of(item) or "TEXT") if is_text else _METAVARS.get(base, "")
    return "|".join(filter(None, [word, *choices]))


Config = TypeVar("Config", bound=Options)
MAX_MESSAGE = 600  # characters of an error line
_MESSAGE_END = 200  # of these: its end, which says how to fix it
READER_GONE = 141  # the exit code of a process that SIGPIPE has ended


def parse_config(
    config_class: type[Config], argv: Optional[Sequence[str]] = None, program: str = ""
) -> Config:
    """Read ``config_class`` from ``argv`` and from the YAML file of ``--config``; flags win.

    ``--no-merge`` and ``--no_merge`` are the same flag, and a bare boolean flag means true. ``program``:
    its name in the help and in errors, by default that of the file that runs.
    If a flag is given twice, the last value counts, and a line on stderr says so. Raises InputError for an
    unknown or missing flag, a value of the wrong type, or whatever the dataclass itself refuses.
    """
    split = split_words(list(sys.argv[1:] if argv is None else argv), config_class)
    path, spec = sys.argv[0], getattr(sys.modules["__main__"], "__spec__", None)
    started = f"python {path}" if path.endswith(".py") else Path(path).name
    if spec is not None and spec.origin == path:
        started = f"python -m {spec.name}"
    if "help" in split.flags:
        exit_with_help(config_class, program or started, [ALL] in split.flags["help"])
    return build_config(config_class, read_flags(split, config_class, program), program or started)


def exit_with_help(config_class: type[Options], program: str, shows_all: bool) -> None:
    """Print the help and end the process."""
    sys.stdout.write(help_text(config_class, program, shows_all))
    sys.stdout.flush()
    sys.exit(0)


def build_config(config_class: type[Config], given: dict[str, RawValue], program: str) -> Config:
    """Return the options of ``program`` that the texts specify. Raises InputError."""
    values = {name: parse_value(text, hints_of(config_class)[name]) for name, text in given.items()}
    left_out = missing_options(config_class, values)
    if left_out:
        missing = describe_missing(config_class, left_out, as_flags=True)
        if left_out[0].metadata["positional"] and config_class.EXAMPLE:
            raise InputError(f"{missing}; for example: {program} {config_class.EXAMPLE}")
        raise InputError(f"{missing}; --help says what {'it means' if len(left_out) == 1 else 'they mean'}")
    return config_class(**values)


def run_command(command: Callable[[Config], Any], config_class: type[Config], argv=None) -> None:
    """Parse, run ``command`` and exit with 0 or the code of its error, see `errors`.

    An error that a user can fix is one ``error: ...`` line on stderr; a bug keeps its traceback.
    """
    sys.exit(exit_code_of(lambda: command(with_models(parse_config(config_class, argv)))))


def exit_code_of(action: Callable[[], Any]) -> int:
    """Run ``action``; report an error that a user can fix as one line, and return the exit code.

    What the action returns is the code if it is an int; any other value is for callers in Python. From now on
    the standard streams escape a character that their encoding, ASCII for example, does not have.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # not in a notebook
            stream.reconfigure(errors="backslashreplace")
    try:
        found = _run_interruptible(action)
        sys.stdout.flush()
        return found if isinstance(found, int) else 0
    except ErniePairError as error:
        outer = os.environ.get(OUTER, "")
        return _print_error(for_outer(error.message, outer) if outer else error.message, error.exit_code)
    except ModuleNotFoundError as error:
        missing = missing_of_training(error)
        if missing is None:
            raise
        return _print_error(missing.message, missing.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            return READER_GONE
        if error.filename is None and _output_fails():
            error.filename = "standard output"
        return _print_error(describe_os_error(error), MachineError.exit_code)
    except MemoryError:
        return _print_error(
            "out of memory; process less at a time, or use more memory", MachineError.exit_code
        )
    except KeyboardInterrupt:
        return _print_error("interrupted from the keyboard", 130)
    except Stopped as stop:
        sys.stderr.write(f"{stop}\n")
        return stop.exit_code


def _run_interruptible(action: Callable[[], Any]) -> Any:
    """Return what ``action`` does. Raises KeyboardInterrupt if there was one, whatever became of it.

    A library that is interrupted while it is imported says, in an error of its own, that it cannot be.
    """
    is_heard = threading.Event()

    def hear(number, frame):
        is_heard.set()
        signal.default_int_handler(number, frame)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return action()
    signal.signal(signal.SIGINT, hear)
    try:
        found, error = action(), None
    except Exception as failure:
        found, error = None, failure
    finally:
        if signal.getsignal(signal.SIGINT) is hear:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_heard.is_set():
        raise KeyboardInterrupt
    if error is not None:
        raise error
    return found


def _output_fails() -> bool:
    """Return whether standard output cannot be written, on a full disk for example; then discard the rest."""
    try:
        sys.stdout.flush()  # which has nothing to write where the text was longer than the buffer
        os.write(sys.stdout.fileno(), b"")
        return False
    except UnsupportedOperation:  # of a notebook or a test
        return False
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True


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


def _print_error(message, code: int) -> int:
    """Write the lines of a message, each as `_line_of`; only `SeveralErrors` has more than one."""
    first, *problems = re.split(r"\n(?=  \(\d+\) |  all of it[:,] )", str(message))
    sys.stderr.write(f"error: {_line_of(first)}\n" + "".join(f"  {_line_of(one)}\n" for one in problems))
    return code


def _line_of(message: str) -> str:
    """Return one line, a long one cut before its end: how to fix it, or a command, which is never cut."""
    line = printable(" ".join(message.split()))
    command = max(line.rfind(": ernie-pair "), 0)
    end = max(_MESSAGE_END, len(line) - command if command else 0)
    if len(line) > MAX_MESSAGE and len(line) > end:
        mark = " [...] "
        line = line[: max(MAX_MESSAGE - _MESSAGE_END, 0) - len(mark)] + mark + line[-end:]
    return line
