"""Behaviours of Paddle's launcher that are turned off while it runs, and what is asked of it.

`save_pod_env` writes envlog.N, `save_pod_log` JOB.POD.log, `ProcessContext._start` backup_env.N.json, for
lists that the kernel would not accept. PADDLE_LOG_LEVEL, in the environment, overrides --log_level.
"""

import logging
import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence

from ernie_pair.runtime.paddle_patches.core_settings import replaced

TAIL_BYTES = 3000  # of the log of a process that failed
# How lines begin that are not shown: this package ends with one of its own, and Paddle 3.3 warns that it
# replaces --master where --ips was given and no --master.
NO_NEWS = ("Container failed", "master is set by args")


def keep_words_of_scripts() -> None:
    """Have the launcher take no word for a flag of its own that is one only when it is completed.

    It reads the words behind the script too, and ends at `--a`, which could be two of its flags.
    """
    from paddle.distributed.launch.context import args_envs

    args_envs.ArgumentParser = partial(ArgumentParser, allow_abbrev=False)


def asked_launch() -> Any:
    """Return what ``sys.argv`` and the environment request of the launcher, as Paddle reads its flags.

    Of these are used: devices, nproc_per_node, nnodes, master and log_dir.
    """
    from paddle.distributed.launch.context.args_envs import parse_args

    asked = parse_args()[0]
    asked.devices = os.environ.get("PADDLE_DEVICES") or asked.devices
    asked.log_dir = os.environ.get("PADDLE_LOG_DIR") or asked.log_dir
    return asked


def keep_launcher_quiet() -> None:
    """Have the launcher log warnings and errors, without thirty lines of flags, unless --log_level asks."""
    sys.argv[1:1] = ["--log_level", "WARNING"]  # the later of two counts: the user's


def visible_gpus() -> List[str]:
    """Return the GPUs that the launcher sees, in the form of --gpus."""
    from paddle.distributed.launch.context.device import Device

    return Device.parse_device().labels


@contextmanager
def private_environment(prepare: Callable[[], None]) -> Iterator[None]:
    """Have the launcher hide the environment of the processes, each of which calls ``prepare`` first."""
    from paddle.distributed.launch.controllers.controller import Controller
    from paddle.distributed.launch.utils.process_context import ProcessContext

    def start(process) -> None:
        """Start a ``ProcessContext``; a signal is for its whole session."""
        streams = {"stdout": process._stdout, "stderr": process._stderr, "shell": process._shell}
        own: Any = {**streams, "start_new_session": process._group, "preexec_fn": prepare}
        process._proc = subprocess.Popen(process._cmd, env=process._env, **own)

    with ExitStack() as stack:
        stack.enter_context(replaced(Controller, "save_pod_env", lambda self: None))
        stack.enter_context(replaced(Controller, "save_pod_log", lambda self, info: None))
        stack.enter_context(replaced(ProcessContext, "_start", start))
        yield


class FailedProcess(NamedTuple):
    """A process that ended by itself.

    ``code``: its exit code, or minus the signal that killed it. ``wrote``: when it last wrote its ``log``.
    ``tail``: the end of the log, which the launcher ``shows`` of the first process of this machine alone.
    """

    rank: int
    pid: int
    code: int
    log: str
    wrote: float
    tail: str
    shows: bool


@dataclass
class LaunchEnd:
    """How the launcher came to its end: the processes that failed by themselves, and the signal it heard."""

    failed: Sequence[FailedProcess] = ()
    signal: int = 0
    codes: Sequence[int] = ()  # of all processes, if they were stopped
    code: object = 0  # with which Paddle's launcher would exit


def run_launcher() -> LaunchEnd:
    """Run the processes that ``sys.argv`` requests to their end."""
    from paddle.distributed.launch.main import launch

    with end_noted() as end:
        try:
            launch()
        except SystemExit as leaving:
            end.code = leaving.code
    return end


@contextmanager
def end_noted() -> Iterator[LaunchEnd]:
    """Note how the launcher ends in this context, and have it leave nothing behind.

    The output of its first process while it was being stopped is shown as well. A signal waits while a log is
    being read: its place could not be told there, and Paddle's reader swallows whatever a handler raises.
    Paddle's own exits with the code of the first process that has one, including those that it stops itself,
    and with the bare number of a signal. It stops no child of a process that has already ended.
    """
    from paddle.distributed.launch.controllers.controller import ControllerBase
    from paddle.distributed.launch.job.container import Container
    from paddle.distributed.launch.job.pod import Pod

    end, stop, handle, show = LaunchEnd(), Pod.stop, ControllerBase.signal_handler, Container.logs
    late: Optional[List[partial]] = None  # what waits while a log is read

    def note_and_stop(pod, *arguments, **named):
        end.failed = end.failed or [_failed(each) for each in pod.failed_container()]
        shown = [(each.outfile, each._log_handler.tell()) for each in pod.containers[:1] if each._log_handler]
        stopped = stop(pod, *arguments, **named)
        for each in pod.containers:
            process = each._proc and each._proc._proc
            if process:  # the leader of a group of that number: what it has started and left behind
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        end.codes = [each.exit_code for each in pod.containers]
        for log, position in shown:  # Paddle no longer reads it, and would not show how far the run was
            with open(log, encoding="utf-8", errors="replace") as file:
                file.seek(position)
                sys.stdout.write(file.read())
        return stopped

    def note_and_handle(controller, number, frame):
        end.signal = end.signal or number
        if late is None:
            handle(controller, number, frame)
        else:
            late.append(partial(handle, controller, number, frame))

    def show_undisturbed(container, *arguments, **named):
        nonlocal late
        calls: List[partial] = []
        late = calls
        try:
            return show(container, *arguments, **named)
        finally:
            late = None
            for call in calls[:1]:  # which ends the launcher
                call()

    def is_news(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(NO_NEWS)

    logger = logging.getLogger("LAUNCH")
    with ExitStack() as stack:
        stack.enter_context(replaced(Pod, "stop", note_and_stop))
        stack.enter_context(replaced(ControllerBase, "signal_handler", note_and_handle))
        stack.enter_context(replaced(Container, "logs", show_undisturbed))
        # Paddle shows the end of one that failed first, which need not be the cause, or what it has shown.
        stack.enter_context(replaced(Container, "tail", lambda container: None))
        logger.addFilter(is_news)
        stack.callback(logger.removeFilter, is_news)
        yield end


def _failed(container) -> FailedProcess:
    rank = int(container.env.get("PADDLE_TRAINER_ID", container.rank))
    log, wrote, tail = container.errfile or os.devnull, 0.0, ""
    with suppress(OSError), open(log, "rb") as lines:
        wrote = os.fstat(lines.fileno()).st_mtime
        lines.seek(max(container._log_start_offset, lines.seek(0, os.SEEK_END) - TAIL_BYTES))
        tail = lines.read().decode("utf-8", errors="replace")
    pid = container._proc._proc.pid
    return FailedProcess(rank, pid, container.exit_code, log, wrote, tail, container.rank == 0)
