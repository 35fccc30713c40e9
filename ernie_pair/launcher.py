"""Paddle's launcher, with its flags and its signals, and without three of its habits.

python -m ernie_pair.launcher --gpus 0,1 FILE [flags of FILE]

The environment may hold passwords, and `paddle.distributed.launch` writes all of it into its log folder at
every start and to the console when a process fails; this one does neither. GPUs that are not there are an
error of one line (exit code 2), not a traceback. Its own exit code is that of the process which failed, not
of another one that it has stopped because of it.
"""

import sys
from typing import Optional

from data_tools.base.cli import exit_code_of
from data_tools.base.errors import InputError
from data_tools.base.installation import install_command
from ernie_pair.device.paddle_patches.launcher import (
    asked_gpus,
    own_exit_code,
    private_environment,
    start_launcher,
    visible_gpus,
)


def main() -> None:
    """Start the processes of ``sys.argv``, and exit with the code of the first that failed."""
    sys.exit(exit_code_of(launch))


def launch() -> None:
    """Start the processes that ``sys.argv`` asks for; exit with the code of the first that failed.

    Raises InputError for GPUs that are not there, before anything is started.
    """
    refuse_absent_gpus(asked_gpus())
    with private_environment(), own_exit_code():
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


if __name__ == "__main__":
    main()
