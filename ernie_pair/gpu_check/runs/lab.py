"""Where the runs of the check take place: a folder, a device, commands with a limit, shared results."""

import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, List, Sequence

from data_tools.base.errors import ErniePairError
from ernie_pair.device.gpu.capability import LEAST_CAPABILITY, words_of
from ernie_pair.gpu_check.runs.commands import Commands, Running
from ernie_pair.gpu_check.runs.machine import Machine

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
