"""Paddle's launcher, with its flags and its signals, and without five of its habits.

python -m ernie_pair.launcher --gpus 0,1 FILE [flags of FILE]

The environment may hold passwords, and `paddle.distributed.launch` writes all of it into its log folder at
every start and to the console when a process fails; this one does neither. Every process computes with its
share of the cores, or with the user's OMP_NUM_THREADS, where Paddle's launcher lets it use one core. GPUs
that are not there are an error of one line (exit code 2), not a traceback. Processes that are to run on the
CPU (`--device cpu` behind FILE) are given no GPU. Its own exit code is that of the
process which failed, not of another one that it has stopped because of it.
"""

import os
import sys
from typing import Dict, Optional, Sequence

from data_tools.base.cli import exit_code_of
from data_tools.base.errors import InputError
from data_tools.base.installation import install_command
from ernie_pair.device.cpu_env import restore_asked_threads
from ernie_pair.device.gpu.cards import count_cards, without_cards
from ernie_pair.device.paddle_patches.launcher import (
    asked_gpus,
    asked_processes,
    own_exit_code,
    private_environment,
    start_launcher,
    visible_gpus,
)
from ernie_pair.processes.dry_logs import dry_logs_removed


def main() -> None:
    """Start the processes of ``sys.argv``, and exit with the code of the first that failed."""
    sys.exit(exit_code_of(launch))


def launch() -> None:
    """Start the processes that ``sys.argv`` asks for; exit with the code of the first that failed.

    Raises InputError for GPUs that are not there, before anything is started. Processes that are to run on
    the CPU are given none.
    """
    refuse_absent_gpus(asked_gpus())
    if not asked_gpus():
        os.environ.update(environment_of_processes(asked_processes(), is_cpu_asked(sys.argv)))
    restore_asked_threads()  # Paddle, loaded meanwhile, has set one for all that is started
    with dry_logs_removed(), private_environment(), own_exit_code():
        start_launcher()


def refuse_absent_gpus(asked: Optional[str]) -> None:
    """Raise InputError for GPUs that Paddle does not see; ``asked``: as in --gpus 0,1."""
    import paddle

    if not asked:
        return
    cure = (
        "leave --gpus out: --nproc_per_node 2 (of ernie-pair launch: --processes 2), and --device cpu for "
        "the processes"
    )
    if not paddle.is_compiled_with_cuda():
        gpu_build = install_command("gpu")
        raise InputError(f"--gpus {asked}, but this Paddle is the CPU build; {gpu_build}, or {cure}")
    if paddle.device.cuda.device_count() == 0:
        raise InputError(f"--gpus {asked}, but no GPU is visible; check the driver, or {cure}")
    visible = visible_gpus()
    absent = [gpu.strip() for gpu in asked.split(",") if gpu.strip() not in visible]
    if absent:
        raise InputError(f"--gpus {asked}: GPU {absent[0]} is not among the visible {','.join(visible)}")


def environment_of_processes(asked: int, on_cpu: bool) -> Dict[str, str]:
    """Return the variables that start ``asked`` processes on a machine whose GPUs nobody has named.

    Paddle's launcher gives a GPU to each. Raises InputError where they are fewer and the CPU is not asked
    for.
    """
    visible = count_cards()
    if not visible:
        return {}
    if on_cpu:
        return without_cards(max(asked, 1))
    if asked > visible:
        raise InputError(
            f"--nproc_per_node {asked}, but {visible} GPU(s) are visible, one for each process; start at "
            f"most {visible}, or add --device cpu behind the file"
        )
    return {}


def is_cpu_asked(words: Sequence[str]) -> bool:
    """Return whether the flags of the launched file, among all ``words``, say --device cpu; the last one."""
    given = [word.partition("=")[2] for word in words if word.startswith("--device=")]
    given += [value for word, value in zip(words, words[1:]) if word == "--device"]
    return given[-1:] == ["cpu"]


if __name__ == "__main__":
    main()
