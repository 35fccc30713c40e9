"""A YAML file of flags, read strictly: known flags, each once and with a value.

What a command recorded besides its flags, the block `about:` of a config.yaml, is ignored.
"""

from typing import (
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Tuple,
    get_args,
    get_origin,
)

import yaml

from data_tools.base.errors import InputError
from data_tools.base.options import Given, without_none
from data_tools.base.regular_file import ABOUT, MOST_CONFIG_BYTES, FileRefusedError, read_regular
from data_tools.flags.nearest import advice_on, meant_flags

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
