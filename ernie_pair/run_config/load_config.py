"""Load the options of a class from a file: the config.yaml of a run, or one written by the user."""

import os
from pathlib import Path
from typing import Type, TypeVar, Union

from data_tools.base.options import Options, hints_of, read_given
from data_tools.base.yaml_flags import read_flag_file

Config = TypeVar("Config", bound=Options)


def load_config(
    config_class: Type[Config], path: Union[str, "os.PathLike[str]"], **changes: object
) -> Config:
    """Return the options of a file, as ``--config`` of a command reads it; ``changes`` override it.

        from ernie_pair import PairTrainer, TrainConfig, load_config

        config = load_config(TrainConfig, "output/config.yaml", output_dir="another", seed=2)
        PairTrainer(config.model_name_or_path, config, config.train_file, config.dev_file).train()

    Raises InputError, with file:line, for a name that is not a flag of the class or a value of another type.
    """
    hints = hints_of(config_class)
    given = read_flag_file(str(Path(path)), hints)
    values = {name: read_given(text, hints[name]) for name, text in given.items()}
    idle = config_class.idle_in({**values, **changes})
    return config_class(**{**{name: value for name, value in values.items() if name not in idle}, **changes})
