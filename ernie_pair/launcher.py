"""Paddle's launcher, with its flags and its signals, and without three of its habits.

python -m ernie_pair.launcher --gpus 0,1 FILE [flags of FILE]

The environment may hold passwords, and `paddle.distributed.launch` writes all of it into its log folder at
every start and to the console when a process fails; this one does neither. GPUs that are not there are an
error of one line (exit code 2), not a traceback. Its own exit code is that of the process which failed, not
of another one that it has stopped because of it.
"""

import os
import subprocess
import sys
from typing import Optional

from data_tools.base.cli import exit_code_of
from data_tools.base.errors import InputError


def main() -> None:
    sys.exit(exit_code_of(launch))


def launch() -> None:
    """Start the processes that ``sys.argv`` asks for; exits with the code of the first that failed.

    Raises InputError for GPUs that are not there, before anything is started.
    """
    from paddle.distributed.launch.context.args_envs import parse_args
    from paddle.distributed.launch.main import launch as start

    refuse_absent_gpus(os.environ.get("PADDLE_DEVICES") or parse_args()[0].devices)
    keep_the_environment_private()
    pass_the_exit_code_on()
    start()


def refuse_absent_gpus(asked: Optional[str]) -> None:
    """``asked``: as in --gpus 0,1. Raises InputError for what Paddle does not see."""
    import paddle
    from paddle.distributed.launch.context.device import Device

    if not asked:
        return
    cure = "leave --gpus out: --nproc_per_node 2, and --device cpu for the processes"
    if not paddle.is_compiled_with_cuda():
        raise InputError(f"--gpus {asked}, but this Paddle is the CPU build; install .[gpu], or {cure}")
    if paddle.device.cuda.device_count() == 0:
        raise InputError(f"--gpus {asked}, but no GPU is visible; check the driver, or {cure}")
    visible = Device.parse_device().labels
    absent = [gpu.strip() for gpu in asked.split(",") if gpu.strip() not in visible]
    if absent:
        raise InputError(f"--gpus {asked}: GPU {absent[0]} is not among the visible {','.join(visible)}")


def keep_the_environment_private() -> None:
    """Have Paddle's launcher neither store nor show the environment of the processes."""
    from paddle.distributed.launch.controllers.controller import Controller
    from paddle.distributed.launch.job import container
    from paddle.distributed.launch.utils.process_context import ProcessContext

    Controller.save_pod_env = lambda self: None  # envlog.N
    Controller.save_pod_log = lambda self, info: None  # JOB.POD.log
    ProcessContext._start = _start  # backup_env.N.json, for lists that the kernel would not pass on
    container.Container.__str__ = _shown


def pass_the_exit_code_on() -> None:
    """Have Paddle's launcher end with the code of a process that failed by itself; 128 + N for signal N."""
    from paddle.distributed.launch.job.pod import Pod

    stop = Pod.stop

    def note_and_stop(pod, *arguments, **named):
        pod.failed_by_themselves = pod.failed_container()
        return stop(pod, *arguments, **named)

    Pod.stop = note_and_stop
    Pod.exit_code = property(_exit_code_of)


def _exit_code_of(pod) -> int:
    """Return the code of a ``Pod``: one that a process gave itself before that of a signal."""
    ended = getattr(pod, "failed_by_themselves", None) or pod.containers
    codes = [container.exit_code for container in ended if container.exit_code]
    given = [code for code in codes if code > 0] or [128 - code for code in codes]
    return given[0] if given else 0


def _start(process) -> None:
    """Start a ``ProcessContext``; a signal is for its whole session."""
    process._proc = subprocess.Popen(
        process._cmd,
        env=process._env,
        stdout=process._stdout,
        stderr=process._stderr,
        shell=process._shell,
        start_new_session=process._group,
    )


def _shown(container) -> str:
    words = " ".join(container.entrypoint)
    return f"{words}\nended with exit code {container.exit_code}; see {container.errfile}"


if __name__ == "__main__":
    main()
