"""The figures of lanes that took turns: medians, ratios with their spread, speeds, shares of a rate."""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from side_by_side.lanes import Lane, Measured

PEER_DEFAULTS = "peer defaults"
ALIKE = {"int8": "bf16"}  # the peer has no int8
BASES = ("plain fp32", "1 process")  # what our other lanes are compared with


class Ratio(NamedTuple):
    """How many times as long the other took: of the medians, and the minimum and maximum of the rounds."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class LaneFigures:
    """The figures of one lane; speeds are by the wall clock, and None if there is nothing to count.

    ``tokens_per_second`` counts padding, ``real_tokens_per_second`` does not. ``flops_per_cpu_second`` is by
    CPU time: of one thread, whatever else the machine does. ``product_share``: of the best rate of
    matrix products that was measured in the same rounds.
    """

    name: str
    side: str
    precision: str
    step_seconds: float
    step_cpu_seconds: Optional[float]
    memory_gb: float
    pairs_per_second: Optional[float] = None
    real_tokens_per_second: Optional[float] = None
    tokens_per_second: Optional[float] = None
    flops_per_second: Optional[float] = None
    flops_per_cpu_second: Optional[float] = None
    product_share: Optional[float] = None
    data_wait_share: Optional[float] = None


@dataclass(frozen=True)
class CaseFigures:
    """The figures of a case: its lanes, the ratios between them, and every turn."""

    name: str
    unit: str  # what a step is
    lanes: List[LaneFigures]
    ratios: List[Dict[str, Any]]
    turns: Dict[str, Dict[str, List[float]]]

    def to_json(self) -> Dict[str, Any]:
        """Return the figures as plain values."""
        return asdict(self)


def ratio_of(slower: Sequence[float], faster: Sequence[float]) -> Optional[Ratio]:
    """Return how many times as long ``slower`` took as ``faster``; their turns were side by side.

    None if it is unknown.
    """
    if not (slower and faster):
        return None
    paired = [a / b for a, b in zip(slower, faster)]
    return Ratio(median(slower) / median(faster), min(paired), max(paired))


def case_figures(name: str, unit: str, measured: Sequence[Measured]) -> CaseFigures:
    """Return the figures of the lanes of one case."""
    rates = product_rates(measured)
    working = [each for each in measured if each.lane.side != "product"]
    lanes = [_lane_figures(each, rates) for each in working]
    turns = {each.lane.name: {"seconds": each.seconds, "cpu_seconds": each.cpu_seconds} for each in measured}
    return CaseFigures(name, unit, lanes, list(_ratios(working)), turns)


def product_rates(measured: Sequence[Measured]) -> Dict[str, float]:
    """Return {precision: the best FLOP/s by CPU time} of the lanes of matrix products."""
    return {
        each.lane.precision: max(turn.counts["flops_per_cpu_second"] for turn in each.turns)
        for each in measured
        if each.lane.side == "product"
    }


def _lane_figures(measured: Measured, rates: Dict[str, float]) -> LaneFigures:
    lane, seconds = measured.lane, median(measured.seconds)
    processor = median(measured.cpu_seconds) if measured.cpu_seconds else None
    memory = max(turn.memory_gb for turn in measured.turns)
    if not lane.work:
        return LaneFigures(lane.name, lane.side, lane.precision, seconds, processor, memory)
    pairs, real, padded, flops = zip(*lane.work)
    by_processor = _median_speed(flops, measured.cpu_seconds)
    rate = rates.get(lane.precision)
    return LaneFigures(
        lane.name,
        lane.side,
        lane.precision,
        seconds,
        processor,
        memory,
        pairs_per_second=_median_speed(pairs, measured.seconds),
        real_tokens_per_second=_median_speed(real, measured.seconds),
        tokens_per_second=_median_speed(padded, measured.seconds),
        flops_per_second=_median_speed(flops, measured.seconds),
        flops_per_cpu_second=by_processor,
        product_share=by_processor / rate if rate and by_processor else None,
        data_wait_share=measured.data_wait_share,
    )


def _median_speed(counts: Sequence[float], seconds: Sequence[float]) -> Optional[float]:
    """Return the median over turns of the counts per second; None if nothing was counted."""
    speeds = [count / taken for count, taken in zip(counts, seconds)]
    return median(speeds) or None if speeds else None


def _ratios(measured: Sequence[Measured]):
    """Yield the ratio of every other lane to each of ours that it is compared with."""
    for ours in measured:
        for other in measured:
            if _are_compared(ours.lane, other.lane):
                yield {
                    "ours": ours.lane.name,
                    "other": other.lane.name,
                    "cpu": _plain(ratio_of(other.cpu_seconds, ours.cpu_seconds)),
                    "wall": _plain(ratio_of(other.seconds, ours.seconds)),
                }


def _plain(ratio: Optional[Ratio]) -> Optional[Dict[str, float]]:
    return None if ratio is None else ratio._asdict()


def _are_compared(ours: Lane, other: Lane) -> bool:
    """Return whether ``other`` is compared with ``ours``: plain lane, the peer's best alike, its defaults."""
    if ours.side != "ours" or ours is other:
        return False
    if other.side == "peer":
        return other.precision == ALIKE.get(ours.precision, ours.precision) or other.name == PEER_DEFAULTS
    return other.name in BASES
