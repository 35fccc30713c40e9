"""Turn a class of options into a command line: flags, YAML file, help, one-line errors."""

import os
import re
import select
import shutil
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any, Callable, Literal, Optional, TypeVar, get_args, get_origin

from data_tools.files.errors import (
    ErniePairError,
    InputError,
    MachineError,
    Stopped,
    describe_os_error,
    printable,
)
from data_tools.files.installation import missing_of_training
from data_tools.options.flag_words import given_by, split_words
from data_tools.options.options import (
    GROUPS,
    Given,
    Options,
    hints_of,
    left_out_of,
    left_out_of_command,
    place_word,
    read_given,
)

WIDEST = 100  # columns
_BESIDE = 32  # the column at which the meaning of a flag begins
_LONGEST_CHOICES = 40  # characters; a longer list of them is in the text instead of after the flag
_METAVARS = {bool: "true|false", int: "N", float: "NUMBER", str: "TEXT"}


def help_text(config_classes: Sequence[type[Options]], program: str) -> str:
    """Return the help of a program, as wide as the terminal; purpose and example are the first class's."""
    items = [(item, hints_of(one)[item.name]) for one in config_classes for item in fields(one)]
    width = max(40, min(shutil.get_terminal_size().columns, WIDEST) - 2)
    example, purpose = config_classes[0].EXAMPLE, config_classes[0].PURPOSE
    # As continuation lines of a shell, broken before flags.
    shown_example = " \\\n  ".join(_wrapped(re.split(r" (?=--)", f"{program} {example}"), width - 4))
    parser = ArgumentParser(
        usage=doubled_percent(_usage(program, items, width)),
        description="\n\n".join(fill(" ".join(part.split()), width) for part in purpose.split("\n\n")),
        epilog=f"example:\n  {shown_example}" if example else None,
        formatter_class=partial(RawDescriptionHelpFormatter, max_help_position=_BESIDE, width=width),
        add_help=False,
    )
    # In a group what is required comes first.
    items.sort(key=lambda pair: (not pair[0].metadata["positional"], pair[0].default is not MISSING))
    for group in GROUPS:
        of_group = [pair for pair in items if pair[0].metadata["group"] == group]
        if of_group or group == GROUPS[-1]:
            shown = parser.add_argument_group(group)
            for item, hint in of_group:
                _add(shown, item, hint)
    shown.add_argument(
        "--config", metavar="FILE", help="a YAML file of these flags; flags on the command line override it"
    )
    shown.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    return parser.format_help()


def _usage(program: str, items: Sequence[tuple[Field, Any]], width: int) -> str:
    """Return the usage: what is required, and that there is more."""
    needed = [(item, hint) for item, hint in items if item.default is MISSING]
    words = [item.name.upper() for item, _ in needed if item.metadata["positional"]]
    words += [f"--{i.name} {metavar_of(i, hint)}" for i, hint in needed if not i.metadata["positional"]]
    indent = " " * len("usage: ")
    return f"\n{indent}".join(_wrapped([program, *words, "[flags]"], width - len(indent)))


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Join parts, none of which is broken, to lines; all but the first are indented."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 1 + len(part) > width:
            lines.append(" " * 4 + part)
        else:
            lines[-1] += f" {part}"
    return lines


def _add(group, item: Field, hint) -> None:
    """Add the help of an option: what it means, the choices for which there is no room, its default."""
    text, choices, words = item.metadata["help"], choices_of(hint), item.metadata["values"]
    if len("|".join(choices)) > _LONGEST_CHOICES and not all(choice in text for choice in choices):
        text += f"; one of {', '.join(choices)}"
    if (item.metadata["stdin"] or item.metadata["stdout"]) and "-: " not in item.metadata["help"]:
        text += f"; -: standard {'input' if item.metadata['stdin'] else 'output'}"
    text = doubled_percent(f"{text} ({_default_of(item)})")
    if item.metadata["positional"]:
        group.add_argument(item.name, metavar=item.name.upper(), help=text)
    else:
        metavar = metavar_of(item, hint) if words == 1 else ("TEXT",) * words
        group.add_argument(f"--{item.name}", metavar=metavar, nargs=words if words > 1 else None, help=text)


def _default_of(item: Field) -> str:
    if item.default is MISSING:
        return f"required, or --{item.metadata['unless']}" if item.metadata["unless"] else "required"
    unit = f"{item.metadata['unit']}, " if item.metadata["unit"] else ""
    named = {"None": "none", "": "empty", "True": "true", "False": "false"}
    return f"{unit}default: {named.get(str(item.default), item.default)}"


def metavar_of(item: Field, hint) -> str:
    """Return the placeholder for the value of an option: N, FILE, or its choices if they are short."""
    kinds: list[Any] = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    choices = choices_of(hint)
    if len("|".join(choices)) > _LONGEST_CHOICES:
        return "NAME"
    numbers = [_METAVARS[kind] for kind in kinds if kind in _METAVARS and kind is not str]
    texts = [place_word(item.name) or _METAVARS[str]] if str in kinds else []
    return "|".join([*numbers, *texts, *choices])


def choices_of(hint) -> list[str]:
    """Return the words that an option of this type takes; true and false only if the type names them."""
    if get_origin(hint) is Literal:
        return [str(word) for word in get_args(hint)]
    return [word for kind in get_args(hint) for word in choices_of(kind)]


def doubled_percent(text: str) -> str:
    """Return a text with each % doubled: argparse expands %(prog)s and the like in usage and help."""
    return text.replace("%", "%%")


Config = TypeVar("Config", bound=Options)
LONGEST_MESSAGE = 600  # characters of an error line
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
    words = list(sys.argv[1:] if argv is None else argv)
    split = split_words(words, config_class)
    path, spec = sys.argv[0], getattr(sys.modules["__main__"], "__spec__", None)
    started = f"python {path}" if path.endswith(".py") else Path(path).name
    if spec is not None and spec.origin == path:
        started = f"python -m {spec.name}"
    named = program or started
    if "help" in split.flags:
        leave_with_help([config_class], named)
    return build_config(config_class, given_by(split, config_class, program), named)


def leave_with_help(config_classes: Sequence[type[Options]], program: str) -> None:
    """Print the help and end the process."""
    sys.stdout.write(help_text(config_classes, program))
    sys.stdout.flush()
    sys.exit(0)


def build_config(config_class: type[Config], given: dict[str, Given], program: str) -> Config:
    """Return the options of ``program`` that the texts specify. Raises InputError."""
    values = _values_of(config_class, without_idle(config_class, given))
    left_out = left_out_of(config_class, values)
    if left_out:
        raise InputError(left_out_of_command(config_class, left_out, program))
    return config_class(**values)


def without_idle(config_class: type[Options], given: dict[str, Given]) -> dict[str, Given]:
    """Return what was given, without entries of a file that have no effect. Raises InputError."""
    idle = config_class.idle_in(_values_of(config_class, given))
    return {name: one for name, one in given.items() if name not in idle or one.where.startswith("--")}


def _values_of(config_class: type[Options], given: dict[str, Given]) -> dict[str, Any]:
    return {name: read_given(text, hints_of(config_class)[name]) for name, text in given.items()}


def run_command(command: Callable[[Config], None], config_class: type[Config], argv=None) -> None:
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
    """Write one line; a long one is cut in its middle, because it ends with how to fix what it says."""
    line = printable(" ".join(str(message).split()))
    if len(line) > LONGEST_MESSAGE:
        mark = " [...] "
        line = line[: LONGEST_MESSAGE - _MESSAGE_END - len(mark)] + mark + line[-_MESSAGE_END:]
    sys.stderr.write(f"error: {line}\n")
    return code
