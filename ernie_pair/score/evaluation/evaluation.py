"""All measurements of the predictions of a model on one file, as one dictionary that JSON can hold."""

import math
import re
import unicodedata
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.options.standard_streams import as_asked
from ernie_pair.inference.scores import probabilities
from ernie_pair.models.temperature import Calibration
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.robustness.perturb import is_negated
from ernie_pair.pair.targets.bootstrap import bootstrap_intervals
from ernie_pair.pair.targets.metrics import (
    METRICS,
    class_averages,
    class_table,
    cross_entropies,
    find_single_class,
    log_odds,
    measure,
)
from ernie_pair.score.evaluation.calibration import (
    BINS,
    Bin,
    Curve,
    at_precision,
    best_f1,
    calibration_error,
    confidences_and_hits,
    equal_mass_bins,
    equal_width_bins,
    is_at_the_end,
    measure_at,
    threshold_curve,
    top_label,
)
from ernie_pair.score.evaluation.robustness_table import Bearing, robustness_table

# A word of Latin letters or digits is one unit, any other letter (a Chinese character) is one by itself.
UNIT = re.compile(r"[a-z0-9]+|\w")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OVERLAPS = (0.25, 0.5, 0.75, 1.0)

Name = str
Group = Tuple[Name, np.ndarray]  # and which rows are of it, bool [N]


def slice_table(
    left: Sequence[str], right: Sequence[str], labels: np.ndarray, predictions: np.ndarray, num_classes: int
) -> List[Dict[str, object]]:
    """Return a dictionary per slice that has rows; ``labels`` and ``predictions`` are int64 [N].

    Its keys: by, slice, rows, accuracy, f1, and of two classes share_positive. The slices of one ``by`` hold
    every row once.
    """
    return [
        {"by": kind, "slice": name, **_measured(labels[inside], predictions[inside], num_classes)}
        for kind, name, inside in slices_of(left, right)
    ]


def slices_of(left: Sequence[str], right: Sequence[str]) -> Iterator[Tuple[str, Name, np.ndarray]]:
    """Yield (by, slice, which rows are of it, bool [N]) for each slice that has rows."""
    pairs = [(_plain(a), _plain(b)) for a, b in zip(left, right)]
    kinds: Dict[str, Callable[[List[Tuple[str, str]]], Iterator[Group]]] = {
        "length": _by_length,
        "overlap": _by_overlap,
        "negation": _by_negation,
        "digits": _by_digits,
    }
    for kind, groups in kinds.items():
        for name, inside in groups(pairs):
            if inside.any():
                yield kind, name, inside


def _measured(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> Dict[str, object]:
    from sklearn.metrics import accuracy_score, f1_score

    average = "binary" if num_classes == 2 else "macro"
    values: Dict[str, object] = {
        "rows": len(labels),
        "accuracy": float(accuracy_score(labels, predictions)),
        "f1": float(f1_score(labels, predictions, average=average, zero_division=0)),
    }
    return {**values, "share_positive": float(labels.mean())} if num_classes == 2 else values


def _plain(text: str) -> str:
    """Return the text in lower case, with full-width letters and digits as the others (NFKC)."""
    return unicodedata.normalize("NFKC", text).lower()


def _by_length(pairs) -> Iterator[Group]:
    """Yield the quartiles of the number of characters of both texts together."""
    lengths = np.array([len(a) + len(b) for a, b in pairs])
    quarters = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths, side="left")
    for quarter in np.unique(quarters):
        inside = quarters == quarter
        shortest, longest = lengths[inside].min(), lengths[inside].max()
        yield f"{shortest} to {longest} characters" if shortest < longest else f"{longest} characters", inside


def _by_overlap(pairs) -> Iterator[Group]:
    """Yield groups of pairs by the ``overlap`` of their texts."""
    shares = np.array([overlap(a, b) for a, b in pairs])
    low = 0.0
    for high in OVERLAPS:
        yield f"{low:.0%} to {high:.0%} of the words shared", (low <= shares) & (shares < high)
        low = high
    yield "the same words", shares == 1.0


def overlap(a: str, b: str) -> float:
    """Return the share of the units (UNIT) of both texts that stands in both (Jaccard), in [0, 1].

    Two texts without units share all: 1.0.
    """
    units = [set(UNIT.findall(text)) for text in (a, b)]
    either = units[0] | units[1]
    return len(units[0] & units[1]) / len(either) if either else 1.0


def _by_negation(pairs) -> Iterator[Group]:
    negated = np.array([[is_negated(a), is_negated(b)] for a, b in pairs])
    yield "in one text only", negated[:, 0] != negated[:, 1]
    yield "in both", negated.all(axis=1)
    yield "in neither", ~negated.any(axis=1)


def _by_digits(pairs) -> Iterator[Group]:
    numbers = [(set(NUMBER.findall(a)), set(NUMBER.findall(b))) for a, b in pairs]
    have = np.array([bool(a or b) for a, b in numbers])
    same = np.array([a == b for a, b in numbers])
    yield "different numbers", ~same
    yield "the same numbers", have & same
    yield "no digits", ~have


class CountedRows:
    """The METRICS of a file in which row i occurs counts[i] times; as ``measure`` of that file, but fast.

    ``logits`` float32 [N, C], ``labels`` int64 [N].
    """

    def __init__(self, logits: np.ndarray, labels: np.ndarray):
        self.num_classes, self.num_rows = logits.shape[1], len(labels)
        self.losses = cross_entropies(logits, labels)
        self.cells = labels * self.num_classes + logits.argmax(axis=1)
        measured = [1] if self.num_classes == 2 else range(self.num_classes)
        odds = log_odds(logits)
        self.rankings = [_Ranking(odds[:, label], labels == label) for label in measured]

    def measure(self, counts: np.ndarray) -> Dict[str, float]:
        """Return the METRICS of the file in which row i occurs counts[i] times; ``counts`` int64 [N]."""
        size = self.num_classes
        table = np.bincount(self.cells, counts, size * size).reshape(size, size)
        ranked = np.mean([ranking.measure(counts) for ranking in self.rankings], axis=0)
        values = {"loss": self.losses @ counts / counts.sum(), **_of_table(table)}
        values.update(zip(("auc", "average_precision"), ranked))
        return {name: float(values[name]) for name in METRICS}


class _Ranking:
    """Rows by falling score; rows of one score stand together."""

    def __init__(self, scores: np.ndarray, is_positive: np.ndarray):
        self.order = np.argsort(-scores, kind="stable")
        self.is_positive = is_positive[self.order]
        ordered = scores[self.order]
        self.ends = np.append(np.flatnonzero(np.diff(ordered)), len(scores) - 1)

    def measure(self, counts: np.ndarray) -> List[float]:
        """Return AUC and average precision for ``counts`` [N]; nan without a positive or a negative."""
        counts = counts[self.order]
        above = np.cumsum(counts)[self.ends].astype(np.float64)
        hits = np.cumsum(counts * self.is_positive)[self.ends].astype(np.float64)
        positives, negatives = hits[-1], above[-1] - hits[-1]
        if not positives or not negatives:
            return [np.nan, np.nan]
        new_hits = np.diff(hits, prepend=0)
        new_misses = np.diff(above - hits, prepend=0)
        area = (new_misses * (hits - new_hits / 2)).sum() / (positives * negatives)
        return [area, (new_hits * hits / np.maximum(above, 1)).sum() / positives]


def _of_table(table: np.ndarray) -> Dict[str, float]:
    """Return the metrics that follow from the confusion matrix [label, prediction]."""
    hits, labelled, guessed = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    total = table.sum()
    precision, recall = hits / np.maximum(guessed, 1), hits / np.maximum(labelled, 1)
    f1 = 2 * hits / np.maximum(labelled + guessed, 1)
    counted = np.array([False, True]) if len(table) == 2 else labelled + guessed > 0
    spread = np.sqrt((total**2 - guessed @ guessed) * (total**2 - labelled @ labelled))
    return {
        "accuracy": hits.sum() / total,
        "precision": precision[counted].mean(),
        "recall": recall[counted].mean(),
        "f1": f1[counted].mean(),
        "mcc": (hits.sum() * total - labelled @ guessed) / spread if spread else 0.0,
    }


def intervals(logits: np.ndarray, labels: np.ndarray, samples: int, seed: int) -> Dict[str, List[float]]:
    """Return {metric: [low, high]}, the percentile bootstrap of ``samples`` resamples of the rows.

    ``logits`` float32 [N, C], ``labels`` int64 [N]. A metric that has no value on any resample is left out.
    """
    rows = CountedRows(logits, labels)
    return bootstrap_intervals(rows.measure, METRICS, rows.num_rows, samples, seed)


ECE_OF_TWO = f"{BINS} equal-mass bins by the probability of class 1"
ECE_OF_MORE = f"{BINS} equal-mass bins by the probability of the predicted class"
ECE_TOP_LABEL = f"{BINS} equal-width bins by the probability of the predicted class"


class Fitted(NamedTuple):
    """A temperature, the file whose labels it was fitted on, its rows and its hash where they are known."""

    temperature: float
    fitted_on: str
    rows: Optional[int]
    fitted_on_sha256: str = ""


class Scored(NamedTuple):
    """Labelled pairs and the logits float32 [N, C] of a model on them."""

    pairs: Pairs
    logits: np.ndarray

    def curve(self, temperature: float) -> Optional[Curve]:
        """Return precision and recall of every threshold; None unless two classes exist and both occur."""
        labels = self.pairs.known_labels
        if self.logits.shape[1] != 2 or len(np.unique(labels)) < 2:
            return None
        return threshold_curve(probabilities(self.logits, temperature)[:, 1], labels)


class Answers(NamedTuple):
    """The rows of a file and what a model says of them.

    ``names`` are those of the C classes; ``logits`` float32 [N, C], ``swapped`` those of (B, A) where they
    were asked for; ``in_use`` is the temperature of the probabilities that a prediction would show,
    ``fitted`` the one to be judged. ``symmetric`` says how pairs were scored; thresholds are chosen on
    ``tuning``, None: on the rows themselves; ``saved`` is what the model's folder holds for these scores;
    ``bearing`` is of changed pairs, where they were asked for.
    """

    pairs: Pairs
    names: Tuple[str, ...]
    logits: np.ndarray
    swapped: Optional[np.ndarray]
    in_use: float
    fitted: Fitted
    symmetric: str = "none"
    tuning: Optional[Scored] = None
    saved: Calibration = Calibration()
    bearing: Optional[Bearing] = None

    @property
    def num_classes(self) -> int:
        """Return the number of classes C."""
        return self.logits.shape[1]

    @property
    def labels(self) -> np.ndarray:
        """Return the labels of the rows, int64 [N]."""
        return self.pairs.known_labels

    @property
    def predictions(self) -> np.ndarray:
        """Return the predictions: the most probable class of each row, int64 [N]."""
        return self.logits.argmax(axis=1)

    @property
    def shown(self) -> np.ndarray:
        """Return the probabilities that a prediction would show, float64 [N, C]."""
        return probabilities(self.logits, self.in_use)

    def curve(self) -> Optional[Curve]:
        """Return precision and recall of every threshold, at the temperature in use.

        None unless two classes exist and both occur.
        """
        return Scored(self.pairs, self.logits).curve(self.in_use)

    def bins(self, temperature: float) -> List[Bin]:
        """Return the equal-mass bins of the probabilities at ``temperature``, see ``equal_mass_bins``."""
        return equal_mass_bins(*confidences_and_hits(probabilities(self.logits, temperature), self.labels))

    def top_label_error(self, temperature: float) -> float:
        """Return the expected calibration error as papers give it, see ECE_TOP_LABEL."""
        return calibration_error(
            equal_width_bins(*top_label(probabilities(self.logits, temperature), self.labels))
        )


def evaluation_of(answers: Answers, config: EvaluateConfig) -> Dict[str, object]:
    """Return the metrics, facts about the rows, and a section for each further question.

    The dictionary can be written as JSON; what is undefined is None.
    """
    labels, logits = answers.labels, answers.logits
    thresholds, single = thresholds_of(answers, config.at_precision), find_single_class(logits, labels)
    confusion = _confusion(answers)
    sections = {
        "rows": len(labels),
        "model": config.model_path,
        "input_file": as_asked(config.input_file),
        "input_sha256": answers.pairs.sha256,
        "classes": list(answers.names),
        "symmetric": answers.symmetric,
        "single_class": None if single is None else answers.names[single],
        "confusion": confusion.tolist(),
        "per_class": class_table(confusion, answers.names),
        "averages": class_averages(confusion),
        "calibration": _calibration(answers),
        "slices": slice_table(
            answers.pairs.left, answers.pairs.right, labels, answers.predictions, answers.num_classes
        ),
    }
    if config.bootstrap:
        sections["intervals"] = intervals(logits, labels, config.bootstrap, config.seed)
        of_classes = class_intervals(answers.labels, answers.predictions, answers.num_classes, config)
        for row, interval in zip(sections["per_class"], of_classes):
            row["f1_interval"] = interval
    if thresholds is not None:
        sections["thresholds"] = thresholds
    if answers.swapped is not None:
        sections["swap"] = _swap(answers, answers.swapped)
    if answers.bearing is not None:
        table = robustness_table(answers.bearing, config.bootstrap, config.seed)
        sections["robustness"] = {"seed": config.seed, "kinds": table}
    metrics = measure(logits, labels)
    return {**{n: value if math.isfinite(value) else None for n, value in metrics.items()}, **sections}


def class_intervals(
    labels: np.ndarray, predictions: np.ndarray, num_classes: int, config: EvaluateConfig
) -> List[Optional[List[float]]]:
    """Return the interval of the F1 of each class, see ``bootstrap_intervals``."""
    names = list(map(str, range(num_classes)))
    cells = labels * num_classes + predictions

    def measure_classes(counts: np.ndarray) -> Dict[str, float]:
        table = np.bincount(cells, counts, num_classes**2).reshape(num_classes, num_classes)
        return {row["class"]: row["f1"] for row in class_table(table, names)}

    found = bootstrap_intervals(measure_classes, names, len(labels), config.bootstrap, config.seed)
    return [found.get(name) for name in names]


def thresholds_of(answers: Answers, precision: float) -> Optional[Dict[str, Any]]:
    """Return the thresholds of the best F1 and of an asked precision, and the file they are chosen on.

    Return None where there are none to choose. Where that file is another than the judged one, ``judged``
    holds what each does on the judged rows; ``saved`` is the threshold of the model's folder there.
    """
    tuning = answers.tuning or Scored(answers.pairs, answers.logits)
    curve = tuning.curve(answers.in_use)
    if curve is None:
        return None
    is_judged = tuning.pairs.sha256 == answers.pairs.sha256
    found: Dict[str, Any] = {
        "temperature": answers.in_use,
        "tuned_on": tuning.pairs.path,
        "tuned_on_sha256": tuning.pairs.sha256,
        "tuned_rows": len(tuning.pairs),
        "is_judged_file": is_judged,
        "best_f1": best_f1(curve),
        "at_precision": at_precision(curve, precision),
    }
    for name in () if is_judged else ("best_f1", "at_precision"):
        found[name]["judged"] = _judged(answers, found[name]["threshold"])
    if answers.saved.threshold is not None:
        found["saved"] = _saved(answers, answers.saved.threshold)
    return found


def _saved(answers: Answers, threshold: float) -> Dict[str, object]:
    saved = answers.saved
    return {
        **_judged(answers, threshold),
        "tuned_on": saved.tuned_on,
        "tuned_on_sha256": saved.tuned_on_sha256,
        "tuned_for": saved.tuned_for,
        "is_judged_file": saved.tuned_on_sha256 == answers.pairs.sha256,
    }


def _judged(answers: Answers, threshold: float) -> Dict[str, object]:
    return measure_at(threshold, answers.shown[:, 1], answers.labels)


def _confusion(answers: Answers) -> np.ndarray:
    """Return the confusion matrix, int64 [C, C]: counts by label, then by prediction."""
    size = answers.num_classes
    cells = answers.labels * size + answers.predictions
    return np.bincount(cells, minlength=size * size).reshape(size, size)


def _calibration(answers: Answers) -> Dict[str, object]:
    fitted = answers.fitted
    temperature = fitted.temperature
    return {
        **fitted._asdict(),
        "is_judged_file": fitted.fitted_on_sha256 == answers.pairs.sha256,
        "at_end_of_range": is_at_the_end(temperature),
        "bins": BINS,
        "ece_method": ECE_OF_TWO if answers.num_classes == 2 else ECE_OF_MORE,
        "ece": calibration_error(answers.bins(1.0)),
        "ece_calibrated": calibration_error(answers.bins(temperature)),
        "ece_top_label_method": ECE_TOP_LABEL,
        "ece_top_label": answers.top_label_error(1.0),
        "ece_top_label_calibrated": answers.top_label_error(temperature),
        "loss_calibrated": measure(answers.logits.astype(np.float64) / temperature, answers.labels)["loss"],
    }


def _swap(answers: Answers, swapped: np.ndarray) -> Dict[str, float]:
    """Return what changes when the two texts change places.

    ``mean_difference``: half the sum of |p(A, B) - p(B, A)| over the classes; of two, that of class 1.
    ``accuracy_both_orders``: of the mean of the logits, as --symmetric average takes it.
    """
    differences = np.abs(answers.shown - probabilities(swapped, answers.in_use)).sum(axis=1) / 2
    predictions, both = swapped.argmax(axis=1), (answers.logits + swapped).argmax(axis=1)
    return {
        "flip_rate": float(np.mean(predictions != answers.predictions)),
        "mean_difference": float(differences.mean()),
        "accuracy_swapped": float(np.mean(predictions == answers.labels)),
        "accuracy_both_orders": float(np.mean(both == answers.labels)),
    }
