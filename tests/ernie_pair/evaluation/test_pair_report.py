"""The evaluation report, and the probabilities and thresholds of predictions."""

import base64
import json
import math
import re
from html import escape

import numpy as np
import pytest
from asked import evaluated, predicted
from html_page import Page
from made_up_answers import answers_of, config_of
from run_files import events
from tiny_pair import toy_rows, train_config, write_pairs, write_rows

from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.evaluation import evaluate_classes
from ernie_pair.evaluation.evaluation_report import FILES, write_report
from ernie_pair.models.temperature import CALIBRATION, read_calibration
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.report.page import Origin


def written(folder, answers, most_rows=10, **flags):
    folder.mkdir(exist_ok=True)
    files = [folder / name for name in FILES]
    write_report(files, evaluate_classes(answers, config_of(**flags)), answers, most_rows)
    return {name: (folder / name).read_text(encoding="utf-8") for name in FILES}


@pytest.mark.parametrize("classes, charts", [(2, 5), (3, 2)])
def test_the_html_page_is_self_contained(tmp_path, classes, charts):
    text = written(tmp_path, answers_of(classes))["report.html"]
    assert Page(text).found == ["script"] and not re.search(r"url\(|srcset=|action=", text)
    sources = re.findall(r'<img src="([^"]*)', text)
    assert "alert" not in text.split("<script>")[1] and len(sources) == charts
    for source in sources:
        head, _, body = source.partition(",")
        assert head == "data:image/svg+xml;base64"
        svg = base64.b64decode(body).decode()
        assert svg.startswith("<svg") and "<path" in svg
        assert not re.search(r'(?:href|src)="(?!#)', svg) and "<text" not in svg and "<!DOCTYPE" not in svg


def test_texts_are_escaped_in_the_html_and_the_tsv(tmp_path):
    files = written(tmp_path, answers_of())
    assert files["report.html"].count("<script>") == 1  # the page's own
    assert all(
        f">{escape(text)}" in files["report.html"] for text in ("<script>alert(1)</script>", "label <1>")
    )
    assert "<script>alert(1)</script>\\t&\t今天0很好\t" in files["errors.tsv"]


@pytest.mark.parametrize("classes", [2, 3])
def test_equal_answers_give_byte_identical_reports(tmp_path, monkeypatch, classes):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    answers = answers_of(classes)
    first, again = (written(tmp_path / name, answers_of(classes)) for name in "ab")
    assert first == again
    other = answers._replace(logits=answers.logits * np.float32(1.01))
    assert written(tmp_path / "c", other)["report.html"] != first["report.html"]


@pytest.mark.parametrize("epoch", ["", "many", "²"])
def test_a_source_date_epoch_that_is_no_number_is_ignored(monkeypatch, epoch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    assert Origin().date >= "2026"


def test_errors_tsv_lists_wrong_rows_by_descending_loss(tmp_path):
    answers = answers_of()
    header, *rows = (line.split("\t") for line in written(tmp_path, answers)["errors.tsv"].splitlines())
    assert header == [*"line loss probability label prediction text_a text_b origin".split()]
    assert all(row[-1] == f":{row[0]}" for row in rows)
    assert [rows[0][0], *rows[0][3:5]] == ["2", "<0>", "<1>"]
    losses = [float(row[1]) for row in rows]
    assert losses == sorted(losses, reverse=True) and losses[0] == pytest.approx(18, rel=1e-3)
    assert [float(row[2]) for row in rows] == pytest.approx([math.exp(-loss) for loss in losses], rel=1e-4)
    wrong = np.flatnonzero(answers.predictions != answers.labels)
    assert {int(row[0]) - 2 for row in rows} <= set(wrong.tolist()) and len(rows) == min(10, len(wrong))
    assert len(written(tmp_path, answers, 2)["errors.tsv"].splitlines()) == 3
    many = answers_of(rows=900)
    page, num_wrong = written(tmp_path, many, 70)["report.html"], np.sum(many.predictions != many.labels)
    assert page.count('<td class="text">') == 2 * 70 and f"70 of {num_wrong} wrong rows" in page


def test_report_json_holds_the_expected_metrics(tmp_path):
    answers = answers_of()
    report = json.loads(written(tmp_path, answers)["report.json"])
    assert report["rows"] == 60 and report["model"] == "best-model" and report["input_file"] == "test.tsv"
    assert np.sum(report["confusion"]) == 60
    assert np.trace(report["confusion"]) / 60 == report["accuracy"]
    assert report["intervals"]["accuracy"][0] <= report["accuracy"] <= report["intervals"]["accuracy"][1]
    assert report["calibration"]["temperature"] == 2.0 and report["calibration"]["fitted_on"] == "dev.tsv"
    assert report["swap"]["flip_rate"] == 1.0  # the fake answers for (B, A) are the opposite
    shares = answers.shown[:, 1]
    assert report["swap"]["mean_difference"] == pytest.approx(np.abs(2 * shares - 1).mean())
    assert report["swap"]["accuracy_swapped"] == pytest.approx(1 - report["accuracy"])
    assert report["thresholds"]["at_precision"]["asked"] == 0.95


def test_swap_and_intervals_are_omitted_when_disabled(tmp_path):
    report = json.loads(written(tmp_path, answers_of(swap=False), bootstrap=0)["report.json"])
    assert "swap" not in report and "intervals" not in report


def test_thresholds_apply_to_calibrated_probabilities():
    plain, warm = (evaluate_classes(answers_of(in_use=t), config_of())["thresholds"] for t in (1.0, 2.0))
    odds = [math.log(t["best_f1"]["threshold"] / (1 - t["best_f1"]["threshold"])) for t in (plain, warm)]
    assert odds[0] == pytest.approx(2 * odds[1], rel=0.05)
    assert plain["best_f1"]["f1"] == warm["best_f1"]["f1"] and warm["temperature"] == 2.0


def test_a_single_class_file_is_reported_without_curves(tmp_path):
    answers = answers_of()
    ones = answers._replace(pairs=Pairs(*answers.pairs[:2], np.ones(60, dtype=int), *answers.pairs[3:]))
    files = written(tmp_path, ones)
    report = json.loads(files["report.json"])
    assert report["auc"] is None and "thresholds" not in report and "auc" not in report["intervals"]
    assert files["report.html"].count("<img") == 2


@pytest.mark.parametrize("rows, accuracy, is_low", [(1, 0.0, False), (20, 0.5, True), (4, 0.5, False)])
def test_a_significantly_worse_slice_is_highlighted(tmp_path, rows, accuracy, is_low):
    answers = answers_of()
    found = {**evaluate_classes(answers, config_of()), "accuracy": 0.8}
    found["slices"] = [{"by": "length", "slice": "x", "rows": rows, "accuracy": accuracy, "f1": accuracy}]
    write_report([tmp_path / name for name in FILES], found, answers, 10)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (f'class="low">{accuracy:.4f}<' in page) == is_low


def test_the_page_says_when_no_row_is_wrong(tmp_path):
    answers = answers_of()
    right = answers._replace(logits=np.eye(2, dtype=np.float32)[answers.labels])
    assert "All rows are correct." in written(tmp_path, right)["report.html"]


@pytest.fixture(scope="module")
def trained(module_path):
    # The random draws of a dropout differ between processors; the head of matches is blind to the order.
    flags = {"dropout": 0.0, "best_metric": "loss", "match_embeddings": False}
    config = train_config(module_path, max_steps=60, learning_rate=5e-3, **flags)
    write_pairs(module_path / "dev.tsv", 61, seed=1)
    train_pair(config)
    (best,) = (module_path / "out").glob("best-*")
    return best, module_path


def test_best_metric_loss_keeps_the_model_with_the_lowest_loss(trained):
    best, folder = trained
    losses = [event["loss"] for event in events(folder / "out", "valid") if event["step"]]
    assert best.name == f"best-loss-{min(losses):.4f}"


def asked(trained, name="dev.tsv", **flags):
    return evaluated(trained[0], trained[1] / name, **flags)


def test_report_json_equals_the_metrics_file(trained, tmp_path):
    turned = ((a, b, 1 - label, f"a.csv:{n}") for n, (a, b, label) in enumerate(toy_rows(61, 1)))
    write_rows(trained[1] / "split.tsv", [("text_a", "text_b", "label", "origin"), *turned])
    asked(trained, "split.tsv", report=str(tmp_path / "split"))  # its errors name the rows of the first file
    errors = (tmp_path / "split" / "errors.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert errors and all(row.split("\t")[-1] == f"a.csv:{int(row.split()[0]) - 2}" for row in errors)
    metrics = asked(trained, output=tmp_path / "metrics.json", report=str(tmp_path / "report"))
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == metrics
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(FILES)
    assert metrics["calibration"]["fitted_on"].endswith("dev.tsv") and metrics["calibration"]["rows"] == 61
    assert metrics["calibration"]["loss_calibrated"] <= metrics["loss"]


def test_swap_metrics_equal_those_of_a_file_of_swapped_pairs(trained):
    _, folder = trained
    write_rows(folder / "exchanged.tsv", ((b, a, label) for a, b, label in toy_rows(61, 1)))
    one, other = (asked(trained, name) for name in ("dev.tsv", "exchanged.tsv"))
    assert one["swap"]["accuracy_swapped"] == other["accuracy"]
    assert one["swap"]["flip_rate"] == other["swap"]["flip_rate"] > 0
    both = asked(trained, "dev.tsv", symmetric="average")
    assert one["swap"]["accuracy_both_orders"] == other["swap"]["accuracy_both_orders"] == both["accuracy"]
    assert "swap" not in asked(trained, swap=False)


def test_a_saved_temperature_calibrates_predictions(trained, tmp_path):
    best, folder = trained

    def ask(name):
        answers = predicted(best, folder / "dev.tsv", tmp_path / name, scores=True)
        assert list(answers) == ["index", "prediction", "probability_0", "probability_1"]
        return np.array(list(answers.values()), dtype=float).T

    before = ask("before.tsv")
    assert before[:, 2:].sum(axis=1) == pytest.approx(1, rel=1e-5)
    assert (before[:, 1] == before[:, 2:].argmax(axis=1)).all()
    noisy = (
        (a, b, 1 - label if row % 8 == 0 else label) for row, (a, b, label) in enumerate(toy_rows(80, 5))
    )
    write_rows(folder / "other.tsv", noisy)
    try:
        fitted = asked(trained, calibrate_on=str(folder / "other.tsv"), save_temperature=True)
        temperature = fitted["calibration"]["temperature"]
        assert fitted["calibration"]["rows"] == 80 and fitted["thresholds"]["temperature"] == temperature
        assert read_calibration(best, 2).temperature == temperature != 1.0
        after = ask("after.tsv")
        odds = [np.log(shares[:, 3] / shares[:, 2]) for shares in (before, after)]
        assert odds[1] == pytest.approx(odds[0] / temperature, rel=1e-3, abs=1e-4)
        assert (after[:, :2] == before[:, :2]).all()
        judged = asked(trained)["calibration"]
        assert judged["temperature"] == temperature and judged["fitted_on"].endswith(CALIBRATION)
    finally:
        (best / CALIBRATION).unlink(missing_ok=True)


def test_a_threshold_from_few_predictions_gives_a_warning(trained, capfd):
    for precision, warns in ((0.6, False), (0.999, True)):
        chosen = asked(trained, at_precision=precision)["thresholds"]["at_precision"]
        warning = f"precision {precision:g} is based on {chosen['rows']} predictions"
        assert chosen["reached"] and (warning in capfd.readouterr().err) is warns


def test_a_report_folder_does_not_overwrite_a_file(trained, tmp_path):
    (tmp_path / "report").write_text("mine")
    with pytest.raises(InputError, match="report .* is a file; give a folder"):
        asked(trained, report=str(tmp_path / "report"))
    assert (tmp_path / "report").read_text() == "mine" and not (tmp_path / "metrics.json").exists()
