"""The folder of a report: report.json and errors.tsv for programs, report.html for a reader.

A model with classes, for regression and for ranking each has its `ReportKind`: charts, cards and worst rows
on one frame.
"""

import math
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from ernie_pair.core.cli.standard_streams import original_value
from ernie_pair.core.files.json_file import write_json
from ernie_pair.evaluation.calibration import Curve
from ernie_pair.evaluation.evaluation import Answers, ScoreAnswers, Scored, find_slices
from ernie_pair.inference.scores import are_names
from ernie_pair.models.labels import CLASSIFICATION, RANKING, REGRESSION
from ernie_pair.models.model_card import changed_flags
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.pairs.targets.metrics import describe_single_class, ranked_queries
from ernie_pair.report import page
from ernie_pair.report.page import BLUE, GREEN, GREY, ORANGE, Chart, draw_chart, drawn_text, pick_points

FILES = ("report.json", "errors.tsv", "report.html")
PREDICTED = "probability of the predicted class"
NUM_BINS = 40  # of a histogram
RARE = 0.025  # chances below it are none


class ReportKind(NamedTuple):
    """The report of the models for one target.

    ``worst`` yields the worst rows, the worst first: their index, and a value for each of ``columns`` between
    their line and their origin; ``rounded`` ones are shown with six digits. ``values``: what the page of
    ``template`` shows besides.
    """

    template: str
    columns: Tuple[str, ...]
    rounded: Tuple[str, ...]
    worst: Callable[[Any], Iterable[Tuple[Any, ...]]]
    values: Callable[[Any, Dict[str, Any]], Dict[str, Any]]


def write_report(
    files: Sequence[Path],
    evaluation: Dict[str, Any],
    answers: Any,
    most_rows: int,
    tables: Sequence[page.Table] = (),
    made: page.Origin = page.NO_ORIGIN,
    origins: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the report to ``files``, which become FILES. Raises OSError.

    ``answers``: `Answers`, or the `ScoreAnswers` of a model without classes. Equal answers give equal bytes
    but for the date on the page. ``tables`` stand on it below the metrics. ``origins``: {PATH:LINE: that from
    where its row was split off}; without it, the origin of a row is where it stands.
    """
    kind, pairs = KINDS[evaluation.get("target", CLASSIFICATION)], answers.pairs
    columns, worst = ("line", *kind.columns, "origin"), []
    slices = _kinds_of_rows(answers)
    for row, *values in islice(kind.worst(answers), most_rows):
        where = pairs.where(row)
        cells = dict(zip(columns, (pairs.number(row), *values, origins.get(where, where))))
        worst.append({**cells, "kinds": [n for n, (_, _, inside) in enumerate(slices) if inside[row]]})
    numbers, errors, html = files
    write_json(numbers, evaluation)
    told = [{**row, **{name: f"{row[name]:.6g}" for name in kind.rounded}} for row in worst]
    lines = [columns, *([str(row[name]) for name in columns] for row in told)]
    errors.write_bytes("".join(map(page.table_line, lines)).encode("utf-8"))
    there = {number for row in worst for number in row["kinds"]}
    kinds = [(by, number, name) for number, (by, name, _) in enumerate(slices) if number in there]
    shown = {**kind.values(answers, evaluation), "worst": worst, "kinds": kinds}
    template = Path(__file__).with_name(kind.template)
    rendered = page.render_page(template, evaluation=evaluation, tables=tables, made=made, **shown)
    html.write_bytes(rendered.encode("utf-8"))


def _kinds_of_rows(answers: Any) -> List[Tuple[str, str, np.ndarray]]:
    """Return (by, name, which rows are so, bool [N]) of all that a reader may filter the rows by."""
    found = find_slices(answers.pairs.left, answers.pairs.right)
    if not isinstance(answers, Answers):
        return found
    size, labels, predictions = answers.num_classes, answers.labels, answers.predictions
    cells = labels * size + predictions
    wrong = np.unique(cells[labels != predictions]).tolist()
    names = {cell: " → ".join(answers.names[place] for place in divmod(cell, size)) for cell in wrong}
    return [*(("label → prediction", name, cells == cell) for cell, name in names.items()), *found]


def read_origin(config: EvaluateConfig) -> page.Origin:
    """Return what the page says of how it was made: the flags that were given, and the model's card."""
    defaults = {item.name: item.default for item in fields(config)}
    flags = {name: original_value(value) for name, value in asdict(config).items()}
    return page.Origin(changed_flags(flags, defaults), page.read_card(Path(config.model_path)))


# Models with classes.

COLUMNS = ("loss", "probability", "label", "prediction", "text_a", "text_b")


def _wrong_rows(answers: Answers) -> Iterator[Tuple[Any, ...]]:
    """Yield the wrong rows by falling loss: ``probability`` is that of the label."""
    names, labels, predictions, pairs = answers.names, answers.labels, answers.predictions, answers.pairs
    of_label = answers.shown[np.arange(len(labels)), labels]
    order = np.argsort(of_label, kind="stable")
    for row in order[predictions[order] != labels[order]].tolist():
        share, label, prediction = float(of_label[row]), names[labels[row]], names[predictions[row]]
        loss = -math.log(max(share, 1e-300))
        yield row, loss, share, label, prediction, pairs.left[row], pairs.right[row]


def _values_of_classes(answers: Answers, evaluation: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the page shows; of two classes that both occur, three more charts."""
    curve = Scored(answers.pairs, answers.logits).curve(answers.in_use)
    single = evaluation["single_class"]
    charts = [_reliability(answers, evaluation), _histogram(answers)]
    if curve is not None:
        charts[:0] = [
            _precision_recall(curve, evaluation),
            _roc(answers, evaluation),
            _thresholds(curve, evaluation, _class_shown(answers, 1)),
        ]
    return {
        "charts": charts,
        "slices": [_with_low(entry, evaluation) for entry in evaluation["slices"]],
        "num_wrong": int(np.sum(answers.predictions != answers.labels)),
        "single_class": "" if single is None else describe_single_class(single, evaluation["rows"]),
        "are_named": are_names(answers.names),
    }


def _with_low(entry: Dict[str, Any], evaluation: Dict[str, Any]) -> Dict[str, Any]:
    """Return a slice with ``is_low``: fewer are right than chance leads to."""
    from scipy.stats import binom

    num_right = round(entry["accuracy"] * entry["rows"])
    return {**entry, "is_low": binom.cdf(num_right, entry["rows"], evaluation["accuracy"]) < RARE}


def _class_shown(answers: Answers, place: int, before: str = "class ") -> str:
    """Return the name of a class for a chart, which shows its number where no font has the characters."""
    name = answers.names[place]
    return drawn_text(name, f"{before}{place}") if are_names(answers.names) else f"{before}{place}"


def _precision_recall(curve: Curve, evaluation: Dict) -> Chart:
    best, asked = (evaluation["thresholds"][name] for name in ("best_f1", "at_precision"))
    few = pick_points(len(curve.f1))

    def draw(axes) -> None:
        axes.plot([*curve.recall[few], 0], [*curve.precision[few], curve.precision[-1]], color=BLUE)
        axes.axhline(asked["asked"], color=GREY, linestyle=":", linewidth=1)
        axes.plot(best["recall"], best["precision"], "o", color=ORANGE, label=f"best F1 {best['f1']:.3f}")
        if asked["reached"]:
            label = f"precision {asked['asked']:g}: recall {asked['recall']:.3f}"
            axes.plot(asked["recall"], asked["precision"], "s", color=GREEN, label=label)
        axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03), xlim=(0, 1.01))

    note = f"Average precision {evaluation['average_precision']:.4f}; dotted: the precision asked for."
    return draw_chart("Precision and recall", draw, note)


def _roc(answers: Answers, evaluation: Dict) -> Chart:
    from sklearn.metrics import roc_curve

    false_rate, true_rate, _ = roc_curve(answers.labels, answers.shown[:, 1])
    few = pick_points(len(true_rate))

    def draw(axes) -> None:
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
        axes.plot(false_rate[few], true_rate[few], color=BLUE)
        axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01))

    return draw_chart("ROC", draw, f"AUC {evaluation['auc']:.4f}; the dotted diagonal is chance.")


def _thresholds(curve: Curve, evaluation: Dict, class_1: str) -> Chart:
    best = evaluation["thresholds"]["best_f1"]["threshold"]
    few = pick_points(len(curve.f1))

    def draw(axes) -> None:
        for name, color in (("precision", BLUE), ("recall", GREEN), ("f1", ORANGE)):
            axes.plot(curve.probabilities[few], getattr(curve, name)[few], color=color, label=name)
        axes.axvline(best, color=GREY, linestyle=":", linewidth=1)
        axes.set(xlabel=f"threshold on the probability of {class_1}", xlim=(0, 1), ylim=(0, 1.03))

    note = f"Dotted: the threshold of the best F1, {best:.4f}."
    return draw_chart("Choice of a threshold", draw, note)


def _reliability(answers: Answers, evaluation: Dict) -> Chart:
    calibration = evaluation["calibration"]
    before, after = answers.bins(1.0), answers.bins(calibration["temperature"])

    def draw(axes) -> None:
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
        for bins, color, label in (
            (before, ORANGE, f"as trained: error {calibration['ece']:.3f}"),
            (after, BLUE, f"with temperature: {calibration['ece_calibrated']:.3f}"),
        ):
            points = [b.probability for b in bins], [b.observed for b in bins]
            axes.plot(*points, "o-", color=color, label=label, ms=3.5)
        shown = f"probability of {_class_shown(answers, 1)}" if answers.num_classes == 2 else PREDICTED
        axes.set(xlabel=shown, ylabel="observed share", xlim=(0, 1), ylim=(0, 1.01))

    note = f"Each point is one of {calibration['bins']} bins with equally many rows; the diagonal is perfect."
    return draw_chart("Reliability", draw, note)


def _histogram(answers: Answers) -> Chart:
    if answers.num_classes == 2:
        names = [f"label {_class_shown(answers, place, '')}" for place in (0, 1)]
        title, shown = "Scores by label", f"probability of {_class_shown(answers, 1)}"
        note = "The less the two overlap, the better the classes are separated."
        values, split = answers.shown[:, 1], answers.labels == 1
    else:
        title, shown, names = "Scores", PREDICTED, ["wrong", "right"]
        note = "The more confident the model, the more rarely it should be wrong."
        values, split = answers.shown.max(axis=1), answers.predictions == answers.labels
    edges = np.linspace(0, 1, NUM_BINS + 1)
    return _two_groups(title, values, split, names, edges, note, xlabel=shown, xlim=(0, 1))


def _two_groups(
    title: str, values: np.ndarray, split: np.ndarray, names: Sequence[str], edges, note: str, **axis: Any
) -> Chart:
    """Draw histograms of the values outside and inside of ``split``, bool [N], which are called ``names``."""

    def draw(axes) -> None:
        for inside, color, name in ((~split, ORANGE, names[0]), (split, BLUE, names[1])):
            axes.hist(values[inside], edges, color=color, alpha=0.55, label=name)
        axes.set(ylabel="rows", **axis)

    return draw_chart(title, draw, note)


# Models for regression.

SCORE_COLUMNS = ("error", "score", "label", "text_a", "text_b")


def _worst_scores(answers: ScoreAnswers) -> Iterator[Tuple[Any, ...]]:
    """Yield rows by falling distance of the score from the label."""
    errors, pairs = answers.scores - answers.labels, answers.pairs
    for row in np.argsort(-np.abs(errors), kind="stable").tolist():
        numbers = float(errors[row]), float(answers.scores[row]), float(answers.labels[row])
        yield row, *numbers, pairs.left[row], pairs.right[row]


def _values_of_scores(answers: ScoreAnswers, evaluation: Dict[str, Any]) -> Dict[str, Any]:
    return {"charts": [_scatter(answers, evaluation), _by_label(evaluation), _errors(answers)]}


def _scatter(answers: ScoreAnswers, evaluation: Dict[str, Any]) -> Chart:
    labels, scores = answers.labels, answers.scores
    few = np.argsort(labels, kind="stable")[pick_points(len(labels))]
    ends = [float(min(labels.min(), scores.min())), float(max(labels.max(), scores.max()))]

    def draw(axes) -> None:
        axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1)
        axes.plot(labels[few], scores[few], "o", color=BLUE, alpha=0.35, ms=3.5)
        axes.set(xlabel="label", ylabel="score")

    shown = "all" if len(few) == len(labels) else f"{len(few)} of the {len(labels)}"
    pearson = evaluation["pearson"]
    pearson = "Pearson undefined" if pearson is None else f"Pearson {pearson:.4f}"
    note = f"{pearson}; on the dotted line, score equals label; {shown} rows."
    return draw_chart("Scores and labels", draw, note)


def _by_label(evaluation: Dict[str, Any]) -> Chart:
    bins = evaluation["bins"]
    means = [each["mean_label"] for each in bins]

    def draw(axes) -> None:
        axes.plot([means[0], means[-1]], [means[0], means[-1]], color=GREY, linestyle=":", linewidth=1)
        axes.plot(means, [each["mean_score"] for each in bins], "o-", color=BLUE, label="mean score", ms=3.5)
        axes.plot(means, [each["mae"] for each in bins], "s-", color=ORANGE, label="mean error", ms=3.5)
        axes.set(xlabel="label")

    note = "The range of the labels in bins; a perfect model lies on the dotted line."
    return draw_chart("By label", draw, note)


def _errors(answers: ScoreAnswers) -> Chart:
    errors = answers.scores - answers.labels

    def draw(axes) -> None:
        axes.hist(errors, NUM_BINS, color=BLUE, alpha=0.7)
        axes.axvline(0.0, color=GREY, linestyle=":", linewidth=1)
        axes.set(xlabel="score - label", ylabel="rows")

    return draw_chart("Error", draw, f"mean error {errors.mean():+.4f}; above 0, the scores are too high.")


# Models that rank candidates.

RANK_COLUMNS = ("rank", "candidates", "score", "first_score", "query", "relevant", "first")


def _worst_queries(answers: ScoreAnswers) -> List[Tuple[Any, ...]]:
    """Return queries whose first candidate is not relevant, by falling rank of the first one that is."""
    pairs, scores = answers.pairs, answers.scores
    names = pairs.left if pairs.queries is None else pairs.queries
    rows: List[Tuple[Any, ...]] = []
    for query in ranked_queries(scores, answers.labels, answers.known_groups):
        rank = int(query.ranks[0])
        if rank > 1:
            relevant, first = int(query.rows[rank - 1]), int(query.rows[0])
            numbers = relevant, rank, len(query.rows), float(scores[relevant]), float(scores[first])
            rows.append((*numbers, names[relevant], pairs.right[relevant], pairs.right[first]))
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _values_of_ranking(answers: ScoreAnswers, evaluation: Dict[str, Any]) -> Dict[str, Any]:
    scores, names = answers.scores, ["label 0", "label 1 or above"]
    edges = np.linspace(scores.min(), scores.max() + 1e-9, NUM_BINS + 1)
    note = "Of all queries together: only the order within a query counts."
    by_label = _two_groups("Scores by label", scores, answers.labels > 0, names, edges, note, xlabel="score")
    return {"charts": [_ranks(evaluation), by_label]}


def _ranks(evaluation: Dict[str, Any]) -> Chart:
    parts = evaluation["first_ranks"]
    names = [
        f"{part['from']}" if part["from"] == part["to"] else f"{part['from']}–{part['to']}" for part in parts
    ]

    def draw(axes) -> None:
        axes.bar(names, [part["queries"] for part in parts], color=BLUE, alpha=0.8)
        axes.set(xlabel="rank of the first relevant candidate", ylabel="queries")

    return draw_chart("Where the answer stands", draw, f"MRR {evaluation['mrr']:.4f}; 1 is best.")


KINDS = {
    CLASSIFICATION: ReportKind(
        "report.html", COLUMNS, ("loss", "probability"), _wrong_rows, _values_of_classes
    ),
    REGRESSION: ReportKind(
        "score_report.html", SCORE_COLUMNS, ("error", "score", "label"), _worst_scores, _values_of_scores
    ),
    RANKING: ReportKind(
        "ranking_report.html", RANK_COLUMNS, ("score", "first_score"), _worst_queries, _values_of_ranking
    ),
}
