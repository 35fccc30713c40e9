"""A config dataclass is a command line: flags, YAML file, help, one-line errors."""

import re
import sys
from dataclasses import MISSING, field, fields
from difflib import get_close_matches
from typing import (
    Callable,
    Literal,
    Optional,
    Sequence,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from jsonargparse import ArgumentParser

from data_tools.errors import InputError, MachineError

Config = TypeVar("Config")


def option(default=MISSING, *, help: str, positional: bool = False):
    """A dataclass field that is also a command-line flag; without a default it is required.

    ``positional``: it is given without a flag, like the file of `cat FILE`, and is required.
    """
    return field(default=default, metadata={"help": help, "positional": positional})


def parse_config(config_class: Type[Config], argv: Optional[Sequence[str]] = None) -> Config:
    """Read ``config_class`` from ``argv`` and from the YAML file of ``--config``; flags win.

    ``--no-merge`` and ``--no_merge`` are the same flag, and a bare boolean flag means true.
    Raises InputError: an unknown or missing flag, a value of the wrong type, or whatever the
    dataclass itself refuses.
    """
    words = [_with_underscores(word) for word in (sys.argv[1:] if argv is None else argv)]
    parser = _parser_of(config_class)
    values = parser.parse_args(words)
    return config_class(**{item.name: values[item.name] for item in fields(config_class)})


class _OneLineParser(ArgumentParser):
    """Reports a wrong value by its flag and what the flag takes, an unknown flag by its neighbours."""

    hints: dict = {}
    positionals: tuple = ()

    def error(self, message, ex=None):
        text = " ".join(str(message).split())
        key = next(iter(re.findall(r'[Kk]ey "(\w+)"', text)), None)
        if "is required" in text and key in self.positionals:
            raise InputError(f"{key.upper()} is missing; --help says what it means") from None
        if "is required" in text and key:
            raise InputError(f"--{key} is missing; --help says what it means") from None
        if key in self.hints:
            raise InputError(f"--{key} takes {_kind_of(self.hints[key])}; mend its value") from None
        raise InputError(f"{text[0].lower()}{text[1:]}; {self._nearest(text)}") from None

    def _nearest(self, text: str) -> str:
        unknown = re.findall(r"--(\w+)", text)
        near = [n for word in unknown for n in get_close_matches(word, self.hints, n=1)]
        hint = f"did you mean {', '.join('--' + name for name in near)}? " if near else ""
        return hint + "--help lists the flags"


def _kind_of(hint) -> str:
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is Union:
        return " or ".join(_kind_of(inner) for inner in get_args(hint) if inner is not type(None))
    return words.get(hint, str(hint))


def _parser_of(config_class) -> ArgumentParser:
    parser = _OneLineParser(prog=_program_name(), description=config_class.__doc__, allow_abbrev=False)
    parser.add_argument("--config", action="config", help="a YAML file of flags")
    hints = parser.hints = get_type_hints(config_class)
    parser.positionals = tuple(i.name for i in fields(config_class) if i.metadata["positional"])
    for item in fields(config_class):
        required = item.default is MISSING
        settings = {"required": True} if required else {"default": item.default}
        if hints[item.name] is bool:
            settings.update(nargs="?", const=True)
        flag = f"--{item.name}"
        if item.name in parser.positionals:
            flag, settings = item.name, {}
        parser.add_argument(flag, type=hints[item.name], help=item.metadata["help"], **settings)
    return parser


def _program_name() -> str:
    return "ernie-pair" if sys.argv[0].endswith("__main__.py") else sys.argv[0].rsplit("/", 1)[-1]


def _with_underscores(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def run_command(command: Callable[[Config], None], config_class: Type[Config], argv=None) -> None:
    """Parse, run ``command`` and leave the process with the exit code of `reliability`'s table.

    A fault that a person can mend is one ``error: ...`` line on stderr; a bug keeps its traceback.
    """
    sys.exit(exit_code_of(lambda: command(parse_config(config_class, argv))))


def exit_code_of(action: Callable[[], Optional[int]]) -> int:
    """Run ``action``; report what a person can mend as one line and return the exit code."""
    try:
        return action() or 0
    except InputError as error:
        return _report(error, error.exit_code)
    except OSError as error:
        return _report(_as_machine_error(error), MachineError.exit_code)
    except KeyboardInterrupt:
        return _report("stopped by the keyboard", 130)


def _as_machine_error(error: OSError) -> str:
    where = f" at {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}; free space, a permission or a path is wrong: mend it"


def _report(message, code: int) -> int:
    line = " ".join(str(message).split())
    sys.stderr.write(f"error: {line.encode('unicode_escape').decode() if _has_escapes(line) else line}\n")
    return code


def _has_escapes(line: str) -> bool:
    return any(ord(character) < 32 or ord(character) == 127 for character in line)
