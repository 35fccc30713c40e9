"""This package and transformers agree on the same models, whatever their config.json states.

Logits, hidden states and token ids; epsilon, activation, token types, padding, heads.
"""

import json
from dataclasses import replace
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
    class_there,
    load_there,
    logits_in,
    logits_of,
    logits_there,
    padded_as,
    save,
    shapes_of,
    their_model,
    torch,
    transformers,
    write_ours,
    write_theirs,
)
from tiny_models import change
from tiny_pair import VOCAB, train_config, write_model, write_pairs

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.token_rows import SEPARATOR
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.families import FAMILIES as ALL_FAMILIES
from ernie_pair.models.families import with_counterpart
from ernie_pair.models.networks.classifier import build_classifier, load_classifier, load_initial_weights
from ernie_pair.models.networks.encoders import hidden_states
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.networks.text_encoder import build_text_encoder, load_text_weights
from ernie_pair.models.source import open_model
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.pairs.train.initial_model import open_initial_model
from ernie_pair.pretraining.convert.warm_start import read_start
from ernie_pair.pretraining.graph.model import CLASSES, encoder_of

NAMES = Path(__file__).parents[1] / "ernie_pair" / "models" / "hugging_face_names.json"
OURS = {"nezha": {"use_relative_position": True}, "ernie_gram": {"embedding_size": 16}}


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
def test_a_transformers_classifier_gives_the_same_logits_here(tmp_path, family):
    model = their_model(family)
    expected = logits_there(model)
    assert np.ptp(expected, axis=0).min() > 1e-3, "the logits of all rows are alike"
    folder = save(model, tmp_path / "theirs")
    assert np.abs(logits_in(folder) - expected).max() < MOST
    classifier, _ = load_classifier(str(folder))
    assert classifier.spec.labels.names == ("other", "same", "unsure")
    write_ours(folder, tmp_path / "ours")
    assert np.array_equal(logits_in(tmp_path / "ours"), logits_in(folder))


@pytest.mark.parametrize("family", with_counterpart())
def test_our_classifier_gives_the_same_logits_in_transformers(tmp_path, family):
    """And comes back bit-identical."""
    class_there(family)
    folder = write_classifier(tmp_path / "ours", family)
    expected = logits_in(folder)
    assert np.ptp(expected, axis=0).min() > 1e-3, "rows cannot be told apart"
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    write_theirs(folder, theirs)
    model = load_there(theirs)
    assert np.abs(logits_there(model) - expected).max() < MOST
    assert np.array_equal(logits_in(theirs), expected)
    model.save_pretrained(tmp_path / "again")  # as transformers writes it
    transformers.AutoTokenizer.from_pretrained(theirs).save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "vocab.txt").write_bytes((theirs / "vocab.txt").read_bytes())
    write_ours(tmp_path / "again", back)
    sources = [open_model(str(folder), model_type="", from_scratch=False) for folder in (folder, back)]
    before, after = (source.read_weights() for source in sources)
    assert before.keys() == after.keys() and len(before) > 20
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert [source.spec.family for source in sources] == [family, family]
    peer = paddlenlp_models.AutoModelForSequenceClassification.from_pretrained(str(back))
    assert type(peer).__name__.startswith(ALL_FAMILIES[family].class_start)


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
        ids, types = paddle.to_tensor(IDS), paddle.to_tensor(TYPES)
        states = encoder_of(model)(ids, token_type_ids=types)[0]
        words, order = model(ids, token_type_ids=types)[:2]
    return states.numpy()[IS_TEXT], words.numpy()[IS_TEXT], order.numpy()


def assert_same_outputs(peer, model, has_words=True, has_order=True):
    """Compare hidden states and the logits of both heads; return those of this package."""
    theirs = ask(peer, IDS, TYPES, output_hidden_states=True)
    states, words, order = outputs_here(model)
    assert np.abs(theirs.hidden_states[-1].numpy()[IS_TEXT] - states).max() < MOST
    if has_words:
        logits = theirs.prediction_logits if "prediction_logits" in theirs else theirs.logits
        assert np.abs(logits.numpy()[IS_TEXT] - words).max() < MOST
    if has_order:
        assert np.abs(theirs.seq_relationship_logits.numpy() - order).max() < MOST
    return states, words, order


@pytest.mark.parametrize("family", ["ernie", "ernie_gram", "bert"])
def test_our_pretrained_model_outputs_match_in_transformers(tmp_path, family):
    model = write_pretrained(tmp_path / "ours", family)
    write_theirs(tmp_path / "ours", tmp_path / "theirs")
    peer = load_there(tmp_path / "theirs", "AutoModelForPreTraining")
    outputs = assert_same_outputs(peer, model)
    write_ours(tmp_path / "theirs", tmp_path / "back")
    again = type(model).from_pretrained(str(tmp_path / "back"))
    again.eval()
    for before, after in zip(outputs, outputs_here(again)):
        assert np.array_equal(before, after)


@pytest.mark.parametrize("family", ["ernie", "bert"])
def test_transformers_pretrained_model_outputs_match_here(tmp_path, family):
    peer = their_model(family, "ForPreTraining", hidden_act="relu")
    folder = save(peer, tmp_path / "theirs")
    write_ours(folder, tmp_path / "ours")
    loaded = getattr(paddlenlp_models, f"{ALL_FAMILIES[family].class_start}ForPretraining")
    model = loaded.from_pretrained(str(tmp_path / "ours"))
    model.eval()
    assert_same_outputs(peer, model)


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
    assert_same_outputs(peer, model, has_words=start.has_lm_head, has_order=False)


@pytest.mark.parametrize("options", [{"max_shard_size": "8KB"}, {"safe_serialization": False}])
def test_sharded_and_pickled_torch_weights_are_read(tmp_path, options):
    model = their_model("bert")
    folder = save(model, tmp_path / "theirs", **options)
    if (folder / "model.safetensors").exists():
        pytest.skip(f"transformers {transformers.__version__} only writes safetensors")
    assert np.abs(logits_in(folder) - logits_there(model)).max() < MOST


def test_non_contiguous_tensors_in_a_torch_pickle_are_read(tmp_path):
    model = their_model("bert")
    folder = save(model, tmp_path / "theirs")
    expected = logits_in(folder)
    state = model.state_dict()
    state["classifier.weight"] = state["classifier.weight"].t().contiguous().t()
    write_pickle(folder, "", state)
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


EPSILON = 1e-3  # the most that Paddle's layer norm takes
OF_NO_POOLER = ("roberta", "xlm_roberta", "electra", "distilbert")
WITH_EPSILON = [family for family in FAMILIES if family != "distilbert"]
NEW_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python")


def states_of(model):
    """The hidden states of all tokens that are text, and the pooled output or None."""
    with paddle.no_grad():
        ids = paddle.to_tensor(padded_as(IDS, model.pad_id))
        states, pooled = hidden_states(model.spec, model.encoder, ids, paddle.to_tensor(TYPES))
    return states.numpy()[IS_TEXT], None if pooled is None else pooled.numpy()


def difference(folder, model):
    """The largest difference of hidden states, pooled output and logits from those of transformers."""
    ours, _ = load_classifier(str(folder))
    said = ask(model, IDS, TYPES, output_hidden_states=True)
    states, pooled = states_of(ours)
    found = [states - said.hidden_states[-1].numpy()[IS_TEXT], logits_of(ours) - said.logits.numpy()]
    if model.config.model_type not in OF_NO_POOLER and pooled is not None:
        found.append(pooled - ask(model.base_model, IDS, TYPES).pooler_output.numpy())
    return max(np.abs(part).max() for part in found)


def new_classifier(folder):
    source = open_model(str(folder), model_type="", from_scratch=False)
    model = build_classifier(source, seed=0, dropout=0.0)
    load_initial_weights(model, source)
    return model, source


def encoder_in(folder):
    source = open_model(str(folder), model_type="", from_scratch=False)
    encoder = build_text_encoder(source, 0, None)
    load_text_weights(encoder, source)
    encoder.eval()
    return encoder


def retrained(folder, into):
    """The folder that a training run would write which starts from ``folder``, without a step."""
    model, source = new_classifier(folder)
    into.mkdir()
    model.write(into, source.vocab_file)
    return into


@pytest.mark.parametrize("family", WITH_EPSILON)
def test_any_epsilon_is_computed_kept_and_written(tmp_path, family):
    model = their_model(family, layer_norm_eps=EPSILON)
    folder = save(model, tmp_path / "theirs")
    assert difference(folder, model) < MOST
    trained = retrained(folder, tmp_path / "trained")
    expected = logits_in(folder)
    usual = logits_in(save(their_model(family), tmp_path / "usual"))
    assert np.abs(usual - expected).max() > 5 * MOST
    assert np.array_equal(logits_in(trained), expected)
    write_theirs(trained, tmp_path / "back")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    assert again.config.layer_norm_eps == EPSILON
    assert np.abs(logits_there(again) - expected).max() < MOST


@pytest.mark.parametrize("family", ["ernie", "nezha"])
def test_paddlenlp_opens_no_trained_folder_of_another_epsilon(tmp_path, family):
    folder = save(their_model(family, layer_norm_eps=EPSILON), tmp_path / "theirs")
    trained = retrained(folder, tmp_path / "trained")
    with pytest.raises(AttributeError, match="Unable to parse 'architectures'"):
        paddlenlp_models.AutoModelForSequenceClassification.from_pretrained(str(trained))


def test_an_ernie_of_another_epsilon_becomes_a_paddlenlp_bert(tmp_path):
    model = their_model("ernie", layer_norm_eps=EPSILON)
    folder = save(model, tmp_path / "theirs")
    write_ours(folder, tmp_path / "ours")
    peer = paddlenlp_models.AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "ours"))
    peer.eval()
    assert type(peer).__name__ == "BertForSequenceClassification"
    with paddle.no_grad():
        logits = peer(paddle.to_tensor(IDS), paddle.to_tensor(TYPES)).numpy()
    assert np.abs(logits - logits_there(model)).max() < MOST
    assert difference(tmp_path / "ours", model) < MOST


@pytest.mark.parametrize("family, changes", [("ernie", {"use_task_id": True}), ("nezha", {})])
def test_an_epsilon_that_paddlenlp_lacks_is_not_converted(tmp_path, family, changes):
    folder = save(their_model(family, layer_norm_eps=EPSILON, **changes), tmp_path / "theirs")
    with pytest.raises(InputError, match="layer_norm_eps is 0.001, and PaddleNLP's class of"):
        write_ours(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_task_embeddings_are_those_of_transformers(tmp_path):
    model = their_model("ernie", use_task_id=True, task_type_vocab_size=5, layer_norm_eps=1e-5)
    folder = save(model, tmp_path / "with")
    assert difference(folder, model) < MOST
    change(folder / "config.json", use_task_id=False)
    without = transformers.ErnieForSequenceClassification.from_pretrained(folder).eval()
    assert difference(folder, without) < MOST


@pytest.mark.parametrize("epsilon", [1e-5, EPSILON])
@pytest.mark.parametrize("family", ["ernie", "xlm_roberta"])
def test_the_fused_kernels_compute_the_stated_epsilon(tmp_path, family, epsilon):
    model = their_model(family, layer_norm_eps=epsilon)
    ours, _ = load_classifier(str(save(model, tmp_path / "theirs")))
    assert choose_path(ours, KernelFlags(kernels="fused"), "cpu").is_fused
    assert np.abs(logits_of(ours) - logits_there(model)).max() < MOST


@pytest.mark.parametrize("activation", NEW_GELU)
@pytest.mark.parametrize("family", ["ernie", "bert", "xlm_roberta", "albert", "nezha", "megatronbert"])
def test_each_form_of_gelu_is_computed(tmp_path, family, activation):
    if family == "ernie" and activation == "gelu_fast":
        pytest.skip("transformers' own names are enough once")
    model = their_model(family, hidden_act=activation, initializer_range=1.0)
    assert difference(save(model, tmp_path / "theirs"), model) < MOST


@pytest.mark.parametrize("family", ["roberta", "xlm_roberta"])
@pytest.mark.parametrize("types", [1, 2])
@pytest.mark.parametrize("pad_id", [0, 1])
def test_roberta_of_one_and_two_token_types(tmp_path, family, types, pad_id):
    model = their_model(family, type_vocab_size=types, pad_token_id=pad_id)
    folder = save(model, tmp_path / "theirs")
    assert difference(folder, model) < MOST
    spec = load_classifier(str(folder))[0].spec
    assert (spec.max_positions, spec.token_types, spec.pad_id) == (63 - pad_id, types, pad_id)


@pytest.mark.parametrize("family", ["roberta", "xlm_roberta"])
def test_the_defaults_of_roberta_are_those_of_transformers(tmp_path, family):
    model = their_model(family, pad_token_id=1)
    folder = save(model, tmp_path / "theirs")
    change(folder / "config.json", pad_token_id=None, layer_norm_eps=None, hidden_act=None)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert difference(folder, theirs) < MOST


@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("family", ["roberta", "xlm_roberta", "bert", "ernie", "electra", "albert"])
def test_an_encoder_is_read_whatever_head_it_has(tmp_path, family, kind):
    model = their_model(family, kind)
    folder = save(model, tmp_path / "theirs")
    states = ask(model, IDS, TYPES, output_hidden_states=True).hidden_states[-1].numpy()[IS_TEXT]
    classifier, _ = new_classifier(folder)
    classifier.eval()
    for ours in (classifier, encoder_in(folder)):
        assert np.abs(states_of(ours)[0] - states).max() < MOST


def write_pickle(folder, prefix, state):
    (folder / "model.safetensors").unlink()
    torch.save({f"{prefix}{name}": value for name, value in state.items()}, folder / "pytorch_model.bin")


@pytest.mark.parametrize("prefix", ["module.", "model.", "encoder.", "_orig_mod.", "roberta."])
def test_weights_under_another_prefix_are_read(tmp_path, prefix):
    model = their_model("xlm_roberta", "Model")
    folder = save(model, tmp_path / "theirs")
    write_pickle(folder, prefix, {**model.state_dict(), "embeddings.position_ids": torch.arange(64)[None]})
    encoder = encoder_in(folder)
    said = ask(model, IDS, TYPES).last_hidden_state.numpy()[IS_TEXT]
    assert np.abs(states_of(encoder)[0] - said).max() < MOST


@pytest.mark.parametrize("family", ["bert", "xlm_roberta"])
def test_a_classifier_saved_by_data_parallel_is_read(tmp_path, family):
    model = their_model(family)
    folder = save(model, tmp_path / "theirs")
    write_pickle(folder, "module.", model.state_dict())
    assert difference(folder, model) < MOST


def test_a_bert_without_pooler_is_read_as_an_encoder(tmp_path):
    model = transformers.BertModel(their_model("bert", "Model").config, add_pooling_layer=False).eval()
    folder = save(model, tmp_path / "theirs")
    encoder = encoder_in(folder)
    said = ask(model, IDS, TYPES).last_hidden_state.numpy()[IS_TEXT]
    assert np.abs(states_of(encoder)[0] - said).max() < MOST
    write_ours(folder, tmp_path / "ours")


def test_a_head_of_another_size_is_refused_in_one_line(tmp_path):
    folder = save(their_model("xlm_roberta"), tmp_path / "theirs")
    change(folder / "config.json", id2label={"0": "no", "1": "yes"}, label2id=None)
    with pytest.raises(CheckpointError, match="out_proj.weight .*3.* instead of .*2") as caught:
        load_classifier(str(folder))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("kind", ["Model", "ForSequenceClassification"])
def test_xlm_roberta_goes_to_paddlenlp_and_back(tmp_path, kind):
    model = their_model("xlm_roberta", kind)
    folder = save(model, tmp_path / "theirs")
    write_ours(folder, tmp_path / "ours")
    opened = (
        paddlenlp_models.AutoModelForSequenceClassification if kind != "Model" else paddlenlp_models.AutoModel
    )
    peer = opened.from_pretrained(str(tmp_path / "ours"))
    peer.eval()
    with paddle.no_grad():
        ids = paddle.to_tensor(padded_as(IDS, 1))
        found = peer(ids) if kind != "Model" else peer(ids)[0][paddle.to_tensor(IS_TEXT)]
    said = ask(model, IDS, TYPES)
    expected = said.logits.numpy() if kind != "Model" else said.last_hidden_state.numpy()[IS_TEXT]
    assert np.abs(found.numpy() - expected).max() < MOST
    write_theirs(tmp_path / "ours", tmp_path / "back")
    back = type(model).from_pretrained(tmp_path / "back").eval()
    for name, value in model.state_dict().items():
        assert torch.equal(value, back.state_dict()[name]), name


IDENTITY = "torch.nn.modules.linear.Identity"
RERANKERS = [("xlm_roberta", {}), ("bert", {"sbert_ce_default_activation_function": IDENTITY})]


def reranker(folder, family, changes):
    """A model of one output and its folder, with ``changes`` in config.json."""
    model = their_model(family, id2label={0: "LABEL_0"}, label2id={"LABEL_0": 0}, initializer_range=0.2)
    for name, parameter in model.named_parameters():
        if "classifier" in name and parameter.ndim == 2:
            torch.nn.init.normal_(parameter, 0, 3)
    of_head = [parameter for name, parameter in model.named_parameters() if "classifier" in name]
    bias = [parameter for parameter in of_head if parameter.ndim == 1][-1]
    bias.data -= ask(model, IDS, TYPES).logits.mean()  # where the sigmoid is steep
    save(model, folder)
    change(folder / "config.json", **changes)
    return model, ask(model, IDS, TYPES).logits


@pytest.mark.parametrize("family, changes", RERANKERS)
def test_a_reranker_gives_the_scores_of_cross_encoder(tmp_path, family, changes):
    model, logits = reranker(tmp_path / "theirs", family, changes)
    expected = logits.numpy() if changes else torch.sigmoid(logits).numpy()
    assert np.ptp(expected) > 1e-3
    ours, _ = load_classifier(str(tmp_path / "theirs"))
    assert np.abs(logits_of(ours) - expected).max() < MOST
    for number, backend in enumerate(("onnx", "paddle")):
        shipped = str(tmp_path / f"shipped{number}")
        export_pair(ExportConfig(str(tmp_path / "theirs"), shipped, format=backend))
        predictor = PairPredictor(shipped, backend)
        found = predictor.logits_of_ids(padded_as(IDS, ours.pad_id), TYPES)
        assert np.abs(found - expected).max() < MOST
        scores = predictor.score([("我", "你"), ("他", "我")])
        scorer = load(str(tmp_path / "theirs"), "cpu", 0)
        score, unit = scorer.score, scorer.unit
        assert np.abs(score([("我", "你"), ("他", "我")]) - scores).max() < MOST
        assert unit == predictor.unit
    trained = retrained(tmp_path / "theirs", tmp_path / "trained")
    assert np.array_equal(logits_in(trained), logits_of(ours))
    write_theirs(trained, tmp_path / "back")
    stated = json.loads((tmp_path / "back" / "config.json").read_text())["sentence_transformers"]
    assert stated["activation_fn"].endswith("Identity" if changes else "Sigmoid")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    assert np.abs((ask(again, IDS, TYPES).logits - logits).numpy()).max() < MOST
    assert np.array_equal(logits_in(tmp_path / "back"), logits_of(ours))


def test_cross_encoders_own_file_of_version_6_is_obeyed(tmp_path):
    _, logits = reranker(tmp_path / "theirs", "bert", {})
    about = {"model_type": "CrossEncoder", "activation_fn": IDENTITY, "prompts": {}}
    beside = tmp_path / "theirs" / "config_sentence_transformers.json"
    beside.write_text(json.dumps({**about, "default_prompt_name": None}))
    ours, _ = load_classifier(str(tmp_path / "theirs"))
    assert np.abs(logits_of(ours) - logits.numpy()).max() < MOST
    beside.write_text(json.dumps({**about, "default_prompt_name": "query"}))
    with pytest.raises(InputError, match='default_prompt_name is "query"'):
        load_classifier(str(tmp_path / "theirs"))


@pytest.mark.parametrize("target, activation", [("regression", "sigmoid"), ("ranking", "")])
def test_training_begins_from_the_head_of_a_reranker(tmp_path, target, activation):
    reranker(tmp_path / "theirs", "xlm_roberta", {})
    config = replace(train_config(tmp_path, target=target), model_type=None, from_scratch=False)
    start = open_initial_model(config, str(tmp_path / "theirs"))
    assert "with its classifier" in start.beginning
    assert start.model.spec.labels.activation == activation


def test_two_separators_between_texts_mean_one_token_type(tmp_path):
    """As RoBERTa's own tokenizer gives them; the separator before the second text is segment 2 here."""
    model = their_model("roberta", pad_token_id=1)
    ours, _ = load_classifier(str(save(model, tmp_path / "theirs")))
    segments = TYPES.copy()
    segments[:, 4] = SEPARATOR
    with paddle.no_grad():
        found = ours(paddle.to_tensor(padded_as(IDS, 1)), paddle.to_tensor(segments)).numpy()
    assert np.abs(found - ask(model, IDS, TYPES * 0).logits.numpy()).max() < MOST
    assert np.abs(logits_of(ours) - found).max() > 10 * MOST
