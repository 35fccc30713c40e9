"""The commands by name: their list, their forms, and suggestions for a word that is none."""

import platform
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple, Type

from ernie_pair.core.cli.flag_words import flag_names, nearest_names
from ernie_pair.core.cli.options import Options
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import version_of
from ernie_pair.runtime.gpu import paddle_version
from ernie_pair.version import __version__

# command: other words for it
MEANT = {
    "train": "finetune fine-tune fit sft train-pair",
    "predict": "predict-pair infer inference",
    "evaluate": "evaluate-pair eval test benchmark",
    "compare models": "benchmark",
    "embed": "encode",
    "prepare": "tokenize preprocess create-pretraining-data trans-to-json",
    "pretrain": "run-pretrain run-pretrain-static",
    "convert": "static-to-dynamic ernie-static-to-dynamic",
    "build vocab": "vocab",
    "distill": "compress",
    "export": "onnx deploy compress quantize",
    "serve": "deploy server simple-serving api",
    "search-params": "hyperparameter-search hpo tune",
    "cross-validate": "kfold",
    "checkpoint average": "soup merge",
    "mine": "augment",
    "doctor": "env info",
    "checkpoint show": "info",
    "--version": "version",
    "launch": "distributed torchrun accelerate",
}
OTHER_NAMES: Dict[str, List[str]] = {}
for _command, _words in MEANT.items():
    for _word in _words.split():
        OTHER_NAMES.setdefault(_word, []).append(_command)


class Entry(NamedTuple):
    """Where a command is: the module of its function, its flags as Class or module:Class.

    ``function``: its name; empty if it is called as its module.
    """

    module: str
    config: str
    function: str = ""


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
    module, _, name = entry.config.rpartition(":")
    return getattr(import_module(module or entry.module), name)


def function_of(entry: Entry) -> Callable[[Any], Any]:
    """Return the function of a command, which takes a config; its module may load Paddle."""
    return getattr(import_module(entry.module), entry.function or entry.module.rpartition(".")[2])


def forms_of(command: str, names: Iterable[str]) -> List[str]:
    """Return the forms of a command among ``names``: `audit text` and `audit pairs` of audit."""
    return [name for name in names if name.split()[0] == command]


def form_of(words: Sequence[str], forms: Sequence[str]) -> Tuple[str, List[str]]:
    """Return (the form that the words of a command choose, its flags); '' if they only ask for help.

    ``forms``: `convert`, `convert --to hf` or `audit text`. Raises InputError if the words choose none.
    """
    command, *flags = words
    flags = [part for word in flags for part in (word.split("=", 1) if word[:2] == "--" else [word])]
    for form in forms:
        chosen = form.split()[1:]
        flag = chosen[0] if chosen and chosen[0][:2] == "--" else ""
        if flag and flag in flags:
            place = flags.index(flag)
            if flags[place : place + len(chosen)] == chosen:
                return form, flags[:place] + flags[place + len(chosen) :]
            raise InputError(f"{flag} takes {chosen[1]} alone; write {form}")
        if chosen and not flag and flags[:1] == chosen:
            return form, list(words[2:])
    if command in forms:
        return command, list(words[1:])
    if flags[:1] in (["-h"], ["--help"]):
        return "", []
    raise InputError(f"{command} has several forms; write {_either(forms)}; {command} --help explains them")


def form_of_model(
    given: Iterable[str],
    folder: str,
    forms: Mapping[str, Type[Options]],
    kind_of_folder: Callable[[str], str],
) -> str:
    """Return the form of a command for ``folder``, its --model_path, of which no word has chosen one.

    ``given``: the names of the flags; ``forms``: {form: its class of options}, the one for models of pairs
    first. A form that lacks one of the flags is not meant. ``kind_of_folder`` returns the last word of a form
    for a path, '' for models of pairs. Raises InputError for a flag of another form, if it is one of pairs.
    """
    flags = {form: {"help", *flag_names(config_class)} for form, config_class in forms.items()}
    fitting = [form for form in forms if flags[form] >= {*given}]
    kind = kind_of_folder(folder) if folder else ""
    is_for_pairs = not kind and bool(folder) and Path(folder).expanduser().is_dir()
    first = next(iter(forms))
    for name in given if is_for_pairs else ():
        other = next((form for form in forms if name in flags[form]), first)
        if other != first:
            raise InputError(
                f"--{name} is a flag of {other}, and {folder} is a model of pairs (a classifier or "
                "reranker); leave it out"
            )
    wanted = f"{first} {kind}" if kind else first
    is_meant = wanted in fitting or is_for_pairs or (kind == "embedding" and wanted in forms)
    return wanted if is_meant else next(iter(fitting), first)


def asked_help(words: Sequence[str]) -> List[str]:
    """Return `COMMAND --help` for `help COMMAND`, `--help` for `help`, and other words as they are."""
    if not words or words[0] != "help":
        return list(words)
    asked = [word for word in words[1:] if word not in ("help", "-h", "--help")]
    return [*asked, "--help"]


def unknown_command(word: str, commands: Iterable[str]) -> InputError:
    """Return the error for a word that is no command: it names those that may be meant."""
    meant = OTHER_NAMES.get(word.lower().replace("_", "-")) or nearest_names(word, list(commands))
    cure = f"did you mean {_either(meant)}? " if meant else ""
    return InputError(
        f"{word[:40]} is not a command of ernie-pair; {cure}ernie-pair --help lists the commands"
    )


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def versions() -> str:
    """Return a line for the package, Paddle, PaddleNLP and Python, each with its version."""
    facts = {
        "ernie-pair": __version__,
        "paddle": paddle_version(),
        "paddlenlp": version_of("paddlenlp"),
        "python": platform.python_version(),
    }
    return "\n".join(f"{name} {found or 'is not installed'}" for name, found in facts.items())
