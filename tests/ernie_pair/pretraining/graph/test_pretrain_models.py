"""The models that static pretraining starts from: families, padded vocabularies, warm starts."""

import json
import shutil
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from foreign_weights import write_checkpoints
from places import ROOT
from safetensors.numpy import load_file
from tiny_pretrain import VOCAB, events, flags, write_corpus, write_model

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.models.source import open_model
from ernie_pair.pretraining.convert.warm_start import read_start
from ernie_pair.weights.parameter_names import NEVER_LOGIT, cut_vocabulary, pad_vocabulary, padded_size

SCRIPT = ROOT / "scripts" / "run_pretrain_static.py"
# The same command with vocabulary padding disabled.
UNPADDED = f"""
import runpy, sys
from ernie_pair.weights import parameter_names
parameter_names.MULTIPLE = 1
sys.argv[0] = {str(SCRIPT)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ERNIE_3 = {"use_task_id": True, "task_type_vocab_size": 3, "type_vocab_size": 4, "hidden_act": "gelu"}
GRAM = {"model_type": "ernie_gram", "hidden_act": "gelu", "rel_pos_size": 4}
EMBEDDING, BIAS = "ernie.embeddings.word_embeddings.weight", "cls.predictions.decoder_bias"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """``given``: an ERNIE 3.0 of random weights that PaddleNLP itself saved; ``gram``: no weights."""
    from paddlenlp.transformers import ErnieConfig, ErnieForPretraining

    folder = tmp_path_factory.mktemp("models")
    write_corpus(folder / "data", write_model(folder / "given", **ERNIE_3))
    write_model(folder / "gram", **GRAM)
    settings = json.loads((folder / "given" / "config.json").read_text())
    ErnieForPretraining(ErnieConfig.from_dict(settings)).save_pretrained(str(folder / "given"))
    return folder


@pytest.fixture(scope="module")
def said(world):
    """Run independent commands in parallel; return the stderr of each."""
    # AdamW divides by the gradient's magnitude: the usual epsilon would turn rounding errors into steps.
    from_given = {"from_scratch": "false", "save_steps": 3, "micro_batch_size": 8, "adam_epsilon": 1e-4}
    gram = {"save_steps": 3, "binary_head": "false", "checkpoint_steps": 6}
    commands = {
        "padded": ([SCRIPT], flags(world / "given", world / "data", world / "padded", **from_given)),
        "plain": (["-c", UNPADDED], flags(world / "given", world / "data", world / "plain", **from_given)),
        "gram_out": ([SCRIPT], flags(world / "gram", world / "data", world / "gram_out", **gram)),
    }
    running = {
        name: subprocess.Popen(
            [sys.executable, *map(str, [*what, *words])], stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        for name, (what, words) in commands.items()
    }
    said = {name: process.communicate(timeout=300)[1] for name, process in running.items()}
    for name, process in running.items():
        assert process.returncode == 0, said[name]
    return said


def tensors(output, file="static_vars.safetensors"):
    return load_file(output / "model_last" / file)


def largest_difference(one, other):
    assert {name: array.shape for name, array in one.items()} == {n: a.shape for n, a in other.items()}
    return max(float(np.abs(array - other[name]).max()) for name, array in one.items())


def test_a_padded_vocabulary_changes_no_weights_or_losses(world, said):
    assert padded_size(len(VOCAB)) == len(VOCAB) + 3
    padded, plain = world / "padded", world / "plain"
    assert largest_difference(tensors(padded), tensors(plain)) < 1e-5
    state = "optimizer-00000-of-00001.safetensors"
    assert largest_difference(tensors(padded, state), tensors(plain, state)) < 1e-5
    for one, other in zip(events(padded), events(plain)):
        assert one["lm_loss"] == pytest.approx(other["lm_loss"], abs=1e-5)
    early = load_file(padded / "checkpoints" / "step_00000004" / "static_vars.safetensors")
    assert largest_difference(early, tensors(padded)) > 1e-3  # the weights changed in the meantime


def test_checkpoints_and_exports_have_no_padding_rows(world, said):
    from paddlenlp.transformers import ErnieForPretraining

    last = tensors(world / "padded")
    assert last[EMBEDDING].shape == (len(VOCAB), 32) and last[BIAS].shape == (len(VOCAB),)
    exported = ErnieForPretraining.from_pretrained(str(world / "padded" / "model_6")).state_dict()
    assert all(np.array_equal(exported[name].numpy(), array) for name, array in last.items())
    assert json.loads((world / "padded" / "model_6" / "config.json").read_text())["vocab_size"] == len(VOCAB)


def test_without_sop_the_sop_head_and_pooler_do_not_change(world, said):
    import pickle

    early, late = (
        pickle.loads((world / "gram_out" / f"model_{step}" / "model_state.pdparams").read_bytes())
        for step in (3, 6)
    )
    untouched = {name for name, array in early.items() if np.array_equal(array, late[name])}
    assert untouched == {
        *("cls.seq_relationship.weight", "cls.seq_relationship.bias"),
        *("ernie_gram.pooler.dense.weight", "ernie_gram.pooler.dense.bias"),
        "ernie_gram.embeddings.rel_pos_embeddings.weight",  # PaddleNLP has it and does not use it
    }
    kept = events(world / "gram_out")
    assert all("sop_loss" not in event and event["lm_loss"] > 0 for event in kept)


def test_ernie_gram_init_is_truncated_and_its_exports_load(world, said):
    from paddlenlp.transformers import ErnieGramForSequenceClassification, ErnieGramModel

    folder, weights = str(world / "gram_out" / "model_6"), tensors(world / "gram_out")
    encoder = ErnieGramModel.from_pretrained(folder).state_dict()
    assert all(
        np.array_equal(array.numpy(), weights[f"ernie_gram.{name}"]) for name, array in encoder.items()
    )
    classifier = ErnieGramForSequenceClassification.from_pretrained(folder)
    assert np.array_equal(
        classifier.ernie_gram.pooler.dense.weight.numpy(), weights["ernie_gram.pooler.dense.weight"]
    )
    assert 0.015 < weights["ernie_gram.pooler.dense.weight"].std() < 0.02  # truncated, of initializer_range
    assert weights["cls.predictions.layer_norm.weight"].mean() == pytest.approx(1, abs=0.1)


class Parameter(NamedTuple):
    name: str
    shape: tuple


@pytest.fixture(scope="module")
def parameters(world):
    from ernie_pair.pretraining.graph.model import build_ernie, ernie_config

    spec = open_model(str(world / "given"), model_type="ernie", from_scratch=True).spec
    spec = spec.replace(vocab_size=padded_size(spec.vocab_size))
    model = build_ernie(ernie_config(spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    return {name: Parameter(p.name, tuple(p.shape)) for name, p in model.state_dict().items()}


def started(parameters, folder):
    """{structured name: array} of a start from ``folder``, with the padding rows removed."""
    start = read_start(parameters, open_model(str(folder), model_type="ernie", from_scratch=False))
    names = {parameter.name: name for name, parameter in parameters.items()}
    assert all(start.arrays[p.name].shape == p.shape for p in parameters.values() if p.name in start.arrays)
    return cut_vocabulary({names[key]: a for key, a in start.arrays.items()}, len(VOCAB)), start


@pytest.mark.parametrize(
    "place", ["", "model_last", "checkpoints/step_00000006", "model_6", "checkpoints/step_00000004"]
)
def test_a_run_can_initialize_another_run(world, said, parameters, place):
    folder = world / "padded" / place
    saved = "model_last" if place in ("", "model_last", "model_6") else place
    wanted = load_file(world / "padded" / saved / "static_vars.safetensors")
    arrays, start = started(parameters, folder)
    names = {name: next(n for n in arrays if parameters[n].name == parameters[name].name) for name in wanted}
    assert all(np.array_equal(arrays[names[name]], array) for name, array in wanted.items())
    assert start.has_lm_head


def test_a_damaged_checkpoint_is_skipped_or_refused(world, said, parameters, tmp_path, caplog):
    shutil.copytree(world / "padded" / "checkpoints", tmp_path / "checkpoints")
    newest, before = sorted((tmp_path / "checkpoints").glob("step_*"), reverse=True)[:2]
    damaged = newest / "static_vars.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="does not match MANIFEST.json"):
        started(parameters, newest)
    source = open_model(str(tmp_path), model_type="ernie", from_scratch=False)
    assert source.weights.parent == before and "the checkpoint before it is taken" in caplog.text
    for step in (tmp_path / "checkpoints").glob("step_*"):
        (step / "MANIFEST.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no usable checkpoint.*; give another model$"):
        open_model(str(tmp_path), model_type="ernie", from_scratch=False)


@pytest.fixture(scope="module")
def recipe(world):
    return world / "recipe", write_checkpoints(world / "given", world / "recipe")


@pytest.mark.parametrize("layout", ["pickled", "single"])
def test_a_recipe_checkpoint_can_initialize_a_run(world, recipe, parameters, layout):
    folder, weights = recipe
    arrays, start = started(parameters, folder / layout)
    keys = {parameters[name].name: array for name, array in weights.items()}
    assert all(np.array_equal(arrays[name], keys[parameters[name].name]) for name in arrays)
    assert len(arrays) == len(weights) and start.has_lm_head


def test_a_recipe_config_yml_names_the_start_model(world, recipe, parameters, tmp_path):
    last = tmp_path / "output" / "model_last"
    shutil.copytree(recipe[0] / "pickled", last)
    for name in ("config.json", "vocab.txt"):
        (last / name).unlink()
    note = {"model_name": str(world / "gram"), "global_step": 5, "global_batch_size": 8}
    (last / "config.yml").write_text(json.dumps({**note, "model_name": str(world / "given")}))
    for folder in (last, tmp_path / "output"):
        arrays, _ = started(parameters, folder)
        assert len(arrays) == len(recipe[1])
    code = "!!python/object/apply:os.system ['touch x']"
    for content in ("{", "- 1", "model_name: [a]", code, f"model_name: {last}"):
        (last / "config.yml").write_text(content)
        with pytest.raises(InputError, match="config.yml: no usable model_name"):
            open_model(str(last), model_type="ernie", from_scratch=False)


def test_a_loss_like_that_of_random_weights_is_reported(world, said):
    first = events(world / "padded")[0]["lm_loss"]
    line = f"the first lm_loss {first:.2f} is that of random weights (ln 53 = 3.97)"
    assert line in said["padded"] and str(world / "given") in said["padded"]
    assert "random weights (ln" not in said["gram_out"]


@pytest.mark.parametrize("name", [EMBEDDING, BIAS, "cls.predictions.decoder.bias"])
def test_cut_vocabulary_is_the_inverse_of_pad_vocabulary(name):
    rng = np.random.default_rng(0)
    shape = (21,) if "bias" in name else (21, 5)
    array = rng.normal(size=shape).astype(np.float32)
    arrays = {
        name: array,
        f"{name}/moment1_0": array,
        f"{name}/fp32_master_0": array,
        f"{name}/beta1_pow_acc_0": np.ones(1, np.float32),
        "ernie.embeddings.position_embeddings.weight": np.ones((21, 5), np.float32),
    }
    padded = pad_vocabulary(arrays, 21)
    added = {key: value[21:] for key, value in padded.items() if len(value) == 24}
    assert list(added) == [name, f"{name}/moment1_0", f"{name}/fp32_master_0"]
    fill = NEVER_LOGIT if "bias" in name else 0
    assert (added[name] == fill).all() and (added[f"{name}/fp32_master_0"] == fill).all()
    assert (added[f"{name}/moment1_0"] == 0).all()
    back = cut_vocabulary(padded, 21)
    assert all(np.array_equal(back[key], arrays[key]) for key in arrays)
    assert pad_vocabulary({name: array[:16]}, 16)[name].shape == array[:16].shape


@pytest.mark.parametrize("model_type", ["", "ernie-gram", "ernie_gram"])
def test_model_type_is_detected_or_given_in_two_spellings(world, model_type):
    source = open_model(str(world / "gram"), model_type=model_type, from_scratch=True)
    assert source.spec.family == "ernie_gram"
