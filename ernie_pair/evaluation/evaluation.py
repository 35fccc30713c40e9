"""All measurements of a model on one file, with classes or without, as one dictionary that JSON can hold."""

import math
import re
from collections import defaultdict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.text.characters import compatible, lowered
from ernie_pair.core.cli.standard_streams import original_value
from ernie_pair.core.errors import counted
from ernie_pair.evaluation import calibration
from ernie_pair.evaluation.robustness_table import Robustness, robustness_table
from ernie_pair.inference.scores import clip_scores, decide, probabilities
from ernie_pair.models.labels import RANKING, REGRESSION
from ernie_pair.models.temperature import Calibration
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.pairs.data.label_checks import overlap
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.robustness.perturb import count_negations
from ernie_pair.pairs.targets import metrics
from ernie_pair.pairs.targets.metrics import CountedRows

NUMBER = re.compile(r"\d+(?:\.\d+)?")
OVERLAPS = (0.25, 0.5, 0.75, 1.0)


def measure_slices(
    left: Sequence[str], right: Sequence[str], labels: np.ndarray, predictions: np.ndarray, num_classes: int
) -> List[Dict[str, object]]:
    """Return a dictionary per slice that has rows; ``labels`` and ``predictions`` are int64 [N].

    Keys: by, slice, rows, accuracy, f1, of two classes share_positive. Slices of a ``by`` hold all rows once.
    """
    from sklearn.metrics import accuracy_score, f1_score

    table: List[Dict[str, object]] = []
    how = {"average": "binary" if num_classes == 2 else "macro", "zero_division": 0}
    for kind, name, inside in find_slices(left, right):
        known, found = labels[inside], predictions[inside]
        accuracy, f1 = float(accuracy_score(known, found)), float(f1_score(known, found, **how))
        positive = {"share_positive": float(known.mean())} if num_classes == 2 else {}
        row = {"by": kind, "slice": name, "rows": len(known), "accuracy": accuracy, "f1": f1}
        table.append({**row, **positive})
    return table


def find_slices(left: Sequence[str], right: Sequence[str]) -> List[Tuple[str, str, np.ndarray]]:
    """Return (by, slice, which rows are of it, bool [N]) for each slice that has rows."""
    # In lower case, full-width letters and digits as the others.
    pairs = [tuple(lowered(compatible(text)) for text in pair) for pair in zip(left, right)]
    table: Dict[str, Dict[str, np.ndarray]] = defaultdict(dict)
    lengths = np.array([len(a) + len(b) for a, b in pairs])  # of both texts together, in quartiles
    quarters = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths, side="left")
    for quarter in np.unique(quarters):
        inside = quarters == quarter
        shortest, longest = lengths[inside].min(), lengths[inside].max()
        span = f"{shortest} to {longest}" if shortest < longest else f"{longest}"
        table["length"][f"{span} characters"] = inside
    shares = np.array([overlap(a, b) for a, b in pairs])
    for low, high in zip((0.0, *OVERLAPS), OVERLAPS):
        table["overlap"][f"{low:.0%} to {high:.0%} of the words shared"] = (low <= shares) & (shares < high)
    table["overlap"]["the same words"] = shares == 1.0
    one, other = np.array([[count_negations(text) > 0 for text in pair] for pair in pairs]).T
    table["negation"] = {
        "in one text only": one != other,
        "in both": one & other,
        "in neither": ~(one | other),
    }
    numbers = [(set(NUMBER.findall(a)), set(NUMBER.findall(b))) for a, b in pairs]
    have = np.array([bool(a or b) for a, b in numbers])
    same = np.array([a == b for a, b in numbers])
    table["digits"] = {"different numbers": ~same, "the same numbers": have & same, "no digits": ~have}
    return [(by, name, rows) for by, slices in table.items() for name, rows in slices.items() if rows.any()]


ECE_OF_TWO = f"{calibration.BINS} equal-mass bins by the probability of class 1"
ECE_OF_MORE = f"{calibration.BINS} equal-mass bins by the probability of the predicted class"
ECE_TOP_LABEL = f"{calibration.BINS} equal-width bins by the probability of the predicted class"


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

    def curve(self, temperature: float) -> Optional[calibration.Curve]:
        """Return precision and recall of every threshold; None unless two classes exist and both occur."""
        labels = self.pairs.known_labels
        if self.logits.shape[1] != 2 or len(np.unique(labels)) < 2:
            return None
        return calibration.threshold_curve(probabilities(self.logits, temperature)[:, 1], labels)


class Answers(NamedTuple):
    """The rows of a file and what a model says of them.

    ``names`` are those of the C classes; ``logits`` float32 [N, C], ``swapped`` those of (B, A) where they
    were asked for; ``in_use`` is the temperature of the probabilities that a prediction would show,
    ``fitted`` the one to be judged. ``symmetric`` says how pairs were scored; thresholds are chosen on
    ``tuning``, None: on the rows themselves; ``saved`` is what the model's folder holds for these scores, as
    the next prediction will find it; ``asked`` is a threshold in place of its own; ``robustness`` is that of
    changed pairs, where they were asked for.
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
    robustness: Optional[Robustness] = None
    asked: Optional[float] = None

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
        """Return the predictions, int64 [N], as ``predict`` will make them: by the threshold, if any."""
        return self.classes_of(self.logits)

    def classes_of(self, logits: np.ndarray) -> np.ndarray:
        """Return the class that is decided for each row of logits [N, C], int64 [N]."""
        threshold = self.saved.threshold if self.asked is None else self.asked
        return decide(logits, self.in_use, threshold)[0]

    @property
    def decision(self) -> Dict[str, object]:
        """Return the ``threshold`` of all metrics, None for more classes than two, and whose it is."""
        if self.asked is not None:
            return {"threshold": self.asked, "threshold_of": "--threshold"}
        if self.saved.threshold is None:
            return {
                "threshold": 0.5 if self.num_classes == 2 else None,
                "threshold_of": "the likeliest class",
            }
        whose = "the model's own"
        whose += f", for {self.saved.tuned_for}" if self.saved.tuned_for else ""
        whose += f", chosen on {self.saved.tuned_on}" if self.saved.tuned_on else ""
        return {"threshold": self.saved.threshold, "threshold_of": whose}

    @property
    def shown(self) -> np.ndarray:
        """Return the probabilities that a prediction would show, float64 [N, C]."""
        return probabilities(self.logits, self.in_use)

    def bins(self, temperature: float) -> List[calibration.Bin]:
        """Return the equal-mass bins of the probabilities at ``temperature``, see ``equal_mass_bins``."""
        shares = probabilities(self.logits, temperature)
        return calibration.equal_mass_bins(*calibration.confidences_and_hits(shares, self.labels))

    def top_label_error(self, temperature: float) -> float:
        """Return the expected calibration error as papers give it, see ECE_TOP_LABEL."""
        stated, true = calibration.top_label(probabilities(self.logits, temperature), self.labels)
        return calibration.calibration_error(calibration.equal_width_bins(stated, true))


def _facts_of(answers: Any, config: EvaluateConfig) -> Dict[str, Any]:
    """Return what all evaluations say of the rows, the model and how it was asked."""
    return {
        "rows": len(answers.labels),
        "model": config.model_path,
        "input_file": original_value(config.input_file),
        "input_sha256": answers.pairs.sha256,
        "symmetric": answers.symmetric,
    }


def evaluate_classes(answers: Answers, config: EvaluateConfig) -> Dict[str, object]:
    """Return the metrics, facts of the rows, and a section for each further question; undefined is None."""
    labels, logits = answers.labels, answers.logits
    thresholds = thresholds_of(answers, config.at_precision)
    size, predictions = answers.num_classes, answers.predictions
    single = metrics.find_single_class(predictions, labels)
    cells = labels * size + predictions
    confusion = np.bincount(cells, minlength=size * size).reshape(size, size)  # by label, then prediction
    sections = {
        **_facts_of(answers, config),
        "classes": list(answers.names),
        **answers.decision,
        "single_class": None if single is None else answers.names[single],
        "confusion": confusion.tolist(),
        "per_class": metrics.class_table(confusion, answers.names),
        "averages": metrics.class_averages(confusion),
        "calibration": _calibration(answers),
        "slices": measure_slices(answers.pairs.left, answers.pairs.right, labels, predictions, size),
    }
    if config.bootstrap:
        drawn = (config.bootstrap, config.seed)
        sections["intervals"] = CountedRows(logits, labels, predictions).intervals(*drawn)
        names = list(map(str, range(size)))

        def measure_classes(counts: np.ndarray) -> Dict[str, float]:
            table = np.bincount(cells, counts, size * size).reshape(size, size)
            return {row["class"]: row["f1"] for row in metrics.class_table(table, names)}

        of_classes = metrics.bootstrap_intervals(measure_classes, names, len(labels), *drawn)
        for row, name in zip(sections["per_class"], names):
            row["f1_interval"] = of_classes.get(name)
    if thresholds is not None:
        sections["thresholds"] = thresholds
    if answers.swapped is not None:
        sections["swap"] = _swap(answers, answers.swapped)
    if answers.robustness is not None:
        table = robustness_table(answers.robustness, config.bootstrap, config.seed)
        sections["robustness"] = {"seed": config.seed, "kinds": table}
    measured = metrics.measure(logits, labels, predictions)
    return {**{name: _known(value) for name, value in measured.items()}, **sections}


def compare_with_start(before: np.ndarray, answers: Answers, config: EvaluateConfig) -> Dict[str, Any]:
    """Return the AUC of the start and of this model, their difference, and its interval by paired bootstrap.

    ``before``: logits [N, 2] of the start on the same rows; ``line``: all of it in words.
    """
    rows = [CountedRows(logits, answers.labels) for logits in (before, answers.logits)]

    def measure(counts: np.ndarray) -> Dict[str, float]:
        one, other = (each.measure(counts)["auc"] for each in rows)
        return {"before": one, "after": other, "difference": other - one}

    found: Dict[str, Any] = measure(np.ones(len(answers.labels), dtype=np.int64))
    drawn = (len(answers.labels), config.bootstrap, config.seed)
    found["interval"] = metrics.bootstrap_intervals(measure, ["difference"], *drawn).get("difference")
    line = f"{describe_change(**found)}, on {counted(len(answers.labels), 'pair')}"
    return {"model": config.model_name_or_path, **found, "line": line}


def describe_change(before: float, after: float, difference: float, interval: Optional[List[float]]) -> str:
    """Return an AUC before and after training, its change, and the interval of that, if there is one."""
    between = f", 95 %: {interval[0]:+.4f} to {interval[1]:+.4f}" if interval else ""
    return f"AUC {before:.4f} before training, {after:.4f} after ({difference:+.4f}{between})"


# What a threshold can be chosen for (--tune_for), and its name among `thresholds_of`.
GOALS = {"precision": "at_precision", "f1": "best_f1", "accuracy": "best_accuracy"}


def thresholds_of(answers: Answers, precision: float) -> Optional[Dict[str, Any]]:
    """Return the thresholds of GOALS, an asked precision among them, and the file they are chosen on.

    Return None where there are none to choose. Where that file is another than the judged one, ``judged``
    holds what each does on the judged rows; ``saved`` is the threshold of the model's folder there, and
    ``likelier`` what the likelier class would do in its place.
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
        "best_f1": calibration.best_f1(curve),
        "best_accuracy": calibration.best_accuracy(curve),
        "at_precision": calibration.at_precision(curve, precision),
    }
    shares = answers.shown[:, 1]
    for name in () if is_judged else GOALS.values():
        found[name]["judged"] = calibration.measure_at(found[name]["threshold"], shares, answers.labels)
    saved = answers.saved
    if saved.threshold is not None:
        found["saved"] = {
            **calibration.measure_at(saved.threshold, shares, answers.labels),
            "tuned_on": saved.tuned_on,
            "tuned_on_sha256": saved.tuned_on_sha256,
            "tuned_for": saved.tuned_for,
            "is_judged_file": saved.tuned_on_sha256 == answers.pairs.sha256,
        }
        found["likelier"] = calibration.measure_at(0.5, shares, answers.labels)
    return found


def _calibration(answers: Answers) -> Dict[str, object]:
    fitted = answers.fitted
    temperature = fitted.temperature
    scaled = answers.logits.astype(np.float64) / temperature
    return {
        **fitted._asdict(),
        "is_judged_file": fitted.fitted_on_sha256 == answers.pairs.sha256,
        "at_end_of_range": calibration.is_at_the_end(temperature),
        "bins": calibration.BINS,
        "ece_method": ECE_OF_TWO if answers.num_classes == 2 else ECE_OF_MORE,
        "ece": calibration.calibration_error(answers.bins(1.0)),
        "ece_calibrated": calibration.calibration_error(answers.bins(temperature)),
        "ece_top_label_method": ECE_TOP_LABEL,
        "ece_top_label": answers.top_label_error(1.0),
        "ece_top_label_calibrated": answers.top_label_error(temperature),
        "loss_calibrated": metrics.measure(scaled, answers.labels)["loss"],
    }


def _swap(answers: Answers, swapped: np.ndarray) -> Dict[str, float]:
    """Return what changes when the two texts change places.

    ``mean_difference``: half the sum of |p(A, B) - p(B, A)| over the classes; of two, that of class 1.
    ``accuracy_both_orders``: of the mean of the logits, as --symmetric average takes it.
    """
    differences = np.abs(answers.shown - probabilities(swapped, answers.in_use)).sum(axis=1) / 2
    predictions, both = map(answers.classes_of, (swapped, (answers.logits + swapped) / 2))
    return {
        "flip_rate": float(np.mean(predictions != answers.predictions)),
        "mean_difference": float(differences.mean()),
        "accuracy_swapped": float(np.mean(predictions == answers.labels)),
        "accuracy_both_orders": float(np.mean(both == answers.labels)),
    }


# Models without classes.

RANK_EDGES = (1, 2, 3, 5, 10, 20, 50)  # the last rank of each part of the table


class ScoreAnswers(NamedTuple):
    """The rows of a file and what a model without classes says of them.

    ``outputs`` float32 [N, 1], ``swapped`` those of (B, A) if asked for; ``symmetric``: how they were scored.
    """

    pairs: Pairs
    label_range: Optional[Tuple[float, float]]
    outputs: np.ndarray
    swapped: Optional[np.ndarray]
    symmetric: str = "none"

    @property
    def labels(self) -> np.ndarray:
        """Return the labels of the rows: scores float64 [N], or the relevance of candidates int64 [N]."""
        return self.pairs.known_labels

    @property
    def known_groups(self) -> np.ndarray:
        """Return the query of each row, int64 [N], of candidates that are ranked."""
        assert self.pairs.groups is not None  # they are read with it
        return self.pairs.groups

    @property
    def scores(self) -> np.ndarray:
        """Return the scores that a prediction would show, float64 [N]."""
        return clip_scores(self.outputs, self.label_range)


def evaluate_scores(answers: ScoreAnswers, config: EvaluateConfig) -> Dict[str, Any]:
    """Return the metrics, facts of the rows, and a section for each further question; undefined is None."""
    labels, limits = answers.labels, answers.label_range
    found = metrics.measure_scores(answers.outputs, labels, limits)
    sections: Dict[str, Any] = {
        "target": REGRESSION,
        **_facts_of(answers, config),
        "label_range": None if limits is None else list(limits),
        "bins": metrics.error_bins(answers.scores, labels),
        "slices": [],
    }
    for kind, name, inside in find_slices(answers.pairs.left, answers.pairs.right):
        here = metrics.measure_scores(answers.outputs[inside], labels[inside], limits)
        told = {metric: _known(here[metric]) for metric in ("spearman", "mae")}
        about = {"by": kind, "slice": name, "rows": int(inside.sum())}
        sections["slices"].append({**about, **told, "mean_label": float(labels[inside].mean())})
    if config.bootstrap:
        rows = metrics.CountedScores(answers.outputs, labels, limits)
        sections["intervals"] = rows.intervals(config.bootstrap, config.seed)
    if answers.swapped is not None:
        sections["swap"] = _score_swap(answers, answers.swapped)
    return {**{name: _known(value) for name, value in found.items()}, **sections}


def _score_swap(answers: ScoreAnswers, swapped: np.ndarray) -> Dict[str, Optional[float]]:
    """Return what swapping the texts changes; ``*_both_orders``: of mean outputs, as --symmetric average."""
    found = clip_scores(swapped, answers.label_range)
    differences = np.abs(found - answers.scores)
    alone, both = (
        metrics.measure_scores(outputs, answers.labels, answers.label_range)
        for outputs in (swapped, (answers.outputs + swapped) / 2)
    )
    return {
        "mean_difference": float(differences.mean()),
        "largest_difference": float(differences.max()),
        "spearman_swapped": _known(alone["spearman"]),
        "mae_swapped": alone["mae"],
        "spearman_both_orders": _known(both["spearman"]),
        "mae_both_orders": both["mae"],
    }


def _known(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


def evaluate_ranking(answers: ScoreAnswers, config: EvaluateConfig) -> Dict[str, Any]:
    """Return the metrics, facts and further sections of queries. Raises InputError if none has an order."""
    metrics.check_rankable(answers.labels, answers.pairs.groups, config.input_file)
    groups = answers.known_groups
    counted = metrics.CountedQueries(answers.outputs, answers.labels, groups)
    sections: Dict[str, Any] = {
        "target": RANKING,
        **_facts_of(answers, config),
        "queries": int(groups.max()) + 1,
        "ranked_queries": counted.size,
        "first_ranks": _first_ranks(counted),
    }
    if config.bootstrap:
        sections["intervals"] = counted.intervals(config.bootstrap, config.seed)
    if answers.swapped is not None:
        both = {"mrr_swapped": answers.swapped, "mrr_both_orders": (answers.outputs + answers.swapped) / 2}
        measured = {n: metrics.measure_ranking(each, answers.labels, groups) for n, each in both.items()}
        moved = float(np.abs(answers.outputs - answers.swapped).mean())
        sections["swap"] = {"mean_difference": moved, **{n: each["mrr"] for n, each in measured.items()}}
    return {**metrics.measure_ranking(answers.outputs, answers.labels, groups), **sections}


def _first_ranks(counted: metrics.CountedQueries) -> List[Dict[str, Any]]:
    """Return how many queries have their first relevant candidate at which ranks: from, to, queries."""
    ranks = np.array([query.ranks[0] for query in counted.queries])
    edges = [*RANK_EDGES, int(ranks.max())]
    parts = [(low + 1, high) for low, high in zip([0, *edges], edges)]
    found = [{"from": a, "to": b, "queries": int(np.sum((a <= ranks) & (ranks <= b)))} for a, b in parts]
    return found[: max(place for place, part in enumerate(found) if part["queries"]) + 1]
