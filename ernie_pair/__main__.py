"""ernie-pair COMMAND: every run of the package by name; an installed package needs no other file.

Stands above the layers, like scripts/.
"""

import platform
import sys
from functools import partial
from typing import Any, Callable, Iterable, List, Optional

from ernie_pair.commands import (
    COMMANDS,
    KINDS_OF_MODEL,
    WORDS,
    config_class_of,
    either,
    form_of,
    form_of_model,
    forms_of,
    function_of,
)
from ernie_pair.core.cli.cli import exit_code_of, parse_config
from ernie_pair.core.cli.flag_words import nearest_names, split_words
from ernie_pair.core.cli.standard_streams import with_models
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import version_of
from ernie_pair.core.user_home import give_home
from ernie_pair.runtime.gpu import paddle_version
from ernie_pair.runtime.processes.stop_signals import signals_wait
from ernie_pair.version import __version__


def main() -> None:
    """Run the command that ``sys.argv`` names, and exit with its code."""
    sys.exit(exit_code_of(lambda: _run(sys.argv[1:])))


def run_named(name: str) -> None:
    """Run a command in a file that a launcher starts, with the flags in ``sys.argv``; exit with its code.

    Its module, which may load Paddle, is imported after the flags are read.
    """
    command = COMMANDS[name]

    def run() -> Any:
        with signals_wait():
            config: Any = parse_config(config_class_of(command))
            give_home()
            function = function_of(command)
        return _call(function, config)

    sys.exit(exit_code_of(run))


def _run(words) -> Optional[int]:
    """Run the command; what it returns, if it is a number, is its exit code."""
    with signals_wait():  # before any thread is there, which could take them
        action = _loaded(words)
    return action()


def _loaded(words) -> Callable[[], Any]:
    """Return what a command does, with the modules that it needs imported."""
    if words[:1] == ["help"]:  # `help COMMAND` is `COMMAND --help`
        words = [*(word for word in words[1:] if word not in ("help", "-h", "--help")), "--help"]
    if not words or words[0] in ("-h", "--help"):
        return partial(print, overview())
    if words[0] in ("-V", "--version", "version"):
        return partial(print, versions())
    if words[0] in WORDS:
        return partial(function_of(WORDS[words[0]]), words[1:])
    forms = forms_of(words[0], COMMANDS)
    if not forms:
        raise unknown_command(words[0])
    form, flags = form_of(words, forms)
    if not form:
        return partial(print, overview(forms))
    form = _form_of_flags(form, flags) if form == words[0] and flags else form
    command = COMMANDS[form]
    config: Any = parse_config(config_class_of(command), flags, f"ernie-pair {form}")
    give_home()
    return partial(_call, function_of(command), config)


def _call(function: Callable[[Any], Any], config: Any) -> Any:
    return function(with_models(config))


def _form_of_flags(command: str, flags: List[str]) -> str:
    """Return the form of a command that fits its flags and the folder of --model_path among them."""
    of_models = [
        form for form in forms_of(command, COMMANDS) if form.split()[-1] in (command, *KINDS_OF_MODEL)
    ]
    if len(of_models) < 2:
        return command
    classes = {form: config_class_of(COMMANDS[form]) for form in of_models}
    given = split_words(flags, *classes.values(), refuse_unknown=False).flags
    return form_of_model(given, "".join(given.get("model_path", [[]])[-1]), classes)


def overview(forms: Iterable[str] = ()) -> str:
    """Return what `ernie-pair --help` prints, a line for each command, by group; or that of some forms."""
    commands = {**COMMANDS, **WORDS}
    shown = {name: command for name, command in commands.items() if not forms or name in forms}
    width = max(map(len, commands)) + 2
    lines = [
        "usage: ernie-pair COMMAND [flags]",
        "       ernie-pair COMMAND --help",
        "       ernie-pair --version",
    ]
    for group in dict.fromkeys(command.group for command in shown.values()):
        rows = [f"  {name.ljust(width)}{one.purpose}" for name, one in shown.items() if one.group == group]
        lines += ["", f"{group}:", *rows]
    return "\n".join(lines)


def unknown_command(word: str) -> InputError:
    """Return the error for a word that is no command: it names those that may be meant."""
    key, commands = word.lower().replace("_", "-"), {**COMMANDS, **WORDS}
    meant = [name for name, command in commands.items() if key in command.also.split()]
    meant = meant or nearest_names(word, list(dict.fromkeys(name.split()[0] for name in commands)))
    cure = f"did you mean {either(meant)}? " if meant else ""
    return InputError(
        f"{word[:40]} is not a command of ernie-pair; {cure}ernie-pair --help lists the commands"
    )


def versions() -> str:
    """Return a line for the package, Paddle, PaddleNLP and Python, each with its version."""
    facts = {
        "ernie-pair": __version__,
        "paddle": paddle_version(),
        "paddlenlp": version_of("paddlenlp"),
        "python": platform.python_version(),
    }
    return "\n".join(f"{name} {found or 'is not installed'}" for name, found in facts.items())


if __name__ == "__main__":
    main()
