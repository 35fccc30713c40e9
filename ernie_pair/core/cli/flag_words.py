"""What a user wrote: the words of a command line and the entries of a YAML file, not yet converted."""

import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Optional, get_args, get_origin

import yaml

from ernie_pair.core.cli.options import Options, RawValue, describe_type, hints_of, kind_of
from ernie_pair.core.errors import InputError, again_with
from ernie_pair.core.files.atomic_files import ABOUT, MAX_CONFIG_BYTES, FileRefusedError, read_regular

LAUNCH = "launch"
# Of values without an explicit tag, such as !!binary; the option decides what a value means.
PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in "str int float bool null timestamp value merge".split()}

# {name in the Trainer of transformers and PaddleNLP: ours, of which the first that a command has is named}
SYNONYMS = {
    "lr": "learning_rate max_lr",
    "num_train_epochs": "epochs max_steps",
    "epochs": "max_steps",
    "per_device_train_batch_size": "batch_size micro_batch_size",
    "batch": "batch_size batch_tokens",
    "max_length": "max_seq_len",
    "top_n": "top_k",
    "logging_steps": "logging_freq log_interval",
    "eval_steps": "eval_freq",
    "max_grad_norm": "grad_clip",
    "fp16": "use_amp precision",
    "init_from_ckpt": "model_name_or_path model_path",
    "overwrite_output_dir": "fresh_start overwrite",
}


class Entry(NamedTuple):
    """An entry of the file: its name, its value as a YAML node, and file:line."""

    name: str
    value: yaml.Node
    where: str


def read_flag_file(path: str, hints: dict[str, object], program: str = "") -> dict[str, RawValue]:
    """Return what a file gives for the options in ``hints``, those of ``program``: `ernie-pair train`.

    Raises InputError with file:line for anything but a mapping of their names to single values.
    """
    entries = read_mapping(path)
    for name, value, where in entries:
        if name == LAUNCH and isinstance(value, yaml.MappingNode):
            cure = f"is for `ernie-pair launch {path}`; start that, or remove the block"
            raise InputError(f"{where}: {LAUNCH}: {cure}")
    return read_entries(path, entries, hints, program)


def read_entries(
    path: str, entries: Sequence[Entry], hints: dict[str, object], program: str = ""
) -> dict[str, RawValue]:
    """Return what entries, but the record of a run, give for ``hints``. Raises InputError for others."""
    about = [entry for entry in entries if entry.name == ABOUT and isinstance(entry.value, yaml.MappingNode)]
    flags = [entry for entry in entries if entry not in about]
    if program and about and any(entry.name not in hints for entry in flags):
        theirs = {str(key.value): value.value for key, value in about[0].value.value}.get("command")
        if isinstance(theirs, str) and not program.endswith(f" {theirs}"):
            raise InputError(
                f"{path} is the configuration of `{program.split()[0]} {theirs}`, not of `{program}`; give "
                "it to the first, or write a file for the second"
            )
    return {entry.name: _given_in(entry, hints) for entry in flags}


def launch_file(path: str) -> tuple[list[Entry], list[Entry]]:
    """Return the entries of the block `launch:` of the file, and all others. Raises InputError."""
    entries = read_mapping(path)
    block = next((value for name, value, _ in entries if name == LAUNCH), None)
    return entries_of(path, block), [entry for entry in entries if entry.name != LAUNCH]


def read_mapping(path: str, flag: str = "config") -> list[Entry]:
    """Return the entries of the YAML file that ``flag`` names. Raises InputError."""
    path = os.path.expanduser(path)
    try:
        node = yaml.compose(read_regular(path, MAX_CONFIG_BYTES), Loader=yaml.SafeLoader)
    except FileRefusedError as error:
        raise InputError(f"--{flag} {path}: {error}; give a YAML file") from None
    except OSError as error:
        raise InputError(f"--{flag} {path}: cannot be read ({error.strerror}); give a YAML file") from None
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{path}:{_line(error.problem_mark)}: not YAML ({error.problem}); fix it") from None
    except (yaml.YAMLError, RecursionError):
        raise InputError(f"{path}: not YAML text; give lines like max_steps: 1000") from None
    return entries_of(path, node)


def entries_of(path: str, node: Optional[yaml.Node]) -> list[Entry]:
    """Return the entries of a mapping, each name once; [] for None. Raises InputError."""
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return []
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{path}:{_line(node)}: not a list of flags; write lines like max_steps: 1000")
    lines: dict[str, int] = {}
    entries = []
    for key, value in node.value:
        name, where = str(key.value), f"{path}:{_line(key)}"
        if name in lines:
            raise InputError(f"{where}: {name} is already set in line {lines[name]}; keep one")
        lines[name] = _line(key)
        entries.append(Entry(name, value, where))
    return entries


def _given_in(entry: Entry, hints: dict[str, object]) -> RawValue:
    """Return the text of an entry. Raises InputError unless it is an option with a single value."""
    name, value, where = entry
    if name not in hints:
        raise InputError(f"{where}: {name[:40]} is not a flag; {suggest_flags([name], hints)}")
    base, _, may_be_none = kind_of(hints[name])
    if get_origin(base) is list and isinstance(value, yaml.SequenceNode) and value.value:
        texts = [_given_in(Entry(name, item, where), {name: get_args(base)[0]}).text for item in value.value]
        return RawValue([str(text) for text in texts], f"{where}: {name}")
    is_empty = value.tag.endswith(":null") and not may_be_none
    if is_empty or not isinstance(value, yaml.ScalarNode) or value.tag not in PLAIN_TAGS:
        raise InputError(f"{where}: {name} has no single value; give it one, or remove the line")
    return RawValue(value.value, f"{where}: {name}")


def _line(place) -> int:
    return getattr(place, "start_mark", place).line + 1


class SplitWords(NamedTuple):
    """The words of each flag, as often as it occurs, none for a bare one; and the words without a flag."""

    flags: dict[str, list[list[str]]]
    others: list[str]


def flag_names(config_class: type[Options]) -> list[str]:
    """Return the flags of a class and of its command, in the order of the class."""
    return [item.name for item in fields(config_class) if not item.metadata["positional"]] + ["config"]


def split_words(
    words: Sequence[str], *config_classes: type[Options], refuse_unknown: bool = True
) -> SplitWords:
    """Split a command line at the flags of classes of options.

    --no-merge and --no_merge are the same flag; after a bare -- nothing is a flag. Raises InputError for a
    flag with too few words, and for one that no class has, unless it is not yet known which may have it.
    """
    names = list(dict.fromkeys(name for one in config_classes for name in flag_names(one)))
    items = {item.name: item.metadata["values"] for one in config_classes for item in fields(one)}
    several = {name: count for name, count in items.items() if count > 1}
    known = {"-h": "help", "--help": "help", **{f"--{name}": name for name in names}}
    end = words.index("--") if "--" in words else len(words)
    taken: dict[str, list[list[str]]] = {}
    others: list[str] = []
    num_wanted = 0  # words that the last flag still takes
    for word in words[:end]:
        name, equals, value = word.partition("=")
        name = name.replace("-", "_").replace("__", "--", 1) if re.match("--[A-Za-z]", word) else name
        name = "-h" if name.startswith("-h") else name
        if name in known:
            flag = known[name]
            taken.setdefault(flag, []).append([value] if equals else [])
            num_wanted = 0 if equals else several.get(flag, 1)
        elif num_wanted and _is_value(word, flag in several):
            taken[flag][-1].append(word)
            num_wanted -= 1
        else:
            others.append(f"{name}{equals}{value}")
            num_wanted = 0
    for name, count in several.items():
        if any(len(texts) != count for texts in taken.get(name, ())):
            cure = "correct it, or put texts that begin with - into a file for --input_file"
            raise InputError(f"--{name}: expected {count} arguments; {cure}")
    strange = [word for word in others if word.startswith("-") and word != "-"]
    if strange and refuse_unknown and "help" not in taken:
        unknown = [word.lstrip("-").partition("=")[0] for word in strange]
        raise _unrecognized(others[others.index(strange[0]) :], suggest_flags(unknown, names))
    return SplitWords(taken, [*others, *words[end + 1 :]])


def _is_value(word: str, is_text: bool) -> bool:
    """Return whether a word is a value, as a negative number or --- is, unless it should be a text."""
    if word[:1] != "-" or word == "-" or " " in word:
        return True
    try:
        return not is_text and ((len(word) > 2 and set(word) == {"-"}) or float(word) <= 0)
    except ValueError:
        return False


def read_flags(split: SplitWords, config_class: type[Options], program: str = "") -> dict[str, RawValue]:
    """Return the options of a class that the words give, including those in the files of --config.

    ``program``: the command of the class, `ernie-pair train`. Flags override files. Raises InputError.
    """
    hints, given, words = hints_of(config_class), {}, split.others
    for paths in split.flags.get("config", ()):
        if not paths:
            raise InputError("--config has no value; it takes a YAML file")
        given.update(read_flag_file(paths[0], hints, program))
    given.update(read_words(split, config_class))
    for item in fields(config_class):
        if item.metadata["positional"] and words:
            is_list = get_origin(hints[item.name]) is list
            taken = len(words) if is_list else 1
            given[item.name] = RawValue(words[:taken] if is_list else words[0], item.name.upper())
            words = words[taken:]
    if words:
        check_glob(words, given)
        absent = (i.name for i in fields(config_class) if i.default is MISSING and i.name not in given)
        flag = next(absent, "")
        raise _unrecognized(words, f"write --{flag} {words[0]}" if flag else suggest_flags([], []))
    return given


def check_glob(words: Sequence[str], given: dict[str, RawValue]) -> None:
    """Raise InputError if ``words`` are what a pattern, such as best-*, found beside the value of a flag."""
    for name, one in given.items():
        found = [str(one.text), *words]
        folders = {Path(word).parent for word in found}
        if len(folders) == 1 and all(map(os.path.exists, found)):
            best = folders.pop() / "best"
            is_found = best.resolve().name in map(os.path.basename, found)
            chosen = str(best) if is_found else found[-1]
            again = again_with(dict.fromkeys(words, ""), **{name: chosen})
            told = f"--{name} takes one path, and {len(found)} are given, {' and '.join(found)}"
            raise InputError(f"{told}; give one of them: {again or chosen}")


def read_words(split: SplitWords, config_class: type[Options]) -> dict[str, RawValue]:
    """Return the flags of a class among the words. Raises InputError for one without a value.

    The last value of a flag counts, so that it overrides one that a script or an alias sets; a line on stderr
    reports an earlier one that differs.
    """
    hints, given = hints_of(config_class), {}
    for name in [name for name in split.flags if name in hints]:
        uses = split.flags[name]
        if not uses[-1] and kind_of(hints[name])[:2] != (bool, ()):
            raise InputError(f"--{name} has no value; it takes {describe_type(hints[name])}")
        different = [texts for texts, _ in groupby(texts or ["true"] for texts in uses)]
        if len(different) > 1:
            values = " and as ".join(map(" ".join, different))[:200]
            sys.stderr.write(f"--{name} is given as {values}: the last one counts\n")
        text = different[-1]
        given[name] = RawValue(text if len(text) > 1 else text[0], f"--{name}")
    return given


def _unrecognized(words: list[str], cure: str) -> InputError:
    return InputError(f"unrecognized arguments: {' '.join(words)}; {cure}")


def nearest_names(word: str, names: Collection[str]) -> list[str]:
    """Return the names that begin with a word, at most 3, or else the one that it misspells; [] for none.

    A name with further words before it, save_threshold for threshold, is another thing, not misspelt.
    """
    begun = sorted((name for name in names if len(word) > 2 and name.startswith(word)), key=len)
    others = [name for name in names if not set(word.split("_")) < set(name.split("_"))]
    return begun[:3] or get_close_matches(word, others, n=1)


def suggest_flags(words: Iterable[str], names: Collection[str]) -> str:
    """Return a hint for words that are not flags: 'did you mean --max_steps?', and what lists the flags.

    ``names``: the flags of the command.
    """
    meant: list[str] = []
    for word in words:
        key = word.lower().replace("-", "_")
        known = [name for name in SYNONYMS.get(key, "").split() if name in names]
        meant += (known or nearest_names(key, names))[:1]
    hint = f"did you mean {', '.join('--' + flag for flag in dict.fromkeys(meant))}? " if meant else ""
    return f"{hint}--help lists the flags"
