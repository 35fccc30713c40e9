"""Run a command of ernie-pair as a file, for launchers that start files: with the command's own flags."""

from importlib import import_module

from data_tools.options.cli import run_command
from ernie_pair.__main__ import COMMANDS
from ernie_pair.commands import config_class_of


def run_named(name: str) -> None:
    """Run a command. Its module, which may load Paddle, is imported after the flags are read."""
    module, function = COMMANDS[name][:2]
    run_command(
        lambda config: getattr(import_module(module), function)(config), config_class_of(COMMANDS[name])
    )
