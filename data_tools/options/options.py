"""An option is a dataclass field, defined once: type, default, help, group, unit and bounds.

A class of options derives from `Options`, which checks every value, wherever it comes from: a flag, a file of
flags or a call from Python. `cli` turns such a class into a command line.
"""

import math
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from importlib import import_module
from inspect import cleandoc
from numbers import Integral, Real
from pathlib import Path
from string import ascii_uppercase
from textwrap import fill
from typing import Any, Literal, NamedTuple, Optional, Union, get_args, get_origin, get_type_hints

from data_tools.files.errors import InputError, without_flags

WIDTH = 100


class OptionDocs:
    """The ``__doc__`` of a class of options, generated from its options on access.

    ``purpose``: the docstring of the class itself. Below it are the options of the class and of its bases, by
    subject, as Python writes them: ``use_amp``, ``True``.
    """

    def __init__(self, purpose: str):
        self.purpose = cleandoc(purpose)

    def __get__(self, instance: object, owner: Any) -> str:
        groups: dict[str, list[str]] = {}
        for item in fields(owner):
            if "group" not in item.metadata:  # not made by option()
                continue
            is_literal = get_origin(item.type) is Literal
            choices = item.metadata["choices"] or (get_args(item.type) if is_literal else ())
            facts = [f"one of {', '.join(choices)}" if choices else "", item.metadata["unit"]]
            facts += ["required" if item.default is MISSING else f"default: {item.default!r}"]
            text = f"{item.name}: {without_flags(item.metadata['help'])} ({'; '.join(filter(None, facts))})"
            text = fill(
                text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
            )
            groups.setdefault(item.metadata["group"], []).append(text)
        parts = [f"{group}\n" + "\n".join(lines) for group, lines in groups.items()]
        return "\n\n".join([part for part in (self.purpose, *parts) if part])


# In the order of --help, in which a user thinks of them.
GROUPS = ("data", "model", "optimisation", "precision", "evaluation", "checkpoints", "devices", "other")
NOTHING = ("", "none", "null", "~")  # mean None, for an option that may be None
LONGEST_VALUE = 4096
DASH = "-"  # instead of a file: standard input or output
_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_TEXTS = {"json_key", "doc_spliter", "cn_split_dimer", "pair", "text_a", "text_b", "text"}  # not paths
RESUME = ("", "same", "fixed", "layout")  # see `option`
_LEFT_OUT = object()  # in place of a required value that was not given


# Options that take a path, by the ends of their names or by these themselves.
_ENDINGS = {"_file": "FILE", "_dir": "FOLDER", "_path": "PATH", "_prefix": "PREFIX", "_lexicon": "FILE"}
_PLACES = {
    "FOLDER": "report index",
    "FILE": "config train_config calibrate_on tune_on file",
    "PATH": "output input prefix model teacher reranker model_name_or_path embedding_model add_twins_to "
    "domain_data checkpoint checkpoints first second",
}


def place_word(name: str) -> str:
    """Return the placeholder of option ``name``: FILE, FOLDER, PATH or PREFIX; '' if it takes no path."""
    by_name = [word for word, names in _PLACES.items() if name in names.split()]
    by_ending = [word for end, word in _ENDINGS.items() if name.endswith(end)]
    return (by_name + by_ending + [""])[0]


def shown_name(item: Field) -> str:
    """Return what a message calls an option: --seed, or INPUT for one that is given without a flag."""
    return item.name.upper() if item.metadata["positional"] else f"--{item.name}"


class Bounds(NamedTuple):
    """The bounds of the values of an option; None: no such bound."""

    at_least: Optional[float]
    above: Optional[float]
    at_most: Optional[float]
    below: Optional[float]

    def fault_of(self, value, usual) -> str:
        """Return which bound a value violates and the fix, in words, or ''. ``usual``: the default."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return ""
        example = f"use {usual}, for example" if isinstance(usual, (int, float)) else "use another value"
        if self.at_least is not None and value < self.at_least:
            return f"is below {self.at_least}; use {self.at_least} or more"
        if self.above is not None and value <= self.above:
            return f"is not above {self.above}; {example}"
        if self.at_most is not None and value > self.at_most:
            return f"is above {self.at_most}; use {self.at_most} or less"
        if self.below is not None and value >= self.below:
            return f"is not below {self.below}; {example}"
        return ""


def option(
    default=MISSING,
    *,
    help: str,
    group: str = "other",
    unit: str = "",
    at_least: Optional[float] = None,
    above: Optional[float] = None,
    at_most: Optional[float] = None,
    below: Optional[float] = None,
    choices: Iterable[str] = (),
    positional: bool = False,
    stdin: Sequence[str] = (),
    stdout: bool = False,
    values: int = 1,
    unless: str = "",
    resume: str = "",
):
    """Return a dataclass field that is also a command-line flag; without a default it is required.

    A required option may follow those with a default, because the fields of a class follow those of its base.
    ``group``: one of GROUPS; ``unit``: what the number counts, for the help. The bounds apply to every value
    except None. ``choices``: the allowed texts, if the type cannot express them.

    ``positional``: it is given without a flag, like the file of `cat FILE`, and is required; a list takes one
    value or more.

    ``stdin``: `-` reads standard input, and these are the file endings that it may stand for; ``stdout``: `-`
    writes standard output. ``values``: the number of words of a flag that is a list. ``unless``: another
    option, without a default of its own, that can replace this one.

    ``resume``: what another value means for a run that goes on from a checkpoint: same, it is another run
    unless the user allows the change; fixed, nobody can allow it; layout, it only divides the work otherwise
    and is noted; empty, it may change.
    """
    if group not in GROUPS:
        raise ValueError(f"{group} is not a group of options")
    if resume not in RESUME:
        raise ValueError(f"{resume} is not one of {RESUME}")
    metadata: dict[str, Any] = {"help": help, "group": group, "unit": unit, "positional": positional}
    metadata.update(choices=tuple(choices), stdin=tuple(stdin), stdout=stdout, values=values, unless=unless)
    metadata.update(bounds=Bounds(at_least, above, at_most, below), resume=resume)
    if default is MISSING:
        return field(default_factory=lambda: _LEFT_OUT, metadata=metadata)
    return field(default=default, metadata=metadata)


# Fields that several commands have; each says in its own words what it means there.
workers_option = partial(option, 1, group="devices", unit="processes", at_least=1)
overwrite_option = partial(option, False, group="data")
data_option = partial(option, group="data")
model_option = partial(option, group="model")
optimisation_option = partial(option, group="optimisation")
precision_option = partial(option, group="precision")
evaluation_option = partial(option, group="evaluation")
checkpoints_option = partial(option, group="checkpoints")
devices_option = partial(option, group="devices")


@dataclass(frozen=True)
class Options:
    """The base of every class of options: checks the type and the bounds of each option.

    The docstring of a derived class also lists its options; see `OptionDocs`.
    """

    EXAMPLE = ""  # the flags of the example that --help shows
    PURPOSE = ""  # what the class is for: its docstring, without the options

    def __init_subclass__(cls) -> None:
        docs = OptionDocs(vars(cls).get("__doc__") or "")
        cls.PURPOSE = docs.purpose
        type.__setattr__(cls, "__doc__", docs)

    def __post_init__(self):
        self._replace_left_out()
        left_out = left_out_of(type(self), vars(self))
        if left_out:
            names = [item.name for item in left_out]
            call = f"{type(self).__name__}({', '.join(f'{name}=...' for name in names)})"
            missing = _missing(type(self), left_out, names, lambda other, words: f"{other.name}=...")
            raise InputError(f"{missing}; give {'it' if len(names) == 1 else 'them'}: {call}")
        hints = hints_of(type(self))
        for item in fields(self):
            value = checked(getattr(self, item.name), hints[item.name], f"--{item.name}")
            object.__setattr__(self, item.name, value)
            words = item.metadata["values"]
            if words > 1 and isinstance(value, list) and len(value) != words:
                raise InputError(f"--{item.name} takes {words} words, not {len(value)}; correct it")
            fault = item.metadata["bounds"].fault_of(value, item.default)
            if fault:
                raise InputError(f"--{item.name} {value} {fault}")
            _refuse_dash(item, value)
            if item.name in _TEXTS:
                _refuse_surrogates(f"--{item.name}", value)

    @classmethod
    def idle_in(cls, values: Mapping[str, object]) -> Collection[str]:
        """Return the options that have no effect with the other ``values``, and that a file may still set.

        A written configuration sets every option, intended or not; a flag is always intended.
        """
        return ()

    def _replace_left_out(self) -> None:
        """Fill in options that another one replaces. Raises InputError if both are given."""
        for item in fields(self):
            other = item.metadata["unless"]
            if not other or getattr(self, other) is None:
                continue
            if getattr(self, item.name) is not _LEFT_OUT:
                raise InputError(f"--{other} and --{item.name} exclude each other; give one of them")
            object.__setattr__(self, item.name, DASH if item.metadata["stdout"] else "")


def left_out_of(config_class: type[Options], values: Mapping[str, object]) -> list[Field]:
    """Return the required options that are not in ``values`` and not replaced by another; arguments first."""
    left_out = [
        item
        for item in fields(config_class)
        if item.default is MISSING
        and values.get(item.name, _LEFT_OUT) is _LEFT_OUT
        and values.get(item.metadata["unless"]) is None
    ]
    return sorted(left_out, key=lambda item: not item.metadata["positional"])


def left_out_of_command(config_class: type[Options], left_out: Sequence[Field], program: str) -> str:
    """Return which arguments and flags of ``program`` are missing, and an example or what explains them."""
    names = [shown_name(item) for item in left_out]
    missing = _missing(config_class, left_out, names, lambda other, words: f"--{other.name} {words}")
    if left_out[0].metadata["positional"] and config_class.EXAMPLE:
        return f"{missing}; for example: {program} {config_class.EXAMPLE}"
    return f"{missing}; --help says what {'it means' if len(names) == 1 else 'they mean'}"


def _missing(config_class: type[Options], left_out: Sequence[Field], names: Sequence[str], show) -> str:
    """Return that ``names`` are missing, with what a single one means and what takes their place.

    ``show(item, words)`` writes the option that takes their place, ``words`` standing for its values.
    """
    if len(names) == 1 and left_out[0].metadata["positional"]:
        return f"{names[0]} is missing: {left_out[0].metadata['help']}"
    missing = f"{names[0]} is missing" if len(names) == 1 else f"{_listed(names)} are missing"
    replaceable = [item.metadata["unless"] for item in fields(config_class)]
    for other in fields(config_class):
        replaced = [name for name, item in zip(names, left_out) if item.metadata["unless"] == other.name]
        # One that replaces several options is only named if all of them are missing.
        if replaced and len(replaced) == replaceable.count(other.name):
            shown = show(other, " ".join(ascii_uppercase[: other.metadata["values"]]))
            return f"{missing} ({shown} takes the place of {_listed(replaced)})"
    return missing


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _refuse_dash(item: Field, value: object) -> None:
    """Raise InputError for `-` where it does not mean a standard stream, or is one among files."""
    streams, name = item.metadata["stdin"] or item.metadata["stdout"], shown_name(item)
    if isinstance(value, list) and len(value) > 1 and DASH in value and streams:
        raise InputError(f"{name} -: standard input must be the only input; leave it out, or all others")
    if value == DASH and place_word(item.name) and not streams:
        place = "folder" if place_word(item.name) == "FOLDER" else "file"
        raise InputError(f"{name} -: it does not mean a standard stream here; name a {place}")


def _refuse_surrogates(where: str, value: object) -> None:
    """Raise InputError for a text that UTF-8 cannot express, such as a word of a terminal in GBK."""
    for text in value if isinstance(value, list) else [value]:
        try:
            str(text).encode("utf-8")
        except UnicodeEncodeError as error:
            fault = ascii(text[error.start]).strip("'")
            raise InputError(f"{where} is not UTF-8 (it contains {fault}); give it in UTF-8") from None


def names_in(text: str) -> list[str]:
    """Return the names in the text of an option, separated by commas or spaces, each once."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def refuse_unknown_names(option_name: str, names: Iterable[str], known: Collection[str], fault: str) -> None:
    """Raise InputError for the first of ``names`` that is not ``known``; ``fault`` follows it in the line."""
    for name in names:
        if name not in known:
            raise InputError(f"--{option_name} {name}{fault}")


class Given(NamedTuple):
    """What the user wrote for an option, and ``where``: its flag, or file:line and its name."""

    text: Union[str, list[str]]
    where: str


_HINTS: dict[type, dict[str, Any]] = {}


def hints_of(config_class: Any) -> dict[str, Any]:
    """Return the type of every option of a class; that of one with choices is their Literal."""
    if config_class in _HINTS:
        return _HINTS[config_class]
    hints = _HINTS[config_class] = get_type_hints(config_class)
    for item in fields(config_class):
        if item.metadata.get("choices"):
            may_be_none = without_none(hints[item.name])[1]
            hints[item.name] = Literal[item.metadata["choices"]]
            hints[item.name] = Optional[hints[item.name]] if may_be_none else hints[item.name]
    return hints


def read_given(given: Given, hint) -> object:
    """Return the value of a text. Raises InputError if it is not of the type.

    It reads flags, files of flags and the file of `ernie-pair launch`.
    """
    inner, may_be_none = without_none(hint)
    if may_be_none and isinstance(given.text, str) and given.text.lower() in NOTHING:
        return None
    if get_origin(inner) is list:
        texts = [given.text] if isinstance(given.text, str) else given.text
        return [read_given(Given(text, given.where), get_args(inner)[0]) for text in texts]
    text = given.text if isinstance(given.text, str) else given.text[0]
    if len(text) > LONGEST_VALUE:  # than a path may be; Python reads no number of that length
        raise InputError(
            f"{given.where} has a value of {len(text)} characters, above {LONGEST_VALUE}; shorten it"
        )
    return checked(_parsed(text, inner), inner, given.where)


def _parsed(text: str, kind) -> object:
    kind = get_args(kind)[0] if get_origin(kind) is Union else kind
    if kind is bool:
        return _BOOLS.get(text.lower(), text)
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text


def checked(value, hint, where: str) -> object:
    """Return a value as its option stores it. Raises InputError for one of another type.

    A whole number is accepted as a number, a path as a text, and a tuple as a list.
    """
    kind, may_be_none = without_none(hint)
    if value is None and may_be_none:
        return None
    if get_origin(kind) is list and isinstance(value, (list, tuple)) and value:
        return [checked(one, get_args(kind)[0], where) for one in value]
    if get_origin(kind) is Union:  # a number, or a word in its place
        number, words = get_args(kind)
        kind = words if value in get_args(words) else number
    if isinstance(value, bool):
        if kind is bool:
            return value
    elif kind is int and isinstance(value, Integral):
        return int(value)
    elif kind is float and _fits_float(value):
        return float(value)
    elif kind is str and isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    elif get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind):
        return value
    text = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    raise InputError(f"{where} takes {kind_of(hint)}, not {text}; correct it")


def _fits_float(value) -> bool:
    """Return whether ``value`` is a number other than nan and infinity, and within the range of a float."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number or fraction above it
        return False


def kind_of(hint) -> str:
    """Return a description of what an option of a type takes."""
    kind, _ = without_none(hint)
    if get_origin(kind) is Union:
        number, words = get_args(kind)
        return " or ".join([_KINDS[number], *get_args(words)])
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is list:
        return f"a list, each item {kind_of(get_args(kind)[0])}"
    return _KINDS[kind]


def refuse_empty(config: Options, *names: str) -> None:
    """Raise InputError if one of these options, which name what to write, is empty, or a file as folder."""
    for name in names:
        place = str(getattr(config, name))
        if not place.strip():
            raise InputError(f"--{name} is empty; name the file or folder to write to")
        if place_word(name) == "FOLDER" and os.path.isfile(place):
            raise InputError(f"--{name} {place} is a file; give a folder")


def refuse_no_name(config: Options, option_name: str) -> None:
    """Raise InputError if this option, to which an ending is appended, ends with a folder and no name."""
    place = str(getattr(config, option_name))
    if os.path.basename(place) in ("", ".", ".."):
        raise InputError(
            f"--{option_name} {place} has no name after the last /, and one begins the name of each file; "
            f"add one, {os.path.join(place, 'text')} for example"
        )


def without_none(hint) -> tuple[object, bool]:
    """Return (the type without None, whether the value may be None) of an option.

    Any other union, such as Union[int, Literal["auto"]], is kept.
    """
    inner = tuple(one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is not Union or len(inner) == len(get_args(hint)):
        return hint, False
    return (inner[0] if len(inner) == 1 else Union[inner]), True


def import_named(name: str, flag: str, kind: str) -> Any:
    """Return the callable, a ``kind`` such as function, that ``name``, the value of ``flag``, names.

    Modules are found as Python finds them, then in the working folder. Raises InputError if there is none.
    """
    module_name, colon, inner_name = name.partition(":")
    if not (colon and module_name and inner_name):
        raise InputError(f"{flag} {name} is not package.module:{kind}; write a {kind} like that")
    if module_name.startswith("."):
        plain = module_name.strip(".") or "module"
        raise InputError(
            f"{flag} {name}: a name with leading dots is relative to a package, and there is none; "
            f"write {plain}:{inner_name} for {plain.replace('.', '/')}.py of the working folder"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(import_module(module_name), inner_name, None)
    except ImportError as error:
        raise InputError(f"{flag} {name}: {error}; set PYTHONPATH or fix the name") from None
    except SyntaxError as error:
        raise InputError(
            f"{flag} {name}: {error.filename}:{error.lineno}: {error.msg}; fix the line"
        ) from None
    if not callable(found):
        raise InputError(f"{flag} {name}: {module_name} has no {kind} {inner_name}; fix the name")
    return found
