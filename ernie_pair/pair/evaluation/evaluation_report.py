"""The folder of a report: report.json and errors.tsv for programs, report.html for a reader."""

import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np

from data_tools.files.json_file import write_json
from data_tools.files.standard_streams import as_asked
from ernie_pair.inference.softmax import are_names
from ernie_pair.model_files.model_card import changed_flags
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pair.evaluation.evaluation import Answers
from ernie_pair.pair.evaluation.report_charts import charts_of
from ernie_pair.pair.metrics import describe_single_class
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
)
from ernie_pair.report.table import table_line

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
