"""Split the words of a command line into flags and values; argparse only splits, it converts nothing."""

import re
import sys
from argparse import SUPPRESS, ArgumentParser
from dataclasses import fields
from itertools import groupby
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Type,
    get_args,
    get_origin,
)

import yaml

from data_tools.files.atomic_files import ABOUT, MOST_CONFIG_BYTES, FileRefusedError, read_regular
from data_tools.files.errors import InputError
from data_tools.options.foreign_flags import advice_on, meant_flags
from data_tools.options.options import Given, Options, hints_of, kind_of, without_none

LAUNCH = "launch"
# Of values without an explicit tag, such as !!binary; the option decides what a value means.
PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in "str int float bool null timestamp value merge".split()}


class Entry(NamedTuple):
    """An entry of the file: its name, its value as a YAML node, and file:line."""

    name: str
    value: yaml.Node
    where: str


def read_flag_file(path: str, hints: Dict[str, object], program: str = "") -> Dict[str, Given]:
    """Return what a file gives for the options in ``hints``, those of ``program``: `ernie-pair train`.

    Raises InputError with file:line for anything but a mapping of their names to single values.
    """
    return read_entries(path, _entries_outside_launch(path), hints, program)


def read_entries(
    path: str, entries: Iterable[Entry], hints: Dict[str, object], program: str = ""
) -> Dict[str, Given]:
    """Return what entries of a file give for the options in ``hints``. Raises InputError for any other."""
    told = list(entries)
    flags = [entry for entry in told if not _is_about(entry)]
    if program and any(entry.name not in hints for entry in flags):
        _refuse_other_command(path, next((entry for entry in told if _is_about(entry)), None), program)
    return {entry.name: _given_in(entry, hints) for entry in flags}


def _refuse_other_command(path: str, about: Optional[Entry], program: str) -> None:
    """Raise InputError where ``about`` says that the file was written by another command than ``program``."""
    told = [] if about is None else about.value.value
    theirs = next((value.value for key, value in told if key.value == "command"), None)
    starter = program.split()[0]
    if isinstance(theirs, str) and not program.endswith(f" {theirs}"):
        raise InputError(
            f"{path} is the configuration of `{starter} {theirs}`, not of `{program}`; give it to "
            "the first, or write a file for the second"
        )


def _is_about(entry: Entry) -> bool:
    """Return whether an entry is the block in which a command recorded what it ran on, not a flag."""
    return entry.name == ABOUT and isinstance(entry.value, yaml.MappingNode)


def _entries_outside_launch(path: str) -> Iterator[Entry]:
    for entry in entries_of(path, _read(path)):
        if entry.name == LAUNCH and isinstance(entry.value, yaml.MappingNode):
            raise InputError(
                f"{entry.where}: {LAUNCH}: is for `ernie-pair launch {path}`; start that, or remove the block"
            )
        yield entry


def launch_file(path: str) -> Tuple[List[Entry], List[Entry]]:
    """Return the entries of the block `launch:` of the file, and all others. Raises InputError."""
    entries = list(entries_of(path, _read(path)))
    block = next((value for name, value, _ in entries if name == LAUNCH), None)
    return list(entries_of(path, block)), [entry for entry in entries if entry.name != LAUNCH]


def read_mapping(path: str, flag: str) -> List[Entry]:
    """Return the entries of the YAML file that ``flag`` names. Raises InputError."""
    return list(entries_of(path, _read(path, flag)))


def entries_of(path: str, node: Optional[yaml.Node]) -> Iterator[Entry]:
    """Yield the entries of a mapping, each name once; nothing for None. Raises InputError."""
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}:{_line(node)}: not a list of flags; write lines like max_steps: 1000")
    lines: Dict[str, int] = {}
    for key, value in node.value:
        name, where = str(key.value), f"{path}:{_line(key)}"
        if name in lines:
            raise InputError(f"{where}: {name} is already set in line {lines[name]}; keep one")
        lines[name] = _line(key)
        yield Entry(name, value, where)


def _given_in(entry: Entry, hints: Dict[str, object]) -> Given:
    """Return the text of an entry. Raises InputError unless it is an option with a single value."""
    name, value, where = entry
    if name not in hints:
        raise InputError(f"{where}: {name[:40]} is not a flag; {nearest([name], hints)}")
    kind, may_be_none = without_none(hints[name])
    if get_origin(kind) is list and isinstance(value, yaml.SequenceNode) and value.value:
        texts = [_given_in(Entry(name, item, where), {name: get_args(kind)[0]}).text for item in value.value]
        return Given([str(text) for text in texts], f"{where}: {name}")
    is_empty = value.tag.endswith(":null") and not may_be_none
    if is_empty or not isinstance(value, yaml.ScalarNode) or value.tag not in PLAIN_TAGS:
        raise InputError(f"{where}: {name} has no single value; give it one, or remove the line")
    return Given(value.value, f"{where}: {name}")


def nearest(words: Iterable[str], names: Collection[str]) -> str:
    """Return a hint for words that are not flags: 'did you mean --max_steps?', and what lists the flags.

    Names from other packages are recognized: --lr, --num_train_epochs.
    """
    words = list(words)
    advised = {word: advice_on(word, names) for word in words}
    advice = [f"{text}; " for text in advised.values() if text]
    meant = [flag for word in words if not advised[word] for flag in meant_flags(word, names)]
    hint = f"did you mean {', '.join('--' + flag for flag in dict.fromkeys(meant))}? " if meant else ""
    return f"{''.join(dict.fromkeys(advice))}{hint}--help lists the flags"


def _read(path: str, flag: str = "config"):
    try:
        return yaml.compose(read_regular(path, MOST_CONFIG_BYTES), Loader=yaml.SafeLoader)
    except FileRefusedError as error:
        raise InputError(f"--{flag} {path}: {error}; give a YAML file") from None
    except OSError as error:
        raise InputError(f"--{flag} {path}: cannot be read ({error.strerror}); give a YAML file") from None
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{path}:{_line(error.problem_mark)}: not YAML ({error.problem}); fix it") from None
    except (yaml.YAMLError, RecursionError):
        raise InputError(f"{path}: not YAML text; give lines like max_steps: 1000") from None


def _line(place) -> int:
    return getattr(place, "start_mark", place).line + 1


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
