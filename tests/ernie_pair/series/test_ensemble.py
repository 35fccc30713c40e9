"""Several classifiers as one exported model: the mean of their logits, each at its temperature."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny_pair import write_pairs
from tiny_ship import logits_of_trained, random_texts, write_trained

from data_tools.files import installation
from data_tools.files.arrays import sha256_of_file
from data_tools.files.errors import CheckpointError, InputError
from ernie_pair import EnsembleConfig, PairPredictor, ensemble
from ernie_pair.__main__ import _run as run_here
from ernie_pair.inference.scores import probabilities
from ernie_pair.models.source import open_model, write_json, write_weights
from ernie_pair.models.temperature import Calibration, write_calibration
from ernie_pair.pair.targets.metrics import METRICS, measure
from ernie_pair.score.evaluation.calibration import at_precision, threshold_curve
from ernie_pair.series.ensemble import EnsembleClassifier, mean_of, open_members, symmetry_of

LENGTH = 40  # the sequence length of the models of tiny_ship
PAIRS = random_texts(30)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Three models of two families and of two sizes, one with a temperature."""
    folder = tmp_path_factory.mktemp("models")
    made = [
        write_trained(folder / "ernie"),
        write_trained(folder / "gram", "ernie_gram", num_hidden_layers=2),
        write_trained(folder / "wide", hidden_size=48),
    ]
    write_calibration(made[1], Calibration(2.5, fitted_on="dev.tsv"))
    return made


def mean_logits(models, temperatures=(1.0, 2.5, 1.0)):
    scored = [logits_of_trained(path, PAIRS) / t for path, t in zip(models, temperatures)]
    return np.mean(scored, axis=0)


def config_of(models, folder, **flags):
    return EnsembleConfig(
        list(map(str, models)), output_dir=str(folder / "ship"), max_seq_len=LENGTH, **flags
    )


@pytest.fixture(scope="module")
def shipped(models, tmp_path_factory):
    """The three as one model, in both formats."""
    config = config_of(models, tmp_path_factory.mktemp("shipped"), format="both")
    ensemble(config)
    return config


@pytest.mark.parametrize("backend", ["onnx", "paddle"])
def test_the_exported_ensemble_returns_the_mean_logits(models, shipped, backend):
    predictor = PairPredictor(shipped.output_dir, backend)
    logits, expected = predictor.logits(PAIRS), mean_logits(models)
    assert np.abs(logits - expected).max() < 1e-5
    assert np.abs(mean_logits(models, (1, 1, 1)) - expected).max() > 0.01  # the temperature matters
    assert predictor.predict(PAIRS).classes.tolist() == expected.argmax(axis=1).tolist()


def test_an_ensemble_is_described_by_its_first_member(models):
    members = open_members(list(map(str, models)), "")
    assert EnsembleClassifier(members).spec is members[0].model.spec


def test_the_export_lists_its_members(shipped, tmp_path, capsys):
    said = json.loads((tmp_path / shipped.output_dir / "export.json").read_text())
    assert set(said["parity"]) == {"onnx", "paddle"} and max(said["parity"].values()) < 1e-5
    members = said["ensemble"]["members"]
    assert [each["temperature"] for each in members] == [1.0, 2.5, 1.0]
    assert [each["model"] for each in members] == ["ernie", "gram", "wide"]
    capsys.readouterr()
    assert str(ensemble(shipped)) == shipped.output_dir and capsys.readouterr().err == ""
    ensemble(shipped, verbose=True)
    assert "nothing to do" in capsys.readouterr().err


def test_run_accepts_an_ensemble_like_any_exported_model(shipped, models, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    run_here(
        [
            "predict",
            f"--model_path={shipped.output_dir}",
            f"--input_file={pairs}",
            f"--output_file={tmp_path}/p.tsv",
        ]
    )
    rows = [line.split("\t") for line in (tmp_path / "p.tsv").read_text().splitlines()[1:]]
    assert [int(row[1]) for row in rows] == mean_logits(models).argmax(axis=1).tolist()


def test_the_command_evaluates_and_calibrates_the_ensemble(models, tmp_path, capsys):
    """The metrics are those of the exported model; the temperature is fitted on the other file."""
    judged, other = write_pairs(tmp_path / "test.tsv", 60, seed=1), tmp_path / "dev.tsv"
    likely = mean_logits(models[:2], (1.0, 2.5)).argmax(axis=1)  # every fourth is made wrong
    rows = [f"{a}\t{b}\t{label ^ (n % 4 == 0)}\n" for n, ((a, b), label) in enumerate(zip(PAIRS, likely))]
    other.write_text("".join(rows), encoding="utf-8")
    words = [
        *map(str, models[:2]),
        f"--output_dir={tmp_path}/ship",
        "--format=onnx",
        f"--max_seq_len={LENGTH}",
    ]
    words += [f"--dev_file={judged}", f"--calibrate_on={other}", "--bootstrap=10", "--quantize=int8"]
    run_here(["ensemble", *words, "--max_accuracy_drop=1", f"--quantize_file={judged}"])
    said = json.loads((tmp_path / "ship" / "export.json").read_text())
    predictor = PairPredictor(tmp_path / "ship", "onnx")
    rows = [line.split("\t") for line in judged.read_text(encoding="utf-8").splitlines()]
    logits = predictor.logits([row[:2] for row in rows])
    assert said["ensemble"]["metrics"] == pytest.approx(measure(logits, np.array([int(r[2]) for r in rows])))
    assert said["temperature"] != 1.0 and said["int8"]["rows"] == 60
    files = {"calibration": other, "evaluated_on": judged}
    for name, path in files.items():
        rows, sha256 = len(path.read_text(encoding="utf-8").splitlines()), sha256_of_file(path)
        assert said["ensemble"][name] == {"rows": rows, "sha256": sha256}
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("ernie ") and lines[-1].startswith("the ensemble")
    assert json.loads(last)["rows"] == 60 and set(METRICS) < set(json.loads(last))
    report = tmp_path / "ship" / "report"
    assert "<h2>Models</h2>" in (report / "report.html").read_text(encoding="utf-8")
    assert json.loads((report / "report.json").read_text())["calibration"]["fitted_on"] == str(other)


def test_the_temperature_may_not_be_fitted_on_dev_file(models, tmp_path):
    pairs = str(write_pairs(tmp_path / "test.tsv", 60, seed=1))
    with pytest.raises(InputError, match="holds the pairs of dev_file itself; give other labelled pairs"):
        ensemble(config_of(models, tmp_path, dev_file=pairs, calibrate_on=pairs))
    assert not (tmp_path / "ship").exists()


@pytest.fixture
def dev(models, tmp_path):
    """Labelled pairs that need a threshold other than 0.5: only the most confident are of class 1."""
    shown = probabilities(mean_logits(models[:2], (1.0, 2.5)), 1.0)[:, 1]
    rows = [f"{a}\t{b}\t{int(p > np.quantile(shown, 0.8))}\n" for (a, b), p in zip(PAIRS, shown)]
    path = tmp_path / "dev.tsv"
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_a_tuned_threshold_is_used_by_every_interface(models, dev, tmp_path):
    words = [*map(str, models[:2]), f"--output_dir={tmp_path}/ship", "--format=onnx", "--bootstrap=0"]
    words += [f"--max_seq_len={LENGTH}", f"--tune_on={dev}", "--at_precision=0.9", f"--dev_file={dev}"]
    run_here(["ensemble", *words])
    said = json.loads((tmp_path / "ship" / "export.json").read_text())
    shown = probabilities(mean_logits(models[:2], (1.0, 2.5)), 1.0)[:, 1]
    labels = (shown > np.quantile(shown, 0.8)).astype(int)
    expected = at_precision(threshold_curve(shown, labels), 0.9)["threshold"]
    assert said["threshold"] == pytest.approx(expected, abs=1e-5) and said["threshold"] > shown.min()
    assert said["ensemble"]["tuning"]["tuned_for"] == "precision 0.9"
    assert said["ensemble"]["tuning"]["rows"] == len(PAIRS)
    answers = (shown >= said["threshold"]).astype(int).tolist()
    assert answers != mean_logits(models[:2], (1.0, 2.5)).argmax(axis=1).tolist()  # else it tests nothing
    predictor = PairPredictor(tmp_path / "ship", "onnx")  # which the service uses as well
    assert predictor.predict(PAIRS).classes.tolist() == answers
    files = [f"--input_file={dev}", f"--output_file={tmp_path}/p.tsv"]
    run_here(["predict", f"--model_path={tmp_path}/ship", *files])
    rows = [line.split("\t") for line in (tmp_path / "p.tsv").read_text().splitlines()[1:]]
    assert [int(row[1]) for row in rows] == answers
    report = json.loads((tmp_path / "ship" / "report" / "report.json").read_text())
    assert report["thresholds"]["saved"]["threshold"] == said["threshold"]


def test_a_threshold_that_cannot_be_tuned_is_refused(models, dev, tmp_path):
    with pytest.raises(InputError, match="chooses a threshold, and threshold=0.5 gives one; leave one"):
        config_of(models, tmp_path, tune_on=str(dev), threshold=0.5)
    one = tmp_path / "one.tsv"
    one.write_text("我\t你\t1\n他\t你\t1\n", encoding="utf-8")
    with pytest.raises(InputError, match="one.tsv has no pair of class 0, so no threshold can be chosen"):
        ensemble(config_of(models[:2], tmp_path, tune_on=str(one)))
    wrong = tmp_path / "wrong.tsv"  # the most confident rows are of class 0
    lines = [line[:-1] + str(1 - int(line[-1])) for line in dev.read_text(encoding="utf-8").splitlines()]
    wrong.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="tune_on.*no threshold reaches precision 1.0 on .*ask for less"):
        ensemble(config_of(models[:2], tmp_path, tune_on=str(wrong), at_precision=1.0))
    assert not (tmp_path / "ship").exists()


def other_classes(folder):
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**config, "id2label": {"0": "yes", "1": "no"}, "label2id": {}})


def other_words(folder):
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words[5], words[6] = words[6], words[5]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def other_symmetry(folder):
    write_calibration(folder, Calibration(1.5, symmetric="average"))


@pytest.mark.parametrize("change, reason", [
    (other_classes, "other has the classes yes, no, and .*ernie 0, 1; give models of the same classes"),
    (other_words, "gives a text other ids than .*give models of the same one"),
    (other_symmetry,
     "other is scored with symmetric average, and .*ernie with none; pass symmetric average or none"),
])  # fmt: skip
def test_incompatible_members_are_rejected(models, tmp_path, change, reason):
    change(write_trained(tmp_path / "other"))
    with pytest.raises(InputError, match=reason):
        ensemble(config_of([models[0], tmp_path / "other"], tmp_path))
    assert not (tmp_path / "ship").exists()


def test_folders_without_a_classifier_are_rejected(models, shipped, tmp_path):
    encoder = write_trained(tmp_path / "encoder")
    arrays = open_model(str(encoder), model_type="", from_scratch=False).read_weights()
    write_weights(encoder, {name: a for name, a in arrays.items() if not name.startswith("classifier.")})
    with pytest.raises(CheckpointError, match="encoder holds no classifier, only an encoder; train one with"):
        ensemble(config_of([models[0], encoder], tmp_path))
    with pytest.raises(InputError, match="ship holds an exported model, .*give the trained one"):
        ensemble(config_of([models[0], shipped.output_dir], tmp_path))
    assert not (tmp_path / "ship").exists()


def test_mixed_symmetry_needs_an_explicit_setting(models, tmp_path):
    other = write_trained(tmp_path / "other")
    write_calibration(other, Calibration(symmetric="average"))  # trained that way, without tuning
    members = open_members([str(models[0]), str(other)], "")
    with pytest.raises(InputError, match="a model tuned the other way first: ernie-pair evaluate"):
        symmetry_of(members, "auto")
    assert [symmetry_of(members, asked) for asked in ("none", "average")] == ["none", "average"]


def test_bad_flags_are_refused(models, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="alone is not an ensemble; name two models or more"):
        config_of(models[:1], tmp_path)
    with pytest.raises(InputError, match="ernie is named twice"):
        ensemble(config_of([models[0], models[0]], tmp_path))
    with pytest.raises(InputError, match="max_seq_len=200 is more than the model's 128 positions"):
        ensemble(replace(config_of(models, tmp_path), max_seq_len=200))
    monkeypatch.setattr(installation, "is_there", lambda name: True)  # mlflow, in an environment without it
    with pytest.raises(InputError, match="has no metrics to show; give dev_file as well"):
        config_of(models, tmp_path, report_to="mlflow")


def test_max_seq_len_defaults_to_the_shortest_trained_length(models, tmp_path):
    short = write_trained(tmp_path / "short")
    settings = json.loads((short / "tokenizer_config.json").read_text())
    write_json(short / "tokenizer_config.json", {**settings, "model_max_length": 24})
    ensemble(replace(config_of([models[0], short], tmp_path), max_seq_len=0))
    assert PairPredictor(tmp_path / "ship").exported.max_seq_len == 24


def test_the_mean_is_taken_in_double_precision():
    logits = [np.array([[1.0, -2.0]], np.float32), np.array([[2.0, 4.0]], np.float32)]
    assert mean_of(logits).tolist() == [[1.5, 1.0]] and mean_of(logits).dtype == np.float32
