"""The folder of a report: report.json and errors.tsv for programs, report.html for a reader."""

import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from data_tools.files.json_file import write_json
from data_tools.options.standard_streams import as_asked
from ernie_pair.inference.scores import are_names
from ernie_pair.models.model_card import changed_flags
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.targets.metrics import describe_single_class
from ernie_pair.report.chart import BLUE, GREEN, GREY, ORANGE, Chart, draw_chart, drawn_text, few_of
from ernie_pair.report.page import (
    NOT_SAID,
    ON_THE_PAGE,
    Made,
    Table,
    metric_cards,
    percent,
    read_card,
    render_page,
    shown_number,
    table_line,
)
from ernie_pair.score.evaluation.calibration import Curve
from ernie_pair.score.evaluation.evaluation import Answers

PREDICTED = "probability of the predicted class"
HISTOGRAM_BINS = np.linspace(0, 1, 41)


def charts_of(answers: Answers, evaluation: Dict) -> List[Chart]:
    """Draw reliability and scores; of two classes that both occur, precision-recall, ROC, thresholds too."""
    curve = answers.curve()
    charts = []
    if curve is not None:
        charts += [
            _precision_recall(curve, evaluation),
            _roc(answers, evaluation),
            _thresholds(curve, evaluation, class_shown(answers, 1)),
        ]
    return [*charts, _reliability(answers, evaluation), _histogram(answers)]


def class_shown(answers: Answers, place: int, before: str = "class ") -> str:
    """Return the name of a class for a chart, which shows its number where no font has the characters."""
    name = answers.names[place]
    return drawn_text(name, f"{before}{place}") if are_names(answers.names) else f"{before}{place}"


def _precision_recall(curve: Curve, evaluation: Dict) -> Chart:
    best, asked = (evaluation["thresholds"][name] for name in ("best_f1", "at_precision"))
    few = few_of(len(curve.f1))

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
    few = few_of(len(true_rate))

    def draw(axes) -> None:
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1)
        axes.plot(false_rate[few], true_rate[few], color=BLUE)
        axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1.01))

    return draw_chart("ROC", draw, f"AUC {evaluation['auc']:.4f}; the dotted diagonal is chance.")


def _thresholds(curve: Curve, evaluation: Dict, class_1: str) -> Chart:
    best = evaluation["thresholds"]["best_f1"]["threshold"]
    few = few_of(len(curve.f1))

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
        said = f"probability of {class_shown(answers, 1)}" if answers.num_classes == 2 else PREDICTED
        axes.set(xlabel=said, ylabel="observed share", xlim=(0, 1), ylim=(0, 1.01))

    note = f"Each point is one of {calibration['bins']} bins with equally many rows; the diagonal is perfect."
    return draw_chart("Reliability", draw, note)


def _histogram(answers: Answers) -> Chart:
    if answers.num_classes == 2:
        shown, split = answers.shown[:, 1], answers.labels == 1
        names = [f"label {class_shown(answers, place, '')}" for place in (0, 1)]
        said = f"probability of {class_shown(answers, 1)}"
        note = "The less the two overlap, the better the classes are separated."
    else:
        shown, split = answers.shown.max(axis=1), answers.predictions == answers.labels
        names, said = ["wrong", "right"], PREDICTED
        note = "The more confident the model, the more rarely it should be wrong."

    def draw(axes) -> None:
        for inside, color, name in ((~split, ORANGE, names[0]), (split, BLUE, names[1])):
            axes.hist(shown[inside], HISTOGRAM_BINS, color=color, alpha=0.55, label=name)
        axes.set(xlabel=said, ylabel="rows", xlim=(0, 1))

    return draw_chart("Scores by label" if answers.num_classes == 2 else "Scores", draw, note)


FILES = ("report.json", "errors.tsv", "report.html")
TEMPLATE = Path(__file__).with_name("report.html")
COLUMNS = ("line", "loss", "probability", "label", "prediction", "text_a", "text_b")
RARE = 0.025  # chances below it are none


def write_report(
    files: Sequence[Path],
    evaluation: Dict[str, object],
    answers: Answers,
    most_rows: int,
    tables: Sequence[Table] = (),
    made: Made = NOT_SAID,
) -> None:
    """Write the report to ``files``, which become FILES. Raises OSError.

    Equal answers give equal bytes but for the date on the page. ``tables`` stand on it below the metrics.
    """
    worst = worst_rows(answers, most_rows)
    numbers, errors, page = files
    write_json(numbers, evaluation)
    errors.write_bytes("".join(_lines(worst)).encode("utf-8"))
    page.write_bytes(page_of(evaluation, answers, worst, tables, made).encode("utf-8"))


def made_of(config: EvaluateConfig) -> Made:
    """Return what the page says of how it was made: the flags that were given, and the model's card."""
    defaults = {item.name: item.default for item in fields(config)}
    flags = {name: as_asked(value) for name, value in asdict(config).items()}
    return Made(changed_flags(flags, defaults), read_card(Path(config.model_path)))


def worst_rows(answers: Answers, most: int) -> List[Dict[str, object]]:
    """Return at most ``most`` wrong rows, COLUMNS of each, by falling loss.

    ``probability`` is that of the label. Label and prediction stand there by name where the classes have
    names.
    """
    of_label = answers.shown[np.arange(len(answers.labels)), answers.labels]
    order = np.argsort(of_label, kind="stable")
    wrong = order[answers.predictions[order] != answers.labels[order]][:most]
    return [
        dict(
            zip(
                COLUMNS,
                (
                    answers.pairs.number(int(row)),
                    -math.log(max(of_label[row], 1e-300)),
                    float(of_label[row]),
                    answers.names[answers.labels[row]],
                    answers.names[answers.predictions[row]],
                    answers.pairs.left[row],
                    answers.pairs.right[row],
                ),
            )
        )
        for row in wrong
    ]


def _lines(rows: List[Dict[str, object]]):
    yield table_line(COLUMNS)
    for row in rows:
        shown = {**row, "loss": f"{row['loss']:.6g}", "probability": f"{row['probability']:.6g}"}
        yield table_line(str(shown[name]) for name in COLUMNS)


def page_of(
    evaluation: Dict[str, object],
    answers: Answers,
    worst: List[Dict[str, object]],
    tables: Sequence[Table] = (),
    made: Made = NOT_SAID,
) -> str:
    """Return the report as one HTML page that needs no other file."""
    return render_page(
        TEMPLATE,
        evaluation=evaluation,
        cards=_cards(evaluation),
        tables=tables,
        charts=charts_of(answers, evaluation),
        slices=_slices_by_kind(evaluation),
        worst=worst[:ON_THE_PAGE],
        num_wrong=int(np.sum(answers.predictions != answers.labels)),
        single_class=_single_class(evaluation),
        are_named=are_names(answers.names),
        made=made,
    )


def _single_class(evaluation: Dict[str, Any]) -> str:
    """Return the warning about a classifier that predicts one class only, otherwise an empty text."""
    name = evaluation["single_class"]
    return "" if name is None else describe_single_class(name, evaluation["rows"])


def _cards(evaluation: Dict[str, Any]) -> List[Dict[str, str]]:
    """Return the numbers at the top of the page: name, value, and what stands below it."""
    calibration = evaluation["calibration"]
    names = {"accuracy": "Accuracy", "f1": "F1", "auc": "AUC", "average_precision": "Average precision"}
    names.update(precision="Precision", recall="Recall", mcc="MCC", loss="Log loss")
    cards = metric_cards(evaluation, names)
    for shown, name in (("ECE, equal mass", "ece"), ("ECE, top label", "ece_top_label")):
        after = f"{shown_number(calibration[name + '_calibrated'])} with temperature "
        after += f"{calibration['temperature']:.3g}"
        cards.append({"name": shown, "value": shown_number(calibration[name]), "below": after})
    if "swap" in evaluation:
        swap = evaluation["swap"]
        below = f"mean difference {shown_number(swap['mean_difference'])}"
        cards.append({"name": "Flipped by swapping", "value": percent(swap["flip_rate"]), "below": below})
    return cards


def _slices_by_kind(evaluation: Dict[str, Any]) -> Dict[str, List[Dict[str, object]]]:
    """Return {by: slices}, each slice with ``share`` of all rows and ``is_low``.

    ``is_low``: fewer rows are right than the accuracy of the whole file leads to by chance.
    """
    from scipy.stats import binom

    kinds: Dict[str, List[Dict[str, object]]] = {}
    for entry in evaluation["slices"]:
        num_right = round(entry["accuracy"] * entry["rows"])
        chance = binom.cdf(num_right, entry["rows"], evaluation["accuracy"])
        more = {"share": entry["rows"] / evaluation["rows"], "is_low": chance < RARE}
        kinds.setdefault(entry["by"], []).append({**entry, **more})
    return kinds
