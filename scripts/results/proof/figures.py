"""Read the figures of finished runs: numbers and texts of a run, and {table: its rows}.

What is published is small and names no path of the machine.
"""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence

import numpy as np

from ernie_pair.core.errors import CheckpointError
from ernie_pair.core.files.json_file import read_json_object
from ernie_pair.evaluation.calibration import calibration_error, confidences_and_hits, equal_mass_bins
from ernie_pair.evaluation.predict_pair import read_log_probabilities
from ernie_pair.experiments.compare_starts import compare
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.label_checks import metrics_of_thresholds, overlap_scores
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.runtime.cpu import cpu_threads

LABELS = Labels.numbered(2)
METRICS = ("accuracy", "f1", "auc", "loss")  # loss: the log loss
OF_MASKED = ("lm_loss", "perplexity", "lm_accuracy", "sop_accuracy")
DIGITS, LOSS_DIGITS, CURVE_DIGITS = 6, 8, 5
OF_SEARCH = ("recall@1", "recall@10", "nDCG@10")
CURE = "remove it and run the same group again"

Figures = Dict[str, Any]
read_json = partial(read_json_object, hint=CURE, kind=CheckpointError)  # what a run has written


def compared_figures(places, folder: str, train: str, test: str, metric: str) -> Figures:
    """Return the metrics, intervals and differences of a comparison of starts, with calibration.

    overlap: the metrics of the share of common characters. seen: how many test pairs have texts of the
    training file. chosen_by: the ``metric`` that chooses the checkpoint, accuracy or auc. chosen: of each
    seed, its best value on the pairs for model selection.
    """
    comparison = read_json(places.path(folder) / "compare.json")
    trained, tested = places.path(train), places.path(test)
    runs = {
        start: [places.path(f"{folder}/{start}-seed-{seed}") for seed in comparison["seeds"]]
        for start in comparison["runs"]
    }
    predictions = {start: [run / "predictions.tsv" for run in each] for start, each in runs.items()}
    figures = _figures_of(comparison, predictions, read_pairs(tested).known_labels)
    logs = [run / "metrics.jsonl" for each in runs.values() for run in each]
    for row, log in zip(figures["seeds"], logs):
        row["chosen"] = find_best(log, metric)
    overlap = overlap_figures(trained, tested, trained.with_name("choose.jsonl"), metric)
    seen = seen_figures(trained.with_name("train_all.jsonl"), tested)
    return {**figures, **_rounded({**overlap, **seen}), "chosen_by": metric}


def classifier_figures(
    places, predictions: Dict[str, List[str]], test: str, bootstrap: int, beside: Mapping[str, List[str]] = {}
) -> Figures:
    """Return metrics and intervals of predictions {name: a file per seed}, and how they differ.

    ``beside``: predictions of other runs, that these are compared with as well.
    """
    labels = read_pairs(places.path(test)).known_labels
    files = {name: list(map(places.path, named)) for name, named in {**predictions, **beside}.items()}
    logits = {name: [_log_probabilities(path) for path in paths] for name, paths in files.items()}
    comparison = compare(logits, labels, list(range(len(next(iter(logits.values()))))), bootstrap)
    differences = [each._asdict() for each in comparison.differences]
    figures = _figures_of({**comparison._asdict(), "differences": differences}, files, labels)
    for table in ("seeds", "models"):
        figures[table] = [row for row in figures[table] if row["model"] in predictions]
    return figures


def match_figures(places, train: str, choose: str, **compared: Any) -> Figures:
    """Return `classifier_figures`, and what the share of common characters reaches."""
    paths = map(places.path, (train, compared["test"], choose))
    return {**classifier_figures(places, **compared), **_rounded(overlap_figures(*paths, "accuracy"))}


def sided_figures(places, folders: Sequence[str], **compared: Any) -> Figures:
    """Return `classifier_figures`, and how fast the trainings in ``folders`` were by their own logs.

    seconds and speed, pairs per second, are of the steps alone. peer: the versions of the peer's libraries;
    empty for a training by this package, whose versions are recorded with the machine.
    """
    figures = classifier_figures(places, **compared)
    for row, folder in zip(figures["seeds"], folders):
        log = places.path(folder) / "metrics.jsonl"
        seconds = seconds_in(log)
        row.update(seconds=round(seconds, 1), speed=round(pairs_in(log) / seconds, 2))
    return {**figures, "threads": cpu_threads(), "peer": _versions_in(places.path(folders[0]))}


def loss_figures(places, folders: Dict[str, str]) -> Figures:
    """Return the losses of two sides, {name: its folder}, step by step, and their largest difference."""
    losses = {}
    for side, folder in folders.items():
        events = [each for each in _events_in(places.path(folder) / "metrics.jsonl") if "loss" in each]
        of_step = {event["step"]: event["loss"] for event in events if event.get("split") == "train"}
        losses[side] = [round(of_step[step], LOSS_DIGITS) for step in sorted(of_step)]
    one, other = map(np.array, losses.values())
    rows = [
        {"step": step, **dict(zip(losses, both))} for step, both in enumerate(zip(*losses.values()), start=1)
    ]
    versions = _versions_in(places.path(list(folders.values())[1]))
    return {"losses": rows, "largest_difference": float(np.abs(one - other).max()), "peer": versions}


def mlm_figures(places, measured: Sequence[str], metrics: str = "", before: str = "") -> Figures:
    """Return what `evaluate mlm` measured in $RUN, in the folder ``before``, and the time by ``metrics``."""
    folders = {"after": "$RUN", **({"before": before} if before else {})}
    masked = []
    for when, folder in folders.items():
        for text in measured:
            found = read_json(places.path(f"{folder}/{text}.json"))
            own = {name: found[name] for name in OF_MASKED if name in found}
            masked.append({"when": when, "text": text, **_rounded(own)})
    seconds = {"training_seconds": round(seconds_in(places.path(metrics)), 1)} if metrics else {}
    return {**seconds, "masked": masked}


def search_figures(places, searched: Dict[str, str], **compared: Any) -> Figures:
    """Return `classifier_figures`, and the flags of the best trial of each search {name: its folder}."""
    figures = classifier_figures(places, **compared)
    for row in figures["models"]:
        with open(places.path(searched[row["model"]]) / "trials.tsv", encoding="utf-8") as file:
            complete = [each for each in csv.DictReader(file, delimiter="\t") if each["state"] == "COMPLETE"]
        best = max(complete, key=lambda each: float(each["value"]))
        flags = {name[len("params_") :]: best[name] for name in best if name.startswith("params_")}
        shown = (f"{name} {float(value):.3g}" for name, value in flags.items())
        row["trials"], row["flags"] = len(complete), ", ".join(shown)
    return figures


def circle_figures(places, stages: Dict[str, Any], bootstrap: int) -> Figures:
    """Return for each of ``stages`` {name: (files of the seeds, which search in them)} its metrics.

    They are means over seeds and queries, with 95 % intervals, of resamples of both; gain: that of the
    difference to the first stage on the same resamples; queries and texts: their numbers.
    """
    figures: Figures = {"stages": []}
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
        row = _with_intervals(dict(zip(metrics, values_SQM.mean((0, 1)))), dict(zip(metrics, interval)))
        low, high = gain[metrics.index(OF_SEARCH[-1])]
        ends = _rounded({"gain_low": low, "gain_high": high})
        figures["stages"].append({"stage": name, "runs": seeds, **row, **ends})
        figures.update(queries=queries, texts=stored[0]["texts"])
    return figures


def figures_in(places, file: str) -> Figures:
    return read_json(places.path(file))


def _figures_of(comparison: Dict[str, Any], files: Mapping[str, List[Path]], labels: np.ndarray) -> Figures:
    """Return what the page shows of a comparison; ``files``: {name: the predictions of each seed}."""
    seeds, models = [], []
    for name, runs in comparison["runs"].items():
        for seed, run, path in zip(comparison["seeds"], runs, files[name]):
            # As `evaluate` computes it.
            bins = equal_mass_bins(*confidences_and_hits(np.exp(_log_probabilities(path)), labels))
            own = {metric: run[metric] for metric in METRICS}
            own["calibration_error"] = calibration_error(bins)
            seeds.append({"model": name, "seed": seed, **_rounded(own)})
        low, high = _rounded(comparison["interval"][name])["accuracy"]
        models.append({"model": name, "accuracy_low": low, "accuracy_high": high})
    differences = [
        {"one": each["one"], "other": each["other"], **_with_intervals(each["mean"], each["interval"])}
        for each in comparison["differences"]
    ]
    majority = round(comparison["chance"]["accuracy"], DIGITS)
    tables = {"seeds": seeds, "models": models, "differences": differences}
    return {"rows": comparison["rows"], "majority": majority, **tables}


def _with_intervals(means: Mapping[str, Any], intervals: Mapping[str, Any]) -> Figures:
    row = {}
    for name in (name for name in means if name in (*METRICS, *OF_SEARCH)):
        low, high = intervals[name]
        row.update({name: means[name], f"{name}_low": low, f"{name}_high": high})
    return _rounded(row)


def _rounded(values: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: np.round(value, DIGITS).tolist() for name, value in values.items()}


def _log_probabilities(path: Path) -> np.ndarray:
    try:
        return read_log_probabilities(path, 2)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; {CURE}") from None


def _versions_in(folder: Path) -> str:
    path = folder / "versions.json"
    return ", ".join(f"{key} {value}" for key, value in read_json(path).items()) if path.is_file() else ""


def _events_in(metrics: Path) -> Iterable[Dict[str, Any]]:
    return map(json.loads, metrics.read_text(encoding="utf-8").splitlines())


def read_curve(metrics: Path) -> List[Dict[str, Any]]:
    """Return the step, and the loss if it has one, of each evaluation in a metrics.jsonl; [] without it."""
    points: Dict[int, Dict[str, Any]] = {}
    for event in _events_in(metrics) if metrics.is_file() else ():
        if event.get("split") == "valid":  # a resumed run repeats steps
            loss = {"lm_loss": round(event["lm_loss"], CURVE_DIGITS)} if "lm_loss" in event else {}
            points[event["step"]] = {"step": event["step"], **loss}
    return [points[step] for step in sorted(points)]


def find_best(metrics: Path, metric: str) -> float:
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
    """Return the pairs of a file, without rows that hold an error of a spreadsheet; LCQMC has two."""
    rules = RowRules(skips=True)
    return PairSource(flag, str(path), flag[: -len("_file")], LABELS, Columns(), rules).read()


def overlap_figures(train: Path, test: Path, choose: Path, metric: str) -> Dict[str, float]:
    """Return accuracy and auc of the share of common characters on ``test``, the baseline of every model.

    Its threshold is the lowest of the most accurate ones on ``train``. overlap_chosen: its ``metric``, one of
    these, on ``choose``, the pairs by which models are chosen.
    """
    from sklearn.metrics import roc_auc_score

    pairs = read_pairs(train)
    thresholds, metrics = metrics_of_thresholds(overlap_scores(pairs, LABELS), pairs.known_labels == 1)
    best = thresholds[1:][::-1][np.argmax(metrics["accuracy"][1:][::-1])]
    figures = []
    for path in (test, choose):
        pairs = read_pairs(path)
        shares, is_positive = overlap_scores(pairs, LABELS), pairs.known_labels == 1
        accuracy = float(np.mean((shares >= best) == is_positive))
        auc = float(roc_auc_score(is_positive, shares))
        figures.append({"overlap_accuracy": accuracy, "overlap_auc": auc})
    return {**figures[0], "overlap_chosen": figures[1][f"overlap_{metric}"]}


def seen_figures(train: Path, test: Path) -> Dict[str, float]:
    """Return the shares of the pairs of ``test`` of which one text or both, or both, occur in ``train``."""
    trained, tested = read_pairs(train), read_pairs(test)
    known = {*trained.left, *trained.right}
    counts = np.array([(a in known) + (b in known) for a, b in zip(tested.left, tested.right)])
    return {"seen_any": float(np.mean(counts > 0)), "seen_both": float(np.mean(counts == 2))}
