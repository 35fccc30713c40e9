"""The robustness table: its figures, its section in the report, and the commands that write it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_ship import ship, write_trained

from ernie_pair import measure_robustness
from ernie_pair.__main__ import _run
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.robustness_table import Robustness, robustness_table, table_lines
from ernie_pair.pairs.data.pair_source import read_pairs
from ernie_pair.pairs.robustness.perturb import UNKNOWN, Perturbed
from ernie_pair.pairs.targets.metrics import percentile_interval, resamples

ROWS = [("怎么坐地铁去上海看大", "怎么样去上海看大", 1), ("我今天来上海很好吗", "你明天去下天气好吗", 0)] * 10
ROWS += [("它们真的为什么不能上来", "为什么它们真的不能上来", 1)] * 5


def perturbed(kinds, labels, origins):
    texts = ["x"] * len(kinds)
    return Perturbed(texts, texts, np.array(labels), kinds, kinds, np.array(origins))


def table_of(kinds, labels, origins, predictions, before=(1, 0, 1, 0), samples=200):
    file_labels = np.array([1, 0, 0, 1])
    changed, of_model = perturbed(kinds, labels, origins), map(np.array, (predictions, before))
    return robustness_table(Robustness(changed, *of_model, file_labels), samples, seed=3)


def test_figures_are_compared_with_the_original_rows():
    (row,) = table_of(["typo"] * 4, [1, 0, 0, 1], [0, 1, 2, 3], [0, 0, 0, 0])
    assert (row["rows"], row["labelled"], row["flips"]) == (4, 4, 0.5)
    assert (row["accuracy"], row["original_accuracy"], row["difference"]) == (0.5, 0.5, 0.0)
    low, high = row["difference_interval"]
    assert -1 <= low < 0 < high <= 1 and row["made"] == {"typo": 4}


def test_the_intervals_are_those_of_the_seeds_resamples():
    labels, predictions, origins = np.random.default_rng(0).integers(2, size=(3, 50))
    (row,) = table_of(["typo"] * 50, labels, origins, predictions)
    means = [counts @ (labels == predictions) / 50 for counts in resamples(50, 200, seed=3)]
    assert row["accuracy_interval"] == pytest.approx(percentile_interval(np.array(means)))


def test_a_line_says_how_many_predictions_changed():
    (line,) = table_lines(table_of(["typo"] * 4, [1, 0, 0, 1], [0, 1, 2, 3], [0, 0, 0, 0], samples=0))
    changed = "typo: 4 rows, 50.00% of the predictions changed"
    assert line == f"{changed}; accuracy 0.5000, 0.5000 on the original rows"


def test_equal_predictions_give_a_zero_difference_interval():
    (row,) = table_of(["order"] * 4, [1, 0, 0, 1], [0, 1, 2, 3], [1, 0, 1, 0])
    assert row["difference_interval"] == [0.0, 0.0] and row["flips"] == 0
    assert row["accuracy_interval"][0] < row["accuracy_interval"][1]  # there are still few pairs


def test_a_changed_label_is_evaluated_as_the_new_label():
    first, second = table_of(["typo", "negation"], [1, 0], [0, 0], [1, 1], samples=0)
    assert (first["accuracy"], first["label_changes"]) == (1.0, False)
    assert (second["accuracy"], second["original_accuracy"], second["label_changes"]) == (0.0, 1.0, True)
    assert "accuracy_interval" not in second


def test_unlabelled_rows_count_only_towards_the_flips():
    (row,) = table_of(["order", "order"], [UNKNOWN, UNKNOWN], [0, 1], [0, 0])
    assert (row["rows"], row["labelled"], row["accuracy"], row["flips"]) == (2, 0, None, 0.5)


class Fake:
    """Predicts "same" for a pair whose texts share their first character."""

    class_names = ("different", "same")

    def predict(self, pairs):
        return SimpleNamespace(classes=np.array([int(left[0] == right[0]) for left, right in pairs]))


def test_any_model_can_be_measured_from_python():
    examples = [{"sentence1": a, "sentence2": b, "label": ("different", "same")[c]} for a, b, c in ROWS]
    found = measure_robustness(Fake(), examples, "order typo entity", bootstrap=50)
    table = {row["kind"]: row for row in found}
    assert list(table) == ["typo", "entity", "order"]
    assert table["order"]["flips"] == 0 and table["order"]["rows"] == len(ROWS)
    assert table["entity"]["label_changes"] and table["entity"]["original_accuracy"] == 1.0
    names = {1: "same", 0: "different"}
    given = [(left, right, names[label]) for left, right, label in ROWS]
    assert found == measure_robustness(Fake(), given, "typo, entity, order", bootstrap=50)
    with pytest.raises(InputError, match="examples"):
        measure_robustness(Fake(), [("今天", "明天")], "order")


@pytest.fixture(scope="module")
def world(module_path):
    write_trained(module_path / "model")
    rows = "".join("\t".join(map(str, row)) + "\n" for row in ROWS)
    (module_path / "test.tsv").write_text(rows, encoding="utf-8")
    return module_path


def run(*words):
    return exit_code_of(lambda: _run(list(map(str, words))))


def evaluate(world, out, *words):
    flags = ("--model_path", world / "model", "--input_file", world / "test.tsv", "--output_file", out)
    return run("evaluate", *flags, "--device", "cpu", "--bootstrap", 20, *words)


KINDS = ("--robustness", "typo negation entity order filler")


def test_evaluate_writes_table_page_and_rows(world, tmp_path):
    files = tmp_path / "out.json", tmp_path / "changed.tsv"
    asked = (*KINDS, "--report", tmp_path / "report", "--robustness_file", files[1])
    assert evaluate(world, files[0], *asked) == 0
    found = json.loads(files[0].read_text())["robustness"]
    assert [row["kind"] for row in found["kinds"]] == ["typo", "negation", "entity", "order", "filler"]
    assert (
        found["seed"] == 1234 and json.loads((tmp_path / "report" / "report.json").read_text())["robustness"]
    )
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "<h2>Perturbed pairs</h2>" in page and "negation (label becomes 0)" in page
    lines = files[1].read_text(encoding="utf-8").splitlines()
    assert lines[0] == "text_a\ttext_b\tlabel\torigin"
    assert len(lines) - 1 == sum(row["rows"] for row in found["kinds"])
    assert len(read_pairs(files[1], 2)) == len(lines) - 1  # it can be read as any file of pairs
    assert evaluate(world, tmp_path / "again.json", "--robustness", "order", "--robustness_rows", 3) == 0
    (order,) = json.loads((tmp_path / "again.json").read_text())["robustness"]["kinds"]
    assert order["rows"] == 3


def test_a_report_or_rows_asked_for_later_are_written(world, tmp_path, capfd):
    out, rows = tmp_path / "out.json", tmp_path / "changed.tsv"
    more = ("--report", tmp_path / "report"), ("--robustness_file", rows)
    for words in ((), *more):
        assert evaluate(world, out, *KINDS, *words) == 0
    assert "nothing to do" not in capfd.readouterr().err
    assert (tmp_path / "report" / "report.html").is_file() and rows.is_file()
    assert evaluate(world, out, *KINDS, *more[0], *more[1]) == 0
    assert "nothing to do" in capfd.readouterr().err


def test_an_evaluation_without_robustness_has_no_table(world, tmp_path):
    assert evaluate(world, tmp_path / "out.json", "--report", tmp_path / "report") == 0
    assert "robustness" not in json.loads((tmp_path / "out.json").read_text())
    assert ">Perturbed pairs<" not in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_exported_and_trained_models_have_equal_robustness(world, tmp_path):
    ship(world / "model", tmp_path / "ship")
    out, rows = tmp_path / "out.json", tmp_path / "rows.jsonl"
    flags = ("--model_path", tmp_path / "ship", "--input_file", world / "test.tsv", "--output_file", out)
    asked = (*flags, *KINDS, "--bootstrap", 20)
    assert run("evaluate", *asked) == 0
    assert run("evaluate", *asked, "--robustness_file", rows) == 0  # the rows alone are missing
    assert evaluate(world, tmp_path / "trained.json", *KINDS) == 0
    found, trained = (json.loads(path.read_text()) for path in (out, tmp_path / "trained.json"))
    assert found["robustness"] == trained["robustness"] and found["accuracy"] == trained["accuracy"]
    first = json.loads(rows.read_text(encoding="utf-8").splitlines()[0])
    assert first["origin"].startswith("typo") and first["label"] in ("0", "1")
    before = out.read_bytes()
    assert run("evaluate", *asked) == 0 and out.read_bytes() == before  # nothing to do
