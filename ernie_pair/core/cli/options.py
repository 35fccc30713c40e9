"""An option is a dataclass field, defined once: type, default, help, group, unit, bounds, what it affects.

A class of options derives from `Options`, which checks every value, wherever it comes from: a flag, a file of
flags or a call from Python. `cli` turns such a class into a command line.
"""

import math
import operator
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from importlib import import_module
from inspect import cleandoc
from numbers import Integral, Real
from pathlib import Path
from string import ascii_uppercase
from textwrap import wrap
from typing import Any, Literal, NamedTuple, Optional, Union, get_args, get_origin, get_type_hints

from ernie_pair.core.errors import InputError, counted, without_flags
from ernie_pair.core.installation import check_installed, raise_interrupt

# In the order of --help, in which a user thinks of them.
GROUPS = ("data", "model", "optimisation", "precision", "evaluation", "checkpoints", "devices", "other")
PATHS = ("FILE", "FOLDER", "PATH", "MODEL", "PREFIX", "NAME=PATH")
RESUME = ("", "same", "fixed", "layout")  # see `option`
# What else than the result an option changes, or which part of a run reads it; see `option`.
AFFECTS = {
    "speed": "how fast and where it is computed, not what",
    "start": "this start alone; another one, which goes on, is not told",
    "shown": "only what is reported of the result",
    "new weights": "a model that is made, not one that is given",
    "encoder": "layers inside the encoder",
    "loss": "the loss of a step",
    "optimizer": "the step of the optimizer",
    "schedule": "the learning rate",
    "loop": "what the loop does besides the steps",
    "amp": "nothing without mixed precision",
    "loss scale": "the scale of the loss in float16",
    "classes": "nothing without classes",
    "ranking": "nothing without candidates to rank",
    "rows": "how rows of pairs are read",
    "text": "how text is read",
    "raw text": "how raw text is cut into documents",
    "language": "how text is cut into sentences and words",
    "words": "which words are masked together",
    "index": "how an index is built",
    "trained": "a trained model, not an exported one",
    "exported": "an exported model, not a trained one",
    "dropout": "which hidden numbers are dropped in training",
    "run": "what tells the runs of a comparison apart",
    "pretraining": "the pretraining of a pipeline, not what it does before",
    "fine-tuning": "the training on pairs of a pipeline, not what it does before",
}
NOTHING = ("", "none", "null", "~")  # mean None, for an option that may be None
DASH = "-"  # instead of a file: standard input or output
ANY = "any"  # in `needs` of an option
NO_NEEDS: Mapping[str, Any] = {}
_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_LEFT_OUT = object()  # in place of a required value that was not given
_HOME = re.compile(r"(?:^|(?<=[\s=:'\"]))~(?=/|$)")  # the home folder, where a path begins
_BOUNDS = {  # what violates a bound, and what such a value is
    "at_least": (operator.lt, "below", "use {} or more"),
    "above": (operator.le, "not above", ""),
    "at_most": (operator.gt, "above", "use {} or less"),
    "below": (operator.ge, "not below", ""),
}


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
    choices: Collection[str] = (),
    reads: str = "",
    writes: str = "",
    affects: str = "",
    usual: bool = False,
    positional: bool = False,
    stdin: Sequence[str] = (),
    stdout: bool = False,
    values: int = 1,
    unless: str = "",
    only_with: str = "",
    resume: str = "",
    secret: bool = False,
    needs: Mapping[str, Mapping[str, str]] = NO_NEEDS,
):
    """Return a dataclass field that is also a command-line flag; without a default it is required.

    A required option may follow those with a default. A class of options that others share is kw_only: its
    options stand nowhere among the positional arguments of a class that derives from it.

    ``group``: one of GROUPS; ``unit``: what the number counts, for the help. The bounds apply to every value
    except None. ``choices``: the allowed texts, if the type cannot express them.

    ``reads``, ``writes``: the value is a path, one of PATHS, of an input or an output. ``affects``: some of
    AFFECTS, a comma between them. ``usual``: the short help shows it, as it does required ones.

    ``positional``: it is given without a flag, like the file of `cat FILE`, and is required; a list takes one
    value or more. ``values``: the number of words of a flag that is a list.

    ``stdin``: `-` reads standard input, and these are the file endings that it may stand for; ``stdout``: `-`
    writes standard output. ``unless``: another option, without a default of its own, that can replace this
    one. ``only_with``: what this option needs to have an effect: another one, or values of it as in
    format=onnx|both. Without that another value than the default is refused.

    ``resume``: what another value means for a run that goes on from a checkpoint: same, it is another run
    unless the user allows the change; fixed, nobody can allow it; layout, it only divides the work otherwise
    and is noted; empty, it may change. ``secret``: no representation of the options shows the value.

    ``needs``: {word of the value, or ANY: what it needs, like `Options.NEEDS`}.
    """
    metadata: dict[str, Any] = {**locals(), "stdin": tuple(stdin)}
    metadata["affects"] = tuple(affects.split(", ")) if affects else ()
    known = {"group": GROUPS, "resume": RESUME, "reads": ("", *PATHS), "writes": ("", *PATHS)}
    for name, words in known.items():
        if metadata[name] not in words:
            raise ValueError(f"{metadata[name]} is not a {name} of options: {words}")
    if not AFFECTS.keys() >= {*metadata["affects"]}:
        raise ValueError(f"{affects}: not some of {[*AFFECTS]}")
    if default is MISSING:
        return field(default_factory=lambda: _LEFT_OUT, metadata=metadata)
    return field(default=default, metadata=metadata, repr=not secret)


data_option = partial(option, group="data")
model_option = partial(option, group="model")
optimisation_option = partial(option, group="optimisation")
precision_option = partial(option, group="precision")
evaluation_option = partial(option, group="evaluation")
checkpoints_option = partial(option, group="checkpoints")
devices_option = partial(option, group="devices")
file_option = partial(data_option, reads="FILE")
path_option = partial(data_option, reads="PATH")
tokens_option = partial(data_option, unit="tokens", at_least=0)
model_folder_option = partial(model_option, reads="MODEL")  # or what names one
new_model_option = partial(model_option, affects="new weights")
processes_option = partial(devices_option, unit="processes", at_least=1)
classes_option = partial(evaluation_option, affects="classes")
evaluation_steps_option = partial(evaluation_option, unit="steps", at_least=1)
checkpoint_steps_option = partial(checkpoints_option, unit="steps", at_least=1)
layout_option = partial(optimisation_option, at_least=1, resume="layout")
speed_option = partial(devices_option, affects="speed")
# Another value makes another run.
kept_data_option = partial(data_option, resume="same")
kept_optimisation_option = partial(optimisation_option, resume="same")
kept_precision_option = partial(precision_option, resume="same")


def path_of(item: Field) -> str:
    """Return which of PATHS the value of an option is; '' if it is no path."""
    return item.metadata["reads"] or item.metadata["writes"]


def defaults_of(config: Any, *affected: str) -> dict[str, Any]:
    """Return {name: default} of the options of a class, or an object of it, that affect one of AFFECTS."""
    return {
        item.name: item.default
        for item in fields(config)
        if not {*affected}.isdisjoint(item.metadata.get("affects", ()))
    }


def paths_in(config: Any, *kinds: str) -> list[str]:
    """Return the names of the options that are paths, with ``kinds``, reads or writes, only of these."""
    kinds = kinds or ("reads", "writes")
    return [item.name for item in fields(config) if any(item.metadata[kind] for kind in kinds)]


class OptionDocs:
    """The ``__doc__`` of a class of options, generated from its options on access.

    ``purpose``: the docstring of the class itself. Below it are the options of the class and of its bases, by
    subject, as Python writes them: ``use_amp``, ``True``.
    """

    def __init__(self, purpose: str):
        self.purpose = cleandoc(purpose)

    def __get__(self, instance: object, owner: Any) -> str:
        groups: dict[str, str] = {}
        for item in fields(owner):
            if "group" not in item.metadata:  # not made by option()
                continue
            is_literal = get_origin(item.type) is Literal
            choices = item.metadata["choices"] or (get_args(item.type) if is_literal else ())
            facts = [f"one of {', '.join(choices)}" if choices else "", item.metadata["unit"]]
            facts += ["required" if item.default is MISSING else f"default: {item.default!r}"]
            text = f"{item.name}: {without_flags(item.metadata['help'])} ({'; '.join(filter(None, facts))})"
            group, ends = item.metadata["group"], (" " * 4, " " * 8)
            lines = wrap(text, 100, initial_indent=ends[0], subsequent_indent=ends[1], break_on_hyphens=False)
            groups[group] = "\n".join([groups.get(group, group), *lines])
        return "\n\n".join(filter(None, [self.purpose, *groups.values()]))


@dataclass(frozen=True)
class Options:
    """The base of every class of options: checks the type and the bounds of each option.

    The docstring of a derived class also lists its options; see `OptionDocs`.
    """

    EXAMPLE = ""  # the flags of the example that --help shows
    PURPOSE = ""  # what the class is for: its docstring, without the options
    # Without which the command cannot run, beside the base: {module: the extra of its own, or ''}.
    NEEDS = NO_NEEDS

    def __init_subclass__(cls) -> None:
        docs = OptionDocs(vars(cls).get("__doc__") or "")
        cls.PURPOSE = docs.purpose
        type.__setattr__(cls, "__doc__", docs)

    def __post_init__(self):
        for item in fields(self):  # which of them another one replaces
            other = item.metadata["unless"]
            if other and getattr(self, other) is not None:
                if getattr(self, item.name) is not _LEFT_OUT:
                    raise InputError(f"--{other} and --{item.name} exclude each other; give one of them")
                object.__setattr__(self, item.name, DASH if item.metadata["stdout"] else "")
        left_out = missing_options(type(self), vars(self))
        if left_out:
            call = f"{type(self).__name__}({', '.join(f'{item.name}=...' for item in left_out)})"
            them = "it" if len(left_out) == 1 else "them"
            raise InputError(f"{describe_missing(type(self), left_out)}; give {them}: {call}")
        hints = hints_of(type(self))
        for item in fields(self):
            value = checked(getattr(self, item.name), hints[item.name], f"--{item.name}")
            if path_of(item):
                value = _with_home(value, item)
            object.__setattr__(self, item.name, value)
            self._check(item, value)
        for item in fields(self):
            self._check_only_with(item, getattr(self, item.name))
        check_installed(self.NEEDS)
        for item in fields(self):  # what a given value needs
            value = getattr(self, item.name)
            for word, needs in item.metadata["needs"].items():
                if value and (word == ANY or word in names_in(str(value))):
                    check_installed(needs)

    def _check(self, item: Field, value: Any) -> None:
        """Raise InputError for a value, of the right type, that the option does not take."""
        about, name, path = item.metadata, shown_name(item), path_of(item)
        texts = value if isinstance(value, list) else [value]
        if about["values"] > 1 and isinstance(value, list) and len(value) != about["values"]:
            raise InputError(f"{name} takes {about['values']} words, not {len(value)}; correct it")
        fault = bound_problem(value, about, item.default)
        if fault:
            raise InputError(f"{name} {value} {fault}")
        is_stream = bool(about["stdin"] or about["stdout"])
        if is_stream and DASH in texts and len(texts) > 1:
            raise InputError(f"{name} -: standard input must be the only input; leave it out, or all others")
        if path and not is_stream and value == DASH:
            place = "folder" if path == "FOLDER" else "file"
            raise InputError(f"{name} -: it does not mean a standard stream here; name a {place}")
        if about["writes"] and item.default != "" and not value.strip():
            raise InputError(f"{name} is empty; name the file or folder to write to")
        if about["writes"] == "FOLDER" and os.path.isfile(value):
            raise InputError(f"{name} {value} is a file; give a folder")
        if about["writes"] == "PREFIX" and os.path.basename(value) in ("", ".", ".."):
            raise InputError(
                f"{name} {value} has no name after the last /, and one begins the name of each file; "
                f"add one, {os.path.join(value, 'text')} for example"
            )
        for text in () if path else texts:  # a word of a terminal in GBK, for example
            if isinstance(text, str) and re.search("[\ud800-\udfff]", text):
                bad = ascii(re.findall("[\ud800-\udfff]", text)[0]).strip("'")
                raise InputError(f"{name} is not UTF-8 (it contains {bad}); give it in UTF-8")

    def _check_only_with(self, item: Field, value: Any) -> None:
        """Raise InputError for a value that would have no effect, because of what is not given."""
        other, _, words = item.metadata["only_with"].partition("=")
        if not other or not value or value == item.default:
            return
        given = getattr(self, other)
        if str(given).lower() not in words.split("|") if words else given in (None, "", 0, "none"):
            name, needed = shown_name(item), f"--{other} {words.replace('|', ' or ')}".strip()
            raise InputError(f"{name} needs {needed}; add it, or leave {name} out")


@dataclass(frozen=True, kw_only=True)
class OverwriteFlag(Options):
    """The part of the options of a command that writes results."""

    overwrite: bool = data_option(False, help="replace existing results", affects="start", usual=True)


def shown_name(item: Field) -> str:
    """Return what a message calls an option: --seed, or INPUT for one that is given without a flag."""
    return item.name.upper() if item.metadata["positional"] else f"--{item.name}"


def missing_options(config_class: type[Options], values: Mapping[str, object]) -> list[Field]:
    """Return the required options that are not in ``values`` and not replaced by another; arguments first."""
    left_out = [
        item
        for item in fields(config_class)
        if item.default is MISSING
        and values.get(item.name, _LEFT_OUT) is _LEFT_OUT
        and values.get(item.metadata["unless"]) is None
    ]
    return sorted(left_out, key=lambda item: not item.metadata["positional"])


def describe_missing(config_class: type[Options], left_out: Sequence[Field], as_flags: bool = False) -> str:
    """Return that options are missing, with what a single argument means and what takes their place."""
    called = shown_name if as_flags else operator.attrgetter("name")
    missing = f"{_listed(map(called, left_out))} {'is' if len(left_out) == 1 else 'are'} missing"
    if len(left_out) == 1 and left_out[0].metadata["positional"]:
        return f"{missing}: {left_out[0].metadata['help']}"
    for other in fields(config_class):
        replaced = [item for item in fields(config_class) if item.metadata["unless"] == other.name]
        # One that replaces several options is only named if all of them are missing.
        if replaced and all(item in left_out for item in replaced):
            words = " ".join(ascii_uppercase[: other.metadata["values"]])
            shown = f"--{other.name} {words}" if as_flags else f"{other.name}=..."
            return f"{missing} ({shown} takes the place of {_listed(map(called, replaced))})"
    return missing


def _listed(names: Iterable[str]) -> str:
    *names, last = names
    return f"{', '.join(names)} and {last}" if names else last


def _with_home(value: Any, item: Field) -> Any:
    """Return a path with the home folder for ~; in several NAME=PATH, for each."""
    if isinstance(value, list):
        return [_with_home(one, item) for one in value]
    if isinstance(value, str) and path_of(item) == "NAME=PATH":
        return _HOME.sub(lambda match: os.path.expanduser("~"), value)
    return os.path.expanduser(value) if isinstance(value, str) and _HOME.match(value) else value


def bound_problem(value: object, bounds: Mapping[str, Any], usual: object = None) -> str:
    """Return which bound a value violates and the fix, in words, or ''.

    ``bounds``: {at_least, above, at_most or below: a number, or None for none}; ``usual``: the default.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    example = f"use {usual}, for example" if isinstance(usual, (int, float)) else "use another value"
    for name, (violates, fault, cure) in _BOUNDS.items():
        bound = bounds.get(name)
        if bound is not None and violates(value, bound):
            return f"is {fault} {bound}; {cure.format(bound) or example}"
    return ""


class Kind(NamedTuple):
    """What an option takes: values of ``base``, one of ``words`` besides or instead, None."""

    base: Any  # bool, int, float, str or a list of one of these; None: nothing but words
    words: tuple[str, ...]
    may_be_none: bool


def kind_of(hint: object) -> Kind:
    """Return what an option of this type takes: int, Optional[str], Union[int, Literal["auto"]]."""
    parts = get_args(hint) if get_origin(hint) is Union else (hint,)
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    bases = [part for part in parts if get_origin(part) is not Literal and part is not type(None)]
    return Kind(bases[0] if bases else None, tuple(words), type(None) in parts)


_HINTS: dict[type, dict[str, Any]] = {}


def hints_of(config_class: Any) -> dict[str, Any]:
    """Return the type of every option of a class; that of one with choices is their Literal."""
    if config_class not in _HINTS:
        hints = _HINTS[config_class] = get_type_hints(config_class)
        for item in fields(config_class):
            if item.metadata.get("choices"):
                words: Any = Literal[tuple(item.metadata["choices"])]
                hints[item.name] = Optional[words] if kind_of(hints[item.name]).may_be_none else words
    return _HINTS[config_class]


class RawValue(NamedTuple):
    """What the user wrote for an option, and ``where``: its flag, or file:line and its name."""

    text: Union[str, list[str]]
    where: str


def parse_value(given: RawValue, hint) -> object:
    """Return the value of a text, of a flag or of a file. Raises InputError if it is not of the type."""
    base, _, may_be_none = kind_of(hint)
    if may_be_none and isinstance(given.text, str) and given.text.lower() in NOTHING:
        return None
    texts = [given.text] if isinstance(given.text, str) else given.text
    if get_origin(base) is list:
        return [parse_value(RawValue(text, given.where), get_args(base)[0]) for text in texts]
    value: object = texts[0]
    if base is bool:
        value = _BOOLS.get(texts[0].lower(), value)
    elif base in (int, float):
        with suppress(ValueError):
            value = base(value)
    return checked(value, hint, given.where)


def checked(value, hint, where: str) -> object:
    """Return a value as its option stores it: a path as text, a tuple as list. Raises InputError."""
    base, words, may_be_none = kind_of(hint)
    if (value is None and may_be_none) or (isinstance(value, str) and _is_one_of(value, words)):
        return value
    if get_origin(base) is list and isinstance(value, (list, tuple)) and value:
        return [checked(one, get_args(base)[0], where) for one in value]
    if isinstance(value, bool):
        if base is bool:
            return value
    elif base is int and isinstance(value, Integral):
        return int(value)
    elif base is float and _fits_float(value):
        return float(value)
    elif base is str and isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    text = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    raise InputError(f"{where} takes {describe_type(hint)}, not {text}; correct it")


def _is_one_of(value: str, words: tuple[str, ...]) -> bool:
    """Return whether ``value`` is one of ``words``, in which N stands for a number: gpu:N."""
    return re.sub(r":\d+$", ":N", value) in words and not value.endswith(":N")


def check_whole_numbers(at_least: int, **given: object) -> None:
    """Raise InputError for a value that Python gave by name and that is no whole number of ``at_least``."""
    for name, value in given.items():
        fault = bound_problem(checked(value, int, f"--{name}"), {"at_least": at_least})
        if fault:
            raise InputError(f"--{name} {value} {fault}")


def describe_type(hint) -> str:
    """Return a description of what an option of a type takes."""
    base, words, _ = kind_of(hint)
    if get_origin(base) is list:
        return f"a list, each item {describe_type(get_args(base)[0])}"
    return " or ".join([_KINDS[base], *words]) if base else "one of " + ", ".join(words)


def names_in(text: str) -> list[str]:
    """Return the names in the text of an option, separated by commas or spaces, each once."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def check_names(option_name: str, names: Iterable[str], known: Collection[str], fault: str) -> None:
    """Raise InputError for the first of ``names`` that is not ``known``; ``fault`` follows it in the line."""
    for name in names:
        if name not in known:
            raise InputError(f"--{option_name} {name}{fault}")


def parse_shares(option_name: str, given: str, count: int, what: str) -> list[float]:
    """Return the numbers in ``given``, one for each of ``count``; [] for ''. Raises InputError for others."""
    words = given.split(",") if given else []
    try:
        shares = [float(word) for word in words]
    except ValueError:
        shares = []
    if words and (len(shares) != count or not 0 < min(shares) <= sum(shares) < math.inf):
        raise InputError(
            f"--{option_name} {given} is not a number above 0 for each of {counted(count, what)}; give these"
        )
    return shares


def _fits_float(value) -> bool:
    """Return whether ``value`` is a number other than nan and infinity, and within the range of a float."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number or fraction above it
        return False


def check_unset(config, usual: Mapping[str, object], fault: str) -> None:
    """Raise InputError, --NAME VALUE and ``fault``, for the first flag that is not as in ``usual``."""
    for name, nothing in usual.items():
        value = getattr(config, name, nothing)
        if value != nothing:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise InputError(f"--{name} {shown}{fault}")


def import_named(name: str, flag: str, kind: str) -> Any:
    """Return the callable, a ``kind`` such as function, that ``name``, the value of ``flag``, names.

    Modules are found as Python finds them, then in the working folder. Raises InputError if there is none.
    """
    module_name, _, inner_name = name.partition(":")
    if not (module_name and inner_name) or module_name.startswith("."):
        raise InputError(f"{flag} {name} is not package.module:{kind}; write a {kind} like that")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found = getattr(import_module(module_name), inner_name, None)
    except ImportError as error:
        raise_interrupt(error)
        raise InputError(f"{flag} {name}: {error}; set PYTHONPATH or fix the name") from None
    except SyntaxError as error:
        fault = f"{error.filename}:{error.lineno}: {error.msg}"
        raise InputError(f"{flag} {name}: {fault}; fix the line") from None
    if not callable(found):
        raise InputError(f"{flag} {name}: {module_name} has no {kind} {inner_name}; fix the name")
    return found
