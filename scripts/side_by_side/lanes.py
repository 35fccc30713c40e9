"""Lanes: processes that do the same work in different ways, in turn, so that noise affects all alike."""

import json
import os
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from data_tools.files.errors import InputError

LAST_WORDS = 300


class Work(NamedTuple):
    """What the steps of one turn have done, the same in every lane except for padding."""

    pairs: int
    tokens: int
    padded_tokens: int
    flops: float


class Turn(NamedTuple):
    """What one turn took: means of its steps, and the peak memory so far; None: not known."""

    seconds: float
    cpu_seconds: Optional[float]
    memory_gb: float
    counts: Dict[str, float]  # the medians of what else its steps counted


@dataclass(frozen=True)
class Lane:
    """A way of doing the work.

    ``side``: ours, peer or product, whose steps are only matrix products; ``precision``: fp32, bf16 or int8.
    ``work``: one for each turn. ``events``: the metrics.jsonl of a lane that logs.
    """

    name: str
    side: str
    precision: str
    command: Sequence[str]
    work: Sequence[Work] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    events: Optional[Path] = None


@dataclass
class Measured:
    """The turns that a lane has taken, without the warm-up."""

    lane: Lane
    turns: List[Turn] = field(default_factory=list)

    @property
    def seconds(self) -> List[float]:
        """Return the wall-clock seconds of a step, one figure per turn."""
        return [turn.seconds for turn in self.turns]

    @property
    def cpu_seconds(self) -> List[float]:
        """Return the CPU seconds of a step, one figure per turn; [] if they are unknown."""
        return [turn.cpu_seconds for turn in self.turns if turn.cpu_seconds is not None]

    @property
    def data_wait_share(self) -> Optional[float]:
        """Return the share of the time that the lane waited for data, from its log; None: it has no log."""
        if self.lane.events is None or not self.lane.events.exists():
            return None
        events = map(json.loads, self.lane.events.read_text(encoding="utf-8").splitlines())
        shares = [event["data_wait_share"] for event in events if "data_wait_share" in event]
        return median(shares) if shares else None


@dataclass(frozen=True)
class TurnPlan:
    """How often the lanes take turns: steps of the warm-up, of a turn, and turns of each lane."""

    warmup: int
    steps: int
    rounds: int

    @property
    def total(self) -> int:
        """Return the steps of one lane in all."""
        return self.warmup + self.steps * self.rounds


def measure_lanes(lanes: Sequence[Lane], plan: TurnPlan, threads: int) -> List[Measured]:
    """Start every lane, let them take turns, and end them. Raises InputError if one of them fails."""
    with ExitStack() as stack:
        running = [stack.enter_context(_RunningLane(lane, threads)) for lane in lanes]
        for each in running:
            each.wait_until_ready()
        for each in running:
            each.take_turn(plan.warmup)
        measured = [Measured(lane) for lane in lanes]
        for number in range(plan.rounds):
            for place in range(len(lanes)):
                chosen = (number + place) % len(lanes)  # so that no lane always follows the same one
                measured[chosen].turns.append(running[chosen].take_turn(plan.steps))
    return measured


class _RunningLane:
    """The process of a lane, on the first ``threads`` cores that this one may use."""

    def __init__(self, lane: Lane, threads: int):
        self.lane = lane
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - see __exit__
        cores = sorted(os.sched_getaffinity(0))[:threads]
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        self.process = subprocess.Popen(
            list(lane.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **lane.environment, **dict.fromkeys(names, str(threads))},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )

    def __enter__(self) -> "_RunningLane":
        return self

    def __exit__(self, *exception) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def wait_until_ready(self) -> None:
        """Wait until the lane has loaded everything."""
        self._read()

    def take_turn(self, steps: int) -> Turn:
        """Let the lane run ``steps`` steps, and return what they took."""
        try:
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._fail()
        answer = self._read()
        taken = answer["steps"]
        names = taken[0].keys() - {"seconds", "cpu_seconds"}
        counts = {name: median(step[name] for step in taken) for name in names}
        seconds, processor = (sum(step[n] for step in taken) / steps for n in ("seconds", "cpu_seconds"))
        return Turn(seconds, processor, answer["memory_gb"], counts)

    def _read(self) -> Dict:
        line = self.process.stdout.readline()
        if not line:
            self._fail()
        return json.loads(line)

    def _fail(self) -> None:
        code = self.process.wait()
        self.errors.seek(0)
        last = (self.errors.read().strip().splitlines() or ["no message"])[-1]
        raise InputError(f"the lane {self.lane.name} ended with code {code}: {last[-LAST_WORDS:]}")
