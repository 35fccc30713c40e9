"""How logits become predictions: saved threshold and temperature, class names, both orders of a pair."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import asked
import numpy as np
import pytest
from fake_predictor import answer_and_health
from sklearn import metrics as sk
from tiny_pair import write_rows
from tiny_ship import MAX_SEQ_LEN, logits_of_trained, random_texts, ship, write_trained

from ernie_pair import PairConfig, PairTrainer, measure_robustness
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.inference.exported_model import read_exported
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.scores import are_names, probabilities
from ernie_pair.models.temperature import (
    CALIBRATION,
    Calibration,
    both_orders,
    read_calibration,
    write_calibration,
)

NAMES = ("不同", "相同")


@pytest.fixture(scope="module")
def trained(module_path):
    """A model with random weights, and labels drawn from its own probabilities at temperature 2."""
    write_trained(module_path / "best", id2label=dict(zip("01", NAMES)), initializer_range=0.5)
    for seed, name in enumerate(("dev", "test")):
        pairs = random_texts(400, seed)
        shares = probabilities(logits_of_trained(module_path / "best", pairs), 2.0)[:, 1]
        labels = np.random.default_rng(seed).random(len(pairs)) < shares
        assert 50 < labels.sum() < 350
        rows = [(a, b, NAMES[label]) for (a, b), label in zip(pairs, labels.astype(int))]
        write_rows(module_path / f"{name}.tsv", rows)
    return module_path


@pytest.fixture
def folder(trained, tmp_path):
    """A copy that a test may write to."""
    return Path(shutil.copytree(trained, tmp_path / "here"))


def evaluated(folder, name="test.tsv", **flags):
    flags = {"at_precision": 0.6, "max_seq_len": MAX_SEQ_LEN, "overwrite": True, **flags}
    return asked.evaluated(folder / "best", folder / name, folder / "metrics.json", **flags)


def tuned(folder, **flags):
    saving = {"save_temperature": True, "save_threshold": True, "calibrate_on": str(folder / "dev.tsv")}
    return evaluated(folder, **{**saving, **flags})


def predicted(folder, name="test.tsv", **flags):
    flags = {"max_seq_len": MAX_SEQ_LEN, "scores": True, "overwrite": True, **flags}
    return asked.predicted(folder / "best", folder / name, folder / "predictions.tsv", **flags)


def rows_of(path):
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def texts_of(folder, name="test.tsv"):
    return [(a, b) for a, b, _ in rows_of(folder / name)]


def classes_of(table):
    return list(map(int, table["prediction"]))


def test_a_saved_threshold_records_its_source_and_results(folder):
    metrics = tuned(folder)
    saved = json.loads((folder / "best" / CALIBRATION).read_text(encoding="utf-8"))
    assert saved["tuned_on"] == saved["fitted_on"] == str(folder / "dev.tsv")
    assert saved["tuned_on_sha256"] == saved["fitted_on_sha256"] != metrics["input_sha256"]
    assert saved["tuned_for"] == "precision 0.6" and saved["tuned_rows"] == saved["rows"] == 400
    assert saved["temperature"] == pytest.approx(2.0, rel=0.4)
    thresholds = metrics["thresholds"]
    assert thresholds["tuned_on"] == str(folder / "dev.tsv") and not thresholds["is_judged_file"]
    assert thresholds["at_precision"]["threshold"] == saved["threshold"] != 0.5
    assert thresholds["at_precision"]["precision"] >= 0.6
    assert thresholds["saved"]["tuned_for"] == "precision 0.6" and not thresholds["saved"]["is_judged_file"]
    table = predicted(folder)
    labels = np.array([NAMES.index(label) for _, _, label in rows_of(folder / "test.tsv")])
    called = np.array(classes_of(table)) == 1
    for judged in (thresholds["saved"], thresholds["at_precision"]["judged"]):
        assert judged["rows"] == called.sum() and judged["precision"] == labels[called].mean()
        assert judged["accuracy"] == np.mean(called == labels)


@pytest.mark.parametrize("other", [None, Calibration(3.0, threshold=0.25)], ids=["removed", "another"])
def test_a_repeated_evaluation_saves_a_lost_calibration(folder, other, capfd):
    metrics = tuned(folder)
    path = folder / "best" / CALIBRATION
    content = path.read_bytes()
    tuned(folder, overwrite=False)
    assert "nothing to do" in capfd.readouterr().err and path.read_bytes() == content
    path.unlink()
    if other is not None:
        write_calibration(path.parent, other)
    assert tuned(folder, overwrite=False) == metrics
    assert path.read_bytes() == content and "evaluating again" in capfd.readouterr().err


def test_the_saved_threshold_is_used_by_every_interface(folder):
    likelier = classes_of(predicted(folder))
    tuned(folder)
    threshold = read_calibration(folder / "best", 2).threshold
    table = predicted(folder)
    expected = [int(float(share) >= threshold) for share in table["probability_1"]]
    assert classes_of(table) == expected != likelier
    assert list(table["predicted_label"]) == [NAMES[number] for number in expected]

    config = PairConfig(str(folder / "out"), model_type="ernie", max_seq_len=MAX_SEQ_LEN, device="cpu")
    trainer = PairTrainer(folder / "best", config)
    answer = trainer.predict(texts_of(folder))
    assert answer.classes.tolist() == expected and answer.labels == list(table["predicted_label"])
    assert np.allclose(answer.probabilities[:, 1], list(map(float, table["probability_1"])), atol=1e-5)
    assert trainer.predict(texts_of(folder), threshold=0.0).classes.all()

    exported = ship(folder / "best", folder / "ship")
    manifest = json.loads((exported / "export.json").read_text(encoding="utf-8"))
    assert manifest["threshold"] == threshold and manifest["labels"] == list(NAMES)
    assert PairPredictor(exported).predict(texts_of(folder)).labels == list(table["predicted_label"])
    answers = asked.predicted(exported, folder / "test.tsv", folder / "out.tsv")
    assert answers == {name: table[name] for name in ("index", "prediction", "predicted_label")}


def test_an_explicit_threshold_overrides_the_saved_one(folder):
    tuned(folder)
    assert set(predicted(folder, threshold=0.0)["prediction"]) == {"1"}
    exported = ship(folder / "best", folder / "ship")
    answers = asked.predicted(exported, folder / "test.tsv", folder / "out.tsv", threshold=0.0)
    assert set(answers["prediction"]) == {"1"}
    assert PairPredictor(exported, threshold=0.0).predict([("今", "天")]).labels == ["相同"]
    export_pair(ExportConfig(str(folder / "best"), str(folder / "other"), threshold=0.25))
    assert PairPredictor(folder / "other").threshold == 0.25


def test_the_service_uses_the_threshold_and_class_names(folder):
    pytest.importorskip("httpx")
    write_calibration(folder / "best", Calibration(threshold=0.999999, symmetric="average"))
    predictor = PairPredictor(ship(folder / "best", folder / "ship"))

    answer, health = answer_and_health(predictor, [["今天好", "坏"], ["坏", "今天好"]])
    assert answer["labels"] == ["不同", "不同"] and answer["classes"] == [0, 0]
    assert answer["scores"][0] == answer["scores"][1]
    assert health["threshold"] == 0.999999 and health["symmetric"] == "average"
    assert health["labels"] == list(NAMES) and health["temperature"] == 1.0


def test_tuning_on_the_judged_file_is_explicit_and_reported(folder, capfd):
    with pytest.raises(InputError, match="save_threshold=True does not say which pairs .* tune_on FILE"):
        evaluated(folder, save_threshold=True)
    metrics = evaluated(
        folder, save_threshold=True, tune_on=str(folder / "test.tsv"), report=str(folder / "r")
    )
    assert metrics["thresholds"]["is_judged_file"] and metrics["thresholds"]["saved"]["is_judged_file"]
    told = capfd.readouterr().err
    assert "test.tsv, the evaluated rows: precision" in told
    assert f"use the threshold {metrics['thresholds']['saved']['threshold']:.4f}: on the evaluated" in told
    assert f"; without it accuracy {metrics['thresholds']['likelier']['accuracy']:.4f}" in told
    page = (folder / "r" / "report.html").read_text(encoding="utf-8")
    assert "<b>The same rows are evaluated here.</b>" in page
    assert read_calibration(folder / "best", 2).tuned_on_sha256 == metrics["input_sha256"]
    assert evaluated(folder)["thresholds"]["saved"]["is_judged_file"]


@pytest.mark.parametrize("flags, reason", [
    ({"save_temperature": True}, "save_temperature needs calibrate_on; add it"),
    ({"save_temperature": True, "calibrate_on": "copy.tsv"},
     "calibrate_on .*copy.tsv holds the pairs of input_file itself: .* give other labelled pairs"),
    ({"tune_on": "ones.tsv"}, "tune_on .*ones.tsv has no pair of class 0, so no threshold"),
])  # fmt: skip
def test_biased_or_undefined_calibration_is_not_saved(folder, flags, reason):
    shutil.copy(folder / "test.tsv", folder / "copy.tsv")
    (folder / "ones.tsv").write_text("今\t天\t1\n", encoding="utf-8")
    named = {key: str(folder / f) if str(f).endswith(".tsv") else f for key, f in flags.items()}
    with pytest.raises(InputError, match=reason):
        evaluated(folder, **named)
    assert not (folder / "best" / CALIBRATION).exists() and not (folder / "metrics.json").exists()


def refused(folder, capsys, reason, ask):
    """Return the evaluation that is written although ``ask`` is refused."""
    for overwrite in (True, False):  # with all there already, the second time
        with pytest.raises(InputError, match=reason):
            ask(report=str(folder / "report"), overwrite=overwrite)
        assert '"accuracy"' in capsys.readouterr().out
    assert (folder / "report" / "report.html").exists() and not (folder / "best" / CALIBRATION).exists()
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def test_an_unreached_precision_still_writes_the_evaluation(folder, capsys):
    """The most confident row of dev.tsv is wrong, so precision 1 is never reached."""
    surest = int(np.argmax(list(map(float, predicted(folder, "dev.tsv")["probability_1"]))))
    rows = rows_of(folder / "dev.tsv")
    rows[surest][2] = "不同"
    write_rows(folder / "dev.tsv", rows)
    reason = (
        "no threshold reaches precision 1.0 on .*dev.tsv .*the nearest is 0.* is written, nothing is saved; "
        "ask for less with at_precision, or for"
    )
    thresholds = refused(folder, capsys, reason, partial(tuned, folder, at_precision=1.0))["thresholds"]
    assert not thresholds["at_precision"]["reached"] and "saved" not in thresholds


@pytest.mark.parametrize("saving", [{}, {"save_threshold": True}], ids=["alone", "beside a threshold"])
def test_a_boundary_temperature_still_writes_the_evaluation(folder, saving, capsys):
    """The model is right on every row of sure.tsv, so no temperature is too low."""
    rows = zip(texts_of(folder), predicted(folder)["predicted_label"])
    write_rows(folder / "sure.tsv", [(a, b, label) for (a, b), label in rows][:60])
    flags = {"save_temperature": True, "calibrate_on": str(folder / "sure.tsv"), **saving}
    reason = (
        "the temperature 0.05 fitted on the 60 rows of .*sure.tsv is at the end of its range and "
        "therefore meaningless; the evaluation is written, nothing is saved; give more rows, .* with "
        "calibrate_on$"
    )
    metrics = refused(folder, capsys, reason, partial(evaluated, folder, **flags))
    assert metrics["calibration"]["at_end_of_range"] and "saved" not in metrics["thresholds"]


def test_a_threshold_is_not_kept_with_another_temperature(folder):
    tuned(folder)
    with pytest.raises(InputError, match="for probabilities of another temperature; pass save_thr"):
        evaluated(folder, save_temperature=True, calibrate_on=str(folder / "dev.tsv"))


@pytest.mark.parametrize(
    "name, reason",
    [(MANIFEST, "is a checkpoint, into which nothing is saved; give OUT/best of"),
     ("export.json", "is an exported model, into which nothing is saved; give OUT/best of")],
)  # fmt: skip
@pytest.mark.parametrize("flag", ["save_temperature", "save_threshold"])
def test_nothing_is_saved_beside_what_is_sealed(folder, name, reason, flag):
    (folder / "best" / name).touch()
    with pytest.raises(InputError, match=reason):
        evaluated(folder, **{flag: True}, calibrate_on=str(folder / "dev.tsv"))


@pytest.mark.parametrize("content, reason", [
    ('{"temperature": true}', r"no temperature from 1e-06 to 1e\+06"),
    ('{"temperature": 1.0, "threshold": 1.5}', "a threshold that is not between 0 and 1"),
    ('{"threshold": "0.5"}', "a threshold that is not between 0 and 1"),
    ('{"symmetric": "both"}', "a symmetric that is not one of none, average"),
    ('{"fitted_on": 7}', "a file name or hash that is not a text"),
    ('{"rows": "many"}', "a row count that is not a whole number"),
])  # fmt: skip
def test_a_damaged_calibration_is_reported(folder, content, reason):
    (folder / "best" / CALIBRATION).write_text(content)
    with pytest.raises(InputError, match=rf"calibration\.json: ({reason}) in it; remove it"):
        predicted(folder)


def test_a_threshold_is_rejected_for_more_than_two_classes(tmp_path, capfd):
    model = write_trained(tmp_path / "best", num_labels=3)
    (tmp_path / "test.tsv").write_text("今\t天\t0\n今\t好\t1\n坏\t天\t2\n", encoding="utf-8")
    for action in (
        lambda: predicted(tmp_path, threshold=0.5),
        lambda: evaluated(tmp_path, save_threshold=True, tune_on=str(tmp_path / "test.tsv")),
        lambda: export_pair(ExportConfig(str(model), str(tmp_path / "ship"), threshold=0.5)),
        lambda: PairPredictor(ship(model, tmp_path / "shipped"), threshold=0.5),
    ):
        assert exit_code_of(action) == 2
        assert " two classes, " in capfd.readouterr().err.splitlines()[-1]
    write_calibration(model, Calibration(threshold=0.5))
    with pytest.raises(InputError, match="a threshold, which 3 classes cannot have, in it"):
        predicted(tmp_path)


def test_without_class_names_predictions_have_two_columns(tmp_path):
    write_trained(tmp_path / "best")
    (tmp_path / "test.tsv").write_text("今\t天\n坏\t天\n", encoding="utf-8")
    assert list(predicted(tmp_path, scores=False)) == ["index", "prediction"]
    assert not are_names(("0", "1")) and not are_names(("LABEL_0", "LABEL_1")) and are_names(("no", "yes"))


def test_class_names_are_escaped_in_predictions(tmp_path):
    write_trained(tmp_path / "best", id2label={"0": "a\tb", "1": "c\nd"})
    (tmp_path / "test.tsv").write_text("今\t天\n坏\t天\n", encoding="utf-8")
    assert set(predicted(tmp_path)["predicted_label"]) <= {"a\\tb", "c\\nd"}


def exchanged(folder):
    write_rows(folder / "exchanged.tsv", [(b, a, label) for a, b, label in rows_of(folder / "test.tsv")])
    return "exchanged.tsv"


def test_both_orders_do_not_depend_on_which_text_is_first():
    pairs = [("b", "a"), ("a", "b"), ("c", "c")]
    left, right = both_orders(*zip(*pairs))
    assert (left, right) == both_orders(*zip(*[pair[::-1] for pair in pairs]))
    assert set(zip(left[:2] + left[3:5], right[:2] + right[3:5])) == {("a", "b"), ("b", "a")}


def test_symmetric_predictions_ignore_the_order_of_texts(folder):
    """Bit-identical in evaluation, in prediction, from Python and from an export."""
    name = exchanged(folder)
    one, other = (predicted(folder, each, symmetric="average") for each in ("test.tsv", name))
    assert one == other != predicted(folder)
    assert evaluated(folder)["swap"]["flip_rate"] > 0
    swap = evaluated(folder, symmetric="average")["swap"]
    assert swap["flip_rate"] == swap["mean_difference"] == 0
    pairs, turned = texts_of(folder), texts_of(folder, name)
    logits = [logits_of_trained(folder / "best", each) for each in (pairs, turned)]
    config = PairConfig(str(folder / "out"), model_type="ernie", max_seq_len=MAX_SEQ_LEN, device="cpu")
    trainer = PairTrainer(folder / "best", config)
    answers = [trainer.predict(each, symmetric="average").predictions for each in (pairs, turned)]
    assert np.array_equal(*answers) and np.allclose(answers[0], sum(logits) / 2, atol=1e-5)
    exported = ship(folder / "best", folder / "ship")
    predictor = PairPredictor(exported, symmetric="average")
    some = [pair[::-1] if row % 3 else pair for row, pair in enumerate(pairs)]
    for each in (turned, some):
        assert np.array_equal(predictor.logits(pairs), predictor.logits(each))
    assert np.allclose(predictor.logits(pairs), answers[0], atol=1e-4)
    answers = [
        asked.predicted(exported, folder / each, folder / f"of-{each}", scores=True, symmetric="average")
        for each in ("test.tsv", name)
    ]
    assert answers[0] == answers[1]


def test_symmetry_is_saved_with_the_tuned_calibration(folder, capfd):
    tuned(folder, symmetric="average")
    assert read_calibration(folder / "best", 2).symmetric == "average"
    assert predicted(folder) == predicted(folder, exchanged(folder))  # without a flag
    assert evaluated(folder)["symmetric"] == "average"
    for action in (
        lambda: predicted(folder, symmetric="none"),
        lambda: export_pair(ExportConfig(str(folder / "best"), str(folder / "no"), symmetric="none")),
        lambda: PairPredictor(ship(folder / "best", folder / "ship"), symmetric="none"),
    ):
        assert exit_code_of(action) == 2
        assert "were tuned with --symmetric average; leave the flag out, or" in capfd.readouterr().err
    assert json.loads((folder / "ship" / "export.json").read_text())["symmetric"] == "average"
    plain = evaluated(folder, symmetric="none")
    assert "is not used for --symmetric none" in capfd.readouterr().err
    assert "saved" not in plain["thresholds"] and plain["thresholds"]["temperature"] == 1.0
    tuned(folder, symmetric="none")
    assert read_calibration(folder / "best", 2).symmetric == "none"


def test_export_has_its_own_flag_for_symmetry(folder):
    export_pair(ExportConfig(str(folder / "best"), str(folder / "ship"), symmetric="average"))
    predictor = PairPredictor(folder / "ship")
    assert predictor.symmetric == "average"
    assert np.array_equal(predictor.logits([("今天好", "坏")]), predictor.logits([("坏", "今天好")]))


def test_a_file_of_one_class_is_told_and_measures_less(folder, capfd, recwarn):
    rows = [(f"甲乙{row}", f"丙丁{row}", "相同") for row in range(30)]
    write_rows(folder / "one.tsv", rows)
    found = evaluated(folder, "one.tsv", bootstrap=20)
    told = capfd.readouterr().err
    assert "one.tsv has no pair of class 不同, so that auc, average_precision, mcc cannot be measured" in told
    assert found["mcc"] is found["auc"] is None and "mcc" not in found["intervals"] and "nan" not in told
    assert not [one for one in recwarn if "single label" in str(one.message)]


def test_a_classifier_predicting_one_class_gives_a_warning(folder, capfd, monkeypatch):
    """Its bias outweighs everything else."""
    from ernie_pair.evaluation import inference_model as opened

    def biased(*asked):
        return opened_logits_of(*asked) + np.array([0, 1e4], dtype=np.float32)

    opened_logits_of = opened.predict_logits
    monkeypatch.setattr(opened, "predict_logits", biased)
    metrics = evaluated(folder, report=str(folder / "r"))
    warned = "the classifier predicts 相同 for all 400 rows: it has not learned to tell the classes apart"
    assert metrics["single_class"] == "相同" and warned in capfd.readouterr().err
    assert warned in (folder / "r" / "report.html").read_text(encoding="utf-8")
    monkeypatch.undo()
    assert evaluated(folder)["single_class"] is None and warned not in capfd.readouterr().err


def test_the_calibration_errors_say_how_they_are_measured(folder, capfd):
    calibration = evaluated(folder)["calibration"]
    assert calibration["ece_method"] == "15 equal-mass bins by the probability of class 1"
    assert (
        calibration["ece_top_label_method"] == "15 equal-width bins by the probability of the predicted class"
    )
    assert calibration["ece"] != calibration["ece_top_label"]
    said = capfd.readouterr().err
    for name in ("ece", "ece_top_label"):
        assert f"calibration error, {calibration[f'{name}_method']}: {calibration[name]:.4f}" in said


def test_the_report_names_the_classes(folder):
    evaluated(folder, report=str(folder / "r"))
    errors = asked.table_of(folder / "r" / "errors.tsv")
    assert set(errors["label"]) | set(errors["prediction"]) == set(NAMES)
    page = (folder / "r" / "report.html").read_text(encoding="utf-8")
    assert "Predicted 相同" in page and "<dd>0: 不同, 1: 相同</dd>" in page


def test_an_unknown_symmetry_is_rejected_from_python():
    with pytest.raises(InputError, match="symmetric both is not one of auto, none, average"):
        replace(Calibration()).chosen_symmetry("both", "the model")


def read_labels(folder, name="test.tsv"):
    return np.array([NAMES.index(label) for _, _, label in rows_of(folder / name)])


def test_what_is_measured_is_what_is_predicted(folder, capsys):
    """In the printed line, in every part of the JSON, on the card, and once the model is exported."""
    metrics = tuned(folder, report=str(folder / "report"))
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    saved, labels = read_calibration(folder / "best", 2), read_labels(folder)
    classes = np.array(classes_of(predicted(folder)))
    accuracy = np.mean(classes == labels)
    assert (
        printed["accuracy"] == metrics["accuracy"] == metrics["thresholds"]["saved"]["accuracy"] == accuracy
    )
    assert printed["threshold"] == metrics["threshold"] == saved.threshold
    assert metrics["threshold_of"] == f"the model's own, for precision 0.6, chosen on {folder}/dev.tsv"
    assert np.trace(metrics["confusion"]) == sum(classes == labels)
    assert sum(row["predicted"] for row in metrics["per_class"] if row["class"] == "相同") == classes.sum()
    slices = [row for row in metrics["slices"] if row["by"] == "length"]
    assert sum(row["accuracy"] * row["rows"] for row in slices) == pytest.approx(accuracy * len(labels))
    assert metrics["thresholds"]["likelier"]["accuracy"] != accuracy
    assert f"({metrics['threshold_of']})".replace("'", "&#39;") in (folder / "report/report.html").read_text()
    assert saved.measured["metrics"]["accuracy"][0] == accuracy
    verdict = metrics["verdict"]
    assert f": accuracy {accuracy:.4f} " in verdict and saved.measured["verdict"] == verdict

    exported = ship(folder / "best", folder / "ship")
    again = asked.evaluated(exported, folder / "test.tsv")
    assert (again["accuracy"], again["threshold"]) == (accuracy, saved.threshold)
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert f"| accuracy | {accuracy:.4f} |" in card and f"by the threshold {saved.threshold:.4f}" in card
    assert f"- temperature: {saved.temperature:.4g}" in card
    assert read_exported(exported).verdict == verdict and "- verdict: " in card
    assert read_exported(ship(folder / "best", folder / "other", threshold=0.3)).verdict == ""  # not measured
    for use, name in (("temperature", "dev.tsv"), ("threshold", "dev.tsv"), ("test", "test.tsv")):
        assert f"| {use} | {folder}/{name} | 400 | {sha256_of_file(folder / name)} |" in card


@pytest.mark.parametrize("threshold", [0.2, 0.8])
def test_another_threshold_is_measured_as_predict_takes_it(folder, threshold):
    tuned(folder)
    metrics = evaluated(folder, threshold=threshold, robustness="filler")
    classes = np.array(classes_of(predicted(folder, threshold=threshold)))
    assert metrics["accuracy"] == np.mean(classes == read_labels(folder))
    assert (metrics["threshold"], metrics["threshold_of"]) == (threshold, "--threshold")
    (row,) = metrics["robustness"]["kinds"]
    assert row["original_accuracy"] is not None and metrics["swap"]["accuracy_swapped"] != metrics["accuracy"]
    with pytest.raises(InputError, match="measures at that threshold, and save_threshold=True chooses one"):
        tuned(folder, threshold=threshold)


@pytest.mark.parametrize("goal", ["accuracy", "f1"])
def test_a_threshold_is_chosen_for_what_is_asked(folder, goal):
    tuned(folder, tune_for=goal)
    saved, dev = read_calibration(folder / "best", 2), read_labels(folder, "dev.tsv")
    assert saved.tuned_for == f"the best {goal}"
    shares = np.array(list(map(float, predicted(folder, "dev.tsv")["probability_1"])))
    value = sk.accuracy_score if goal == "accuracy" else sk.f1_score
    best = max(value(dev, shares >= threshold) for threshold in shares)
    assert value(dev, shares >= saved.threshold) == pytest.approx(best)
    path, content = folder / "best" / CALIBRATION, (folder / "best" / CALIBRATION).read_bytes()
    tuned(folder, tune_for=goal, overwrite=False)  # which has nothing to do
    assert path.read_bytes() == content


def test_a_temperature_that_says_nothing_may_be_left_out(folder, capfd):
    """Where all dev pairs are right, the best temperature is the smallest; the threshold is saved alone."""
    table = predicted(folder, "dev.tsv")
    write_rows(
        folder / "dev.tsv",
        [(a, b, NAMES[c]) for (a, b), c in zip(texts_of(folder, "dev.tsv"), classes_of(table))],
    )
    with pytest.raises(InputError, match="is at the end of its range"):
        tuned(folder, tune_for="accuracy")
    assert not (folder / "best" / CALIBRATION).exists()
    for overwrite in (True, False):
        metrics = tuned(folder, tune_for="accuracy", save_temperature="auto", overwrite=overwrite)
        saved = read_calibration(folder / "best", 2)
        assert metrics["calibration"]["at_end_of_range"] and saved.temperature == 1.0
        assert metrics["threshold"] == saved.threshold is not None


def test_the_robustness_of_a_predictor_is_that_of_its_threshold(folder):
    tuned(folder, at_precision=0.7)
    exported = ship(folder / "best", folder / "ship")
    rows = [(a, b, NAMES.index(c)) for a, b, c in rows_of(folder / "test.tsv")]
    (found,) = measure_robustness(PairPredictor(exported), rows, "filler", bootstrap=0)
    (asked,) = evaluated(folder, robustness="filler")["robustness"]["kinds"]
    assert (found["original_accuracy"], found["accuracy"]) == (asked["original_accuracy"], asked["accuracy"])
