"""The converter, run in this process on checkpoints written by Paddle's own functions."""

import hashlib
import json
import os
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from foreign_weights import ernies_names, write_checkpoints
from tiny_pretrain import VOCAB, write_model

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.atomic_files import CONFIG_YAML
from ernie_pair.core.files.atomic_folder import MADE
from ernie_pair.models.spec import read_spec
from ernie_pair.pretraining.convert import convert as convert_module
from ernie_pair.pretraining.convert.convert import ConvertConfig, convert, parity_batches
from ernie_pair.weights.weight_files import read_weights

SQUARE = np.ones((4, 4), np.float32)
# ERNIE 3.0 has a task embedding, four token types and gelu; the vocabulary size is not a multiple of 8.
ERNIE_3 = {"use_task_id": True, "task_type_vocab_size": 3, "type_vocab_size": 4, "hidden_act": "gelu"}


@pytest.fixture(scope="module")
def theirs(module_path):
    """The recipe's checkpoints; "weights" holds the arrays they contain."""
    model = write_model(module_path / "model", **ERNIE_3)
    return {"folder": module_path, "weights": write_checkpoints(model, module_path)}


def run(weights, output, **changes):
    convert(ConvertConfig(static_model_path=str(weights), output_dir=str(output), **changes))
    return read_weights(output / "model_state.pdparams")


def holds(converted, weights):
    return all(np.array_equal(converted[name], array) for name, array in weights.items())


def copied(theirs, layout, target):
    shutil.copytree(theirs["folder"] / layout, target)
    return target / "static_vars"


def rewrite(prefix, change):
    path = Path(f"{prefix}.pdparams")
    arrays = pickle.loads(path.read_bytes())
    changed = change(arrays)
    path.write_bytes(pickle.dumps(changed if isinstance(changed, dict) else arrays, protocol=2))


def generated(theirs):
    """{structured name: the name that Paddle generated}."""
    arrays = read_weights(theirs["folder"] / "single" / "static_vars")
    by_content = {array.tobytes(): name for name, array in arrays.items()}
    return {name: by_content[array.tobytes()] for name, array in theirs["weights"].items()}


@pytest.mark.parametrize("given", ["pickled/static_vars", "pickled/static_vars.pdparams", "pickled"])
def test_all_weights_of_a_recipe_pickle_are_converted(theirs, given, tmp_path, capsys):
    converted = run(theirs["folder"] / given, tmp_path / "out")
    said = capsys.readouterr().err
    assert holds(converted, theirs["weights"]) and said.count("largest difference of") == 4
    assert json.loads((tmp_path / "out" / "config.json").read_text())["use_task_id"] is True


@pytest.mark.parametrize("given", ["single/static_vars", "single"])
def test_a_recipe_folder_of_single_files_is_fully_converted(theirs, given, tmp_path):
    assert holds(run(theirs["folder"] / given, tmp_path / "out"), theirs["weights"])


def test_the_converted_folder_loads_as_encoder_and_classifier(theirs, tmp_path):
    from paddlenlp.transformers import ErnieForSequenceClassification, ErnieModel, ErnieTokenizer

    run(theirs["folder"] / "single", tmp_path / "out")
    encoder = ErnieModel.from_pretrained(str(tmp_path / "out")).state_dict()
    classifier = ErnieForSequenceClassification.from_pretrained(str(tmp_path / "out")).state_dict()
    for name, array in encoder.items():
        assert np.array_equal(array.numpy(), theirs["weights"][f"ernie.{name}"])
        assert np.array_equal(classifier[f"ernie.{name}"].numpy(), array.numpy())
    assert ErnieTokenizer.from_pretrained(str(tmp_path / "out")).vocab_size == len(VOCAB)


def test_layer_numbering_of_older_paddlenlp_is_supported(theirs, tmp_path):
    """Its decoder is not a linear layer and has no weight of its own."""
    names = generated(theirs)
    decoder = names["cls.predictions.decoder_bias"][: -len(".b_0")]
    order = names["cls.seq_relationship.bias"][: -len(".b_0")]

    def older(arrays):
        del arrays[f"{decoder}.w_0"]
        arrays["ernie_lm_prediction_head_0.b_0"] = arrays.pop(f"{decoder}.b_0")
        for part in ("w_0", "b_0"):
            arrays[f"{decoder}.{part}"] = arrays.pop(f"{order}.{part}")

    prefix = copied(theirs, "pickled", tmp_path / "older")
    rewrite(prefix, older)
    assert holds(run(prefix, tmp_path / "out"), theirs["weights"])


@pytest.fixture
def release(theirs, tmp_path):
    """A folder as ERNIE 2.0 is released: params/, vocab.txt, ernie_config.json."""
    folder, names = tmp_path / "release", ernies_names()
    (folder / "params").mkdir(parents=True)
    assert set(names) == set(theirs["weights"])
    assert "encoder_layer_1_post_att_layer_norm_scale" in names.values()
    single = theirs["folder"] / "single" / "static_vars"
    for structured, name in generated(theirs).items():
        shutil.copyfile(single / name, folder / "params" / names[structured])
    shutil.copyfile(theirs["folder"] / "model" / "vocab.txt", folder / "vocab.txt")
    config = json.loads((theirs["folder"] / "model" / "config.json").read_text())
    config["sent_type_vocab_size"] = config.pop("type_vocab_size")
    (folder / "ernie_config.json").write_text(json.dumps(config))
    return folder


def test_all_weights_of_an_ernie_release_are_converted(theirs, release, tmp_path):
    assert holds(run(release / "params", tmp_path / "out"), theirs["weights"])


def test_a_head_missing_from_the_file_is_omitted_and_reported(theirs, release, tmp_path, capsys):
    for name in ("next_sent_fc.w_0", "next_sent_fc.b_0"):
        (release / "params" / name).unlink()
    converted = run(release / "params", tmp_path / "out")
    said = capsys.readouterr().err
    assert (
        said.count("largest difference of") == 3 and "no cls.seq_relationship.*: the head is left out" in said
    )
    assert not any(name.startswith("cls.seq") for name in converted)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["ErnieForMaskedLM"]
    (release / "params" / "mask_lm_trans_fc.b_0").unlink()
    with pytest.raises(CheckpointError, match="1 missing: cls.predictions.transform.bias"):
        run(release / "params", tmp_path / "half")


HEADS = ("cls.predictions.", "cls.seq_relationship.")


@pytest.mark.parametrize("layout, missing, leftover", [
    ("pickled", HEADS, False),
    ("single", HEADS, True),
    ("single", HEADS[1:], False),
    ("single", HEADS[:1], False),
    ("pickled", HEADS[:1], True),
])  # fmt: skip
def test_missing_heads_of_static_vars_are_omitted_and_reported(
    theirs, layout, missing, leftover, tmp_path, capsys
):
    """``leftover``: the decoder weight that tying replaced is still in the file, as Paddle saves it."""
    names = generated(theirs)
    gone = [names[name] for name in names if name.startswith(missing)]
    decoder = names["cls.predictions.decoder_bias"].replace("b_0", "w_0")
    gone += [decoder] * (HEADS[0] in missing and not leftover)
    prefix = copied(theirs, layout, tmp_path / "part")
    if layout == "pickled":
        rewrite(prefix, lambda arrays: {name: array for name, array in arrays.items() if name not in gone})
    else:
        for name in gone:
            (prefix / name).unlink(missing_ok=name == decoder)
    kept = {n: a for n, a in theirs["weights"].items() if not n.startswith(missing)}
    converted = run(prefix, tmp_path / "out")
    said = capsys.readouterr().err
    assert holds(converted, kept) and not [name for name in converted if name.startswith(missing)]
    assert said.count("largest difference of") == 4 - len(missing)
    assert all(f"holds no {head}*: the head is left out" in said for head in missing)


def test_the_parity_report_is_saved_with_the_weights(theirs, tmp_path):
    run(theirs["folder"] / "pickled", tmp_path / "out")
    proof = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert set(proof["largest_difference"]) == {"sequence_output", "pooled_output", "lm_logits", "sop_logits"}
    assert proof["batches"] == {"padded": [4, 40], "two_segments": [3, 40], "full_length": [1, 40]}
    for of_batches in proof["largest_difference"].values():
        assert of_batches.keys() == proof["batches"].keys()
        assert 0 <= max(of_batches.values()) < proof["most_allowed"] == 1e-5

    def sha256(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()

    source = theirs["folder"] / "pickled" / "static_vars.pdparams"
    assert proof["inputs"]["static_model_path"] == [[source.name, sha256(source)]]
    assert sha256(source) in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    written = ("config.json", "vocab.txt", "model_state.pdparams", "tokenizer_config.json")
    assert all(proof["outputs"][name] == sha256(tmp_path / "out" / name) for name in written)
    assert {"paddlenlp", "numpy", "ernie-pair"} < proof["versions"].keys()


def test_parity_batches_cover_padding_segments_and_positions(theirs):
    spec = read_spec(theirs["folder"] / "model" / "config.json", theirs["folder"] / "model" / "vocab.txt")
    batches = parity_batches(spec)
    assert batches["full_length"]["input_ids"].shape == (1, spec.max_positions)
    assert (batches["padded"]["input_ids"][1:, -1] == spec.pad_id).all()
    assert set(batches["padded"]["token_type_ids"].flat) == set(range(spec.token_types))
    lengths = {"padded": [40, 39, 20, 2], "two_segments": [40, 26, 13], "full_length": [40]}
    for name, batch in batches.items():
        for length, ids, types in zip(lengths[name], batch["input_ids"], batch["token_type_ids"]):
            assert ids[:length].min() >= 0 and ids.max() < spec.vocab_size
            assert (ids[length:] == spec.pad_id).all() and not types[length:].any()
            if name != "padded":
                half = length // 2
                assert types[:length].tolist() == [0] * half + [1] * (length - half)
        assert len(batch["input_ids"]) == len(lengths[name])
    of_one = parity_batches(replace(spec, token_types=1))
    assert not any(batch["token_type_ids"].any() for batch in of_one.values())


def test_conversion_fails_if_a_single_batch_differs(theirs, tmp_path, monkeypatch):
    honest = convert_module.run_dynamic

    def another(*arguments):
        found = honest(*arguments)
        found["full_length"]["sop_logits"] = found["full_length"]["sop_logits"] + 2e-5
        return found

    monkeypatch.setattr(convert_module, "run_dynamic", another)
    with pytest.raises(CheckpointError, match=f"static one by 2e-05.*: {tmp_path}/out is not written"):
        run(theirs["folder"] / "single", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_configs_of_recipes_are_found_and_read(theirs, tmp_path):
    """The config.yml of model_last names the start model; model_N has the old-style model_config.json."""
    prefix = copied(theirs, "pickled", tmp_path / "model_last")
    for name in ("config.json", "vocab.txt"):
        (prefix.parent / name).unlink()
    note = {"model_name": str(theirs["folder"] / "model"), "global_step": 5}
    (prefix.parent / "config.yml").write_text(json.dumps(note))
    assert holds(run(prefix, tmp_path / "out"), theirs["weights"])
    copied(theirs, "single", tmp_path / "model_6")
    (tmp_path / "model_6" / "config.json").rename(tmp_path / "model_6" / "model_config.json")
    assert holds(run(tmp_path / "model_6", tmp_path / "of_6"), theirs["weights"])
    prefix = copied(theirs, "pickled", tmp_path / "old")
    settings = json.loads((prefix.parent / "config.json").read_text())
    (prefix.parent / "config.json").unlink()
    del settings["model_type"]
    nested = {"init_args": [{**settings, "init_class": "ErnieModel"}], "init_class": "ErnieForPretraining"}
    (prefix.parent / "model_config.json").write_text(json.dumps(nested))
    assert holds(run(prefix, tmp_path / "out1"), theirs["weights"])
    prefix = copied(theirs, "pickled", tmp_path / "bare")
    (prefix.parent / "config.json").unlink()
    with pytest.raises(InputError, match="has no config.json; give model_name_or_path"):
        run(prefix, tmp_path / "out2")
    model = str(theirs["folder"] / "model")
    assert holds(run(prefix, tmp_path / "out3", model_name_or_path=model), theirs["weights"])


def test_weights_of_an_encoder_alone_are_converted(theirs, tmp_path):
    encoder = {n[len("ernie.") :]: a for n, a in theirs["weights"].items() if n.startswith("ernie.")}
    prefix = copied(theirs, "pickled", tmp_path / "encoder")
    rewrite(prefix, lambda _: encoder)
    assert holds(run(prefix, tmp_path / "out"), {f"ernie.{name}": a for name, a in encoder.items()})


def test_padding_rows_go_and_half_precision_is_widened(theirs, tmp_path, capsys):
    names = generated(theirs)
    word = names["ernie.embeddings.word_embeddings.weight"]
    decoder = names["cls.predictions.decoder_bias"]

    def pad(arrays):
        for name in (word, decoder, decoder.replace("b_0", "w_0")):
            arrays[name] = np.concatenate([arrays[name], np.ones_like(arrays[name][:3])])
        assert arrays[word].shape[0] % 8 == 0

    prefix = copied(theirs, "pickled", tmp_path / "padded")
    rewrite(prefix, pad)
    assert holds(run(prefix, tmp_path / "out"), theirs["weights"])
    prefix = copied(theirs, "pickled", tmp_path / "half")
    rewrite(prefix, lambda arrays: {name: array.astype(np.float16) for name, array in arrays.items()})
    converted = run(prefix, tmp_path / "narrow")
    assert "are float16: cast to float32" in capsys.readouterr().err
    halved = {name: array.astype(np.float16).astype(np.float32) for name, array in theirs["weights"].items()}
    assert holds(converted, halved) and all(array.dtype == np.float32 for array in converted.values())


MISMATCHED = {
    "fewer layers": lambda arrays: [arrays.pop(name) for name in [*arrays] if re.match(r"linear_1\d", name)],
    "another shape": lambda arrays: arrays.update({"linear_3.w_0": arrays["linear_3.w_0"][:, :-1]}),
    "a name": lambda arrays: arrays.update(fc_weight=np.ones(3, np.float32)),
    "more layers": lambda arrays: arrays.update(dict.fromkeys(["linear_99.w_0", "linear_98.b_0"], SQUARE)),
    "two decoders": lambda arrays: arrays.update({"head_0.b_0": np.zeros(len(VOCAB), np.float32)}),
    "infinity": lambda arrays: arrays["linear_3.b_0"].__setitem__(3, np.inf),
    "nothing": lambda arrays: arrays.clear(),
}


@pytest.mark.parametrize("name", MISMATCHED)
def test_mismatched_weights_are_refused_and_nothing_is_written(theirs, name, tmp_path):
    prefix = copied(theirs, "pickled", tmp_path / "bad")
    rewrite(prefix, MISMATCHED[name])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError) as caught:
        run(prefix, tmp_path / "out2")
    assert "\n" not in str(caught.value) and sorted(tmp_path.iterdir()) == before


def test_a_truncated_file_and_a_lone_shard_are_refused(theirs, tmp_path):
    folder = copied(theirs, "single", tmp_path / "shard")
    path = folder / "linear_3.w_0"
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    with pytest.raises(CheckpointError, match="linear_3.w_0 is not a variable of Paddle's"):
        run(folder, tmp_path / "out")
    path.write_bytes(content)
    for path in folder.glob("layer_norm*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="holds 0 layers of the kind layer_norm"):
        run(folder, tmp_path / "out")


class Payload:
    def __reduce__(self):
        return os.system, ("touch canary",)


@pytest.mark.parametrize("end", ["pdparams", "pdopt"])
def test_a_malicious_pickle_is_never_executed(theirs, end, tmp_path, monkeypatch):
    """The optimizer state is not needed here and is not even opened."""
    monkeypatch.chdir(tmp_path)
    prefix = copied(theirs, "pickled", tmp_path / "hostile")
    Path(f"{prefix}.{end}").write_bytes(pickle.dumps({"a": [Payload()]}, protocol=2))
    if end == "pdopt":
        assert holds(run(prefix, tmp_path / "out"), theirs["weights"])
    else:
        with pytest.raises(CheckpointError, match="blocked global posix.system"):
            run(prefix, tmp_path / "out")
    assert not Path("canary").exists()


def sha256_of(folder):
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != MADE)
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in paths}


def test_overwrite_replaces_a_result_but_a_failure_keeps_it(theirs, tmp_path, monkeypatch):
    run(theirs["folder"] / "pickled", tmp_path / "out")
    first = sha256_of(tmp_path / "out")
    of_inputs = [tmp_path / "out" / name for name in ("conversion.json", "README.md", CONFIG_YAML)]
    proof = [first.pop(path) for path in of_inputs]
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        run(theirs["folder"] / "single", tmp_path / "out")
    run(theirs["folder"] / "single", tmp_path / "out", overwrite=True)
    second = sha256_of(tmp_path / "out")
    changed = [second.pop(path) != before for path, before in zip(of_inputs, proof)]
    assert all(changed) and second == first
    first = sha256_of(tmp_path / "out")
    honest = convert_module.run_dynamic

    def another(*arguments):
        return {
            name: {output: array * np.float32("nan") for output, array in outputs.items()}
            for name, outputs in honest(*arguments).items()
        }

    monkeypatch.setattr(convert_module, "run_dynamic", another)
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        run(theirs["folder"] / "single", tmp_path / "out", overwrite=True)
    assert sha256_of(tmp_path / "out") == first and [p.name for p in tmp_path.iterdir()] == ["out"]


def test_ernie_gram_is_converted_with_its_heads(tmp_path):
    from paddlenlp.transformers import ErnieGramForSequenceClassification, ErnieGramModel, ErnieGramTokenizer

    model = write_model(tmp_path / "model", model_type="ernie_gram", hidden_act="gelu", rel_pos_size=4)
    weights = write_checkpoints(model, tmp_path)
    for layout in ("pickled", "single"):
        converted = run(tmp_path / layout, tmp_path / "out", overwrite=True)
        assert holds(converted, weights)
    for loaded in (ErnieGramModel, ErnieGramForSequenceClassification):
        state = loaded.from_pretrained(str(tmp_path / "out")).state_dict()
        for name, array in state.items():
            full = name if name.startswith(("ernie_gram.", "classifier.")) else f"ernie_gram.{name}"
            assert full.startswith("classifier.") or np.array_equal(array.numpy(), weights[full])
    assert ErnieGramTokenizer.from_pretrained(str(tmp_path / "out")).vocab_size == len(VOCAB)
