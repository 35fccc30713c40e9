"""Split the words of a command line into flags and values; argparse only splits, it converts nothing."""

import re
import sys
from argparse import SUPPRESS, ArgumentParser
from dataclasses import fields
from itertools import groupby
from typing import Any, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Sequence, Type, get_origin

from data_tools.base.errors import InputError
from data_tools.base.options import Given, Options, hints_of, kind_of
from data_tools.base.yaml_flags import nearest, read_flag_file

_BEGIN_OF_FLAG = re.compile("--[A-Za-z]")


class SplitWords(NamedTuple):
    """The values of each flag, None for a bare one, and the words without a flag."""

    flags: Dict[str, List[Any]]  # of a flag that takes several words, a list of them
    others: List[str]


class _Splitter(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise InputError: only a flag that takes several words can fail here."""
        fault = message.replace("argument ", "").replace("argument(s)", "words")
        raise InputError(f"{fault}; correct it, or put texts that begin with - into a file for --input_file")


def flag_names(config_class: Type[Options]) -> List[str]:
    """Return the flags of a class and of its command, in the order of the class."""
    return [item.name for item in fields(config_class) if not item.metadata["positional"]] + ["config"]


def flags_of_several(config_class: Type[Options]) -> Dict[str, int]:
    """Return {flag: its number of words} for the flags that take more than one."""
    return {i.name: i.metadata["values"] for i in fields(config_class) if i.metadata["values"] > 1}


def split_words(
    words: Sequence[str],
    names: Iterable[str],
    several: Optional[Dict[str, int]] = None,
    refuse_unknown: bool = True,
) -> SplitWords:
    """Split a command line at its flags; ``several``: how many words some of them take.

    --no-merge and --no_merge are the same flag; after a bare -- nothing is a flag. Raises InputError for a
    flag with too few words, and for one that is not among ``names``, unless it is not yet known which may be.
    """
    names = list(dict.fromkeys(names))
    end = words.index("--") if "--" in words else len(words)
    splitter = _Splitter(add_help=False, allow_abbrev=False)
    splitter.add_argument("-h", "--help", action="append", nargs="?", default=SUPPRESS)
    for name in names:
        nargs = (several or {}).get(name, "?")
        splitter.add_argument(f"--{name}", action="append", nargs=nargs, default=SUPPRESS)
    found, others = splitter.parse_known_args(_with_joined_values(map(_with_underscores, words[:end])))
    flags = vars(found)
    strange = [word for word in others if word.startswith("-") and word != "-"]
    if strange and refuse_unknown and "help" not in flags:
        unknown = [word.lstrip("-").partition("=")[0] for word in strange]
        raise _unrecognized(others[others.index(strange[0]) :], nearest(unknown, names))
    return SplitWords(flags, [*others, *words[end + 1 :]])


def given_by(split: SplitWords, config_class: Type[Options], program: str = "") -> Dict[str, Given]:
    """Return the options of a class that the words give, including those in the files of --config.

    ``program``: the command of the class, `ernie-pair train`. Flags override files. Raises InputError.
    """
    hints, given = hints_of(config_class), {}
    for path in split.flags.get("config", ()):
        if path is None:
            raise InputError("--config has no value; it takes a YAML file")
        given.update(read_flag_file(path, hints, program))
    return {**given, **flags_given(split, config_class), **_without_flags(split.others, config_class)}


def flags_given(split: SplitWords, config_class: Type[Options]) -> Dict[str, Given]:
    """Return the flags of a class among the words. Raises InputError for one without a value."""
    hints = hints_of(config_class)
    return {
        name: Given(
            texts[-1] if isinstance(texts[-1], list) else _last_value(name, texts, hints[name]), f"--{name}"
        )
        for name, texts in split.flags.items()
        if name in hints
    }


def _without_flags(words: List[str], config_class: Type[Options]) -> Dict[str, Given]:
    given, hints = {}, hints_of(config_class)
    for item in fields(config_class):
        if item.metadata["positional"] and words:
            taken = len(words) if get_origin(hints[item.name]) is list else 1
            text = words[:taken] if get_origin(hints[item.name]) is list else words[0]
            given[item.name], words = Given(text, item.name.upper()), words[taken:]
    if words:
        raise _unrecognized(words, nearest([], []))
    return given


def _last_value(name: str, texts: List[Optional[str]], hint) -> str:
    """Return the last value of a flag, and report an earlier one that differs. Raises InputError for none.

    So a later flag overrides one that a script or an alias sets.
    """
    if texts[-1] is None and hint is not bool:
        raise InputError(f"--{name} has no value; it takes {kind_of(hint)}")
    shown = [text for text, _ in groupby("true" if text is None else text for text in texts)]
    if len(shown) > 1:
        sys.stderr.write(f"--{name} is given as {' and as '.join(shown)[:200]}: the last one counts\n")
    return "true" if texts[-1] is None else texts[-1]


def _unrecognized(words: List[str], cure: str) -> InputError:
    return InputError(f"unrecognized arguments: {' '.join(words)}; {cure}")


def _with_underscores(word: str) -> str:
    if not _BEGIN_OF_FLAG.match(word):
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _with_joined_values(words: Iterable[str]) -> List[str]:
    """Join --rate -1e-4 to --rate=-1e-4, and --doc_spliter ---: argparse would take the values for flags."""
    joined: List[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and "=" not in joined[-1] and _is_value(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _is_value(word: str) -> bool:
    is_rule = len(word) > len("--") and set(word) == {"-"}
    return is_rule or _is_negative(word)


def _is_negative(word: str) -> bool:
    try:
        return word.startswith("-") and float(word) <= 0
    except ValueError:
        return False
