"""Read the figures of finished runs; what is published is small and names no path of the machine."""

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from data_tools.files.errors import CheckpointError
from ernie_pair.runtime.cpu_env import cpu_threads
from ernie_pair.score.evaluation.calibration import calibration_error, confidences_and_hits, equal_mass_bins
from ernie_pair.score.evaluation.predict_pair import read_log_probabilities
from ernie_pair.series.comparison_report import Comparison, compare
from proof.curves import best_of, pairs_in, seconds_in
from proof.experiment import Figures, Places
from proof.overlap import overlap_figures, read_pairs, seen_figures

METRICS = ("accuracy", "f1", "auc", "loss")  # loss: the log loss
DIGITS, LOSS_DIGITS = 6, 8


def compared_figures(places: Places, folder: str, train: str, test: str, metric: str) -> Figures:
    """Return the metrics, intervals and differences of a compare-starts, with calibration.

    overlap: the metrics of the share of common characters. seen: how many test pairs have texts of the
    training file. chosen_by: the ``metric`` that chooses the checkpoint, accuracy or auc. chosen: {start: for
    each seed, its best value on the pairs for model selection}.
    """
    comparison = read_json(places.path(folder) / "compare.json")
    labels = _labels_of(places.path(test))
    predictions = {
        start: [places.path(f"{folder}/{start}-seed-{seed}/predictions.tsv") for seed in comparison["seeds"]]
        for start in comparison["runs"]
    }
    errors = {name: _errors_of(files, labels) for name, files in predictions.items()}
    chosen = {
        start: [best_of(file.parent / "metrics.jsonl", metric) for file in files]
        for start, files in predictions.items()
    }
    trained, tested = places.path(train), places.path(test)
    shares = _rounded(overlap_figures(trained, tested, trained.with_name("choose.jsonl"), metric))
    seen = _rounded(seen_figures(trained.with_name("train_all.jsonl"), tested))
    figures = _figures_of(comparison, errors)
    return {**figures, "overlap": shares, "seen": seen, "chosen_by": metric, "chosen": chosen}


def classifier_figures(
    places: Places, predictions: Dict[str, List[str]], test: str, bootstrap: int
) -> Figures:
    """Return metrics and intervals of predictions {name: a file per seed}, compared with the first name."""
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

    training_seconds and pairs_per_second are lists of a number per seed, of the steps alone. versions: of the
    peer's libraries; {} for a training by this package, whose versions are recorded with the machine.
    """
    logs = [places.path(folder) / "metrics.jsonl" for folder in folders]
    seconds = [seconds_in(log) for log in logs]
    return {
        **classifier_figures(places, predictions, test, bootstrap),
        "training_seconds": [round(each, 1) for each in seconds],
        "pairs_per_second": [round(pairs_in(log) / each, 2) for log, each in zip(logs, seconds)],
        "precision": precision,
        "threads": cpu_threads(),
        "versions": _versions_of(places, folders),
    }


def loss_figures(places: Places, folders: Dict[str, str]) -> Figures:
    """Return the losses of every step on two sides, {name: its folder}, and the largest difference.

    versions: of the libraries of the second side.
    """
    losses = {side: _losses_in(places.path(folder) / "metrics.jsonl") for side, folder in folders.items()}
    one, other = map(np.array, losses.values())
    versions = _versions_of(places, list(folders.values())[1:])
    return {"losses": losses, "largest_difference": float(np.abs(one - other).max()), "versions": versions}


def _losses_in(log: Path) -> List[float]:
    events = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    trained = (event for event in events if event.get("split") == "train" and "loss" in event)
    found = {event["step"]: round(event["loss"], LOSS_DIGITS) for event in trained}
    return [found[step] for step in sorted(found)]


def _versions_of(places: Places, folders: Sequence[str]) -> Dict[str, str]:
    versions = places.path(folders[0]) / "versions.json"
    return read_json(versions) if versions.is_file() else {}


def pretraining_figures(places: Places, metrics: str, measured: Sequence[str]) -> Figures:
    """Return the masked losses of what was ``measured``, and how long a pretraining took by its log."""
    return {
        **mlm_figures(places, measured),
        "training_seconds": round(seconds_in(places.path(metrics)), 1),
    }


def continued_figures(places: Places, metrics: str, measured: Sequence[str], before: str) -> Figures:
    """Return `pretraining_figures`, and under "before" the masked losses that the folder ``before`` has."""
    earlier = mlm_figures(places, measured, before)["masked"]
    return {**pretraining_figures(places, metrics, measured), "before": earlier}


def mlm_figures(places: Places, measured: Sequence[str], folder: str = "$RUN") -> Figures:
    """Return {"masked": {name: what evaluate-mlm wrote to ``folder``}}."""
    found = {name: read_json(places.path(f"{folder}/{name}.json")) for name in measured}
    return {"masked": {name: _rounded(values) for name, values in found.items()}}


def search_figures(
    places: Places, searched: Dict[str, str], predictions: Dict[str, List[str]], test: str, bootstrap: int
) -> Figures:
    """Return `classifier_figures`, and the best trial of each search {name: its folder}."""
    trials = {name: _best_trial(places.path(folder)) for name, folder in searched.items()}
    return {**classifier_figures(places, predictions, test, bootstrap), "searched": trials}


def _best_trial(folder: Path) -> Dict[str, Any]:
    trials = [each for each in read_json(folder / "search.json")["trials"] if each["state"] == "complete"]
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
    return read_pairs(test).known_labels


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


def read_json(path: Path) -> Dict[str, Any]:
    """Return the object in a file that a run has written. Raises CheckpointError for none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; remove it and run the same group again") from None
