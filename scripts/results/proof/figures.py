"""Read the figures of finished runs; what is published of them is small and names no place."""

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from data_tools.base.errors import CheckpointError
from ernie_pair.device.cpu_env import cpu_threads
from ernie_pair.model_files.labels import parse_label_map
from ernie_pair.pair.compare.comparison_report import Comparison, compare
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.evaluation.calibration import (
    calibration_error,
    confidences_and_hits,
    equal_mass_bins,
)
from ernie_pair.pair.evaluation.prediction_file import read_log_probabilities
from proof.curves import Curve, pairs_in, read_curve, seconds_in
from proof.experiment import Figures, Places

METRICS = ("accuracy", "f1", "auc", "loss")  # loss: the log loss
DIGITS = 6


def compared_figures(places: Places, folder: str, test: str) -> Figures:
    """Return the metrics, intervals and differences of a compare-starts, with calibration."""
    comparison = _read_json(places.path(folder) / "compare.json")
    labels = _labels_of(places.path(test))
    predictions = {
        start: [places.path(f"{folder}/{start}-seed-{seed}/predictions.tsv") for seed in comparison["seeds"]]
        for start in comparison["runs"]
    }
    errors = {name: _errors_of(files, labels) for name, files in predictions.items()}
    return _figures_of(comparison, errors)


def classifier_figures(
    places: Places, predictions: Dict[str, List[str]], test: str, bootstrap: int
) -> Figures:
    """Return the same for predictions {name: a file for each seed}; the differences are of the first name."""
    labels = _labels_of(places.path(test))
    files = {name: [places.path(each) for each in given] for name, given in predictions.items()}
    logits = {name: [_log_probabilities(path) for path in paths] for name, paths in files.items()}
    seeds = list(range(len(next(iter(logits.values())))))
    comparison = _plain(compare(logits, labels, seeds, bootstrap))
    errors = {name: _errors_of(paths, labels) for name, paths in files.items()}
    return _figures_of(comparison, errors)


def sided_figures(
    places: Places,
    predictions: Dict[str, List[str]],
    test: str,
    bootstrap: int,
    folders: Sequence[str],
    precision: str,
) -> Figures:
    """Return `classifier_figures`, and how fast the trainings in ``folders`` were by their own logs.

    training_seconds and pairs_per_second are lists of a number for each seed, of the steps alone. versions:
    of the libraries of a training elsewhere; {} for one of this package, whose own are of the machine.
    """
    logs = [places.path(folder) / "metrics.jsonl" for folder in folders]
    seconds = [seconds_in(log) for log in logs]
    versions = places.path(folders[0]) / "versions.json"
    return {
        **classifier_figures(places, predictions, test, bootstrap),
        "training_seconds": [round(each, 1) for each in seconds],
        "pairs_per_second": [round(pairs_in(log) / each, 2) for log, each in zip(logs, seconds)],
        "precision": precision,
        "threads": cpu_threads(),
        "versions": _read_json(versions) if versions.is_file() else {},
    }


def pretraining_figures(places: Places, metrics: str, measured: Sequence[str]) -> Figures:
    """Return the masked losses of what was ``measured``, and how long a pretraining took by its own log."""
    return {
        **mlm_figures(places, measured),
        "training_seconds": round(seconds_in(places.path(metrics)), 1),
    }


def mlm_figures(places: Places, measured: Sequence[str]) -> Figures:
    """Return {"masked": {name: what evaluate-mlm wrote}}."""
    found = {name: _read_json(places.path(f"$RUN/{name}.json")) for name in measured}
    return {"masked": {name: _rounded(values) for name, values in found.items()}}


def search_figures(places: Places, searched: Dict[str, str], test: str, bootstrap: int) -> Figures:
    """Return the flags of the best trial of each search {name: its folder}, and the metrics of its model."""
    predictions = {name: [f"{folder}-predictions.tsv"] for name, folder in searched.items()}
    trials = {name: _best_trial(places.path(folder)) for name, folder in searched.items()}
    return {**classifier_figures(places, predictions, test, bootstrap), "searched": trials}


def trial_figures(places: Places, trials: Dict[str, Dict[str, Any]]) -> Figures:
    """Return what came of trainings {folder: their flags} on the pairs that choose, and the best flags.

    accuracy and loss are of the best evaluation, last_accuracy of the last one, train_accuracy of the last
    steps. The best training has the highest accuracy; of those the lowest loss.
    """
    found = [
        {**flags, **_trial_of(read_curve(places.path(folder) / "metrics.jsonl"))}
        for folder, flags in trials.items()
    ]
    best = max(found, key=lambda each: (each["accuracy"], -each["loss"]))
    return {"trials": found, "chosen": {name: best[name] for name in next(iter(trials.values()))}}


def _trial_of(curve: Curve) -> Dict[str, float]:
    best = max(curve["valid"], key=lambda point: (point["accuracy"], -point["loss"]))
    return {
        "accuracy": best["accuracy"],
        "loss": best["loss"],
        "last_accuracy": curve["valid"][-1]["accuracy"],
        "train_accuracy": curve["train"][-1]["accuracy"],
    }


def _best_trial(folder: Path) -> Dict[str, Any]:
    trials = [each for each in _read_json(folder / "search.json")["trials"] if each["state"] == "complete"]
    best = max(trials, key=lambda each: each["value"])
    return {"params": best["params"], "value": round(best["value"], DIGITS), "complete": len(trials)}


def _rounded(values: Dict[str, Any]) -> Dict[str, Any]:
    return {name: np.round(value, DIGITS).tolist() for name, value in values.items()}


def _plain(comparison: Comparison) -> Dict[str, Any]:
    content = comparison._asdict()
    return {**content, "differences": [each._asdict() for each in comparison.differences]}


def _figures_of(comparison: Dict[str, Any], errors: Dict[str, List[float]]) -> Figures:
    """Return what the page shows of a comparison; ``errors``: {name: the calibration error of each seed}."""
    models = {}
    for name, runs in comparison["runs"].items():
        models[name] = {
            "runs": [
                {**_chosen(run), "calibration_error": round(error, DIGITS)}
                for run, error in zip(runs, errors[name])
            ],
            "interval": _chosen(comparison["interval"][name]),
        }
    differences = [
        {
            "one": each["one"],
            "other": each["other"],
            "mean": _chosen(each["mean"]),
            "interval": _chosen(each["interval"]),
        }
        for each in comparison["differences"]
    ]
    majority = round(comparison["chance"]["accuracy"], DIGITS)
    return {"rows": comparison["rows"], "majority": majority, "models": models, "differences": differences}


def _chosen(values: Dict[str, Any]) -> Dict[str, Any]:
    return {name: np.round(values[name], DIGITS).tolist() for name in METRICS}


def _labels_of(test: Path) -> np.ndarray:
    labels = parse_label_map("0=0,1=1")
    return PairSource("test_file", str(test), "test", labels, Columns()).read().known_labels


def _log_probabilities(path: Path) -> np.ndarray:
    try:
        return read_log_probabilities(path, 2)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; remove it and run the same group again") from None


def _errors_of(files: Sequence[Path], labels: np.ndarray) -> List[float]:
    """Return the expected calibration error of each file of predictions, as `evaluate` computes it."""
    return [
        calibration_error(equal_mass_bins(*confidences_and_hits(np.exp(_log_probabilities(path)), labels)))
        for path in files
    ]


def _read_json(path: Path) -> Dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; remove it and run the same group again") from None
