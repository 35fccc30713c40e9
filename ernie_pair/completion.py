"""`ernie-pair completion bash`: what a shell needs to complete commands, flags, choices and places."""

from argparse import ArgumentParser
from dataclasses import Field, fields
from importlib import import_module
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from ernie_pair.commands import COMMANDS, WORDS, config_class_of, forms_of
from ernie_pair.core.cli.options import hints_of, kind_of, path_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import import_optional

SHELLS = ("bash", "zsh")
_STARTED = "_ernie_pair_started"  # the function of the shell for the first word of `launch`
USAGE = """\
usage: ernie-pair completion bash|zsh

Print a script that completes commands, flags, choices and files of ernie-pair in a shell.

example:
  ernie-pair completion bash > ~/.local/share/bash-completion/completions/ernie-pair
  ernie-pair completion zsh > ~/.zfunc/_ernie-pair       # with fpath+=~/.zfunc before compinit in ~/.zshrc

Or for this shell alone:
  eval "$(ernie-pair completion bash)"
"""

Item = Tuple[Field, Any]  # an option and its type


def complete(words: Sequence[str]) -> None:
    """Print the script for the shell that ``words`` name, or what the command is for.

    Raises InputError for another shell, and where shtab is missing.
    """
    if not words or any(word in ("-h", "--help") for word in words):
        print(USAGE, end="")
        return
    if len(words) != 1 or words[0] not in SHELLS:
        given = " ".join(words)[:40]
        raise InputError(
            f"completion takes {' or '.join(SHELLS)}, not {given}; write ernie-pair completion bash"
        )
    shtab = import_optional("shtab")
    launching = import_module("ernie_pair.launch.launch")
    commands = {name.split()[0]: one.purpose for name, one in reversed({**COMMANDS, **WORDS}.items())}
    parser = ArgumentParser("ernie-pair")
    parser.add_argument("-V", "--version", action="store_true", help="print versions")
    chosen = parser.add_subparsers()
    for name, purpose in commands.items():
        below = chosen.add_parser(name, help=purpose.replace("%", "%%"))
        if name == "help":
            below.add_argument("command", choices=list(commands))
        elif name == "completion":
            below.add_argument("shell", choices=SHELLS)
        else:
            forms = [form.split()[1] for form in forms_of(name, COMMANDS) if len(form.split()) == 2]
            if forms and not forms[0].startswith("--"):
                below.add_argument("form", choices=forms)
            found: Dict[str, Item] = {}
            configs: List[Any] = [config_class_of(COMMANDS[form]) for form in forms_of(name, COMMANDS)]
            for one in configs or [launching.LaunchConfig, *launching.CONFIGS.values()]:
                for item in fields(one):
                    found.setdefault(item.name, (item, hints_of(one)[item.name]))
            _add_flags(below, list(found.values()), shtab)
    print(shtab.complete(parser, words[0], preamble=_preamble(launching.CONFIGS)), end="")


def _add_flags(parser: ArgumentParser, items: Sequence[Item], shtab) -> None:
    for item, hint in items:
        is_positional = item.metadata["positional"]
        text = item.metadata["help"].replace("%", "%%")  # argparse expands %(prog)s
        words: Dict[str, Any] = {"help": text}
        if kind_of(hint)[:2] == (bool, ()):
            words.update(choices=["true", "false"], nargs="?")
        else:
            words.update(choices=kind_of(hint).words or None)
            words.update({"nargs": item.metadata["values"]} if item.metadata["values"] > 1 else {})
        added = parser.add_argument(item.name if is_positional else f"--{item.name}", **words)
        if item.name == "file" and is_positional:
            added.complete = dict.fromkeys(SHELLS, _STARTED)  # type: ignore[attr-defined]  # for shtab
        elif not words["choices"] and path_of(item):
            is_folder = path_of(item) == "FOLDER"
            added.complete = shtab.DIRECTORY if is_folder else shtab.FILE  # type: ignore[attr-defined]
    config = parser.add_argument("--config", help="a YAML file of these flags")
    config.complete = shtab.FILE  # type: ignore[attr-defined]


def _preamble(launched: Iterable[str]) -> Dict[str, str]:
    """Return, for each shell, the function that offers the commands of `launch` and files."""
    names = " ".join(launched)
    return {
        "bash": f'{_STARTED}() {{\n  compgen -W "{names}" -- "$1"\n  compgen -f -- "$1"\n}}\n',
        "zsh": f"{_STARTED}() {{\n  _alternative 'commands:command:({names})' 'files:file:_files'\n}}\n",
    }
