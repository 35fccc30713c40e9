"""Read the figures of finished runs; what is published is small and names no path of the machine."""

import json
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence

import numpy as np

from ernie_pair.core.errors import CheckpointError
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.evaluation.baseline import metrics_of_thresholds, shares_of
from ernie_pair.evaluation.calibration import calibration_error, confidences_and_hits, equal_mass_bins
from ernie_pair.evaluation.predict_pair import read_log_probabilities
from ernie_pair.experiments.comparison_report import compare
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import Columns
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.runtime.cpu_env import cpu_threads

DIFFERENCE = ("one", "other", "mean", "interval")
LABELS = Labels.numbered(2)
METRICS = ("accuracy", "f1", "auc", "loss")  # loss: the log loss
DIGITS, LOSS_DIGITS, CURVE_DIGITS = 6, 8, 5
MOST_POINTS = 60  # of a curve
IN_CURVES = ("lm_loss", "sop_accuracy", "loss", "accuracy")
CURE = "remove it and run the same group again"

Figures = Dict[str, Any]
read_json = partial(read_json_object, cure=CURE, kind=CheckpointError)  # what a run has written


def compared_figures(places, folder: str, train: str, test: str, metric: str) -> Figures:
    """Return the metrics, intervals and differences of a compare-starts, with calibration.

    overlap: the metrics of the share of common characters. seen: how many test pairs have texts of the
    training file. chosen_by: the ``metric`` that chooses the checkpoint, accuracy or auc. chosen: {start: for
    each seed, its best value on the pairs for model selection}.
    """
    comparison = read_json(places.path(folder) / "compare.json")
    trained, tested = places.path(train), places.path(test)
    runs = {
        start: [places.path(f"{folder}/{start}-seed-{seed}") for seed in comparison["seeds"]]
        for start in comparison["runs"]
    }
    predictions = {start: [run / "predictions.tsv" for run in each] for start, each in runs.items()}
    return {
        **_figures_of(comparison, predictions, read_pairs(tested).known_labels),
        "overlap": _rounded(overlap_figures(trained, tested, trained.with_name("choose.jsonl"), metric)),
        "seen": _rounded(seen_figures(trained.with_name("train_all.jsonl"), tested)),
        "chosen_by": metric,
        "chosen": {
            start: [best_of(run / "metrics.jsonl", metric) for run in each] for start, each in runs.items()
        },
    }


def classifier_figures(places, predictions: Dict[str, List[str]], test: str, bootstrap: int) -> Figures:
    """Return metrics and intervals of predictions {name: a file per seed}, compared with the first name."""
    labels = read_pairs(places.path(test)).known_labels
    files = {name: [places.path(each) for each in named] for name, named in predictions.items()}
    logits = {name: [_log_probabilities(path) for path in paths] for name, paths in files.items()}
    comparison = compare(logits, labels, list(range(len(next(iter(logits.values()))))), bootstrap)
    differences = [each._asdict() for each in comparison.differences]
    return _figures_of({**comparison._asdict(), "differences": differences}, files, labels)


def sided_figures(places, folders: Sequence[str], precision: str, **compared: Any) -> Figures:
    """Return `classifier_figures`, and how fast the trainings in ``folders`` were by their own logs.

    training_seconds and pairs_per_second are lists of a number per seed, of the steps alone. versions: of the
    peer's libraries; {} for a training by this package, whose versions are recorded with the machine.
    """
    logs = [places.path(folder) / "metrics.jsonl" for folder in folders]
    seconds = [seconds_in(log) for log in logs]
    return {
        **classifier_figures(places, **compared),
        "training_seconds": [round(each, 1) for each in seconds],
        "pairs_per_second": [round(pairs_in(log) / each, 2) for log, each in zip(logs, seconds)],
        "precision": precision,
        "threads": cpu_threads(),
        "versions": _versions_in(logs[0].parent),
    }


def loss_figures(places, folders: Dict[str, str]) -> Figures:
    """Return all losses of two sides, {name: its folder}, their largest difference, the second's versions."""
    losses = {}
    for side, folder in folders.items():
        events = [each for each in _events_in(places.path(folder) / "metrics.jsonl") if "loss" in each]
        of_step = {event["step"]: event["loss"] for event in events if event.get("split") == "train"}
        losses[side] = [round(of_step[step], LOSS_DIGITS) for step in sorted(of_step)]
    one, other = map(np.array, losses.values())
    versions = _versions_in(places.path(list(folders.values())[1]))
    return {"losses": losses, "largest_difference": float(np.abs(one - other).max()), "versions": versions}


def mlm_figures(places, measured: Sequence[str], metrics: str = "", before: str = "") -> Figures:
    """Return what evaluate-mlm measured in $RUN, in the folder ``before``, and the time by ``metrics``."""
    folders = {"masked": "$RUN", **({"before": before} if before else {})}
    figures: Figures = {
        key: {name: _rounded(read_json(places.path(f"{folder}/{name}.json"))) for name in measured}
        for key, folder in folders.items()
    }
    if metrics:
        figures["training_seconds"] = round(seconds_in(places.path(metrics)), 1)
    return figures


def search_figures(places, searched: Dict[str, str], **compared: Any) -> Figures:
    """Return `classifier_figures`, and the best trial of each search {name: its folder}."""
    best = {}
    for name, folder in searched.items():
        trials = read_json(places.path(folder) / "search.json")["trials"]
        complete = [each for each in trials if each["state"] == "complete"]
        chosen = max(complete, key=lambda each: each["value"])
        value = round(chosen["value"], DIGITS)
        best[name] = {"params": chosen["params"], "value": value, "complete": len(complete)}
    return {**classifier_figures(places, **compared), "searched": best}


def circle_figures(places, stages: Dict[str, Any], bootstrap: int) -> Figures:
    """Return for each of ``stages`` {name: (files of the seeds, which search in them)} its metrics.

    runs: {metric: mean over the queries} of each seed; interval: {metric: 95 %}, of resamples of queries and
    seeds; gain: that of the difference to the first stage on the same resamples; queries and texts: their
    numbers.
    """
    figures: Figures = {"stages": {}}
    first: np.ndarray = np.zeros(0)
    for name, (files, search) in stages.items():
        stored = [read_json(places.path(file)) for file in files]
        values_SQM = np.array([each["queries"][search] for each in stored])
        seeds, queries, _ = values_SQM.shape
        rng = np.random.default_rng(0)  # the same resamples for every stage
        means = np.array([
            values_SQM[rng.integers(seeds, size=seeds)][:, rng.integers(queries, size=queries)].mean((0, 1))
            for _ in range(bootstrap)
        ])  # fmt: skip
        first, metrics = first if len(first) else means, stored[0]["metrics"]
        interval, gain = (np.quantile(each, (0.025, 0.975), axis=0).T for each in (means, means - first))
        figures["stages"][name] = {
            "runs": [_rounded(dict(zip(metrics, run))) for run in values_SQM.mean(axis=1)],
            "interval": _rounded(dict(zip(metrics, interval))),
            "gain": _rounded(dict(zip(metrics, gain))),
        }
        figures.update(queries=queries, texts=stored[0]["texts"])
    return figures


def figures_in(places, file: str) -> Figures:
    return read_json(places.path(file))


def _figures_of(comparison: Dict[str, Any], files: Mapping[str, List[Path]], labels: np.ndarray) -> Figures:
    """Return what the page shows of a comparison; ``files``: {name: the predictions of each seed}."""

    def chosen(values: Mapping[str, Any]) -> Dict[str, Any]:
        return _rounded({name: values[name] for name in METRICS})

    models = {}
    for name, runs in comparison["runs"].items():
        errors = []  # of calibration, as `evaluate` computes it
        for path in files[name]:
            bins = equal_mass_bins(*confidences_and_hits(np.exp(_log_probabilities(path)), labels))
            errors.append(round(calibration_error(bins), DIGITS))
        models[name] = {
            "runs": [{**chosen(run), "calibration_error": error} for run, error in zip(runs, errors)],
            "interval": chosen(comparison["interval"][name]),
        }
    differences = [
        {**each, "mean": chosen(each["mean"]), "interval": chosen(each["interval"])}
        for each in ({name: of[name] for name in DIFFERENCE} for of in comparison["differences"])
    ]
    majority = round(comparison["chance"]["accuracy"], DIGITS)
    return {"rows": comparison["rows"], "majority": majority, "models": models, "differences": differences}


def _rounded(values: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: np.round(value, DIGITS).tolist() for name, value in values.items()}


def _log_probabilities(path: Path) -> np.ndarray:
    try:
        return read_log_probabilities(path, 2)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; {CURE}") from None


def _versions_in(folder: Path) -> Dict[str, str]:
    versions = folder / "versions.json"
    return read_json(versions) if versions.is_file() else {}


def _events_in(metrics: Path) -> Iterable[Dict[str, Any]]:
    return map(json.loads, metrics.read_text(encoding="utf-8").splitlines())


def read_curve(metrics: Path) -> Dict[str, List[Dict[str, Any]]]:
    """Return {split: points} of a metrics.jsonl, at most MOST_POINTS for each; {} where there is none."""
    splits: Dict[str, Dict[int, Dict[str, Any]]] = {}
    for event in _events_in(metrics) if metrics.is_file() else ():
        numbers = {name: event[name] for name in IN_CURVES if isinstance(event.get(name), (int, float))}
        if "step" in event and any(name in event for name in IN_CURVES):  # a resumed run repeats steps
            point = {name: round(value, CURVE_DIGITS) for name, value in numbers.items()}
            splits.setdefault(event.get("split", "train"), {})[event["step"]] = point
    curve = {}
    for split, points in splits.items():
        steps = sorted(points)
        places = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).round().astype(int))
        curve[split] = [{"step": steps[place], **points[steps[place]]} for place in places]
    return curve


def best_of(metrics: Path, metric: str) -> float:
    values = (event[metric] for event in _events_in(metrics) if event.get("split") == "valid")
    return round(max(values), CURVE_DIGITS)


def pairs_in(metrics: Path) -> int:
    """Return the samples, or pairs, that the seconds of ``seconds_in`` were spent on."""
    return max((event["consumed_samples"] for event in _timed(metrics)), default=0)


def seconds_in(metrics: Path) -> float:
    """Return the seconds of training in a metrics.jsonl, evaluations excluded."""
    seconds, before = 0.0, 0
    for event in _timed(metrics):
        seconds += max(0, event["consumed_samples"] - before) / event["samples_per_second"]
        before = event["consumed_samples"]
    return seconds


def _timed(metrics: Path) -> List[Dict[str, Any]]:
    events = _events_in(metrics)
    return [event for event in events if event.get("split") == "train" and event.get("samples_per_second")]


def read_pairs(path: Path, flag: str = "test_file") -> Pairs:
    return PairSource(flag, str(path), flag[: -len("_file")], LABELS, Columns()).read()


def overlap_figures(train: Path, test: Path, choose: Path, metric: str) -> Dict[str, float]:
    """Return accuracy and auc of the share of common characters on ``test``, the baseline of every model.

    Its threshold is the lowest of the most accurate ones on ``train``. chosen: its ``metric``, one of these,
    on ``choose``, the pairs by which models are chosen.
    """
    from sklearn.metrics import roc_auc_score

    pairs = read_pairs(train)
    thresholds, metrics = metrics_of_thresholds(shares_of(pairs, LABELS), pairs.known_labels == 1)
    best = thresholds[1:][::-1][np.argmax(metrics["accuracy"][1:][::-1])]
    figures = []
    for path in (test, choose):
        pairs = read_pairs(path)
        shares, is_positive = shares_of(pairs, LABELS), pairs.known_labels == 1
        accuracy = float(np.mean((shares >= best) == is_positive))
        figures.append({"accuracy": accuracy, "auc": float(roc_auc_score(is_positive, shares))})
    return {**figures[0], "chosen": figures[1][metric]}


def seen_figures(train: Path, test: Path) -> Dict[str, float]:
    """Return the shares of the pairs of ``test`` of which one text or both, or both, occur in ``train``."""
    trained, tested = read_pairs(train), read_pairs(test)
    known = {*trained.left, *trained.right}
    counts = np.array([(a in known) + (b in known) for a, b in zip(tested.left, tested.right)])
    return {"any": float(np.mean(counts > 0)), "both": float(np.mean(counts == 2))}
