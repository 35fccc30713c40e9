"""Start several processes from a notebook, each of which calls a function of a cell.

The processes are new ones, not forks of the notebook's: it does not matter whether Paddle, or a GPU, is
in use there already. What the function uses travels with it as a copy.
"""

import codecs
import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import IO, Callable, Dict, Iterator, List, Optional, Sequence

import cloudpickle

from ernie_pair.core.errors import InputError, LostProcessError, counted
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.run_module import python_words
from ernie_pair.runtime.cpu import THREADS_ASKED, THREADS_VARIABLE
from ernie_pair.runtime.device import default_device
from ernie_pair.runtime.processes.child_command import exit_code_of
from ernie_pair.runtime.processes.stop_signals import stop_with_the_launcher
from ernie_pair.runtime.processes.world import launched_world

MODULE = "ernie_pair.launch.notebook"  # which each process runs
PAYLOAD, MODULES = "function", "modules"  # MODULES: where those are that the function uses
UNPACKABLE = (pickle.PicklingError, TypeError, AttributeError, RecursionError)
LOOK_SECONDS = 0.1
GRACE_SECONDS = 3.0  # for the others to end by themselves when one has failed
SAVE_SECONDS = 60.0  # for a run that was interrupted to save itself


class RankTraceback(Exception):
    """The traceback of another process, as text: the cause of an error that is raised again here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Ranks:
    """The processes, started on entering, gone on leaving.

    An interrupt from the keyboard, or SystemExit, lets them save first.
    """

    def __init__(self, folder: Path, environments: List[Dict[str, str]]):
        self.folder, self.environments = folder, environments
        self.processes: List[subprocess.Popen] = []

    def __enter__(self) -> "Ranks":
        try:
            for rank, environment in enumerate(self.environments):
                self.processes.append(self._start(rank, environment))
        except BaseException:
            self._kill()
            raise
        output = self.processes[0].stdout
        assert output is not None  # it was started with a pipe
        self._output: IO[bytes] = output
        os.set_blocking(self._output.fileno(), False)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        return self

    def __exit__(self, kind, *reason) -> None:
        try:
            if issubclass(kind or type(None), (KeyboardInterrupt, SystemExit)):  # let them save and end
                for process in self._running():  # a second interrupt ends them at once
                    os.kill(process.pid, signal.SIGTERM)  # nobody has waited for it: the number is its own
                self._wait_until(time.monotonic() + SAVE_SECONDS)
        finally:
            self._kill()
            self._selector.close()
            self._output.close()

    def wait(self) -> None:
        """Wait until all have ended, or one has failed and the others had their time."""
        while all(exit_code_of(process) in (None, 0) for process in self.processes):
            self._forward(LOOK_SECONDS)
            if not self._running():
                break
        self._wait_until(time.monotonic() + GRACE_SECONDS)
        while self._forward(0):
            continue

    def answer(self):
        """Return what rank 0 returned; raise what a rank raised, or LostProcessError for a killed one."""
        paths = [self.folder / f"answer.{rank}" for rank in range(len(self.processes))]
        answers = {n: pickle.loads(path.read_bytes()) for n, path in enumerate(paths) if path.exists()}
        errors = [answer for answer in answers.values() if "error" in answer]
        if errors:
            first = min(errors, key=lambda answer: (answer["is_of_a_peer"], answer["time"]))
            cause, error = RankTraceback(first["traceback"]), None
            with contextlib.suppress(Exception):  # of a class that cannot be made here
                error = pickle.loads(first["error"])
            if isinstance(error, Exception):
                raise error from cause
            raise LostProcessError(f"rank {first['rank']}: {first['said']}") from cause
        codes = {n: exit_code_of(each) for n, each in enumerate(self.processes) if n not in answers}
        if codes:
            # One that has ended tells more than one that waits for it or that has noticed its end.
            noticed = LostProcessError.exit_code
            rank = min(codes, key=lambda n: 2 if codes[n] is None else int(codes[n] == noticed))
            code, last = codes[rank], "; see what it printed"
            if rank:
                log = self._log_of(rank).read_text(encoding="utf-8", errors="replace")
                last = "".join(f": {line}" for line in log.strip().splitlines()[-1:])
            fate = "hangs and was ended" if code is None else f"ended with exit code {code}"
            if code is not None and code < 0:
                fate = f"was killed by {signal.Signals(-code).name}"
            raise LostProcessError(f"rank {rank} {fate}{last}")
        return answers[0]["result"]

    def _start(self, rank: int, environment: Dict[str, str]) -> subprocess.Popen:
        words = [*python_words("-u"), "-m", MODULE, str(self.folder), str(rank)]
        # A session of its own: an interrupt is for the notebook, which passes it on.
        start = partial(subprocess.Popen, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        if rank == 0:
            return start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with open(self._log_of(rank), "wb") as log:
            return start(words, stdout=log, stderr=log)

    def _running(self) -> List[subprocess.Popen]:
        return [process for process in self.processes if exit_code_of(process) is None]

    def _forward(self, seconds: float) -> bool:
        """Show what rank 0 has printed, waiting for it for that long; return whether there was anything."""
        data = self._output.read(1 << 16) if self._selector.select(seconds) else None
        if data:
            sys.stdout.write(self._decoder.decode(data))
            sys.stdout.flush()
        elif data == b"":  # it has closed its output
            time.sleep(seconds)
        return bool(data)

    def _wait_until(self, deadline: float) -> None:
        while self._running() and time.monotonic() < deadline:
            self._forward(LOOK_SECONDS)

    def _kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
            process.wait()

    def _log_of(self, rank: int) -> Path:
        return self.folder / f"rank.{rank}.log"


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
        try:  # with all it refers to: a function of a notebook has no module to be found in
            (folder / PAYLOAD).write_bytes(cloudpickle.dumps((function, tuple(args))))
        except UNPACKABLE as error:
            raise InputError(
                f"the function cannot be sent to other processes ({error}); make what it uses inside of it"
            ) from None
        (folder / MODULES).write_bytes(pickle.dumps(_path_of_ranks()))
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


def _devices_of(gpus: Optional[str], count: int) -> List[str]:
    if gpus is not None:
        devices = [device.strip() for device in gpus.split(",")] if gpus else []
        if devices and len(devices) != count:
            raise InputError(f"gpus {gpus} are {len(devices)} for {count} processes; give one for each")
        return devices
    if default_device() == "cpu":
        return []
    named = os.environ.get(VISIBLE)
    if named is None:  # how many there are is not known here: a process without one says so
        return list(map(str, range(count)))
    parts = map(str.strip, named.split(","))
    devices = list(takewhile(lambda name: name and not name.startswith("-"), parts))  # as CUDA reads on
    if devices and len(devices) < count:
        raise InputError(
            f"num_processes {count} is more than the {counted(len(devices), 'GPU')} of {VISIBLE}={named}; "
            "start fewer, or pass gpus='' for the CPU"
        )
    return devices[:count]


def _path_of_ranks() -> List[str]:
    """Return the path of this process; in it the working folder comes last, where it replaces no library."""
    here = os.getcwd()
    return [*(path for path in sys.path if path not in ("", here)), here]


def _environments(count: int, devices: List[str]) -> List[Dict[str, str]]:
    """Return the environment of each process, as `paddle.distributed.launch` would make it."""
    with ExitStack() as stack:  # all free ports at once, so that they differ
        servers = [stack.enter_context(socket.create_server((HERE, 0))) for _ in range(count + 1)]
        endpoints = [f"{HERE}:{each.getsockname()[1]}" for each in servers]
    shared = {
        **os.environ,
        "PADDLE_TRAINERS_NUM": str(count),
        "PADDLE_GLOBAL_SIZE": str(count),
        "PADDLE_LOCAL_SIZE": str(count),
        "PADDLE_NNODES": "1",
        "PADDLE_MASTER": endpoints.pop(),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        VISIBLE: ",".join(devices),
        "PYTHONIOENCODING": "utf-8",
    }
    shared.pop(THREADS_VARIABLE, None)  # Paddle has set it for this process
    shared.update({THREADS_VARIABLE: THREADS_ASKED} if THREADS_ASKED else {})
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


def main() -> None:
    """Call the function of FOLDER as rank RANK, the words of this process, and leave its answer there."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    stop_with_the_launcher()
    try:
        sys.path[:] = pickle.loads((folder / MODULES).read_bytes())
        function, args = pickle.loads((folder / PAYLOAD).read_bytes())
        result = function(*args)
        try:
            answer = cloudpickle.dumps({"result": result if rank == 0 else None})
        except UNPACKABLE as error:
            raise InputError(
                f"what the function returned cannot be sent back ({error}); return numbers, texts or arrays"
            ) from None
    except BaseException as error:
        try:
            itself = cloudpickle.dumps(error)
        except Exception:  # whatever it holds; its text remains
            itself = b""
        failure = {
            "error": itself,
            "said": traceback.format_exception_only(type(error), error)[-1].strip(),
            "rank": rank,
            "traceback": f"rank {rank}:\n{traceback.format_exc()}",
            "is_of_a_peer": isinstance(error, LostProcessError),
            "time": time.time(),
        }
        _leave(folder, rank, pickle.dumps(failure))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # whatever waits for the others stays behind
    _leave(folder, rank, answer)


def _leave(folder: Path, rank: int, answer: bytes) -> None:
    with published(folder / f"answer.{rank}", forced=False) as (draft,):
        draft.write_bytes(answer)


if __name__ == "__main__":
    main()
