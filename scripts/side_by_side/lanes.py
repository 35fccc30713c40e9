"""Lanes: processes that do the same work in different ways, in turn, so that noise affects all alike."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from other_libraries.client import THREADS, LineProcess

ALIKE = {"int8": "bf16"}  # the peer has no int8
BASE = "plain fp32"  # what our other lanes are compared with
PATIENCE = 30.0  # seconds that a lane has to end


class Turn(NamedTuple):
    """What one turn took: means of its steps, and the peak memory so far; None: not known."""

    seconds: float
    cpu_seconds: Optional[float]
    memory_gb: Optional[float]


@dataclass
class Lane:
    """A way of doing the work.

    ``side``: ours or peer; ``precision``: fp32, bf16 or int8. ``turns``: those that it has taken, without the
    warm-up.
    """

    name: str
    side: str
    precision: str
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    turns: List[Turn] = field(default_factory=list)

    @property
    def seconds(self) -> List[float]:
        """Return the wall-clock seconds of a step, one figure per turn."""
        return [turn.seconds for turn in self.turns]

    @property
    def cpu_seconds(self) -> List[float]:
        """Return the CPU seconds of a step, one figure per turn; [] if they are unknown."""
        return [turn.cpu_seconds for turn in self.turns if turn.cpu_seconds]


@dataclass(frozen=True)
class TurnPlan:
    """How often the lanes take turns: steps of the warm-up, of a turn, and turns of each lane."""

    warmup: int
    steps: int
    rounds: int

    @property
    def total(self) -> int:
        return self.warmup + self.steps * self.rounds


def measure_lanes(lanes: Sequence[Lane], plan: TurnPlan, threads: int) -> None:
    """Start every lane on the first ``threads`` cores, let them take turns, end them. Raises InputError."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    of_threads = dict.fromkeys(THREADS, str(threads))
    with ExitStack() as stack:
        running = []
        for lane in lanes:
            name, environment = f"the lane {lane.name}", {**lane.environment, **of_threads}
            running.append(stack.enter_context(LineProcess(name, lane.command, environment, cores, PATIENCE)))
        for each in running:
            each.read()  # until it has loaded everything
        for each in running:
            _take_turn(each, plan.warmup)
        for turn in rotated(list(zip(lanes, running)), plan.rounds):
            for lane, each in turn:
                lane.turns.append(_take_turn(each, plan.steps))


def rotated(lanes: List[Any], rounds: int) -> List[List[Any]]:
    """Return the order of the lanes in each round: none is always the first one."""
    return [lanes[first:] + lanes[:first] for first in (number % len(lanes) for number in range(rounds))]


def _take_turn(process: LineProcess, steps: int) -> Turn:
    process.send(str(steps))
    answer = process.read()
    taken = answer["steps"]
    seconds, processor = (sum(step[name] for step in taken) / steps for name in ("seconds", "cpu_seconds"))
    return Turn(seconds, processor, answer["memory_gb"])


def case_figures(name: str, unit: str, lanes: Sequence[Lane]) -> Dict[str, Any]:
    """Return the figures of the lanes of one case, plain values: its lanes and ratios between them.

    unit: what a step is.
    """
    figures = [_lane_figures(lane) for lane in lanes]
    return {"name": name, "unit": unit, "lanes": figures, "ratios": list(_ratios(lanes))}


def _lane_figures(lane: Lane) -> Dict[str, Any]:
    return {
        "name": lane.name, "side": lane.side, "precision": lane.precision,
        "step_seconds": median(lane.seconds),
        "step_cpu_seconds": median(lane.cpu_seconds) if lane.cpu_seconds else None,
        "memory_gb": max((turn.memory_gb for turn in lane.turns if turn.memory_gb), default=None),
    }  # fmt: skip


def _ratios(lanes: Sequence[Lane]) -> Iterator[Dict[str, Any]]:
    """Yield the ratios to each lane of ours: of the plain one, the peer's best alike, its defaults.

    cpu and wall, where they are known, with their low and high of the rounds.
    """
    for ours, other in ((one, other) for one in lanes for other in lanes if one.side == "ours"):
        is_compared = other is not ours and other.name == BASE
        if other.side == "peer":
            alike = other.precision == ALIKE.get(ours.precision, ours.precision)
            is_compared = alike or other.name == "peer defaults"
        if is_compared:
            cpu, wall = ratio_of(other.cpu_seconds, ours.cpu_seconds), ratio_of(other.seconds, ours.seconds)
            yield {"ours": ours.name, "other": other.name, **_named("cpu", cpu), **_named("wall", wall)}


def ratio_of(slower: Sequence[float], faster: Sequence[float]) -> Sequence[float]:
    """Return the ratio of medians of times taken side by side, low and high of the rounds; (): unknown."""
    if not (slower and faster):
        return ()
    paired = [a / b for a, b in zip(slower, faster)]
    return median(slower) / median(faster), min(paired), max(paired)


def _named(clock: str, ratio: Sequence[float]) -> Dict[str, float]:
    return dict(zip((clock, f"{clock}_low", f"{clock}_high"), (round(each, 6) for each in ratio)))
