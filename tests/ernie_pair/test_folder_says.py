"""One command for every kind of folder: predict, evaluate and export do what --model_path is for."""

import json
import shlex
import sys

import numpy as np
import pytest
from tiny_pair import write_model, write_pairs, write_rows
from tiny_ship import ship, write_trained

from ernie_pair.__main__ import _form_of_flags, _run
from ernie_pair.core.errors import InputError
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.models.model_folder import kind_of_folder
from ernie_pair.pairs.config.ask_config import EvaluateConfig, PredictConfig


@pytest.fixture(scope="module")
def world(module_path):
    ship(write_trained(module_path / "trained"), module_path / "exported")
    write_pairs(module_path / "pairs.tsv", 40)
    write_model(module_path / "pretrained", architectures=["ErnieForPretraining"])
    write_model(module_path / "embedder")
    (module_path / "embedder" / "embedding.json").write_text("{}")
    (module_path / "static").mkdir()
    (module_path / "static" / "config.yml").write_text("model_name: ernie-1.0")
    return module_path


KINDS = {"trained": "", "exported": "", "absent": "", "pretrained": "mlm", "static": "mlm"}


@pytest.mark.parametrize("name, kind", [*KINDS.items(), ("embedder", "embedding"), ("trained-source", "mlm")])
def test_a_folder_says_what_it_holds(world, name, kind):
    assert kind_of_folder(str(world / name)) == kind


@pytest.mark.parametrize("command, words, form", [
    ("evaluate", "--model_path trained --input_file x", "evaluate"),
    ("evaluate", "--model_path=embedder --input_file x", "evaluate embedding"),
    ("evaluate", "--model-path embedder --dims all", "evaluate embedding"),
    ("evaluate", "--model_path pretrained --input_dir x", "evaluate mlm"),
    ("evaluate", "--model_path ernie-1.0 --input_dir x", "evaluate mlm"),
    ("evaluate", "--model_path pretrained --input_file x", "evaluate"),  # which has no classifier
    ("predict", "--model_path pretrained --text x", "predict mlm"),
    ("predict", "--model_path pretrained --pair x y", "predict"),
    ("predict", "--text x --model_path", "predict mlm"),
    ("predict", "--model_path embedder --input_file x", "predict"),
    ("export", "--model_path embedder --output_dir x", "export embedding"),
    ("export", "--model_path embedder --format onnx", "export embedding"),  # which refuses the flag
    ("export", "--model_path trained --tresholt 1", "export"),
])  # fmt: skip
def test_the_folder_and_the_flags_choose_the_form(world, monkeypatch, command, words, form):
    monkeypatch.chdir(world)
    assert _form_of_flags(command, words.split()) == form


@pytest.mark.parametrize("words, message", [
    ("evaluate --label_range 0,5", "label_range is a flag of evaluate embedding, and exported is a"),
    ("evaluate --same_text keep", "same_text is a flag of evaluate embedding"),
    ("evaluate --dims 4", "dims is a flag of evaluate embedding"),
    ("predict --text x", "text is a flag of predict mlm"),
])  # fmt: skip
def test_a_flag_of_another_form_is_refused_for_a_classifier(world, monkeypatch, words, message):
    monkeypatch.chdir(world)
    with pytest.raises(InputError, match=message):
        _run([*words.split(), "--model_path", "exported", "--input_file", "pairs.tsv"])


@pytest.mark.parametrize("names", [("different", "same"), ("same", "different")])
def test_the_words_of_a_file_are_given_to_a_classifier(tmp_path, monkeypatch, capsys, names):
    model = write_trained(tmp_path / "model", id2label=dict(zip("01", names)))
    rows = [(f"甲乙{row}", f"丙丁{row}", ("新", "旧")[row % 2]) for row in range(20)]
    write_rows(tmp_path / "words.tsv", rows)
    words = ["evaluate", "--model_path", str(model), "--input_file", str(tmp_path / "words.tsv")]
    monkeypatch.setattr(sys, "argv", ["/bin/ernie-pair", *words])
    match = names.index("same")
    with pytest.raises(InputError, match=f"class {match} is the match, and which of them") as caught:
        _run(words)
    asked = shlex.split(caught.value.message.partition("if 旧 is, ")[2].partition(";")[0])
    _run([*asked[1:], "--bootstrap", "0"])
    mapped = json.loads(capsys.readouterr().out)
    write_rows(tmp_path / "words.tsv", [(a, b, names[match if c == "旧" else 1 - match]) for a, b, c in rows])
    _run([*words, "--bootstrap", "0"])
    assert json.loads(capsys.readouterr().out) == mapped


def test_an_exported_model_is_evaluated_as_its_trained_one(world, tmp_path):
    for name in ("trained", "exported"):
        out = str(tmp_path / f"{name}.json")
        files = {"report": str(tmp_path / name), "robustness": "order", "robustness_rows": 10}
        config = EvaluateConfig(str(world / name), str(world / "pairs.tsv"), out, bootstrap=0, **files)
        evaluate_pair(config)
    trained, exported = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("trained", "exported")
    )
    assert exported.pop("computed_by") == "paddle" and "fused" in trained.pop("kernels")
    assert exported["accuracy"] == trained["accuracy"] and exported["confusion"] == trained["confusion"]
    assert exported["loss"] == pytest.approx(trained["loss"], rel=1e-5)
    assert exported["robustness"]["kinds"][0]["flips"] == trained["robustness"]["kinds"][0]["flips"]
    assert set(exported) == set(trained) and (tmp_path / "exported" / "report.html").is_file()


def test_predictions_of_both_folders_are_the_same(world, tmp_path):
    found = []
    for name in ("trained", "exported"):
        out = tmp_path / f"{name}.tsv"
        predict_pair(
            PredictConfig(
                str(world / name), str(world / "pairs.tsv"), str(out), scores=True, columns="answers"
            )
        )
        found.append(np.loadtxt(out, skiprows=1))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize("name, flags, message", [
    (
        "exported",
        {"max_seq_len": 64},
        "max_seq_len=64 is for a trained model, and .*exported is an exported one",
    ),
    ("exported", {"kernels": "plain"}, "kernels plain is for a trained model"),
    (
        "trained",
        {"backend": "onnx"},
        "backend onnx is for an exported model, and .*trained is a trained one",
    ),
])  # fmt: skip
def test_a_flag_of_the_other_kind_is_refused(world, name, flags, message):
    config = PredictConfig(str(world / name), str(world / "pairs.tsv"), str(world / "out.tsv"), **flags)
    with pytest.raises(InputError, match=message):
        predict_pair(config)


def test_evaluate_prints_and_keeps_only_what_is_asked_for(world, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", "--model_path", str(world / "exported"), "--input_file", str(world / "pairs.tsv")]
    _run([*words, "--bootstrap", "0"])
    assert json.loads(capsys.readouterr().out)["rows"] == 40 and not list(tmp_path.iterdir())
    _run([*words, "--bootstrap", "0", "--report", "report"])
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {"report.json", "report.html"}
    capsys.readouterr()
    _run([*words, "--bootstrap", "0", "--report", "report"])
    done = capsys.readouterr()
    assert "nothing to do" in done.err and json.loads(done.out)["rows"] == 40


def test_an_exported_model_is_refused_to_several_processes(world, tmp_path, monkeypatch):
    for name, value in (("TRAINERS_NUM", "2"), ("TRAINER_ID", "0"), ("TRAINER_ENDPOINTS", "a:1,b:1")):
        monkeypatch.setenv(f"PADDLE_{name}", value)
    config = PredictConfig(str(world / "exported"), str(world / "pairs.tsv"), str(tmp_path / "out.tsv"))
    with pytest.raises(InputError, match="exported is an exported model, which one process computes; start"):
        predict_pair(config)
