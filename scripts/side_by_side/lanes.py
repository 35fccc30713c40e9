"""Lanes: processes that do the same work in different ways, in turn, so that noise affects all alike."""

import json
import os
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from data_tools.files.errors import InputError
from side_by_side.peer.python import THREADS

LAST_WORDS = 300
PEER_DEFAULTS = "peer defaults"
ALIKE = {"int8": "bf16"}  # the peer has no int8
BASES = ("plain fp32", "1 process")  # what our other lanes are compared with


class Work(NamedTuple):
    """What a step has done, or the steps of one turn in the mean: the same in every lane, but for padding."""

    pairs: float
    tokens: float
    padded_tokens: float
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

    def work_of(self, steps: Sequence[Work]) -> List[Work]:
        """Return the work of each turn, means over its steps, of that of every step of a lane."""
        firsts = range(self.warmup, self.total, self.steps)
        turns = [steps[first : first + self.steps] for first in firsts]
        return [Work(*(sum(counts) / len(turn) for counts in zip(*turn))) for turn in turns]


def measure_lanes(lanes: Sequence[Lane], plan: TurnPlan, threads: int) -> List[Measured]:
    """Start every lane, let them take turns, and end them. Raises InputError if one of them fails."""
    with ExitStack() as stack:
        running = [stack.enter_context(_RunningLane(lane, threads)) for lane in lanes]
        for each in running:
            each.read()  # until it has loaded everything
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
        self.process = subprocess.Popen(
            list(lane.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **lane.environment, **dict.fromkeys(THREADS, str(threads))},
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

    def take_turn(self, steps: int) -> Turn:
        """Let the lane run ``steps`` steps, and return what they took."""
        try:
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._fail()
        answer = self.read()
        taken = answer["steps"]
        names = taken[0].keys() - {"seconds", "cpu_seconds"}
        counts = {name: median(step[name] for step in taken) for name in names}
        seconds, processor = (sum(step[n] for step in taken) / steps for n in ("seconds", "cpu_seconds"))
        return Turn(seconds, processor, answer["memory_gb"], counts)

    def read(self) -> Dict[str, Any]:
        """Return the next answer of the lane."""
        line = self.process.stdout.readline()
        if not line:
            self._fail()
        return json.loads(line)

    def _fail(self) -> None:
        code = self.process.wait()
        self.errors.seek(0)
        last = (self.errors.read().strip().splitlines() or ["no message"])[-1]
        raise InputError(f"the lane {self.lane.name} ended with code {code}: {last[-LAST_WORDS:]}")


def case_figures(name: str, unit: str, measured: Sequence[Measured]) -> Dict[str, Any]:
    """Return the figures of the lanes of one case, plain values: its lanes, ratios between them, every turn.

    unit: what a step is. Speeds are by the wall clock, and None if there is nothing to count.
    tokens_per_second counts padding, real_tokens_per_second does not. flops_per_cpu_second is by CPU time: of
    one thread, whatever else the machine does. product_share: of the best rate of matrix products that was
    measured in the same rounds.
    """
    rates = {
        each.lane.precision: max(turn.counts["flops_per_cpu_second"] for turn in each.turns)
        for each in measured
        if each.lane.side == "product"
    }
    working = [each for each in measured if each.lane.side != "product"]
    return {
        "name": name,
        "unit": unit,
        "lanes": [_lane_figures(each, rates.get(each.lane.precision)) for each in working],
        "ratios": list(_ratios(working)),
        "turns": {
            each.lane.name: {"seconds": each.seconds, "cpu_seconds": each.cpu_seconds} for each in measured
        },
    }


def _lane_figures(measured: Measured, rate: Optional[float]) -> Dict[str, Any]:
    lane, seconds, processor = measured.lane, measured.seconds, measured.cpu_seconds
    pairs, real, padded, flops = zip(*lane.work) if lane.work else ((), (), (), ())
    by_processor = _median_speed(flops, processor)
    return {
        "name": lane.name,
        "side": lane.side,
        "precision": lane.precision,
        "step_seconds": median(seconds),
        "step_cpu_seconds": median(processor) if processor else None,
        "memory_gb": max(turn.memory_gb for turn in measured.turns),
        "pairs_per_second": _median_speed(pairs, seconds),
        "real_tokens_per_second": _median_speed(real, seconds),
        "tokens_per_second": _median_speed(padded, seconds),
        "flops_per_second": _median_speed(flops, seconds),
        "flops_per_cpu_second": by_processor,
        "product_share": by_processor / rate if rate and by_processor else None,
        "data_wait_share": measured.data_wait_share if lane.work else None,
    }


def _median_speed(counts: Sequence[float], seconds: Sequence[float]) -> Optional[float]:
    """Return the median over turns of the counts per second; None if nothing was counted."""
    speeds = [count / taken for count, taken in zip(counts, seconds)]
    return median(speeds) or None if speeds else None


def _ratios(measured: Sequence[Measured]) -> Iterator[Dict[str, Any]]:
    """Yield the ratio of every other lane to each of ours that it is compared with."""
    for ours in measured:
        for other in measured:
            if _are_compared(ours.lane, other.lane):
                yield {
                    "ours": ours.lane.name,
                    "other": other.lane.name,
                    "cpu": ratio_of(other.cpu_seconds, ours.cpu_seconds),
                    "wall": ratio_of(other.seconds, ours.seconds),
                }


def ratio_of(slower: Sequence[float], faster: Sequence[float]) -> Optional[Dict[str, float]]:
    """Return how many times as long ``slower`` took as ``faster``; their turns were side by side.

    ratio: of the medians; low and high: the minimum and maximum of the rounds. None if it is unknown.
    """
    if not (slower and faster):
        return None
    paired = [a / b for a, b in zip(slower, faster)]
    return {"ratio": median(slower) / median(faster), "low": min(paired), "high": max(paired)}


def _are_compared(ours: Lane, other: Lane) -> bool:
    """Return whether ``other`` is compared with ``ours``: plain lane, the peer's best alike, its defaults."""
    if ours.side != "ours" or ours is other:
        return False
    if other.side == "peer":
        return other.precision == ALIKE.get(ours.precision, ours.precision) or other.name == PEER_DEFAULTS
    return other.name in BASES
