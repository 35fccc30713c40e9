"""The charts of the report of a classifier."""

from typing import Dict, List

import numpy as np

from ernie_pair.inference.softmax import are_names
from ernie_pair.pair.evaluation.evaluation import Answers
from ernie_pair.pair.evaluation.thresholds import Curve
from ernie_pair.report.chart import BLUE, GREEN, GREY, ORANGE, Chart, draw_chart, drawn_text, few_of

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
