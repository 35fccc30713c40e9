"""A config dataclass is a command line: flags, YAML file, help, one-line errors."""

import re
import sys
from dataclasses import MISSING, field, fields
from typing import (
    Callable,
    Iterator,
    List,
    Literal,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from jsonargparse import ArgumentParser

from data_tools.base.errors import ErniePairError, InputError, MachineError, Stopped
from data_tools.base.yaml_flags import check_flag_file, nearest, refuse_long_value

Config = TypeVar("Config")
LONGEST_MESSAGE = 600  # characters of an error line
_MESSAGE_END = 200  # of these: its cure


def option(default=MISSING, *, help: str, positional: bool = False):
    """A dataclass field that is also a command-line flag; without a default it is required.

    A required one may follow those with a default, as the fields of a class follow its base's.

    ``positional``: it is given without a flag, like the file of `cat FILE`, and is required. One that is a
    list takes any number of values, but at least one.
    """
    metadata = {"help": help, "positional": positional}
    if default is MISSING:
        return field(default_factory=_refuse_left_out, metadata=metadata)
    return field(default=default, metadata=metadata)


def _refuse_left_out():
    raise TypeError("a required option was left out")


def refuse_empty(config, *names: str) -> None:
    """Raises InputError when one of these flags, places to write to, names nothing."""
    for name in names:
        if not str(getattr(config, name)).strip():
            raise InputError(f"--{name} is empty; name the file or folder to write to")


def parse_config(config_class: Type[Config], argv: Optional[Sequence[str]] = None) -> Config:
    """Read ``config_class`` from ``argv`` and from the YAML file of ``--config``; flags win.

    ``--no-merge`` and ``--no_merge`` are the same flag, and a bare boolean flag means true.
    Raises InputError: an unknown or missing flag, one given twice with different values, a value of
    the wrong type, or whatever the dataclass itself refuses.
    """
    words = [_with_underscores(word) for word in (sys.argv[1:] if argv is None else argv)]
    parser = _parser_of(config_class)
    _refuse_two_values(words)
    parser.given.update(name for name, _ in _flags_in(words))
    for name, value in _flags_in(words):
        refuse_long_value(f"--{name}", value)
        if name == "config" and value:
            parser.given.update(check_flag_file(value, parser.hints))
    values = parser.parse_args(words)
    return config_class(**{item.name: values[item.name] for item in fields(config_class)})


def _refuse_two_values(words: List[str]) -> None:
    values = {}
    for name, value in _flags_in(words):
        if name != "config" and values.setdefault(name, value) != value:
            raise InputError(
                f"--{name} is given twice, as {values[name] or 'true'} and {value or 'true'}; give it once"
            )


def _flags_in(words: List[str]) -> Iterator[Tuple[str, str]]:
    """(flag, its value), '' for a bare one."""
    for word, following in zip(words, [*words[1:], "--"]):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name, value if equals or following.startswith("--") else following


class _OneLineParser(ArgumentParser):
    """Reports a wrong value by its flag and what the flag takes, an unknown flag by its neighbours."""

    hints: dict = {}
    positionals: tuple = ()
    required: tuple = ()
    given: set = set()

    def error(self, message, ex=None):
        text = " ".join(str(message).split())
        key = next(iter(re.findall(r'[Kk]ey "(\w+)"', text)), None)
        if "is required" in text and key:
            raise InputError(self._say_missing(key)) from None
        if key in self.hints:
            raise InputError(f"--{key} takes {_kind_of(self.hints[key])}; mend its value") from None
        bare = re.match(r"argument --(\w+): expected one argument", text)
        if bare:
            kind = _kind_of(self.hints.get(bare[1], "a YAML file"))
            raise InputError(f"--{bare[1]} has no value; it takes {kind}") from None
        unknown = re.findall(r"--(\w+)", text)
        raise InputError(f"{text[0].lower()}{text[1:]}; {nearest(unknown, self.hints)}") from None

    def _say_missing(self, key: str) -> str:
        """Name every required flag that was not given; ``key`` is one of them, or a positional one."""
        names = [key.upper()] if key in self.positionals else []
        others = set(self.positionals) | self.given - {key}
        names += [f"--{name}" for name in self.required if name not in others]
        if len(names) == 1:
            return f"{names[0]} is missing; --help says what it means"
        return f"{', '.join(names[:-1])} and {names[-1]} are missing; --help says what they mean"


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
    parser.given = set()
    parser.required = tuple(item.name for item in fields(config_class) if item.default is MISSING)
    parser.positionals = tuple(i.name for i in fields(config_class) if i.metadata["positional"])
    for item in sorted(fields(config_class), key=lambda item: item.default is not MISSING):
        required = item.default is MISSING
        settings = {"required": True} if required else {"default": item.default}
        if hints[item.name] is bool:
            settings.update(nargs="?", const=True)
        flag = f"--{item.name}"
        if item.name in parser.positionals:
            flag, settings = item.name, {"nargs": "+"} if get_origin(hints[item.name]) is list else {}
        parser.add_argument(flag, type=_one_of(hints[item.name]), help=item.metadata["help"], **settings)
    return parser


def _one_of(hint):
    """The type of a single value: that of a list's items."""
    return get_args(hint)[0] if get_origin(hint) is list else hint


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
    except ErniePairError as error:
        return _report(error, error.exit_code)
    except OSError as error:
        return _report(_as_machine_error(error), MachineError.exit_code)
    except MemoryError:
        return _report("out of memory; take less at a time, or a larger machine", MachineError.exit_code)
    except KeyboardInterrupt:
        return _report("stopped by the keyboard", 130)
    except Stopped as stop:
        sys.stderr.write(f"{stop}\n")
        return stop.exit_code


def _as_machine_error(error: OSError) -> str:
    where = f" at {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}; free space, a permission or a path is wrong: mend it"


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
    """What a terminal would obey is spelled out."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()
