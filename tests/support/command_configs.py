"""The class of options of every command."""

from ernie_pair.commands import COMMANDS, config_class_of

CONFIGS = [config_class_of(entry) for entry in COMMANDS.values()]
