"""Hugging Face models read and written without torch; tests/peer checks with transformers itself."""

import io
import json
import pickle
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import paddle
import pytest
from safetensors.numpy import save as to_safetensors
from tiny_pair import VOCAB, train_config, write_model
from tiny_ship import logits_of_trained, random_texts, ship, write_trained

from data_tools.text.wordpiece import CONTROL_TOKENS, WordPiece
from ernie_pair.__main__ import _run
from ernie_pair.checkpoint.run_folder import ranked_models
from ernie_pair.core.errors import CheckpointError, ErniePairError, InputError
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.inference.exported_model import read_exported
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.models.commands import (
    FromHuggingFaceConfig,
    ToHuggingFaceConfig,
    convert_from_hugging_face,
    convert_to_hugging_face,
)
from ernie_pair.models.embedding_json import EmbeddingSettings
from ernie_pair.models.families import with_counterpart
from ernie_pair.models.hugging_face import (
    arrays_from_hf,
    arrays_to_hf,
    config_from_hf,
    config_to_hf,
    read_metadata,
    split_heads,
    with_cross_encoder,
    write_own_folder,
)
from ernie_pair.models.labels import labels_in
from ernie_pair.models.networks.classifier import build_classifier, load_classifier, load_initial_weights
from ernie_pair.models.networks.text_encoder import build_text_encoder
from ernie_pair.models.source import open_model
from ernie_pair.models.tokenizers import build_fast_tokenizer
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.pretraining.graph.model import CLASSES, ernie_config
from ernie_pair.runtime.device import quiet_libraries
from ernie_pair.weights.torch_files import _build_array as build_array
from ernie_pair.weights.torch_files import _Tensor as Tensor
from ernie_pair.weights.torch_files import read_torch_file
from ernie_pair.weights.weight_files import from_safetensors, read_weights

quiet_libraries()
# Parameter names and shapes of these sizes in transformers 4.49; made by tests/peer/their_models.py.
NAMES = json.loads(Path(__file__).with_name("hugging_face_names.json").read_text())
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 64, "type_vocab_size": 2, "num_labels": 3, "hidden_act": "gelu",
}  # fmt: skip
OF_FAMILY = {
    "ernie_gram": {"embedding_size": 16},
    "electra": {"embedding_size": 12},
    "nezha": {"use_relative_position": True},
    "albert": {"embedding_size": 12},
    "xlm_roberta": {"type_vocab_size": 1, "pad_token_id": 1},
}  # fmt: skip
BERT = {"model_type": "bert", "transformers_version": "4.49.0", "vocab_size": 35, **SIZES}


def source_of(tmp_path, family):
    folder = write_model(tmp_path / family, model_type=family, **{**SIZES, **OF_FAMILY.get(family, {})})
    return open_model(str(folder), model_type=family, from_scratch=True)


def weights_of(source):
    model = build_classifier(source, seed=0, dropout=0.0)
    return {name: value.numpy() for name, value in model.named_parameters()}


def converted(tmp_path, family="ernie", **changes):
    ours = write_trained(tmp_path / "ours", family, **changes)
    convert_to_hugging_face(ToHuggingFaceConfig(str(ours), str(tmp_path / "theirs")))
    return ours, tmp_path / "theirs"


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize("family", with_counterpart())
def test_names_are_those_of_transformers_and_go_back(tmp_path, family):
    source = source_of(tmp_path, family)
    ours, stored = weights_of(source), build_classifier(source, seed=0, dropout=0.0).state_dict()
    theirs = arrays_to_hf(ours, family, "here")
    shapes = {name: list(array.shape) for name, array in theirs.items()}
    assert shapes == NAMES["bert" if family == "ernie_gram" else family]
    for name, array in ours.items():
        if array.ndim == 2:  # torch keeps a matrix the other way round, square ones too, but for tables
            turned = array if name.endswith(("_embeddings.weight", "decoder.weight")) else array.T
            assert any(np.array_equal(turned, one) for one in theirs.values()), name
    back = arrays_from_hf(theirs, family)
    assert ours.keys() == back.keys() and all(np.array_equal(ours[name], back[name]) for name in ours)
    config = json.loads((tmp_path / family / "config.json").read_text())
    write_own_folder(tmp_path, config, {}, back)  # with the positions, where PaddleNLP keeps them
    written = pickle.loads((tmp_path / "model_state.pdparams").read_bytes())
    assert written.keys() == stored.keys()
    assert all(np.array_equal(written[name], stored[name].numpy()) for name in stored)


ROBERTA, ELECTRA = {"pad_token_id": 1}, (128, 256, 4, 1024)
SIZED = ("embedding_size", "hidden_size", "num_attention_heads", "intermediate_size")


@pytest.mark.parametrize("model_type, sizes", [
    ("roberta", ROBERTA), ("xlm-roberta", ROBERTA), ("electra", dict(zip(SIZED, ELECTRA))),
    ("distilbert", {"num_hidden_layers": 6}),
    ("albert", {**dict(zip(SIZED, (128, 4096, 64, 16384))), "hidden_act": "gelu_new"}),
    ("megatron-bert", {**dict(zip(SIZED[1:], (1024, 16, 4096))), "num_hidden_layers": 24}),
    *[(model_type, {"type_vocab_size": 2, "max_position_embeddings": 512, "hidden_act": "gelu"})
      for model_type in ("bert", "ernie")],
])  # fmt: skip
def test_what_a_config_omits_is_as_in_transformers(model_type, sizes):
    found = config_from_hf({"model_type": model_type, "vocab_size": 35}, "")
    assert {name: found.get(name) for name in sizes} == sizes


def test_a_tensor_of_torch_lies_within_its_storage():
    """Of random sizes, steps and offsets those are read that reach no number outside of the twelve."""
    numbers, rng, read = np.arange(12, dtype=np.float32), np.random.default_rng(0), 0
    for _ in range(2000):
        axes = int(rng.integers(0, 4))
        size, stride = rng.integers(-1, 5, axes), rng.integers(-1, 5, axes)
        offset = int(rng.integers(-1, 13))
        tensor = Tensor("0", np.dtype("<f4"), offset, tuple(size.tolist()), tuple(stride.tolist()))
        is_read = (size > 0).all() and (stride >= 0).all() and size.prod() <= 12
        places = [offset + int(stride @ place) for place in np.ndindex(*size)] if is_read else [-1]
        if 0 <= min(places) <= max(places) < 12:
            found = build_array(tensor, numbers.tobytes())
            assert np.array_equal(found.ravel(), numbers[places]) and found.shape == tuple(size)
            read += 1
        else:
            with pytest.raises(CheckpointError, match="outside of its storage"):
                build_array(tensor, numbers.tobytes())
    assert read > 200
    with pytest.raises(CheckpointError, match="outside of its storage"):
        build_array(Tensor("0", np.dtype("<f4"), 0, (2, 2), (1,)), numbers.tobytes())


@pytest.mark.parametrize("family", ["ernie", "ernie_gram", "bert"])
def test_a_converted_classifier_gives_identical_logits(tmp_path, family):
    ours, theirs = converted(tmp_path, family)
    convert_from_hugging_face(FromHuggingFaceConfig(str(theirs), str(tmp_path / "back")))
    pairs = random_texts(20)
    expected = logits_of_trained(ours, pairs)
    assert np.ptp(expected, axis=0).min() > 1e-3
    for folder in (theirs, tmp_path / "back"):
        assert np.array_equal(logits_of_trained(folder, pairs), expected)
        assert load_classifier(str(folder))[0].family == family
    assert read_metadata(theirs / "model.safetensors") == {"format": "pt"}
    if family == "ernie_gram":  # it is written as a BERT that computes the same
        config = json.loads((theirs / "config.json").read_text())
        assert config["model_type"] == "bert" and config["architectures"] == ["BertForSequenceClassification"]
        assert config["layer_norm_eps"] == 1e-5


def test_a_sharded_model_loads_like_a_single_file(tmp_path):
    ours, theirs = converted(tmp_path)
    arrays = from_safetensors((theirs / "model.safetensors").read_bytes(), "")
    files = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    places = {name: files[number % 2] for number, name in enumerate(arrays)}
    for file in files:
        (theirs / file).write_bytes(to_safetensors({n: a for n, a in arrays.items() if places[n] == file}))
    (theirs / "model.safetensors").unlink()
    index = theirs / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    pairs = random_texts(5)
    assert np.array_equal(logits_of_trained(theirs, pairs), logits_of_trained(ours, pairs))
    (theirs / files[1]).unlink()
    with pytest.raises(CheckpointError, match="is no file beside it; copy the model again"):
        load_classifier(str(theirs))
    index.write_text(json.dumps({"weight_map": dict.fromkeys(arrays, "../ours/model.safetensors")}))
    with pytest.raises(CheckpointError, match="is no file beside it"):
        load_classifier(str(theirs))


def test_a_bare_or_poolerless_encoder_is_read(tmp_path):
    source = source_of(tmp_path, "bert")
    ours = weights_of(source)
    old = {".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"}
    theirs = {}
    for name, array in arrays_to_hf(ours, "bert", "here").items():
        for new, before in old.items():
            name = name.replace(new, before)
        if name.startswith("bert."):
            theirs[name[len("bert.") :]] = array
    theirs["embeddings.position_ids"] = np.arange(64)[None]
    back = arrays_from_hf(theirs, "bert")
    assert back.keys() == {name for name in ours if name.startswith("bert.")}
    assert all(np.array_equal(ours[name], back[name]) for name in back)
    _, theirs = converted(tmp_path)
    arrays = from_safetensors((theirs / "model.safetensors").read_bytes(), "")
    kept = {name: array for name, array in arrays.items() if not name.startswith(("ernie.pooler", "classi"))}
    (theirs / "model.safetensors").write_bytes(to_safetensors(kept))
    source = open_model(str(theirs), model_type="ernie", from_scratch=False)
    model = build_classifier(source, seed=0, dropout=0.0)
    assert "the classifier is new and random, the pooler is new and random" in load_initial_weights(
        model, source
    )
    with pytest.raises(CheckpointError, match="holds no classifier, only an encoder"):
        load_classifier(str(theirs))


@pytest.mark.parametrize("changes, reason", [
    ({"model_type": "nezha", "layer_norm_eps": 0.01}, "Paddle computes with 0 to 0.001"),
    ({"layer_norm_eps": "small"}, "Paddle computes with 0 to 0.001"),
    ({"hidden_act": "quick_gelu"}, "gelu and relu and gelu_new"),
    ({"hidden_act": ["gelu"]}, "gelu and relu and gelu_new"),
    ({"model_type": "electra", "hidden_act": "relu"}, "shown to be equal are gelu"),
    ({"position_embedding_type": "relative_key"}, "do not support it"),
    ({"is_decoder": True}, "do not support it"),
    ({"pruned_heads": {"0": [1]}}, "do not support it"),
    ({"problem_type": "regression"}, "is not possible with 3 outputs"),
    ({"quantization_config": {"bits": 4}}, "do not support it"),
    ({"model_type": 7}, "is not supported; give a model of one of these: albert, bert, "),
])  # fmt: skip
def test_a_config_paddlenlp_cannot_reproduce_is_rejected(changes, reason):
    with pytest.raises(InputError, match=reason) as caught:
        config_from_hf({**BERT, **changes}, "m/config.json")
    assert caught.value.message.startswith("m/config.json: ") and "\n" not in caught.value.message


@pytest.mark.parametrize("named", ["deberta-v2", "modernbert", "qwen3", "gpt2", "t5", "xlm", 7, ["bert"]])
def test_an_unsupported_type_is_named_whatever_else_is_lacking(tmp_path, named):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": named}))
    with pytest.raises(InputError, match="is not supported; give .*: albert, bert, .*xlm-roberta") as caught:
        open_model(str(tmp_path), model_type="")
    assert "\n" not in caught.value.message and json.dumps(named) in caught.value.message
    with pytest.raises(InputError, match="is not supported"):  # of serve, which asks for an exported model
        read_exported(tmp_path)


def epsilons_of(folder):
    model, _ = load_classifier(str(folder))
    return {layer._epsilon for layer in model.sublayers() if isinstance(layer, paddle.nn.LayerNorm)}


def retrained(folder, into):
    """What a run that starts from ``folder`` writes before its first step."""
    source = open_model(str(folder), model_type="", from_scratch=False)
    model = build_classifier(source, seed=0, dropout=0.0)
    load_initial_weights(model, source)
    into.mkdir()
    model.write(into, source.vocab_file)
    return into


@pytest.mark.parametrize("family, usual", [("ernie", 1e-12), ("ernie_gram", 1e-5), ("nezha", 1e-12)])
def test_the_epsilon_of_a_published_folder_is_obeyed_and_kept(tmp_path, family, usual):
    shape = OF_FAMILY[family] if family == "nezha" else {}
    ours = write_trained(tmp_path / "ours", family, **shape)
    change_config(ours, layer_norm_eps=1e-4)  # as PaddleNLP computes it: whatever is written there
    assert epsilons_of(ours) == {usual}
    change_config(ours, layer_norm_eps=usual)
    convert_to_hugging_face(ToHuggingFaceConfig(str(ours), str(tmp_path / "theirs")))
    assert epsilons_of(tmp_path / "theirs") == {usual}
    same = json.loads((retrained(tmp_path / "theirs", tmp_path / "same") / "config.json").read_text())
    assert "computed_layer_norm_eps" not in same
    change_config(tmp_path / "theirs", layer_norm_eps=1e-4)
    assert epsilons_of(tmp_path / "theirs") == {1e-4}
    trained = retrained(tmp_path / "theirs", tmp_path / "trained")
    assert epsilons_of(trained) == {1e-4}
    assert json.loads((trained / "config.json").read_text())["architectures"] == ["OwnEpsilonPairClassifier"]
    convert_to_hugging_face(ToHuggingFaceConfig(str(trained), str(tmp_path / "back")))
    assert json.loads((tmp_path / "back" / "config.json").read_text())["layer_norm_eps"] == 1e-4
    source = open_model(str(tmp_path / "theirs"), model_type="", from_scratch=False)
    encoder = build_text_encoder(source, 0, None)
    assert {e._epsilon for e in encoder.sublayers() if isinstance(e, paddle.nn.LayerNorm)} == {1e-4}
    assert encoder.spec.config["architectures"] == ["OwnEpsilonTextEncoder"]


IDENTITY, SIGMOID = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"
RERANKER = {
    "model_type": "bert",
    "transformers_version": "4.49.0",
    "vocab_size": 35,
    "id2label": {"0": "LABEL_0"},
    "architectures": ["BertForSequenceClassification"],
}


@pytest.mark.parametrize("changes, activation", [
    ({}, "sigmoid"),
    ({"sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
    ({"sentence_transformers": {"activation_fn": IDENTITY}}, "identity"),
    ({"sentence_transformers": {"version": "4.1"}}, "sigmoid"),
    ({"sbert_ce_default_activation_function": "torch.nn.Identity"}, "identity"),
    ({"sbert_ce_default_activation_function": None}, "sigmoid"),
    ({"problem_type": "regression"}, ""),
    ({"problem_type": "regression", "sbert_ce_default_activation_function": SIGMOID}, "sigmoid"),
    ({"paddle_model_type": "bert", "problem_type": "regression"}, ""),
    ({"paddle_model_type": "bert"}, ""),
    ({"paddle_model_type": "bert", "sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
    ({"paddle_model_type": "bert", "sentence_transformers": {"activation_fn": IDENTITY}}, ""),
])  # fmt: skip
def test_a_reranker_scores_as_its_config_says(changes, activation):
    labels = labels_in(config_from_hf({**RERANKER, **changes}, ""))
    assert labels.activation == activation
    assert labels.label_range == ((0.0, 1.0) if activation == "sigmoid" else None)


@pytest.mark.parametrize("stated", ["torch.nn.modules.activation.Tanh", "mine.Sigmoid"])
def test_another_activation_of_a_reranker_is_refused_by_name(stated):
    with pytest.raises(InputError, match=f"activation_fn is .*{stated}.*Sigmoid or .*Identity"):
        config_from_hf({**RERANKER, "sentence_transformers": {"activation_fn": stated}}, "")


@pytest.mark.parametrize("family, theirs, ours", [
    ("bert", "BertForPreTraining", "BertForPretraining"),
    ("bert", "BertForMaskedLM", "BertForMaskedLM"),
    ("bert", "BertForSequenceClassification", "BertForSequenceClassification"),
    ("bert", "BertForTokenClassification", "BertModel"),
    ("ernie_gram", "BertForSequenceClassification", "ErnieGramForSequenceClassification"),
    ("ernie_gram", "BertForPreTraining", "ErnieGramModel"),
])  # fmt: skip
def test_the_class_is_paddlenlps_of_the_same_head(family, theirs, ours):
    config = {**BERT, "paddle_model_type": family, "architectures": [theirs]}
    assert config_from_hf(config, "")["architectures"] == [ours]


def test_padding_is_0_where_paddlenlp_says_nothing():
    """That is its default, and not the 1 of transformers' RoBERTa."""
    assert config_to_hf({"vocab_size": 35}, "roberta", {}, "", "Model")["pad_token_id"] == 0


def test_settings_are_converted_both_ways():
    named = {"id2label": {"0": "no", "1": "yes", "2": "?"}, "label2id": {"no": 0, "yes": 1, "?": 2}}
    ours = config_from_hf({**BERT, **named, "layer_norm_eps": 1e-7}, "")
    assert ours["num_labels"] == 3 and ours["id2label"] == named["id2label"]
    theirs = config_to_hf(ours, "bert", {}, "", "Model")
    assert (
        theirs["label2id"] == named["label2id"] and theirs["layer_norm_eps"] == ours["layer_norm_eps"] == 1e-7
    )
    numbered = {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}  # which are no names
    ours = config_from_hf({**BERT, **numbered}, "")
    assert ours["num_labels"] == 3 and "id2label" not in ours
    assert config_to_hf(ours, "bert", {}, "", "Model")["num_labels"] == 3
    assert config_from_hf({"model_type": "bert", "vocab_size": 35}, "")["type_vocab_size"] == 2
    scored = {"num_labels": 1, "problem_type": "regression", "label_range": [0, 5]}
    ours = {**scored, "score_activation": "sigmoid", "id2label": {"0": "score"}}
    theirs = config_to_hf(ours, "bert", {}, "", "ForSequenceClassification")
    assert {name: theirs[name] for name in scored} == scored and "id2label" not in theirs
    assert theirs["sentence_transformers"] == {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    encoder = {**RERANKER, "architectures": ["BertModel"]}  # its label is that of no head
    assert labels_in(config_from_hf(encoder, "")).names == ("0", "1")
    ernie = {**BERT, "model_type": "ernie", "layer_norm_eps": 1e-5, "use_task_id": False}
    assert config_from_hf(ernie, "", "bert")["model_type"] == "bert"
    assert config_from_hf({**ernie, "use_task_id": True}, "", "bert")["model_type"] == "ernie"


@pytest.mark.parametrize("family, changes, reason", [
    ("ernie", {"pooling": "mean"}, "train with .*pooling cls"),
    ("ernie", {"hidden_act": "mish"}, "hidden_act"),
    ("ernie", {"task_id": 2}, "task_id"),
    ("bert", {"pool_act": "relu"}, "pool_act"),
    ("bert", {"model_class": "mine:WithMargin"}, "class .mine:WithMargin., which transformers has not"),
    ("skep", {}, "transformers has no model"),
])  # fmt: skip
def test_models_unsupported_by_transformers_are_rejected(family, changes, reason):
    with pytest.raises(InputError, match=reason):
        config_to_hf({"vocab_size": 35, **SIZES, **changes}, family, {}, "m", "Model")


def test_what_transformers_has_not_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="bert.extra.weight has no place in BertModel"):
        arrays_to_hf({"bert.extra.weight": np.zeros(2, np.float32)}, "bert", "m")
    config = train_config(tmp_path, pooling="mean", save_format="hf")
    with pytest.raises(InputError, match="train with .*pooling cls"):
        train_pair(config)
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_a_pickle_that_would_run_code_is_rejected(tmp_path):
    _, theirs = converted(tmp_path)
    (theirs / "model.safetensors").unlink()
    ran = tmp_path / "ran"

    class Payload:
        def __reduce__(self):
            return Path.touch, (ran,)

    with zipfile.ZipFile(theirs / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"bert.weight": Payload()}))
    with pytest.raises(CheckpointError, match=r"blocked global .*safe_serialization=True"):
        load_classifier(str(theirs))
    assert not ran.exists()
    (theirs / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(CheckpointError, match="save the model again as safetensors"):
        load_classifier(str(theirs))


class TorchFile(pickle.Pickler):
    """Writes {name: (array, its kind of storage)} as torch.save does: each storage is a file of its own."""

    def __init__(self, path, tensors, monkeypatch, packing=zipfile.ZIP_STORED):
        self.file, self.storages, self.views = io.BytesIO(), [], [None] * (packing is None)
        super().__init__(self.file, protocol=2)
        kinds = {name: type(name, (), {"__module__": "torch"}) for _, name in tensors.values()}
        rebuild = type("_rebuild_tensor_v2", (), {"__module__": "torch._utils"})
        for name, found in (("torch", kinds), ("torch._utils", {"_rebuild_tensor_v2": rebuild})):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(**found))
        self.parts = {name: (array, kinds[kind], rebuild) for name, (array, kind) in tensors.items()}
        self.dump({name: SimpleNamespace(name=name) for name in tensors})
        if packing is None:
            path.write_bytes(self.before_zip(tensors))
            return
        with zipfile.ZipFile(path, "w", packing) as archive:
            archive.writestr("archive/data.pkl", self.file.getvalue())
            for number, storage in enumerate(self.storages):
                archive.writestr(f"archive/data/{number}", storage)

    def before_zip(self, tensors):
        """The same as torch before 1.6 wrote it: pickles, and each storage after its length."""
        machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
        head = [pickle.dumps(each, protocol=2) for each in (0x1950A86A20F9469CFC6C, 1001, machine)]
        keys = pickle.dumps([str(number) for number in range(len(self.storages))], protocol=2)
        sizes = [array.itemsize for array, _ in tensors.values()]
        lengths = (len(each) // size for each, size in zip(self.storages, sizes))
        stored = [n.to_bytes(8, "little") + each for n, each in zip(lengths, self.storages)]
        return b"".join([*head, self.file.getvalue(), keys, *stored])

    def reducer_override(self, found):
        if not isinstance(found, SimpleNamespace):
            return NotImplemented
        array, kind, rebuild = self.parts[found.name]
        base = array if array.base is None else array.base
        steps = tuple(step // array.itemsize for step in array.strides)
        offset = (array.ctypes.data - base.ctypes.data) // array.itemsize
        self.storages.append(base.tobytes())
        return rebuild, (
            Storage(kind, len(self.storages) - 1),
            offset,
            array.shape,
            steps,
            False,
            OrderedDict(),
        )

    def persistent_id(self, found):
        return (
            ("storage", found.kind, str(found.key), "cpu", 1, *self.views)
            if isinstance(found, Storage)
            else None
        )


class Storage(NamedTuple):
    kind: type
    key: int


def test_weights_of_torch_are_read_without_it(tmp_path, monkeypatch):
    rng, tensors = np.random.default_rng(0), {}
    kinds = "Float <f4,Double <f8,Half <f2,Long <i8,Int <i4,BFloat16 <u2,Bool ?"
    for kind, dtype in map(str.split, kinds.split(",")):
        base = rng.integers(0, 2 if kind == "Bool" else 99, (6, 5)).astype(dtype)
        for number, view in enumerate((base, base.T, base[2:, 1::2])):
            tensors[f"{kind} {number}"] = view, f"{kind}Storage"
    for packing in (zipfile.ZIP_STORED, None):
        TorchFile(tmp_path / "pytorch_model.bin", tensors, monkeypatch, packing)
        found = read_torch_file(tmp_path / "pytorch_model.bin")
        assert found.keys() == tensors.keys()
        for name, (array, _) in tensors.items():
            assert np.array_equal(found[name], array) and found[name].dtype == array.dtype
    zeros = {"a": (np.zeros((40, 40), np.float32), "FloatStorage")}
    TorchFile(tmp_path / "packed.bin", zeros, monkeypatch, zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="packed.bin is refused: it is packed, as torch never does"):
        read_torch_file(tmp_path / "packed.bin")


def test_a_file_from_before_torch_1_6_is_read_within_its_bounds(tmp_path, monkeypatch):
    path, zeros = tmp_path / "pytorch_model.bin", {"a": (np.zeros((40, 40), np.float32), "FloatStorage")}
    TorchFile(path, zeros, monkeypatch, None)
    whole = path.read_bytes()
    length = (1600).to_bytes(8, "little")
    assert whole.count(length) == 1
    for content in (
        whole[:-1],
        whole.replace(length, (1 << 40).to_bytes(8, "little")),
        whole.replace(length, (-1).to_bytes(8, "little", signed=True)),
        whole.replace(b"little_endian", b"little_enemy_"),
        pickle.dumps(5),
        b"",
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="save the model again as safetensors"):
            read_torch_file(path)


def test_the_fast_tokenizer_gives_the_same_ids_as_ours():
    rng = np.random.default_rng(0)
    letters = [chr(point) for point in range(32, 0x3000, 3)]
    known = ["É", "ⓐ", "𝄞", "İ", "ß", "µ", "한", "𠀀", "㍿", "\u0301", "\u200b", "\ufffd", "\u3000", "\t"]
    tokens = [*VOCAB[:-1], *"abcdeéi", *(f"##{letter}" for letter in "abcdeéi"), "ss", "ⓐ", "a", "[UNK]"]
    texts = ["".join(rng.choice([*letters, *known, *VOCAB[4:-1], *"abc \n"], 12)) for _ in range(300)]
    texts += [f"a{character}b" for character in [*letters, *known]]
    for lower_case in (True, False):
        ours = WordPiece(tokens, lower_case)
        theirs = build_fast_tokenizer(ours)
        made = [found.ids for found in theirs.encode_batch(texts, add_special_tokens=False)]
        assert made == ours.encode_batch(texts)
    assert sorted(theirs.get_vocab().values()) == list(range(len(tokens)))  # no gap for a duplicate token
    left, right = ours.encode("我a"), ours.encode("他")
    pair = theirs.encode("我a", "他")
    assert pair.ids == [ours.cls_id, *left, ours.sep_id, *right, ours.sep_id]
    assert pair.type_ids == [0] * (len(left) + 2) + [1] * (len(right) + 1)
    added = theirs.get_added_tokens_decoder().values()
    assert {token.content for token in added if token.special and not token.normalized} == {*CONTROL_TOKENS}
    assert theirs.decode(pair.ids) == "我 a 他"


def their_bert(tmp_path):
    """A folder of transformers with a BERT and its vocab.txt alone, as older versions wrote it."""
    _, theirs = converted(tmp_path)
    config = json.loads((theirs / "config.json").read_text())
    config.pop("paddle_model_type")
    (theirs / "config.json").write_text(json.dumps({**config, "transformers_version": "4.49.0"}))
    (theirs / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (theirs / name).unlink()
    return theirs


def test_the_words_of_a_published_bert_are_cut_by_its_own_rule(tmp_path):
    theirs = their_bert(tmp_path)
    source = open_model(str(theirs), model_type="")
    tokenizer = open_tokenizer(source.vocab_file, source.spec, 16)
    for text in ("a\u20acb", "a\u2265b", "a\u00b0b"):  # symbols stay in a word, which is unknown as a whole
        assert tokenizer.encode(text) == [tokenizer.unk_id] != WordPiece(VOCAB).encode(text)
    assert tokenizer.encode("[MASK]") == [tokenizer.mask_id]
    assert tokenizer.without_control_tokens().encode("[MASK]") != [tokenizer.mask_id]
    (tmp_path / "saved").mkdir()
    load_classifier(str(theirs))[0].write(tmp_path / "saved", source.vocab_file, 20)
    again = open_model(str(tmp_path / "saved"), model_type="")
    assert again.vocab_file.name == "tokenizer.json" and again.spec.trained_length == 20
    assert open_tokenizer(again.vocab_file, again.spec, 16).sha256 == tokenizer.sha256


@pytest.mark.parametrize("changes, reason", [
    ({"normalizer": {"type": "None of this"}}, "it cannot be read"),
    ({"post_processor": None}, "other special tokens around texts"),
    ({"model": {"type": "WordPiece", "vocab": {"[PAD]": 1}}}, "tokenizer.json"),
])  # fmt: skip
def test_a_tokenizer_json_unlike_the_model_is_rejected(tmp_path, changes, reason):
    theirs = their_bert(tmp_path)
    source = open_model(str(theirs), model_type="")
    tokenizer = json.loads(open_tokenizer(source.vocab_file, source.spec, 16).to_json())
    (theirs / "tokenizer.json").write_text(json.dumps(tokenizer))
    load_classifier(str(theirs))
    (theirs / "tokenizer.json").write_text(json.dumps({**tokenizer, **changes}))
    with pytest.raises(InputError, match=reason):
        load_classifier(str(theirs))


def test_an_edited_tokenizer_json_of_ours_is_rejected(tmp_path):
    _, theirs = converted(tmp_path)
    tokenizer = json.loads((theirs / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["normalizer"]["normalizers"] = tokenizer["normalizer"]["normalizers"][:1]  # case is kept
    (theirs / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match="into other tokens than vocab.txt does by ERNIE's rule"):
        load_classifier(str(theirs))


@pytest.mark.parametrize("save_format", ["hf", "both"])
def test_the_best_model_saved_for_transformers_is_identical(tmp_path, save_format):
    config = train_config(tmp_path, epochs=1, save_format=save_format, max_seq_len=24, learning_rate=5e-3)
    train_pair(config)
    ((best, _),) = ranked_models(Path(config.output_dir))
    theirs = best / "hugging_face" if save_format == "both" else best
    written = {path.name for path in theirs.iterdir()}
    assert {"model.safetensors", "tokenizer.json", "special_tokens_map.json"} <= written
    assert (best / "model_state.pdparams").is_file() == (save_format == "both")
    model, _ = load_classifier(str(theirs))
    assert model.spec.trained_length == 24
    if save_format == "both":
        ours, _ = load_classifier(str(best))
        for name, value in ours.state_dict().items():
            assert np.array_equal(value.numpy(), model.state_dict()[name].numpy())
    train_pair(config)  # there is nothing to do, and the best model is still this one
    assert [folder for folder, _ in ranked_models(Path(config.output_dir))] == [best]


def test_a_transformers_model_folder_can_be_exported(tmp_path):
    _, theirs = converted(tmp_path, "ernie_gram", num_labels=3)
    predictor = PairPredictor(ship(theirs, tmp_path / "shipped"))
    pairs = random_texts(5)
    expected = logits_of_trained(theirs, pairs)
    assert list(predictor.class_names) == ["0", "1", "2"]
    assert np.abs(predictor.logits(pairs) - expected).max() < 1e-5


def run(*words):
    _run([str(word) for word in words])


def test_the_convert_command_works_in_both_directions(tmp_path, capsys):
    ours = write_trained(tmp_path / "ours")
    run("convert", "--to", "hf", "--model_path", ours, "--output_dir", tmp_path / "theirs")
    run("convert", "--model_path", tmp_path / "theirs", "--from=hf", "--output_dir", tmp_path / "back")
    assert "25 weights of" in capsys.readouterr().out
    run("convert", "--to", "hf", "--model_path", ours, "--output_dir", tmp_path / "theirs")
    assert "nothing to do" in capsys.readouterr().err
    for words, reason in {
        ("--to", "onnx"): "to takes hf alone",
        ("--from", "hf"): "is a folder of PaddleNLP already",
    }.items():
        with pytest.raises(InputError, match=reason):
            run("convert", *words, "--model_path", ours, "--output_dir", tmp_path / "x")
    with pytest.raises(InputError, match="is a folder of transformers already"):
        run("convert", "--to", "hf", "--model_path", tmp_path / "theirs", "--output_dir", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("family", ["ernie", "ernie_gram"])
def test_a_pretraining_checkpoint_is_converted_unchanged(tmp_path, family):
    folder = write_model(tmp_path / "run" / "model_last", model_type=family, hidden_size=16)
    spec = open_model(str(folder), model_type=family, from_scratch=True).spec
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = CLASSES[family][1](ernie_config(spec, **rates))
    weights = {name: value.numpy() for name, value in model.named_parameters()}
    (folder / "static_vars.safetensors").write_bytes(to_safetensors(weights))
    convert_to_hugging_face(ToHuggingFaceConfig(str(folder), str(tmp_path / "theirs")))
    source = open_model(str(tmp_path / "theirs"), model_type=family, from_scratch=False)
    back = source.read_weights()
    assert all(np.array_equal(back[name], array) for name, array in weights.items())
    kept, others = split_heads(back, family, spec.num_layers, "here")
    assert set(weights) <= set(kept) == set(back) and not others
    first_layer = {name: array for name, array in back.items() if ".layers.1." not in name}
    with pytest.raises(CheckpointError, match="here: 8 weights of the encoder are missing, .*layers.1"):
        split_heads(first_layer, family, 2, "here")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["architectures"] == [f"{'Bert' if family == 'ernie_gram' else 'Ernie'}ForPreTraining"]


def test_a_conversion_never_deletes_the_users_files(tmp_path):
    ours, theirs = converted(tmp_path)
    (theirs / "notes.txt").write_text("mine")
    other = write_trained(tmp_path / "other", hidden_act="relu")
    for output, reason in ((theirs, "holds notes.txt"), (other, "holds model_state.pdparams")):
        with pytest.raises(ErniePairError, match=reason):
            convert_to_hugging_face(ToHuggingFaceConfig(str(other), str(output), overwrite=True))
    assert (theirs / "notes.txt").read_text() == "mine"
    (theirs / "notes.txt").unlink()
    with pytest.raises(ErniePairError, match="overwrite=True"):
        convert_to_hugging_face(ToHuggingFaceConfig(str(other), str(theirs)))
    assert not list(tmp_path.glob(".*filling*"))


def test_odd_files_of_weights_are_read_or_have_no_metadata(tmp_path):
    from safetensors.numpy import save

    _, theirs = converted(tmp_path)
    arrays = from_safetensors((theirs / "model.safetensors").read_bytes(), "")
    half = {name: array.astype(np.float16) for name, array in arrays.items()}
    (theirs / "model.safetensors").write_bytes(save(half, {"format": "pt"}))
    model, _ = load_classifier(str(theirs))
    weight = model.state_dict()["classifier.weight"]
    assert weight.dtype == paddle.float32
    assert np.array_equal(weight.numpy(), half["classifier.weight"].T.astype(np.float32))
    path = tmp_path / "model.safetensors"
    for content in (b"", b"\xff" * 20, io.BytesIO(b"\x02\0\0\0\0\0\0\0[]").getvalue()):
        path.write_bytes(content)
        assert read_metadata(path) == {}


@pytest.mark.parametrize("written", ["beside", "in config.json"])
def test_two_outputs_of_which_each_is_a_sigmoid_are_refused(tmp_path, written):
    sigmoid = "torch.nn.modules.activation.Sigmoid"
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 2}
    (tmp_path / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "CrossEncoder", "activation_fn": sigmoid if written == "beside" else None})
    )
    config.update({"sentence_transformers": {"activation_fn": sigmoid}} if written != "beside" else {})
    with pytest.raises(InputError, match="activation_fn .*Sigmoid.*2 of their own"):
        config_from_hf(with_cross_encoder(config, tmp_path), "config.json")


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "relu"}])
def test_an_ernie_without_tasks_is_written_as_a_bert(tmp_path, changes):
    """As text-embeddings-inference and infinity know it: vectors and logits are equal to the last bit."""
    ours, theirs = write_trained(tmp_path / "ours", **changes), tmp_path / "theirs"
    settings = EmbeddingSettings("mean", 32, (32,), 16, 0.05)
    (ours / "embedding.json").write_text(settings.to_json())
    convert_to_hugging_face(ToHuggingFaceConfig(str(ours), str(theirs), model_type="bert"))
    config = json.loads((theirs / "config.json").read_text())
    assert config["model_type"] == "bert" and config["architectures"][0].startswith("Bert")
    assert (
        config.get("hidden_act", "gelu") == changes.get("hidden_act", "gelu") and "use_task_id" not in config
    )
    names = read_weights(theirs / "model.safetensors")
    assert names and not any("ernie" in name or "task_type" in name for name in names)
    texts = [left for left, _ in random_texts(9)]
    vectors = [open_embedder(folder).embed(texts) for folder in (ours, theirs)]
    assert np.array_equal(*vectors)


@pytest.mark.parametrize("family, changes, said", [
    ("ernie", {"use_task_id": True}, "adds a task embedding"), ("electra", {}, "is a model of electra"),
])  # fmt: skip
def test_what_is_no_bert_is_not_written_as_one(tmp_path, family, changes, said):
    ours = write_trained(tmp_path / "ours", family, **changes)
    with pytest.raises(InputError, match=f"model_type bert: .*{said}, which no BERT does"):
        convert_to_hugging_face(ToHuggingFaceConfig(str(ours), str(tmp_path / "out"), model_type="bert"))
    assert not (tmp_path / "out").exists()
