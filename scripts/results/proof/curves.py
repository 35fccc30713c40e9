"""The learning curve of a run, thinned so that it can be committed."""

import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

MOST_POINTS = 60
KEPT = ("lm_loss", "sop_accuracy", "loss", "accuracy")
DIGITS = 5

Curve = Dict[str, List[Dict[str, Any]]]


def read_curve(metrics: Path) -> Curve:
    """Return {split: points} of a metrics.jsonl, at most MOST_POINTS for each; {} where there is none."""
    if not metrics.is_file():
        return {}
    splits: Dict[str, Dict[int, Dict[str, Any]]] = {}
    for line in metrics.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "step" in event and any(name in event for name in KEPT):  # a resumed run repeats steps
            splits.setdefault(event.get("split", "train"), {})[event["step"]] = event
    return {split: _thinned([points[step] for step in sorted(points)]) for split, points in splits.items()}


def best_of(metrics: Path, metric: str) -> float:
    """Return the highest value of ``metric`` in all evaluations of a metrics.jsonl."""
    events = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    return _rounded(max(event[metric] for event in events if event.get("split") == "valid"))


def _thinned(points: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    places = np.unique(np.linspace(0, len(points) - 1, min(len(points), MOST_POINTS)).round().astype(int))
    return [
        {
            "step": points[place]["step"],
            **{name: _rounded(points[place][name]) for name in _kept(points[place])},
        }
        for place in places
    ]


def _kept(point: Dict[str, Any]) -> List[str]:
    return [name for name in KEPT if isinstance(point.get(name), (int, float))]


def _rounded(value: float) -> float:
    return round(value, DIGITS)


def pairs_in(metrics: Path) -> int:
    """Return the samples, or pairs, that the seconds of ``seconds_in`` were spent on."""
    events = (json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines())
    trained = (event for event in events if event.get("split") == "train" and event.get("samples_per_second"))
    return max((event["consumed_samples"] for event in trained), default=0)


def seconds_in(metrics: Path) -> float:
    """Return the seconds of training in a metrics.jsonl, evaluations excluded."""
    seconds, before = 0.0, 0
    for line in metrics.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event.get("split") == "train" and event.get("samples_per_second"):
            samples = event["consumed_samples"] - before
            seconds += max(0, samples) / event["samples_per_second"]
            before = event["consumed_samples"]
    return seconds
