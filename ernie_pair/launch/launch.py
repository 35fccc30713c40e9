"""Start the processes that a file or flags describe; this process becomes their launcher."""

import ast
import os
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import yaml

from ernie_pair.core.cli.options import Given
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import MAX_CONFIG_BYTES, FileRefusedError, read_regular
from ernie_pair.core.run_module import python_words
from ernie_pair.launch.launch_config import LaunchConfig, build_launch, read_launch, split_at_target
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.gpu import without_cards
from ernie_pair.runtime.processes.child_command import ernie_pair_words

# The flags of launch that mean nothing for a script.
OF_COMMANDS = {"--command": "chooses a command of ernie-pair", "--config": "is for a command"}
SHEBANG = re.compile(rb"#!.*\bpython[\d.]*\b")


def read_script(words: Sequence[str]) -> Optional[Tuple[LaunchConfig, List[str]]]:
    """Return (how to start, the command line of each process), or None where ``words`` start no script.

    What stands behind the script is its own, whatever it is called. Raises InputError for a file that is
    neither a script nor YAML, and for flags of launch that a script does not have.
    """
    before, behind = split_at_target(words)
    if {"-h", "--help"} & set(before) or not behind or not is_script(Path(behind[0])):
        return None
    script = behind[0]
    config = build_launch(before, {"file": Given(script, "FILE")})
    for flag, purpose in OF_COMMANDS.items():
        if any(word.partition("=")[0] == flag for word in before):
            raise InputError(f"{flag} {purpose}, and {script} is a script; leave it out")
    return replace(config, log_dir=config.log_dir or "log"), [sys.executable, "-u", *behind]


def is_script(path: Path) -> bool:
    """Return whether a file is a Python script, and not a YAML file of flags; InputError if neither."""
    if path.suffix in (".yaml", ".yml") or not path.is_file():  # `read_launch` says what is wrong with those
        return False
    if path.suffix in (".py", ".pyw"):
        return True
    try:
        text = read_regular(path, MAX_CONFIG_BYTES)
    except (FileRefusedError, OSError):
        return False
    if SHEBANG.match(text):
        return True
    with suppress(yaml.YAMLError, RecursionError):
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None or isinstance(node, yaml.MappingNode):
            return False
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        ast.parse(text)
        return True
    raise InputError(
        f"{path} is neither a Python script nor a YAML file of flags; name a script my_train.py, or write "
        "lines like max_steps: 1000"
    )


def launcher_words(config: LaunchConfig, flags: List[str]) -> List[str]:
    """Return a command line of `ernie_pair.launcher`, or that of a process without it."""
    return words_around(config, [*ernie_pair_words("-u"), config.command, *flags])


def words_around(config: LaunchConfig, run: List[str]) -> List[str]:
    """Return the command line that starts ``run`` in the processes of ``config``."""
    if config.is_alone:
        return run
    words = [*python_words(), "-m", "ernie_pair.launcher", "--log_dir", config.log_dir]
    words += ["--gpus", config.gpus] if config.gpus else ["--nproc_per_node", str(config.on_each_machine)]
    if config.nnodes > 1:
        words += ["--nnodes", str(config.nnodes), "--master", config.master]
    return words + run


def environment_of(config: LaunchConfig) -> Dict[str, str]:
    """Return the environment variables that tell the launcher not to use GPUs that are not wanted."""
    if config.gpus or config.is_alone or default_device() == "cpu":
        return {}
    return without_cards(config.on_each_machine)


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
        command = launcher_words(config, flags)
    print(shlex.join(command), file=sys.stderr, flush=True)
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, **environment_of(config)})
