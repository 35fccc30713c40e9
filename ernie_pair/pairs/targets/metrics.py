"""The metrics of each target, their confidence intervals, and the metric that chooses the best model."""

import math
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from ernie_pair.core.errors import InputError
from ernie_pair.inference.scores import clip_scores
from ernie_pair.models.labels import CLASSIFICATION, RANKING, REGRESSION, UNLABELLED, Labels
from ernie_pair.runtime.processes.world import AllReduce, World, gather_results

SHARE = 0.95  # of the resamples lies in an interval

Measure = Callable[[np.ndarray], dict[str, float]]  # of how often each row stands in the file


def resamples(num_rows: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each row was drawn, ``num_rows`` draws with replacement; int64 [num_rows] each."""
    for sample in range(samples):
        rng = np.random.default_rng([seed, sample])
        yield np.bincount(rng.integers(num_rows, size=num_rows), minlength=num_rows)


def percentile_interval(values: np.ndarray) -> list[float]:
    """Return [low, high], between which the middle SHARE of the values lies; nan is ignored."""
    rest = (1 - SHARE) / 2
    return np.nanquantile(values, [rest, 1 - rest]).tolist()


def bootstrap_intervals(
    measure: Measure, names: Sequence[str], num_rows: int, samples: int, seed: int
) -> dict[str, list[float]]:
    """Return {metric: [low, high]} of ``samples`` resamples of the rows, where it has a value on any."""
    drawn = [measure(counts) for counts in resamples(num_rows, samples, seed)]
    columns = {name: np.array([values[name] for values in drawn]) for name in names}
    return {n: percentile_interval(column) for n, column in columns.items() if not np.isnan(column).all()}


class Counted:
    """The metrics ``names`` of a file in which each of ``size`` rows, or queries, occurs so and so often."""

    names: tuple[str, ...]
    size: int

    def measure(self, counts: np.ndarray) -> dict[str, float]:
        """Return the metrics of the file in which row i occurs counts[i] times; ``counts`` int64 [size]."""
        raise NotImplementedError

    def intervals(self, samples: int, seed: int) -> dict[str, list[float]]:
        """Return `bootstrap_intervals` of ``samples`` resamples; a metric without any value is left out."""
        return bootstrap_intervals(self.measure, self.names, self.size, samples, seed)


# What `measure` returns; every one is a number that may choose the best model of a run.
METRICS = ("loss", "accuracy", "precision", "recall", "f1", "auc", "average_precision", "mcc")
LIKELIEST = "the likeliest class (of two: threshold 0.5)"  # what metrics without a threshold go by
OF_A_CLASS = ("precision", "recall", "f1")
NEED_ALL_CLASSES = ("auc", "average_precision")


def measure(
    logits: np.ndarray, labels: np.ndarray, predictions: Optional[np.ndarray] = None
) -> dict[str, float]:
    """Return the METRICS of logits [N, C] on labels int64 [N], in that order.

    ``predictions`` int64 [N]: the classes that a threshold decides for; None: the likeliest ones.
    Equal logits give equal metrics, bit for bit. Of two classes precision, recall, f1, auc and
    average_precision are those of class 1; of more they are means over the classes, auc and average_precision
    of one class against the rest. Those two are nan where ``labels`` lack a class, mcc where they have one
    alone. loss is the mean cross-entropy (log loss), computed in float64.
    """
    from sklearn.metrics import (
        accuracy_score,
        average_precision_score,
        matthews_corrcoef,
        precision_recall_fscore_support,
        roc_auc_score,
    )

    predictions = logits.argmax(axis=1) if predictions is None else predictions
    num_classes, num_found = logits.shape[1], len(np.unique(labels))
    average = "binary" if num_classes == 2 else "macro"
    by_class = precision_recall_fscore_support(labels, predictions, average=average, zero_division=0)
    values = {
        "loss": np.mean(cross_entropies(logits, labels)),
        "accuracy": accuracy_score(labels, predictions),
        **dict(zip(OF_A_CLASS, by_class)),
        "auc": np.nan,
        "average_precision": np.nan,
        "mcc": matthews_corrcoef(labels, predictions) if num_found > 1 else np.nan,
    }
    if num_found == num_classes:
        measured, odds = [1] if num_classes == 2 else range(num_classes), log_odds(logits)
        for name, score in (("auc", roc_auc_score), ("average_precision", average_precision_score)):
            values[name] = np.mean([score(labels == c, odds[:, c]) for c in measured])
    return {name: float(value) for name, value in values.items()}


def check_defined(metric: str, labels: np.ndarray, num_classes: int, where: str) -> None:
    """Raise InputError when ``metric`` has no value on these labels int64 [N], whatever the logits."""
    found = set(labels.tolist())
    absent = sorted(set(range(num_classes)) - found)
    if absent and (metric in NEED_ALL_CLASSES or metric == "mcc" and len(found) == 1):
        raise InputError(
            f"{where} has no pair of class {absent[0]}, so {metric} is undefined on it; take a file that has "
            "all classes, or another metric"
        )


def find_single_class(predictions: np.ndarray, labels: np.ndarray) -> Optional[int]:
    """Return the class that all rows get, int64 [N], though their labels [N] hold several; else None."""
    predicted = np.unique(predictions)
    return int(predicted[0]) if len(predicted) == 1 and len(np.unique(labels)) > 1 else None


def describe_single_class(name: str, rows: int) -> str:
    """Return the warning about a classifier that predicts ``name`` for each of ``rows`` rows."""
    return (
        f"the classifier predicts {name} for all {rows} rows: it has not learned to tell the classes "
        "apart; train longer, with another learning rate, or from pretrained weights"
    )


def cross_entropies(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return -log softmax(logits)[label] of every row, float64 [N]; logits [N, C], labels int64 [N]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def log_odds(logits: np.ndarray) -> np.ndarray:
    """Return log p / (1 - p) of every class, float64 [N, C]: the order of p, with no ties near 0 and 1."""
    from scipy.special import logsumexp

    exact = logits.astype(np.float64)
    others = [logsumexp(np.delete(exact, label, axis=1), axis=1) for label in range(logits.shape[1])]
    return exact - np.stack(others, axis=1)


def class_table(confusion: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a dictionary per class: class, rows, predicted, precision, recall, f1.

    ``confusion`` int [C, C]: counts by label, then by prediction. What is divided by nothing is 0, as in
    scikit-learn with zero_division=0.
    """
    columns = confusion.sum(axis=1), confusion.sum(axis=0), *_values(confusion)
    rows = zip(names, *(column.tolist() for column in columns))
    return [dict(zip(("class", "rows", "predicted", *OF_A_CLASS), row)) for row in rows]


def class_averages(confusion: np.ndarray) -> dict[str, dict[str, float]]:
    """Return precision, recall and f1 as means over the classes that occur: macro, and weighted by rows."""
    labelled, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    occurs = (labelled + predicted > 0).astype(np.float64)
    means = {"macro": occurs / occurs.sum(), "weighted": labelled / labelled.sum()}
    return {
        mean: {name: float(values @ shares) for name, values in zip(OF_A_CLASS, _values(confusion))}
        for mean, shares in means.items()
    }


def _values(confusion: np.ndarray) -> list[np.ndarray]:
    hits, labelled, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    return [
        hits / np.maximum(predicted, 1),
        hits / np.maximum(labelled, 1),
        2 * hits / np.maximum(labelled + predicted, 1),
    ]


class CountedRows(Counted):
    """The METRICS of a file in which row i occurs counts[i] times; as ``measure`` of that file, but fast.

    ``logits`` float32 [N, C], ``labels`` int64 [N]; ``predictions``: as in ``measure``.
    """

    names = METRICS

    def __init__(self, logits: np.ndarray, labels: np.ndarray, predictions: Optional[np.ndarray] = None):
        self.num_classes, self.size = logits.shape[1], len(labels)
        self.losses = cross_entropies(logits, labels)
        predicted = logits.argmax(axis=1) if predictions is None else predictions
        self.cells = labels * self.num_classes + predicted
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
    num_right, labelled, predicted, total = np.trace(table), table.sum(axis=1), table.sum(axis=0), table.sum()
    counted = np.array([False, True]) if len(table) == 2 else labelled + predicted > 0
    spread = np.sqrt((total**2 - predicted @ predicted) * (total**2 - labelled @ labelled))
    unspread = 0.0 if (labelled > 0).sum() > 1 else np.nan
    return {
        "accuracy": num_right / total,
        **{name: values[counted].mean() for name, values in zip(OF_A_CLASS, _values(table))},
        "mcc": (num_right * total - labelled @ predicted) / spread if spread else unspread,
    }


BALANCED = "balanced"


def parse_class_weights(text: str) -> tuple[float, ...]:
    """Parse '1,2.5' as (1.0, 2.5), '' and 'balanced' as (). Raises InputError for other texts, or all 0."""
    if text in ("", BALANCED):
        return ()
    try:
        weights = tuple(map(float, text.split(",")))
    except ValueError:
        weights = ()
    if not (weights and all(math.isfinite(weight) and weight >= 0 for weight in weights) and any(weights)):
        raise InputError(
            f"--class_weights {text} must be a number of 0 or more for each class, and not all 0; "
            "use 1,2.5, for example, or balanced"
        )
    return weights


def compute_class_weights(
    text: str, num_classes: int, labels: Optional[np.ndarray], where: str
) -> Optional[np.ndarray]:
    """Return the weight of each class for --class_weights, float32 [C]; None where all count the same.

    ``labels`` int64 [N] are those of the training data ``where``, None when they are not known; balanced is
    rows / (classes x rows of the class). Raises InputError when balanced meets a class without a row, and
    when there are not as many weights as classes.
    """
    if not text:
        return None
    if text == BALANCED:
        assert labels is not None  # a streamed file, which has none here, is refused with the flags
        known = labels[labels != UNLABELLED]
        counts = np.bincount(known, minlength=num_classes)
        if not counts.all():
            raise InputError(
                f"{where} has no pair of class {int(counts.argmin())}, so --class_weights balanced has no "
                "weight for it; give the numbers, 1,2.5 for example"
            )
        return (len(known) / (num_classes * counts)).astype(np.float32)
    weights = parse_class_weights(text)
    if len(weights) != num_classes:
        raise InputError(
            f"--class_weights {text} names {len(weights)} class(es), and there are {num_classes}; "
            "give a number for each"
        )
    return np.array(weights, dtype=np.float32)


def number_texts(texts: Iterable[str], known: Optional[dict[str, int]] = None) -> np.ndarray:
    """Return the number of each text, int64 [N], by first appearance; ``known``: {text: number}, grows."""
    numbers = {} if known is None else known
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)


def rows_without_positive(groups: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the rows of the queries none of whose candidates has a label above 0, int64; rows rising."""
    positives = np.bincount(groups, weights=labels > 0, minlength=int(groups.max()) + 1)
    return np.flatnonzero(positives[groups] == 0)


def rows_by_group(groups: np.ndarray) -> list[np.ndarray]:
    """Return the rows of each query, int64, rising; ``groups`` int64 [N] as of ``number_texts``."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def training_groups(groups: np.ndarray, labels: np.ndarray, most: int) -> list[np.ndarray]:
    """Return the rows that a step takes together, int64 [at most ``most``; 0: any number], positives first.

    Each holds candidates of one query, with a positive and a negative among them, which has the lowest label
    of the query: one without either teaches no order. One with more than ``most`` candidates stands in
    several, in each with its positives, or with a part of them where they fill more than half, and another
    part of its negatives.
    """
    found, most = [], most or len(labels)
    for rows in rows_by_group(groups):
        is_negative = labels[rows] == labels[rows].min()
        positives, negatives = rows[~is_negative], rows[is_negative]
        if not len(positives):
            continue
        at_once = len(positives) if len(rows) <= most else min(len(positives), most // 2)
        for first in range(0, len(positives), at_once):
            chosen = positives[first : first + at_once]
            room = most - len(chosen)
            for begin in range(0, len(negatives), room):
                found.append(np.concatenate([chosen, negatives[begin : begin + room]]))
    return found


# What `measure_ranking` returns; every one is a number that may choose the best model of a run.
RANKING_METRICS = ("loss", "mrr", "map", "ndcg", "hit_at_1")


class RankedQuery(NamedTuple):
    """One query: its ``rows`` by falling score, and the ranks of its relevant ones, from 1, rising."""

    rows: np.ndarray
    ranks: np.ndarray


def ranked_queries(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> list[RankedQuery]:
    """Return the queries whose candidates have different labels; those above 0 are relevant.

    ``scores`` float [N], ``labels`` int64 [N], ``groups`` int64 [N] the query of each row. Of equal scores
    the lowest label stands first: a model that tells nothing apart ranks nothing well.
    """
    found = []
    for rows in rows_by_group(groups):
        grades = labels[rows]
        if np.ptp(grades):
            order = np.lexsort((grades, -scores[rows]))
            found.append(RankedQuery(rows[order], np.flatnonzero(grades[order]) + 1))
    return found


def measure_ranking(
    outputs: np.ndarray, labels: np.ndarray, groups: Optional[np.ndarray] = None
) -> dict[str, float]:
    """Return the RANKING_METRICS, means over the queries, of outputs [N, 1] on labels int64 [N].

    ``groups`` int64 [N] is the query of each row. loss is the listwise one: the cross-entropy of softmax over
    the candidates of a query against the shares of their labels. mrr is 1 / the rank of the first relevant
    candidate, map the mean precision at the ranks of all of them, ndcg the labels as gains with logarithmic
    discount (Jaervelin and Kekaelaeinen 2002; so in trec_eval and scikit-learn, while Burges et al. 2005 take
    2^label - 1), hit_at_1 whether the first candidate is relevant. Nan where no query has an order.
    """
    assert groups is not None  # whoever measures an order knows the queries
    counted = CountedQueries(outputs, labels, groups)
    return counted.measure(np.ones(counted.size, dtype=np.int64))


class CountedQueries(Counted):
    """The RANKING_METRICS of a file in which query i occurs counts[i] times; see ``measure_ranking``."""

    names = RANKING_METRICS

    def __init__(self, outputs: np.ndarray, labels: np.ndarray, groups: np.ndarray):
        scores = outputs[:, 0].astype(np.float64)
        self.queries = ranked_queries(scores, labels, groups)
        self.size = len(self.queries)
        rows = [_measure_query(query.ranks, scores[query.rows], labels[query.rows]) for query in self.queries]
        self.values = np.array(rows, dtype=np.float64).reshape(-1, len(RANKING_METRICS))

    def measure(self, counts: np.ndarray) -> dict[str, float]:
        """Return the metrics of the file in which query i occurs counts[i] times; ``counts`` int64 [Q]."""
        if not self.size:
            return dict.fromkeys(RANKING_METRICS, np.nan)
        return dict(zip(RANKING_METRICS, (counts @ self.values / counts.sum()).tolist()))


def _measure_query(ranks: np.ndarray, scores: np.ndarray, gains: np.ndarray) -> list[float]:
    """Return the RANKING_METRICS of a query whose candidates have these falling ``scores`` and labels."""
    discounts = 1 / np.log2(np.arange(2, len(gains) + 2))
    log_sum = scores[0] + np.log(np.exp(scores - scores[0]).sum())
    return [
        float(log_sum - scores @ gains / gains.sum()),
        1 / ranks[0],
        float((np.arange(1, len(ranks) + 1) / ranks).mean()),
        float(gains @ discounts / (np.sort(gains)[::-1] @ discounts)),
        float(ranks[0] == 1),
    ]


def check_rankable(labels: np.ndarray, groups: Optional[np.ndarray], where: str) -> None:
    """Raise InputError when no query of a file has candidates of different labels."""
    assert groups is not None  # a file that is ranked is read with its queries
    if not any(np.ptp(labels[rows]) for rows in rows_by_group(groups)):
        raise InputError(
            f"{where} has no query whose candidates have different labels, so there is no order to learn or "
            "to measure; rows of one query have the same first text, or the same --query"
        )


# What `measure_scores` returns; every one is a number that may choose the best model of a run.
REGRESSION_METRICS = ("loss", "pearson", "spearman", "mse", "mae")
CORRELATIONS = ("pearson", "spearman")

Range = Optional[tuple[float, float]]


def measure_scores(outputs: np.ndarray, labels: np.ndarray, label_range: Range = None) -> dict[str, float]:
    """Return the REGRESSION_METRICS of outputs [N, 1] on labels float64 [N], in that order.

    loss is the mean squared error of the outputs as training sees them, mse and mae are those of the scores
    that are shown, see ``clip_scores``, and so are the correlations. These are 0 where all scores are equal,
    and nan where all labels are.
    """
    return CountedScores(outputs, labels, label_range).measure(np.ones(len(labels), dtype=np.int64))


class CountedScores(Counted):
    """The REGRESSION_METRICS of a file in which row i occurs counts[i] times; see ``measure_scores``."""

    names = REGRESSION_METRICS

    def __init__(self, outputs: np.ndarray, labels: np.ndarray, label_range: Range):
        scores, labels = clip_scores(outputs, label_range), labels.astype(np.float64)
        self.scores, self.labels, self.size = scores, labels, len(labels)
        self.squares = (outputs[:, 0].astype(np.float64) - labels) ** 2
        self.errors = np.abs(scores - labels)
        self.ranks_of_scores, self.ranks_of_labels = _Ranks(scores), _Ranks(labels)

    def measure(self, counts: np.ndarray) -> dict[str, float]:
        """Return the metrics of the file in which row i occurs counts[i] times; ``counts`` int64 [N]."""
        total = counts.sum()
        ranks = self.ranks_of_scores.measure(counts), self.ranks_of_labels.measure(counts)
        values = {
            "loss": self.squares @ counts / total,
            "pearson": correlation(self.scores, self.labels, counts),
            "spearman": correlation(*ranks, counts),
            "mse": (self.errors**2) @ counts / total,
            "mae": self.errors @ counts / total,
        }
        return {name: float(value) for name, value in values.items()}


class _Ranks:
    """The ranks of values, equal ones sharing the mean of theirs."""

    def __init__(self, values: np.ndarray):
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        starts = np.append(True, ordered[1:] != ordered[:-1])
        self.group, self.firsts = np.cumsum(starts) - 1, np.flatnonzero(starts)

    def measure(self, counts: np.ndarray) -> np.ndarray:
        """Return the rank of each value, float64 [N], where value i occurs counts[i] times."""
        sizes = np.add.reduceat(counts[self.order], self.firsts)
        middle = np.cumsum(sizes) - (sizes - 1) / 2
        ranks = np.empty(len(counts))
        ranks[self.order] = middle[self.group]
        return ranks


def correlation(found: np.ndarray, wanted: np.ndarray, counts: np.ndarray) -> float:
    """Return Pearson's correlation of two columns float64 [N] in which row i occurs counts[i] times.

    It is 0 where all of ``found`` are equal, and nan where all of ``wanted`` are.
    """
    total, is_there = counts.sum(), counts > 0
    if np.ptp(wanted[is_there]) == 0:
        return np.nan
    if np.ptp(found[is_there]) == 0:
        return 0.0
    found, wanted = (column - column @ counts / total for column in (found, wanted))
    spreads = np.sqrt((found**2) @ counts) * np.sqrt((wanted**2) @ counts)
    return float(np.clip((found * wanted) @ counts / spreads, -1.0, 1.0)) if spreads else 0.0


def error_bins(scores: np.ndarray, labels: np.ndarray, bins: int = 10) -> list[dict[str, float]]:
    """Return how good the scores are by label: at most ``bins`` parts of the labels' range that hold rows.

    A dictionary per part: low and high label, rows, mean label, mean score, mae.
    """
    edges = np.linspace(labels.min(), labels.max(), bins + 1)
    places = np.clip(np.searchsorted(edges, labels, side="right") - 1, 0, bins - 1)
    found = []
    for place in np.unique(places):
        inside = places == place
        means = (column[inside].mean() for column in (labels, scores, np.abs(scores - labels)))
        values = (*edges[place : place + 2].tolist(), int(inside.sum()), *map(float, means))
        found.append(dict(zip(("low", "high", "rows", "mean_label", "mean_score", "mae"), values)))
    return found


AUTO = "auto"  # of --best_metric
ALL_METRICS = tuple(dict.fromkeys([*METRICS, *REGRESSION_METRICS, *RANKING_METRICS]))
LOWER_IS_BETTER = ("loss", "mse", "mae")

MeasureFunction = Callable[[np.ndarray, np.ndarray], dict[str, float]]


class TargetMetrics(NamedTuple):
    """The names of the metrics of a target, and of the one that chooses the best model."""

    names: tuple[str, ...]
    best: str


OF_TARGET = {
    CLASSIFICATION: TargetMetrics(METRICS, "accuracy"),
    RANKING: TargetMetrics(RANKING_METRICS, "mrr"),
    REGRESSION: TargetMetrics(REGRESSION_METRICS, "mse"),
}


def choose_metric(metric: str, target: str) -> str:
    """Return the metric that chooses the best model, of which auto is that of ``target``."""
    return OF_TARGET[target].best if metric == AUTO else metric


def check_metric_of_target(metric: str, target: str) -> None:
    """Raise InputError for a metric of another target alone."""
    if metric in ALL_METRICS and metric not in OF_TARGET[target].names:
        raise InputError(
            f"--best_metric {metric} is not a metric of a model for {target}; use one of "
            f"{', '.join(OF_TARGET[target].names)}, or leave it out"
        )


def choose_measure(labels: Labels, groups: Optional[np.ndarray] = None) -> MeasureFunction:
    """Return what measures outputs float32 [N, C] on labels [N]; ``groups`` int64 [N]: their queries."""
    if labels.has_classes:
        return measure
    if labels.target == RANKING:
        return partial(measure_ranking, groups=groups)
    return partial(measure_scores, label_range=labels.label_range)


def check_measurable(
    metric: str, found: np.ndarray, labels: Labels, where: str, groups: Optional[np.ndarray] = None
) -> None:
    """Raise InputError when ``metric`` has no value on labels ``found`` [N] of queries ``groups`` [N]."""
    if labels.target == RANKING:
        check_rankable(found, groups, where)
    elif labels.has_classes:
        check_defined(metric, found, len(labels.names), where)
    elif metric in CORRELATIONS and len(np.unique(found)) < 2:
        raise InputError(
            f"{where} has a single label, {found[0]:g}, so {metric} is undefined on it; take a file with "
            "several, or another metric"
        )


class EvalPrediction(NamedTuple):
    """The argument of compute_metrics; unpack it with `logits, labels = prediction`."""

    predictions: np.ndarray  # the logits, float32 [N, C]
    label_ids: np.ndarray  # classes int64 [N], or scores float64 [N]


ComputeMetrics = Callable[[EvalPrediction], dict[str, float]]


def measure_with(
    measure: MeasureFunction,
    compute_metrics: Optional[ComputeMetrics],
    best_metric: str,
    world: World,
    all_reduce: AllReduce,
    logits: np.ndarray,
    labels: np.ndarray,
) -> dict[str, float]:
    """Return the metrics of ``measure`` and those that ``compute_metrics`` adds, or puts in place of one.

    ``logits`` float32 [N, C], ``labels`` [N]. With several ranks rank 0 calls ``compute_metrics``, and all
    get its answer. Raises InputError if that is no dictionary of numbers, or ``best_metric`` is not in it, or
    is not finite.
    """
    metrics = measure(logits, labels)
    if compute_metrics is not None:

        def own() -> dict[str, float]:
            if not world.is_first:
                return {}
            found = compute_metrics(EvalPrediction(logits, labels))
            return read_own_metrics(found, best_metric, "compute_metrics")

        metrics.update(gather_results(all_reduce, world, own)[0])
    check_best_metric(best_metric, metrics)
    return metrics


def read_own_metrics(found: Any, best_metric: str, where: str) -> dict[str, float]:
    """Return what a function of the user's own measured. Raises InputError, naming ``where``, if unusable."""
    try:
        own = {str(name): float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise InputError(f"{where} returned {found!r:.100}; return a dictionary of numbers") from None
    if not math.isfinite(own.get(best_metric, 0.0)):
        raise InputError(
            f"{where} returned {best_metric} {own[best_metric]}, which can choose no best model; return a "
            "finite number"
        )
    return own


def check_best_metric(best_metric: str, metrics: Iterable[str]) -> None:
    """Raise InputError when ``best_metric`` is none of ``metrics``."""
    if best_metric not in metrics:
        raise InputError(
            f"best_metric {best_metric} is not one of {', '.join(metrics)}; use one of them, or have "
            "compute_metrics return it"
        )
