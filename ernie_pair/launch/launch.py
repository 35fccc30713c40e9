"""Start the processes that a file or flags ask for; this one becomes their launcher."""

import os
import sys
from typing import Dict, List, Sequence

from ernie_pair.device.device import default_device
from ernie_pair.launch.launch_config import LaunchConfig, read_launch, shown


def launch(words: Sequence[str]) -> None:
    """Run ``FILE [flags]`` or ``COMMAND [flags]``; the call does not return.

    This process becomes the launcher: signals reach it, and its exit code is that of the run. Raises
    InputError before anything is started.
    """
    config, flags = read_launch(words)
    command = launcher_words(config, flags)
    sys.stderr.write(f"{shown(command)}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, **environment_of(config)})


def launcher_words(config: LaunchConfig, flags: List[str]) -> List[str]:
    """Return a command line of `ernie_pair.launcher`, or without it that of a single process."""
    run = [sys.executable, "-u", "-m", "ernie_pair", config.command, *flags]
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
    none_of_them = ",".join(["-1"] * config.on_each_machine)
    return {"PADDLE_DISTRI_BACKEND": "gloo", "CUDA_VISIBLE_DEVICES": none_of_them}
