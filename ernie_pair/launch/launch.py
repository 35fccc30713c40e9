"""Start the processes that a file or flags describe; this process becomes their launcher."""

import os
import sys
from typing import Sequence

from ernie_pair.launch.auto_processes import choose_processes
from ernie_pair.launch.launch_config import read_launch, shown
from ernie_pair.launch.launcher_words import environment_of, launcher_words, words_around
from ernie_pair.launch.own_script import read_script


def launch(words: Sequence[str]) -> None:
    """Run ``FILE [flags]``, ``COMMAND [flags]`` or ``[flags] SCRIPT [its flags]``; the call does not return.

    This process becomes the launcher: signals reach it, and its exit code is that of the run. Raises
    InputError before anything is started.
    """
    script = read_script(words)
    if script is not None:
        config, command = script[0], words_around(*script)
    else:
        config, flags = read_launch(words)
        if config.is_auto:
            config, flags = choose_processes(words, config, flags)
        command = launcher_words(config, flags)
    sys.stderr.write(f"{shown(command)}\n")
    sys.stderr.flush()
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, **environment_of(config)})
