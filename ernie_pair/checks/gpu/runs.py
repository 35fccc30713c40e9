"""The results of the check: cases with a verdict, a text and figures, and their steps."""

import contextlib
import getpass
import itertools
import json
import math
import os
import platform
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from data_tools.files.errors import ErniePairError, LostProcessError
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.runtime.gpu.builds import LEAST_CAPABILITY, Capability, words_of
from ernie_pair.runtime.processes.child_command import (
    ERRORS,
    BrokenRunError,
    error_of,
    exit_code_of,
    last_error,
)
from ernie_pair.version import __version__

PASSED, FAILED, NEEDS, NOT_RUN = "passed", "failed", "needs", "not run"
Figures = Dict[str, Any]  # name: a number, or words


class Planned(NamedTuple):
    """A case to run; ``needs``: what this machine lacks for it, in words, or ''.

    ``run`` returns its figures, and raises an ErniePairError if it fails.
    """

    name: str
    run: Callable[[], Figures]
    needs: str = ""


class Case(NamedTuple):
    """A case and its verdict, one of the four above; ``said``: why it failed, or what it needs."""

    name: str
    verdict: str
    said: str
    seconds: float
    figures: Figures
    error: Optional[BaseException] = None  # the error of a failed case

    def facts(self) -> Dict[str, Any]:
        """Return the part of the report about it."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "said": self.said,
            "seconds": round(self.seconds, 1),
            "figures": {name: _as_json(value) for name, value in self.figures.items()},
        }


class StepOutcome(NamedTuple):
    """A step of the check: its number in the list, its title, its cases, and how long it took."""

    number: int
    title: str
    cases: List[Case]
    seconds: float

    @property
    def verdict(self) -> str:
        """Return the verdict of the step: the worst of its cases; one that only needs things is 'needs'."""
        found = {case.verdict for case in self.cases}
        return next((verdict for verdict in (FAILED, NOT_RUN, PASSED) if verdict in found), NEEDS)

    def facts(self) -> Dict[str, Any]:
        """Return the part of the report about it."""
        return {
            "number": self.number,
            "title": self.title,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
            "cases": [case.facts() for case in self.cases],
        }


def _as_json(value: Any) -> Any:
    """Return a figure as JSON content: a text for what is not a number, or infinite."""
    is_number = isinstance(value, (int, float)) and math.isfinite(value)
    return value if is_number else str(value)


def first_failure(steps: List[StepOutcome]) -> Optional[str]:
    """Return the first case that failed, in words; None if none did."""
    for step in steps:
        for case in step.cases:
            if case.verdict in (FAILED, NOT_RUN):
                return f"step {step.number}, {step.title}: {case.name}: {case.said}"
    return None


FOLDER, SHORTEST_NAME = "<folder>", 3  # characters: a shorter one is part of ordinary words
# A path whose last part, a file name, may stay: below a known folder that was replaced, or
# absolute and of two or more parts.
_PART = r"[^\s/:;,'\"()\[\]]"
_BELOW = re.compile(rf"{FOLDER}(?:/{_PART}+)*/({_PART}*)")
_PATH = re.compile(rf"(?<![\w.>/])~?(?:/{_PART}+)+/({_PART}*)")
# Of a network or an email; ==11.11.3.6 is a version.
_ADDRESS = re.compile(r"(?<!==)\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?|\b[\w.+-]+@[\w-]+\.[\w.]+")


def hide_private(text: str) -> str:
    """Return ``text`` without names of folders, of the user and of the host, and without addresses."""
    for words, shown in private_words().items():
        text = re.sub(rf"(?<!\w){re.escape(words)}(?!\w)", shown, text)
    for path in (_BELOW, _PATH):
        text = path.sub(r".../\1", text)
    return _ADDRESS.sub("<address>", text)


def private_words() -> Dict[str, str]:
    """Return {private text: its replacement}, the longest first."""
    places = {str(Path.home()), os.getcwd(), sys.prefix, tempfile.gettempdir()}
    places.add(str(Path(__file__).resolve().parents[3]))
    host = socket.gethostname()
    names = {host: "<host>", host.partition(".")[0]: "<host>", _user(): "<user>"}
    found = {place: FOLDER for place in places if len(place) > 1}
    found.update({name: shown for name, shown in names.items() if len(name) >= SHORTEST_NAME})
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without one
        return ""


DRIVER = Path("/proc/driver/nvidia/version")
CPU_INFO, MEMORY = Path("/proc/cpuinfo"), Path("/proc/meminfo")
SHOWN = ("paddlepaddle", "paddlepaddle-gpu", "paddlenlp", "numpy", "onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True)
class Gpu:
    """A GPU that Paddle sees: its name, compute capability, and memory in GB."""

    name: str
    capability: Capability
    memory_gb: float


@dataclass(frozen=True)
class Machine:
    """The facts of a machine; ``gpus`` are those that Paddle sees, none if the check is for the CPU."""

    gpus: Tuple[Gpu, ...]
    driver: str
    cuda: str  # that Paddle was built with, or ''
    cudnn: str
    processor: str
    cores: int
    memory_gb: float
    system: str
    python: str
    versions: Dict[str, str]
    why_no_gpu: str = ""  # Paddle's reason if it sees none

    @property
    def words(self) -> str:
        """Return the machine in one line."""
        gpus = [f"{gpu.name} ({words_of(gpu.capability)}, {gpu.memory_gb:.0f} GB)" for gpu in self.gpus]
        driver = f", driver {self.driver}" if self.driver else ""
        cuda = f"Paddle for CUDA {self.cuda}" if self.cuda else "Paddle for CPUs"
        shown = f"{', '.join(gpus)}{driver}" if gpus else "no GPU"
        return f"{shown}; {self.cores} cores of {self.processor}, {self.memory_gb:.0f} GB; {cuda}"

    def least_capability(self, count: int = 1) -> Capability:
        """Return the lowest compute capability of the first ``count`` GPUs; (0, 0) if there are fewer."""
        return min(gpu.capability for gpu in self.gpus[:count]) if len(self.gpus) >= count else (0, 0)

    def facts(self) -> Dict[str, Any]:
        """Return the part of the report about it."""
        return {**asdict(self), "words": self.words}


def machine_of(facts: Dict[str, Any]) -> Machine:
    """Return the machine of the ``facts`` that Paddle's process printed."""
    gpus = tuple(Gpu(gpu["name"], tuple(gpu["capability"]), gpu["memory_gb"]) for gpu in facts["gpus"])
    return Machine(**{**_bare_facts(), **facts, "gpus": gpus})


def machine_without_paddle(reason: str) -> Machine:
    """Return the machine as far as it is known without Paddle, which cannot be queried for ``reason``."""
    return Machine(gpus=(), cuda="", cudnn="", why_no_gpu=reason, **_bare_facts())


def _bare_facts() -> Dict[str, Any]:
    return {
        "driver": _search(DRIVER, r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)"),
        "processor": _search(CPU_INFO, r"model name\s*:\s*(.+)") or platform.machine(),
        "cores": cpu_threads(),
        "memory_gb": round(int(_search(MEMORY, r"MemTotal:\s*(\d+) kB") or 0) / 1e6, 1),
        "system": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]),
        "python": platform.python_version(),
        "versions": {"ernie-pair": __version__, **_versions()},
    }


def ask_paddle(device: str) -> Dict[str, Any]:
    """Return what Paddle knows, as JSON content: the GPUs, and what it was built for."""
    import paddle

    is_cuda = paddle.is_compiled_with_cuda()
    gpus, reason = _gpus() if device == "gpu" and is_cuda else ([], "")
    return {
        "gpus": gpus,
        "cuda": str(paddle.version.cuda()) if is_cuda else "",
        "cudnn": str(paddle.version.cudnn()) if is_cuda else "",
        "why_no_gpu": "this Paddle is the CPU build" if device == "gpu" and not is_cuda else reason,
    }


def _gpus() -> Tuple[List[Dict[str, Any]], str]:
    """Return the GPUs that Paddle sees, and why there is none."""
    import paddle

    found = []
    try:
        for number in range(paddle.device.cuda.device_count()):
            of = paddle.device.cuda.get_device_properties(number)
            memory = round(of.total_memory / 1e9, 1)
            found.append({"name": of.name, "capability": [of.major, of.minor], "memory_gb": memory})
    except (RuntimeError, OSError, ValueError) as error:  # an unsuitable driver, a lost GPU
        return [], (str(error).strip().splitlines() or ["no reason was given"])[-1][:200]
    return found, "" if found else "Paddle sees no GPU"


def _versions() -> Dict[str, str]:
    found = {}
    for name in SHOWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _search(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return match[1].strip() if match else ""


if __name__ == "__main__":
    os.environ.setdefault("GLOG_minloglevel", "2")
    print("\n" + json.dumps(ask_paddle(sys.argv[1])))


MARK = "ERNIE_PAIR_CHECK"  # in the environment of every process of the check: identifies the check
LOOK_SECONDS, KILL_SECONDS = 0.005, 20.0
SHOWN_WORDS, LONGEST_LINE = 2, 300  # of a command, in an error; characters of its last line of output
_TELLING = re.compile(r"[Ee]rror|cannot|[Ff]ailed")


class Commands:
    """The commands of one check, as a context: at its end all processes that they started are killed.

    ``folder``: for their output, and their temporary files. Thread-safe.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._mark = secrets.token_hex(12)
        self._numbers = itertools.count(1)
        self._is_over = False

    def __enter__(self) -> "Commands":
        (self._folder / "log").mkdir(parents=True, exist_ok=True)
        (self._folder / "tmp").mkdir(exist_ok=True)
        return self

    def __exit__(self, *reason) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill all running processes; nothing can be started afterwards."""
        self._is_over = True
        kill_marked(self._mark)

    @contextlib.contextmanager
    def started(
        self,
        words: Sequence[str],
        deadline: float,
        environment: Optional[Dict[str, str]] = None,
        module: str = "ernie_pair",
    ) -> Iterator["Running"]:
        """Start `python -m MODULE WORDS`; leaving the context kills it and all that it started.

        ``deadline``: in time.monotonic(), after which it is not waited for.
        """
        number = next(self._numbers)
        mark, log = f"{self._mark}-{number}-", self._folder / "log" / f"{number}.txt"
        if self._is_over:
            raise LostProcessError("the check is over")
        given = {"TMPDIR": str(self._folder / "tmp"), **(environment or {}), MARK: mark}
        with open(log, "wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, words)],
                env={**os.environ, **given},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C goes to the check, which then kills this
            )
        name = " ".join(map(str, words[:SHOWN_WORDS])) or module
        running = Running(process, name, mark, log, deadline, lambda: self._is_over)
        try:
            yield running
        finally:
            running.kill()

    def run(
        self,
        words: Sequence[str],
        deadline: float,
        environment: Optional[Dict[str, str]] = None,
        module: str = "ernie_pair",
        accepted: Sequence[int] = (0,),
    ) -> "Running":
        """Run a command to its end. Raises the error that it ends with, or LostProcessError at ``deadline``.

        ``accepted``: the exit codes that are not errors.
        """
        with self.started(words, deadline, environment, module) as running:
            running.wait()
            running.refuse_failure(accepted)
            return running


class Running:
    """A command that was started by `Commands`."""

    def __init__(
        self,
        process: subprocess.Popen,
        name: str,
        mark: str,
        log: Path,
        deadline: float,
        is_over: Callable[[], bool],
    ):
        self.process, self.name, self.log, self.deadline = process, name, log, deadline
        self._mark, self._is_over = mark, is_over

    @property
    def said(self) -> str:
        """Return its output so far, of both streams."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it ends, or until ``until`` is true, and return whether the latter came first.

        Raises LostProcessError at the deadline.
        """
        while exit_code_of(self.process) is None:
            if until():
                return True
            if time.monotonic() > self.deadline:
                raise LostProcessError(f"{self.name}: the time of its step was over")
            if self._is_over():
                raise LostProcessError("the check is over")
            time.sleep(LOOK_SECONDS)
        self.process.wait()
        return False

    def refuse_failure(self, accepted: Sequence[int] = (0,)) -> None:
        """Raise the error that the command ended with, by its exit code; none for those ``accepted``."""
        code = self.process.returncode
        if code in accepted:
            return
        error = error_of(code, self.name, last_error(self.log, 0))
        if code < 0 or code not in ERRORS:  # a bug, or a signal: its last output tells more than we can
            ended = f"signal {-code}" if code < 0 else f"exit code {code}"
            error = BrokenRunError(f"{self.name} ended with {ended}: {_last_line(self.said)}")
        raise error

    def kill(self) -> None:
        """Kill it, and all that it started."""
        kill_marked(self._mark)
        self.process.wait()


def kill_marked(mark: str) -> None:
    """Kill (SIGKILL) processes whose mark has this prefix, until none is left. Raises LostProcessError."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        found = marked_processes(mark)
        if not found:
            return
        if time.monotonic() > deadline:
            raise LostProcessError(f"processes {', '.join(map(str, found))} do not end; kill them")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def marked_processes(mark: str) -> List[int]:
    """Return the processes whose mark has this prefix, whoever their parent is by now."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            environment = Path("/proc", entry, "environ").read_bytes()
            if any(item.startswith(wanted) for item in environment.split(b"\0")):
                found.append(int(entry))
    return found


def _last_line(said: str) -> str:
    """Return the last line that mentions an error, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["no output"])[-1][:LONGEST_LINE]


MOST_LANES = 4
WORDS_OF_COUNT = {1: "a GPU", 2: "two GPUs"}


class Lab:
    """The environment of one check. Thread-safe."""

    def __init__(self, folder: Path, device: str, machine: Machine, quick: bool, commands: Commands):
        self.folder, self.device, self.machine, self.quick = folder, device, machine, quick
        self.deadline = 0.0  # of the current step, in time.monotonic()
        self._commands = commands
        self._made: Dict[str, Future] = {}
        self._lock = threading.Lock()

    @property
    def lanes(self) -> int:
        """Return how many cases may run in parallel if no time is measured."""
        return max(1, min(MOST_LANES, self.machine.cores))

    @property
    def is_lost(self) -> bool:
        """Return whether a GPU should be checked and there is none."""
        return self.device == "gpu" and not self.machine.gpus

    def lacks(self, gpus: int = 1, dtype: str = "float32") -> str:
        """Return what is missing here for a case with ``gpus`` GPUs that support ``dtype``, or ''."""
        if self.device == "cpu" or len(self.machine.gpus) < gpus:
            return WORDS_OF_COUNT[gpus]
        least = LEAST_CAPABILITY[dtype]
        if self.machine.least_capability(gpus) < least:
            return f"a GPU of compute capability {words_of(least)}"
        return ""

    def run(
        self,
        words: Sequence[str],
        module: str = "ernie_pair",
        accepted: Sequence[int] = (0,),
    ) -> Running:
        """Run `ernie-pair WORDS`, or another module, to its end. Raises the error that it ends with.

        It has the cores of a lane. ``accepted``: the exit codes that are not errors.
        """
        return self._commands.run(words, self.deadline, self._share(), module, accepted)

    def started(self, words: Sequence[str], alone: bool = False) -> ContextManager[Running]:
        """Start `ernie-pair WORDS`, as a context at whose end it is killed; ``alone``: with all cores."""
        return self._commands.started(words, self.deadline, {} if alone else self._share())

    def stop(self) -> None:
        """Kill all running processes; nothing can be started afterwards."""
        self._commands.stop()

    def _share(self) -> Dict[str, str]:
        return {"OMP_NUM_THREADS": str(max(1, self.machine.cores // self.lanes))}

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``; another call with the same name gets the same, or the same error."""
        with self._lock:
            is_first = name not in self._made
            made = self._made.setdefault(name, Future())
        if is_first:
            try:
                made.set_result(make())
            except Exception as error:
                made.set_exception(error)
        return made.result()


def train_events(output: Path) -> List[Dict[str, Any]]:
    """Return the training lines in the metrics.jsonl of a run, which may still write; none without it."""
    try:
        lines = (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            events.append(json.loads(line))
        except ValueError:  # the last line, partly written
            break
    return [event for event in events if event["split"] == "train"]


def losses_of(output: Path) -> List[float]:
    """Return the loss of each training line of a run."""
    return [float(event["loss"]) for event in train_events(output)]


def error_in_logs(output: Path, error: ErniePairError) -> ErniePairError:
    """Return ``error`` of a launched run with the error message of one of its processes, if there is one."""
    for log in sorted((output / "log").glob("workerlog.*")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line[len("error: ") :] for line in lines if line.startswith("error: ")]
        if said:
            return type(error)(said[-1])
    return error
