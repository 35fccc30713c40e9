"""The command line and the environment that start the processes of a run."""

import sys
from typing import Dict, List

from ernie_pair.device.device import default_device
from ernie_pair.device.gpu.cards import without_cards
from ernie_pair.launch.launch_config import LaunchConfig


def launcher_words(config: LaunchConfig, flags: List[str]) -> List[str]:
    """Return a command line of `ernie_pair.launcher`, or that of a process without it."""
    return words_around(config, [sys.executable, "-u", "-m", "ernie_pair", config.command, *flags])


def words_around(config: LaunchConfig, run: List[str]) -> List[str]:
    """Return the command line that starts ``run`` in the processes of ``config``."""
    if config.is_alone:
        return run
    words = [sys.executable, "-m", "ernie_pair.launcher", "--log_dir", config.log_dir]
    on_each = str(config.on_each_machine)
    words += ["--gpus", config.gpus] if config.gpus else ["--nproc_per_node", on_each]
    if config.nnodes > 1:
        words += ["--nnodes", str(config.nnodes), "--master", config.master]
    return words + run


def environment_of(config: LaunchConfig) -> Dict[str, str]:
    """Return the environment variables that tell the launcher not to use GPUs that are not wanted."""
    if config.gpus or config.is_alone or default_device() == "cpu":
        return {}
    return without_cards(config.on_each_machine)
