"""A YAML file of flags, read strictly: known flags, each once and with a value.

What a command wrote down beside its flags, the block `about:` of a config.yaml, is passed over.
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
from data_tools.base.regular_file import FileRefusedError, read_regular
from data_tools.flags.nearest import advice_on, meant_flags

LAUNCH, ABOUT = "launch", "about"
CONFIG_YAML = "config.yaml"  # beside what a command made; it names a moment, so no two are equal
MOST_BYTES = 1 << 18
# Of a value without a tag of its own, !!binary for example; what it means is said by its option.
PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in "str int float bool null timestamp value merge".split()}


class Entry(NamedTuple):
    """A line of the file: what it names, its value as YAML has it, and file:line."""

    name: str
    value: yaml.Node
    where: str


def read_flag_file(path: str, hints: Dict[str, object]) -> Dict[str, Given]:
    """Return what a file says of the options in ``hints``.

    Raises InputError with file:line for what is no mapping of their names to single values.
    """
    return read_entries(_entries_outside_launch(path), hints)


def read_entries(entries: Iterable[Entry], hints: Dict[str, object]) -> Dict[str, Given]:
    """Return what entries say of the options in ``hints``. Raises InputError for any other entry."""
    return {entry.name: _given_in(entry, hints) for entry in entries}


def _entries_outside_launch(path: str) -> Iterator[Entry]:
    for entry in _flags_in(path):
        if entry.name == LAUNCH and isinstance(entry.value, yaml.MappingNode):
            raise InputError(
                f"{entry.where}: {LAUNCH}: is for `ernie-pair launch {path}`; start it so, or remove it"
            )
        yield entry


def launch_file(path: str) -> Tuple[List[Entry], List[Entry]]:
    """Return the lines of the block `launch:` of the file, and the flags beside it. Raises InputError."""
    entries = list(_flags_in(path))
    block = next((value for name, value, _ in entries if name == LAUNCH), None)
    return list(entries_of(path, block)), [entry for entry in entries if entry.name != LAUNCH]


def _flags_in(path: str) -> Iterator[Entry]:
    """Yield the entries of a file but that of ABOUT, which is no flag."""
    for entry in entries_of(path, _read(path)):
        if entry.name != ABOUT or not isinstance(entry.value, yaml.MappingNode):
            yield entry


def read_mapping(path: str, flag: str) -> List[Entry]:
    """Return the entries of the YAML file that ``flag`` names. Raises InputError."""
    return list(entries_of(path, _read(path, flag)))


def entries_of(path: str, node: Optional[yaml.Node]) -> Iterator[Entry]:
    """Yield the entries of a mapping, each name once; nothing of None. Raises InputError."""
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}:{_line(node)}: not a list of flags; write lines like max_steps: 1000")
    lines: Dict[str, int] = {}
    for key, value in node.value:
        name, where = str(key.value), f"{path}:{_line(key)}"
        if name in lines:
            raise InputError(f"{where}: {name} stands in line {lines[name]} already; keep one")
        lines[name] = _line(key)
        yield Entry(name, value, where)


def _given_in(entry: Entry, hints: Dict[str, object]) -> Given:
    """Return the text of an entry. Raises InputError unless it is an option with a single value."""
    name, value, where = entry
    if name not in hints:
        raise InputError(f"{where}: {name[:40]} is no flag; {nearest([name], hints)}")
    kind, may_be_none = without_none(hints[name])
    if get_origin(kind) is list and isinstance(value, yaml.SequenceNode) and value.value:
        texts = [_given_in(Entry(name, item, where), {name: get_args(kind)[0]}).text for item in value.value]
        return Given([str(text) for text in texts], f"{where}: {name}")
    is_empty = value.tag.endswith(":null") and not may_be_none
    if is_empty or not isinstance(value, yaml.ScalarNode) or value.tag not in PLAIN_TAGS:
        raise InputError(f"{where}: {name} has no single value; give it one, or remove the line")
    return Given(value.value, f"{where}: {name}")


def nearest(words: Iterable[str], names: Collection[str]) -> str:
    """Return a hint for words that are no flags: 'did you mean --max_steps?', and what lists all of them.

    Names of other packages are understood: --lr, --num_train_epochs.
    """
    words = list(words)
    advice = [f"{advice_on(word)}; " for word in words if advice_on(word)]
    meant = [flag for word in words if not advice_on(word) for flag in meant_flags(word, names)]
    hint = f"did you mean {', '.join('--' + flag for flag in dict.fromkeys(meant))}? " if meant else ""
    return f"{''.join(dict.fromkeys(advice))}{hint}--help lists the flags"


def _read(path: str, flag: str = "config"):
    try:
        return yaml.compose(read_regular(path, MOST_BYTES), Loader=yaml.SafeLoader)
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
