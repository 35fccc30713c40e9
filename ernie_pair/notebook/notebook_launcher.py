"""Start several processes from a notebook, each of which calls a function of a cell.

    from ernie_pair import notebook_launcher

    def train(learning_rate):
        from ernie_pair import PairConfig, PairTrainer
        config = PairConfig("output", learning_rate=learning_rate)
        return PairTrainer("ernie-gram-zh", config, "train.tsv", "dev.tsv").train()

    result = notebook_launcher(train, (5e-5,), num_processes=2)

The processes are new ones, not forks of the notebook's: it does not matter whether Paddle, or a GPU, is
in use there already. What the function uses travels with it as a copy.
"""

import os
import signal
import socket
import sys
import tempfile
import threading
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence

from data_tools.base.errors import InputError, counted
from ernie_pair.device.cpu_env import THREADS, THREADS_ASKED
from ernie_pair.device.device import default_device
from ernie_pair.notebook.processes import PAYLOAD, UNPACKABLE, Ranks, packed
from ernie_pair.processes.world import launched_world

HERE = "127.0.0.1"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def notebook_launcher(
    function: Callable, args: Sequence = (), num_processes: int = 2, gpus: Optional[str] = None
):
    """Call ``function(*args)`` in ``num_processes`` processes on this machine; return the first one's result.

    ``gpus``: '0,1', one GPU per process; '' for the CPU; None: the first that CUDA_VISIBLE_DEVICES shows if
    there is a driver. The first process prints into the notebook. If a process fails, the others are stopped
    and its error is raised here, with its traceback as the cause. On Ctrl-C (interrupt the kernel) and on
    SIGTERM, which ends this program with exit code 143, they save first. Raises InputError for arguments that
    cannot be started, LostProcessError for a process that was killed.
    """
    if launched_world().size > 1:
        raise InputError("this process is one of several already; call the function itself")
    if num_processes < 1:
        raise InputError(f"num_processes {num_processes} is below 1; use 2, for example")
    devices = _devices_of(gpus, num_processes)
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="ernie-pair-") as name:
        folder = Path(name)
        (folder / PAYLOAD).write_bytes(_packed(function, args))
        with Ranks(folder, _environments(num_processes, devices)) as ranks:
            ranks.wait()
            return ranks.answer()


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Have SIGTERM raise SystemExit in this context, so that what was started ends before this program.

    Only the main thread can, and a handler of the user's own is left in place.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number, frame):
        signal.signal(number, signal.SIG_IGN)  # launchers send it several times
        sys.stderr.write("stopped by SIGTERM\n")
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _packed(function: Callable, args: Sequence) -> bytes:
    """Pack ``function`` with all it refers to: one of a notebook has no module to be found in."""
    try:
        return packed((function, tuple(args)))
    except UNPACKABLE as error:
        raise InputError(
            f"the function cannot be sent to other processes ({error}); make what it uses inside of it"
        ) from None


def _devices_of(gpus: Optional[str], count: int) -> List[str]:
    """Return a GPU for each process; none: the CPU."""
    if gpus is None:
        if default_device() == "cpu":
            return []
        return _first_visible(count)
    devices = [device.strip() for device in gpus.split(",")] if gpus else []
    if devices and len(devices) != count:
        raise InputError(f"gpus {gpus} are {len(devices)} for {count} processes; give one for each")
    return devices


def _first_visible(count: int) -> List[str]:
    """Return the first GPUs that the environment shows, one for each process; none if it hides them all."""
    named = os.environ.get(VISIBLE)
    if named is None:  # how many there are is not known here: a process without one says so
        return list(map(str, range(count)))
    devices = list(takewhile(_is_device, map(str.strip, named.split(","))))
    if devices and len(devices) < count:
        raise InputError(
            f"num_processes {count} is more than the {counted(len(devices), 'GPU')} of {VISIBLE}={named}; "
            "start fewer, or pass gpus='' for the CPU"
        )
    return devices[:count]


def _is_device(name: str) -> bool:
    """Return whether CUDA reads on behind this part of CUDA_VISIBLE_DEVICES: it ends at '' and at -1."""
    return bool(name) and not name.startswith("-")


def _environments(count: int, devices: List[str]) -> List[Dict[str, str]]:
    """Return the environment of each process, as `paddle.distributed.launch` would make it."""
    endpoints = [f"{HERE}:{port}" for port in _free_ports(count + 1)]
    shared = {
        **os.environ,
        "PADDLE_TRAINERS_NUM": str(count),
        "PADDLE_GLOBAL_SIZE": str(count),
        "PADDLE_LOCAL_SIZE": str(count),
        "PADDLE_NNODES": "1",
        "PADDLE_MASTER": endpoints.pop(),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        VISIBLE: ",".join(devices),
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "PYTHONIOENCODING": "utf-8",
    }
    shared.pop(THREADS, None)  # Paddle has set it for this process
    shared.update({THREADS: THREADS_ASKED} if THREADS_ASKED else {})
    shared.update({} if devices else {"PADDLE_DISTRI_BACKEND": "gloo"})
    return [
        {
            **shared,
            **dict.fromkeys(("PADDLE_TRAINER_ID", "PADDLE_GLOBAL_RANK", "PADDLE_LOCAL_RANK"), str(rank)),
            "PADDLE_RANK_IN_NODE": str(rank),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            "FLAGS_selected_gpus": str(rank),
        }
        for rank in range(count)
    ]


def _free_ports(count: int) -> List[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HERE, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
