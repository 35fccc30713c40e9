"""The commands of the package: their list by subject, the flags of one, and suggestions for unknown ones."""

from importlib import import_module
from typing import Dict, List, Mapping, Sequence, Tuple

from data_tools.base.errors import InputError
from data_tools.flags.nearest import nearest_names
from ernie_pair.commands.other_names import OTHER_NAMES

# (module of the function, the function, its flags as Class or module:Class, what it does)
Entry = Tuple[str, str, str, str]


def overview(groups: Mapping[str, str], purposes: Dict[str, str]) -> str:
    """Return what `ernie-pair --help` prints: a line for each command, by subject.

    ``groups``: {subject: names of commands}. A form of a command, `convert --to hf`, stands behind it.
    """
    width = max(map(len, purposes)) + 2
    lines = [
        "usage: ernie-pair COMMAND [flags]",
        "       ernie-pair COMMAND --help",
        "       ernie-pair --version",
    ]
    for title, names in groups.items():
        lines += ["", f"{title}:"]
        shown = [
            one for name in names.split() for one in purposes if one.startswith(f"{name} ") or one == name
        ]
        lines += [f"  {one.ljust(width)}{purposes[one]}" for one in shown]
    return "\n".join(lines)


def config_class_of(entry: Entry) -> type:
    """Return the class of a command's flags; a class with a module of its own loads no other module."""
    module, _, name = entry[2].rpartition(":")
    return getattr(import_module(module or entry[0]), name)


def asked_help(words: Sequence[str]) -> List[str]:
    """Return `COMMAND --help` for `help COMMAND`, `--help` for `help`, and other words as they are."""
    if not words or words[0] != "help":
        return list(words)
    asked = [word for word in words[1:] if word not in ("help", "-h", "--help")]
    return [*asked, "--help"]


def unknown_command(word: str, commands: Sequence[str]) -> InputError:
    """Return the error for a word that is no command: it names those that may be meant."""
    meant = OTHER_NAMES.get(word.lower().replace("_", "-")) or nearest_names(word, commands)
    cure = f"did you mean {_either(meant)}? " if meant else ""
    return InputError(
        f"{word[:40]} is not a command of ernie-pair; {cure}ernie-pair --help lists the commands"
    )


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
