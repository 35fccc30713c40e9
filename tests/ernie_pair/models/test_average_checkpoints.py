"""checkpoint average: the mean of several models, written as a model folder that can be loaded."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from foreign_weights import write_checkpoints
from safetensors.numpy import save as to_safetensors
from tiny_pretrain import write_model
from tiny_ship import write_trained

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.json_file import write_json
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.models import commands
from ernie_pair.models.commands import (
    AverageConfig,
    ToHuggingFaceConfig,
    average_checkpoints,
    convert_to_hugging_face,
)
from ernie_pair.models.embedding_json import EmbeddingSettings, read_embedding
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.temperature import Calibration, read_calibration, write_calibration
from ernie_pair.weights.weight_files import read_weights, write_weights


def average(output, *folders, **flags):
    average_checkpoints(AverageConfig(list(map(str, folders)), str(output), **flags))
    return read_weights(output / "model_state.pdparams")


@pytest.fixture
def trained(tmp_path):
    """A classifier, and one whose weights are all larger by 0.5."""
    first = write_trained(tmp_path / "first")
    second = Path(shutil.copytree(first, tmp_path / "second"))
    arrays = read_weights(first / "model_state.pdparams")
    write_weights(second, {name: array + np.float32(0.5) for name, array in arrays.items()})
    return first, second


def read_json(folder):
    return json.loads((folder / "config.json").read_text())


def test_classifiers_are_averaged_and_load(trained, tmp_path, capsys):
    from paddlenlp.transformers import AutoModelForSequenceClassification

    mean = average(tmp_path / "out", *trained)
    first = read_weights(trained[0] / "model_state.pdparams")
    assert mean.keys() == first.keys()
    assert all(np.allclose(mean[name], first[name] + 0.25, atol=1e-6) for name in first)
    assert all(array.dtype == np.float32 for array in mean.values())
    thirds = average(tmp_path / "thirds", trained[0], *trained)  # every model has the same weight
    assert all(np.allclose(thirds[name], first[name] + 0.5 / 3, atol=1e-6) for name in first)
    assert f"wrote {tmp_path / 'out'}: " in capsys.readouterr().out
    model, _ = load_classifier(str(tmp_path / "out"))
    theirs = AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "out")).state_dict()
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.numpy(), mean[name])
        assert np.array_equal(theirs[name].numpy(), mean[name])


@pytest.mark.parametrize("is_sharded", [False, True])
def test_transformers_folders_give_an_average_that_loads(trained, tmp_path, is_sharded):
    theirs = [tmp_path / "theirs" / folder.name for folder in trained]
    for ours, folder in zip(trained, theirs):
        convert_to_hugging_face(ToHuggingFaceConfig(str(ours), str(folder)))
        if is_sharded:
            shard = (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
            places = dict.fromkeys(read_weights(shard), shard.name)
            write_json(folder / "model.safetensors.index.json", {"weight_map": places})
    mean = average(tmp_path / "out", *theirs)
    expected = average(tmp_path / "expected", *trained)
    assert mean.keys() == expected.keys()
    assert all(np.array_equal(mean[name], expected[name]) for name in expected)
    model, _ = load_classifier(str(tmp_path / "out"))
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.numpy(), mean[name])
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "ErnieTokenizer"
    if is_sharded:  # another shard is another model
        arrays = read_weights(shard)
        shard.write_bytes(to_safetensors({name: array + np.float32(1) for name, array in arrays.items()}))
        with pytest.raises(InputError, match="exists; pass overwrite=True"):
            average(tmp_path / "out", *theirs)


def test_symmetry_is_kept_if_all_have_it(trained, tmp_path):
    write_calibration(trained[0], Calibration(1.5, symmetric="average"))
    average(tmp_path / "mixed", *trained)
    assert not (tmp_path / "mixed" / "calibration.json").exists()
    write_calibration(trained[1], Calibration(symmetric="average"))
    average(tmp_path / "both", *trained)
    assert read_calibration(tmp_path / "both", 2) == Calibration(symmetric="average")


def test_a_trained_encoder_keeps_a_share_of_its_start(trained, tmp_path):
    """Against what it forgets (LM-Cocktail, arXiv:2311.13534); the start says nothing of vectors."""
    settings = EmbeddingSettings("cls", 32, (8, 32), 16, 0.05)
    (trained[1] / "embedding.json").write_text(settings.to_json())
    mean = average(tmp_path / "out", *trained[::-1], weights="0.3,0.1")
    first = read_weights(trained[0] / "model_state.pdparams")
    assert not any("pooler" in name for name in mean)
    assert all(np.allclose(mean[name], first[name] + 0.375, atol=1e-6) for name in mean)
    assert read_embedding(tmp_path / "out") == settings
    assert open_embedder(tmp_path / "out").embed(["a b"]).shape == (1, 32)
    (trained[0] / "embedding.json").write_text(replace(settings, pooling="mean").to_json())
    with pytest.raises(InputError, match="differ in pooling: cls and mean; average models of one kind"):
        average(tmp_path / "other", *trained)


@pytest.mark.parametrize("weights", ["0.7", "1,0", "1,x", "nan,1", "1,inf"])
def test_shares_are_a_number_for_each_model(trained, tmp_path, weights):
    with pytest.raises(InputError, match=f"weights.{weights} is not a number above 0 for each of 2 models"):
        average(tmp_path / "out", *trained, weights=weights)


def test_pretraining_checkpoints_are_averaged_and_load(tmp_path):
    """As stored in a checkpoint, where a tied weight has a single name."""
    from paddlenlp.transformers import ErnieForPretraining

    weights = write_checkpoints(write_model(tmp_path / "model"), tmp_path)
    for number in (0, 1):
        folder = Path(shutil.copytree(tmp_path / "model", tmp_path / f"step_{number}"))
        moved = {name: array + np.float32(number) for name, array in weights.items()}
        (folder / "static_vars.safetensors").write_bytes(to_safetensors(moved))
    average(tmp_path / "out", tmp_path / "step_0", tmp_path / "step_1")
    loaded = ErnieForPretraining.from_pretrained(str(tmp_path / "out")).state_dict()
    for name, array in weights.items():
        assert np.allclose(loaded[name].numpy(), array + 0.5, atol=1e-6)
    with pytest.raises(CheckpointError, match="by their order; convert it first: ernie-pair convert"):
        average(tmp_path / "other", tmp_path / "pickled", tmp_path / "pickled")


def test_incompatible_models_are_rejected(trained, tmp_path):
    deeper = write_trained(tmp_path / "deeper", num_hidden_layers=2)
    wider = write_trained(tmp_path / "wider", hidden_size=16)
    gram = write_trained(tmp_path / "gram", family="ernie_gram")
    other = Path(shutil.copytree(trained[0], tmp_path / "other"))
    vocabulary = (other / "vocab.txt").read_text(encoding="utf-8").splitlines()
    (other / "vocab.txt").write_text("\n".join([*vocabulary[:-2], "新", vocabulary[-1]]), encoding="utf-8")
    named = Path(shutil.copytree(trained[0], tmp_path / "named"))
    write_json(named / "config.json", {**read_json(named), "id2label": {"0": "different", "1": "same"}})
    cases = [
        (deeper, CheckpointError, "unknown: ernie.encoder.layers.1"),
        (wider, CheckpointError, "of another shape: .* instead of"),
        (gram, InputError, "differ in family: ernie_gram and ernie; average models of one kind"),
        (other, InputError, "differ in vocabulary: "),
        (named, InputError, "differ in labels: .*same.*; average models of one kind"),
    ]
    for folder, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            average(tmp_path / "out", trained[0], folder)
        assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_users_file_in_the_output_folder_is_kept(trained, tmp_path, capsys):
    mine = tmp_path / "out" / "README.md"
    mine.parent.mkdir()
    mine.write_text("mine")
    for flags in ({}, {"overwrite": True}):
        with pytest.raises(InputError, match="holds README.md, which would be lost"):
            average(tmp_path / "out", *trained, **flags)
    assert mine.read_text() == "mine"
    mine.unlink()
    average(tmp_path / "out", *trained)
    average(tmp_path / "out", *trained)
    assert "nothing to do" in capsys.readouterr().err
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        average(tmp_path / "out", trained[0], trained[0])
    average(tmp_path / "out", trained[0], trained[0], overwrite=True)


def test_the_shares_that_are_best_on_dev_are_chosen(trained, tmp_path, monkeypatch, capsys):
    """Of equal ones the most of the start, which takes the head of the trained model."""
    start = Path(shutil.copytree(trained[1], tmp_path / "start"))
    arrays = read_weights(start / "model_state.pdparams")
    plain = {name: array for name, array in arrays.items() if not name.startswith("classifier.")}
    write_weights(start, {**plain, "cls.predictions.bias": np.zeros(3, np.float32)})
    write_json(start / "config.json", {**read_json(start), "architectures": [], "pooling": "mean"})
    reached, asked = {0.2: 0.8, 0.4: 0.9, 0.6: 0.9}, []

    def measure(words, name, log):
        flags = dict(word[2:].split("=", 1) for word in words[1:])
        head = read_weights(Path(flags["model_path"]) / "model_state.pdparams")["classifier.bias"]
        share = float(name.split()[2])
        asked.append((share, flags["input_file"], head))
        accuracy = reached.get(share, 0.5) if flags["input_file"] == "dev.tsv" else 1 - share
        write_json(Path(flags["output_file"]), {"accuracy": accuracy})

    monkeypatch.setattr(commands, "run_child", measure)
    mean = average(
        tmp_path / "out", trained[0], start, weights="auto", dev_file="dev.tsv", general_file="g.tsv"
    )
    first = read_weights(trained[0] / "model_state.pdparams")
    assert mean.keys() == first.keys() and len(asked) == 22
    assert all(np.allclose(head, first["classifier.bias"], atol=1e-6) for *_, head in asked)
    assert all(
        np.allclose(mean[n], first[n] + (0 if n.startswith("classifier.") else 0.3), atol=1e-5) for n in first
    )
    said = capsys.readouterr().out
    assert "0.4 of the start: accuracy 0.9000 on dev_file, accuracy 0.6000 on general_file\n" in said
    assert said.endswith("each the mean of 2 by 0.4,0.6\n")


@pytest.mark.parametrize("count, flags, said", [
    (2, {"weights": "auto"}, "weights auto mixes a trained model with its start: give these two models"),
    (3, {"weights": "auto", "dev_file": "x.tsv"}, "give these two models, in this order, and dev_file"),
    (2, {"dev_file": "x.tsv"}, "dev_file"),
])  # fmt: skip
def test_shares_are_chosen_for_two_models_and_by_pairs(trained, tmp_path, count, flags, said):
    with pytest.raises(InputError, match=said):
        average(tmp_path / "out", *(trained * 2)[:count], **flags)
