"""This package and transformers agree on the same models: logits, hidden states and token ids."""

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddlenlp import transformers as paddlenlp_models
from their_models import (
    FAMILIES,
    IDS,
    IS_TEXT,
    MOST,
    OF_FAMILY,
    SIZES,
    TYPES,
    ask,
    load_there,
    logits_in,
    save,
    shapes_of,
    their_model,
    torch,
    transformers,
    write_ours,
    write_theirs,
)
from tiny_pair import VOCAB, write_model, write_pairs

from data_tools.text.wordpiece import WordPiece
from ernie_pair.models.hugging_face.counterparts import COUNTERPARTS
from ernie_pair.models.networks.classifier import build_classifier, load_classifier
from ernie_pair.models.source import open_model
from ernie_pair.pair.config.ask_config import EvaluateConfig
from ernie_pair.pretrain.convert.warm_start import read_start
from ernie_pair.pretrain.graph.model import CLASSES, encoder_of
from ernie_pair.score.evaluation.evaluate_pair import evaluate_pair

NAMES = Path(__file__).parents[1] / "ernie_pair" / "models" / "hugging_face_names.json"
OURS = {"nezha": {"use_relative_position": True}, "ernie_gram": {"embedding_size": 16}}
PRETRAINED = ("ernie", "ernie_gram", "bert")


def shake(model):
    paddle.seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.set_value(paddle.normal(0.5, 0.3, parameter.shape))
    model.eval()
    return model


def write_classifier(folder, family):
    """A classifier of this package with random weights; large enough to tell rows apart."""
    shape = {"hidden_act": "gelu", **SIZES, **OF_FAMILY.get(family, {}), **OURS.get(family, {})}
    shape = {**{key: value for key, value in shape.items() if key != "id2label"}, "num_labels": 3}
    if family == "distilbert":
        shape = {key: value for key, value in shape.items() if key not in OF_FAMILY[family]}
    write_model(folder.with_name(f"new-{family}"), model_type=family, **shape)
    source = open_model(str(folder.with_name(f"new-{family}")), model_type=family, from_scratch=True)
    folder.mkdir()
    shake(build_classifier(source, seed=7, dropout=0.1)).write(folder, source.vocab_file, 40)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stored_weight_names_match_transformers(family):
    assert json.loads(NAMES.read_text())[family] == shapes_of(their_model(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_transformers_classifier_gives_the_same_logits_in(tmp_path, family):
    model = their_model(family)
    expected = ask(model, IDS, TYPES).logits.numpy()
    assert np.ptp(expected, axis=0).min() > 1e-3, "rows cannot be told apart"
    folder = save(model, tmp_path / "theirs")
    assert np.abs(logits_in(folder) - expected).max() < MOST
    classifier, _ = load_classifier(str(folder))
    assert classifier.spec.labels.names == ("other", "same", "unsure")
    write_ours(folder, tmp_path / "ours")
    assert np.array_equal(logits_in(tmp_path / "ours"), logits_in(folder))


@pytest.mark.parametrize("family", COUNTERPARTS)
def test_our_classifier_gives_the_same_logits_in_transformers(tmp_path, family):
    folder = write_classifier(tmp_path / "ours", family)
    expected = logits_in(folder)
    assert np.ptp(expected, axis=0).min() > 1e-3, "rows cannot be told apart"
    write_theirs(folder, tmp_path / "theirs")
    model = load_there(tmp_path / "theirs")
    assert np.abs(ask(model, IDS, TYPES).logits.numpy() - expected).max() < MOST
    assert np.array_equal(logits_in(tmp_path / "theirs"), expected)


@pytest.mark.parametrize("family", COUNTERPARTS)
def test_a_round_trip_conversion_is_bit_identical(tmp_path, family):
    ours, theirs, back = (tmp_path / name for name in ("ours", "theirs", "back"))
    write_classifier(ours, family)
    write_theirs(ours, theirs)
    load_there(theirs).save_pretrained(tmp_path / "again")  # as transformers writes it
    transformers.AutoTokenizer.from_pretrained(theirs).save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "vocab.txt").write_bytes((theirs / "vocab.txt").read_bytes())
    write_ours(tmp_path / "again", back)
    sources = [open_model(str(folder), model_type="", from_scratch=False) for folder in (ours, back)]
    before, after = (source.read_weights() for source in sources)
    assert before.keys() == after.keys() and len(before) > 20
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert [source.spec.family for source in sources] == [family, family]
    peer = paddlenlp_models.AutoModelForSequenceClassification.from_pretrained(str(back))
    assert type(peer).__name__.startswith(COUNTERPARTS[family].own_class_start)


def write_pretrained(folder, family):
    of_bert = paddlenlp_models.BertConfig, paddlenlp_models.BertForPretraining
    config_class, model_class = CLASSES.get(family, of_bert)
    sizes = {key: value for key, value in SIZES.items() if key != "id2label"}
    activation = "relu" if family == "ernie" else "gelu"
    model = shake(model_class(config_class(**sizes, hidden_act=activation, embedding_size=16)))
    model.save_pretrained(str(folder))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    return model


def outputs_here(model):
    """The hidden states of the tokens that are not padding, and the logits of both heads."""
    with paddle.no_grad():
        asked = {"token_type_ids": paddle.to_tensor(TYPES)}
        states = encoder_of(model)(paddle.to_tensor(IDS), **asked)[0]
        words, order = model(paddle.to_tensor(IDS), **asked)[:2]
    return states.numpy()[IS_TEXT], words.numpy()[IS_TEXT], order.numpy()


@pytest.mark.parametrize("family", PRETRAINED)
def test_our_pretrained_model_outputs_match_in_transformers(tmp_path, family):
    model = write_pretrained(tmp_path / "ours", family)
    write_theirs(tmp_path / "ours", tmp_path / "theirs")
    peer = load_there(tmp_path / "theirs", "AutoModelForPreTraining")
    said = ask(peer, IDS, TYPES, output_hidden_states=True)
    states, words, order = outputs_here(model)
    assert np.abs(said.hidden_states[-1].numpy()[IS_TEXT] - states).max() < MOST
    assert np.abs(said.prediction_logits.numpy()[IS_TEXT] - words).max() < MOST
    assert np.abs(said.seq_relationship_logits.numpy() - order).max() < MOST
    write_ours(tmp_path / "theirs", tmp_path / "back")
    again = type(model).from_pretrained(str(tmp_path / "back"))
    again.eval()
    for before, after in zip((states, words, order), outputs_here(again)):
        assert np.array_equal(before, after)


@pytest.mark.parametrize("family", ["ernie", "bert"])
def test_transformers_pretrained_model_outputs_match_here(tmp_path, family):
    peer = their_model(family, "ForPreTraining", hidden_act="relu")
    folder = save(peer, tmp_path / "theirs")
    write_ours(folder, tmp_path / "ours")
    loaded = getattr(paddlenlp_models, f"{COUNTERPARTS[family].own_class_start}ForPretraining")
    model = loaded.from_pretrained(str(tmp_path / "ours"))
    model.eval()
    said = ask(peer, IDS, TYPES, output_hidden_states=True)
    states, words, order = outputs_here(model)
    assert np.abs(said.hidden_states[-1].numpy()[IS_TEXT] - states).max() < MOST
    assert np.abs(said.prediction_logits.numpy()[IS_TEXT] - words).max() < MOST
    assert np.abs(said.seq_relationship_logits.numpy() - order).max() < MOST


@pytest.mark.parametrize("kind", ["ForPreTraining", "ForMaskedLM", "Model"])
def test_pretraining_starts_from_transformers_weights(tmp_path, kind):
    peer = their_model("ernie", kind, hidden_act="relu", vocab_size=40)
    source = open_model(str(save(peer, tmp_path / "theirs")), model_type="ernie", from_scratch=False)
    config_class, model_class = CLASSES["ernie"]
    model = model_class(config_class.from_dict(source.spec.to_config()))
    parameters = model.state_dict()
    start = read_start(parameters, source)
    assert start.has_lm_head == (kind != "Model")
    for parameter in parameters.values():
        if parameter.name in start.arrays:
            parameter.set_value(start.arrays[parameter.name])
    model.eval()
    asked = ask(peer, IDS, TYPES, output_hidden_states=True)
    states, words, _ = outputs_here(model)
    assert np.abs(asked.hidden_states[-1].numpy()[IS_TEXT] - states).max() < MOST
    if start.has_lm_head:
        logits = asked.logits if kind == "ForMaskedLM" else asked.prediction_logits
        assert np.abs(logits.numpy()[IS_TEXT] - words).max() < MOST


@pytest.mark.parametrize("options", [{"max_shard_size": "8KB"}, {"safe_serialization": False}])
def test_sharded_and_pickled_torch_weights_are_read(tmp_path, options):
    model = their_model("bert")
    folder = save(model, tmp_path / "theirs", **options)
    assert not (folder / "model.safetensors").exists()
    assert np.abs(logits_in(folder) - ask(model, IDS, TYPES).logits.numpy()).max() < MOST


def test_non_contiguous_tensors_in_a_torch_pickle_are_read(tmp_path):
    model = their_model("bert")
    folder = save(model, tmp_path / "theirs")
    expected = logits_in(folder)
    state = model.state_dict()
    state["classifier.weight"] = state["classifier.weight"].t().contiguous().t()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert np.array_equal(logits_in(folder), expected)


def test_a_bfloat16_transformers_model_is_read(tmp_path):
    model = their_model("bert").to(torch.bfloat16)
    folder = save(model, tmp_path / "theirs")
    expected = ask(model.float(), IDS, TYPES).logits.numpy()
    assert np.abs(logits_in(folder) - expected).max() < MOST


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_transformers_tokenizer_gives_our_token_ids(tmp_path, lower_case):
    folder = write_classifier(tmp_path / "ours", "bert")
    settings = {"do_lower_case": lower_case, "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    write_theirs(folder, tmp_path / "theirs")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    ours = WordPiece(VOCAB, lower_case)
    rng = np.random.default_rng(0)
    letters = [*VOCAB[4:-1], *"abÉé ，。☆②\u3000\u200b\t"]
    texts = ["".join(rng.choice(letters, rng.integers(1, 20))) for _ in range(400)]
    assert [theirs(text, add_special_tokens=False)["input_ids"] for text in texts] == ours.encode_batch(texts)
    left, right = ours.encode(texts[0]), ours.encode(texts[1])
    pair = theirs(texts[0], texts[1])
    assert pair["input_ids"] == [ours.cls_id, *left, ours.sep_id, *right, ours.sep_id]
    assert pair["token_type_ids"] == [0] * (len(left) + 2) + [1] * (len(right) + 1)
    assert theirs.model_max_length == 40 and theirs.pad_token_id == ours.pad_id


def test_evaluation_reads_a_transformers_model_folder(tmp_path):
    model = their_model("bert", id2label={0: "0", 1: "1"}, label2id={"0": 0, "1": 1})
    folder = save(model, tmp_path / "theirs")
    pairs = write_pairs(tmp_path / "pairs.tsv", 40)
    evaluate_pair(EvaluateConfig(str(folder), str(pairs), str(tmp_path / "test.json"), device="cpu"))
    measured = json.loads((tmp_path / "test.json").read_text())
    tokenizer, right = WordPiece.from_file(folder / "vocab.txt"), 0
    for line in pairs.read_text(encoding="utf-8").splitlines():
        left, other, label = line.split("\t")
        a, b = tokenizer.encode(left), tokenizer.encode(other)
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
        types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        right += ask(model, np.array([ids]), np.array([types])).logits.argmax().item() == int(label)
    assert measured["accuracy"] == pytest.approx(right / 40)
