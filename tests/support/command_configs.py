"""The class of options of every command."""

from importlib import import_module

from ernie_pair.__main__ import COMMANDS, FORMS
from ernie_pair.pair.config import ask_config, distill_config, pair_config


def config_of(module, name):
    # The module of a pair command may import Paddle; the flags of most stand in one that does not.
    for flags in (pair_config, ask_config, distill_config):
        if hasattr(flags, name):
            return getattr(flags, name)
    return getattr(import_module(module), name)


CONFIGS = [config_of(module, config) for module, _, config, _ in [*COMMANDS.values(), *FORMS.values()]]
