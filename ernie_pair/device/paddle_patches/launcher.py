"""Four behaviours of Paddle's launcher, turned off while it runs.

Names, as in Paddle 2.6.2, all below `paddle.distributed.launch`: `controllers.controller.Controller` with
`save_pod_env` (envlog.N) and `save_pod_log` (JOB.POD.log), `utils.process_context.ProcessContext._start`
(backup_env.N.json, for lists that the kernel would not accept), `job.container.Container.__str__` (the
environment on the console), `_log_handler` and `outfile` of the same, `job.pod.Pod` with `stop` and
`exit_code`, `context.device.Device`, `context.args_envs.parse_args`, `main.launch`. PADDLE_LOG_LEVEL, in the
environment, overrides --log_level.
"""

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from ernie_pair.device.paddle_patches.replaced import replaced


def start_launcher() -> None:
    """Start the processes that ``sys.argv`` requests; exits with the code of the launcher."""
    from paddle.distributed.launch.main import launch

    launch()


def asked_gpus() -> Optional[str]:
    """Return the GPUs that --gpus of ``sys.argv``, or the environment, requests."""
    from paddle.distributed.launch.context.args_envs import parse_args

    return os.environ.get("PADDLE_DEVICES") or parse_args()[0].devices


def asked_processes() -> int:
    """Return the --nproc_per_node of ``sys.argv``; 0: not given."""
    from paddle.distributed.launch.context.args_envs import parse_args

    return int(parse_args()[0].nproc_per_node or 0)


def asked_machines() -> Tuple[int, str]:
    """Return (the fewest machines that --nnodes of ``sys.argv`` requests, --master or nothing)."""
    from paddle.distributed.launch.context.args_envs import parse_args

    asked = parse_args()[0]
    return int(str(asked.nnodes).partition(":")[0]), asked.master or ""


def asked_log() -> Path:
    """Return the log of the first process, which the launcher shows; --log_dir sets its folder."""
    from paddle.distributed.launch.context.args_envs import parse_args

    return Path(os.environ.get("PADDLE_LOG_DIR") or parse_args()[0].log_dir, "workerlog.0")


def keep_launcher_quiet() -> None:
    """Have the launcher log only warnings and errors, unless --log_level asks for more.

    Otherwise its thirty lines about its own flags come before those of the run.
    """
    sys.argv[1:1] = ["--log_level", "WARNING"]  # the later of two counts: the user's


def visible_gpus() -> List[str]:
    """Return the GPUs that the launcher sees, in the form of --gpus."""
    from paddle.distributed.launch.context.device import Device

    return Device.parse_device().labels


@contextmanager
def private_environment() -> Iterator[None]:
    """Have the launcher neither store nor show the environment of the processes in this context."""
    from paddle.distributed.launch.controllers.controller import Controller
    from paddle.distributed.launch.job.container import Container
    from paddle.distributed.launch.utils.process_context import ProcessContext

    with ExitStack() as stack:
        stack.enter_context(replaced(Controller, "save_pod_env", lambda self: None))
        stack.enter_context(replaced(Controller, "save_pod_log", lambda self, info: None))
        stack.enter_context(replaced(ProcessContext, "_start", _start))
        stack.enter_context(replaced(Container, "__str__", _shown))
        yield


@contextmanager
def own_exit_code() -> Iterator[None]:
    """Have the launcher end with the code of a process that failed by itself, in this context.

    It is 128 + N for signal N. Paddle's own is that of the first process which has one, including those that
    it stops itself.
    """
    from paddle.distributed.launch.job.pod import Pod

    stop = Pod.stop

    def note_and_stop(pod, *arguments, **named):
        pod.failed_by_themselves = pod.failed_container()
        return stop(pod, *arguments, **named)

    with replaced(Pod, "stop", note_and_stop), replaced(Pod, "exit_code", property(_exit_code_of)):
        yield


@contextmanager
def last_lines_shown() -> Iterator[None]:
    """Have the launcher show, in this context, the output of its first process while it was being stopped.

    Paddle's own no longer reads that log then, so it would never show how far the run was when it stopped.
    """
    from paddle.distributed.launch.job.pod import Pod

    stop = Pod.stop

    def stop_and_show(pod, *arguments, **named):
        shown = [(each.outfile, each._log_handler.tell()) for each in pod.containers[:1] if each._log_handler]
        stopped = stop(pod, *arguments, **named)
        for log, position in shown:
            with open(log, encoding="utf-8", errors="replace") as file:
                file.seek(position)
                sys.stdout.write(file.read())
        return stopped

    with replaced(Pod, "stop", stop_and_show):
        yield


def _exit_code_of(pod) -> int:
    """Return the code of a ``Pod``: that of a process that ended by itself before that of a signal."""
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
