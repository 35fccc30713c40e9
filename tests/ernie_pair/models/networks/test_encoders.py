"""Every encoder that the pair classifier supports, compared with PaddleNLP's classifier and tokenizer."""

import json
import unicodedata

import numpy as np
import paddle
import pytest
from paddlenlp import transformers
from paddlenlp.transformers import AutoModelForSequenceClassification, AutoTokenizer
from tiny_pair import VOCAB, train_config, write_model, write_new

from data_tools.text.characters import category
from ernie_pair.core.errors import InputError
from ernie_pair.deployment.export_pair import ExportConfig, export_pair
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.token_rows import encode_texts, open_tokenizer
from ernie_pair.models import source as model_source
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.networks.classifier import build_classifier as new_classifier
from ernie_pair.models.networks.classifier import load_classifier, load_initial_weights
from ernie_pair.models.source import open_model, tokenizer_class
from ernie_pair.models.spec import parse_spec, read_spec
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.pretraining.graph.model import ernie_config
from ernie_pair.runtime.device import quiet_libraries

quiet_libraries()
IDS = np.array([[1, 5, 6, 2, 7, 8, 2], [1, 9, 2, 4, 2, 0, 0], [1, 12, 13, 14, 2, 15, 2]])
TYPES = np.array([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1]])
POOLINGS = ("cls", "mean")
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}  # PaddleNLP runs the last layer on all tokens, ours on the first


@pytest.fixture
def make(tmp_path):
    def fresh(family, pooling="cls", dropout=0.1):
        folder = tmp_path / f"new-{family}"
        if not folder.exists():
            write_new(folder, family)
        source = open_model(str(folder), model_type=family, from_scratch=True)
        return new_classifier(source, 7, dropout, pooling)

    def saved(model, name="saved", max_seq_len=0):
        folder = tmp_path / name
        folder.mkdir()
        model.write(folder, tmp_path / f"new-{model.family}" / "vocab.txt", max_seq_len)
        return folder

    fresh.saved = saved
    return fresh


def logits_of(model, ids=IDS, types=TYPES):
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(ids), paddle.to_tensor(types)).numpy()


def asked_of(family, ids=IDS, types=TYPES):
    """What PaddleNLP's model takes beside ids, with its tokenizer's mask if the model takes that."""
    way, asked = FAMILIES[family], {}
    if way.takes_types:
        asked["token_type_ids"] = paddle.to_tensor(types)
    if not way.takes_added_mask:
        asked["attention_mask"] = paddle.to_tensor((ids != 0).astype("float32"))
    return asked


def logits_of_peer(peer, family):
    peer.eval()
    with paddle.no_grad():
        answer = peer(paddle.to_tensor(IDS), **asked_of(family))
    return (answer[0] if isinstance(answer, tuple) else answer).numpy()


def peer_of(family, kind, settings):
    peer_class = getattr(transformers, FAMILIES[family].class_start + kind)
    return peer_class(peer_class.config_class.from_dict(dict(settings)))


def save_peer(peer, folder):
    peer.save_pretrained(str(folder))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokenizer_are_those_of_paddlenlp(make, tmp_path, family):
    model = make(family)
    folder = make.saved(model, max_seq_len=24)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    assert tokenizer("今天", "你好")["input_ids"] == [1, 10, 11, 2, 5, VOCAB.index("好"), 2]
    spec = read_spec(folder / "config.json", folder / "vocab.txt")
    assert tokenizer.model_max_length == spec.trained_length == spec.inference_length == 24
    peer = AutoModelForSequenceClassification.from_pretrained(str(folder))
    assert type(peer).__name__ == f"{FAMILIES[family].class_start}ForSequenceClassification"
    shapes = {name: value.shape for name, value in peer.state_dict().items()}
    assert {name: value.shape for name, value in model.state_dict().items()} == shapes
    expected = logits_of_peer(peer, family)
    assert np.ptp(expected, axis=0).min() > 1e-3, "rows cannot be told apart"
    np.testing.assert_allclose(logits_of(model), expected, **ROUNDING)
    np.testing.assert_allclose(logits_of(load_classifier(str(folder))[0]), expected, **ROUNDING)
    peer = peer_of(family, "ForSequenceClassification", model.spec.config)
    ours, _ = load_classifier(str(save_peer(peer, tmp_path / "theirs")))
    np.testing.assert_allclose(logits_of(ours), logits_of_peer(peer, family), **ROUNDING)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_can_start_from_a_bare_encoder(make, tmp_path, family, pooling):
    model = make(family, pooling)
    peer = peer_of(family, "Model", model.spec.config)
    source = open_model(str(save_peer(peer, tmp_path / "encoder")), model_type=family, from_scratch=False)
    head = {name: value.numpy() for name, value in model.classifier.state_dict().items()}
    assert "the classifier is new" in load_initial_weights(model, source)
    ours, theirs = model.encoder.state_dict(), peer.state_dict()
    assert all(np.array_equal(value.numpy(), theirs[name].numpy()) for name, value in ours.items())
    assert all(np.array_equal(model.classifier.state_dict()[name].numpy(), head[name]) for name in head)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_are_of_both_texts_alone(make, family, pooling):
    """Padding and other rows have no part in them."""
    model = make(family, pooling, dropout=0.0)
    model.train()
    model(paddle.to_tensor(IDS), paddle.to_tensor(TYPES)).square().sum().backward()
    without = [n for n, p in model.named_parameters() if not p.stop_gradient and p.grad is None]
    assert not without  # or DataParallel would wait for them
    logits = logits_of(model)
    swapped = logits_of(model, IDS[:1, [0, 4, 5, 3, 1, 2, 6]], TYPES[:1])
    assert np.abs(logits[:1] - swapped).max() > 1e-4
    alone = logits_of(model, IDS[1:2, :5], TYPES[1:2, :5])
    assert np.abs(logits[1] - alone).max() < 1e-5
    longer = np.pad(IDS, [(0, 0), (0, 6)]), np.pad(TYPES, [(0, 0), (0, 6)])
    assert np.abs(logits_of(model, *longer) - logits).max() < 1e-5


def test_relative_positions_unused_by_paddlenlp_do_not_train(tmp_path):
    folder = write_model(tmp_path / "m", rel_pos_size=8)
    source = open_model(str(folder), model_type="ernie_gram", from_scratch=True)
    model = new_classifier(source, 0, 0.0)
    idle = [name for name, parameter in model.named_parameters() if parameter.stop_gradient]
    assert idle == ["ernie_gram.embeddings.rel_pos_embeddings.weight"]


@pytest.mark.parametrize("family", FAMILIES)
def test_mean_pooling_is_saved_and_paddlenlp_refuses_it(make, family):
    """Whatever its folder is called: without a class, PaddleNLP would guess one from that name."""
    model = make(family, "mean")
    folder = make.saved(model, f"my_{family}_ernie_bert")
    model.eval()
    states = model.encoder(paddle.to_tensor(IDS), **asked_of(family))
    states = (states[0] if FAMILIES[family].gives_pooled else states).numpy()
    means = np.stack([row[kept].mean(axis=0) for row, kept in zip(states, IDS != 0)])
    expected = means @ model.classifier.weight.numpy() + model.classifier.bias.numpy()
    assert np.abs(logits_of(model) - expected).max() < 1e-4
    again, _ = load_classifier(str(folder))
    assert again.pooling == "mean" and np.array_equal(logits_of(again), logits_of(model))
    assert json.loads((folder / "config.json").read_text())["pooling"] == "mean"
    with pytest.raises(AttributeError, match="Unable to parse 'architectures'"):
        AutoModelForSequenceClassification.from_pretrained(str(folder))


def test_mean_pooling_warns_that_paddlenlp_cannot_load_it(tmp_path, capfd):
    train_pair(train_config(tmp_path, pooling="mean", max_steps=1))
    assert "load in ernie-pair alone, and not in PaddleNLP's AutoModelForSeq" in capfd.readouterr().err


@pytest.mark.parametrize("family", ["ernie_gram", "electra"])
def test_changing_the_pooling_starts_a_new_classifier(make, family):
    others = [("cls", "mean"), ("mean", "cls"), ("cls", "cosine"), ("cosine", "mean"), ("cosine", "cls")]
    for one, other in others:
        first, second = make(family, one), make(family, other)
        for parameter in first.classifier.parameters():
            parameter.set_value(parameter + 1)
        folder = make.saved(first, f"{one}-{other}")
        source = open_model(str(folder), model_type=family, from_scratch=False)
        head = {name: value.numpy() for name, value in second.classifier.state_dict().items()}
        assert "the classifier is new" in load_initial_weights(second, source)
        assert all(np.array_equal(second.classifier.state_dict()[name].numpy(), head[name]) for name in head)
        states = (m.encoder.embeddings.word_embeddings.weight.numpy() for m in (first, second))
        assert np.array_equal(*states)


@pytest.mark.parametrize(
    "family, pooling", [("bert", "mean"), ("electra", "cls"), ("nezha", "mean"), ("distilbert", "cls")]
)
@pytest.mark.parametrize("format", ["paddle", "onnx"])
def test_an_exported_model_gives_the_same_logits(make, tmp_path, capfd, family, pooling, format):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    folder = make.saved(make(family, pooling), max_seq_len=24)
    export_pair(ExportConfig(str(folder), str(tmp_path / "ship"), format))
    predictor = PairPredictor(tmp_path / "ship", format)
    assert predictor.exported.max_seq_len == 24
    pairs = [("今天好", "你坏"), ("我他她" * 9, "多少上下"), ("好", "好")]
    model, vocab_file = load_classifier(str(folder))
    tokenizer = open_tokenizer(vocab_file, model.spec, 24)
    batch = encode_texts(*zip(*pairs), None, tokenizer, 24).batch(np.arange(3))
    assert np.abs(predictor.logits(pairs) - logits_of(model, *batch[:2])).max() < 1e-4


CASED = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "a", "É", "é", "e", "##É", "##é", "##e", "##a",
    "##A", "o", "##o", "ø", "Ø", "中", "国", "豈", "!", "，", "µ", "²", "##\u0301", "\u0301", "ß", "ss",
    "Ŋ", "ŋ", "Ʊ", "ʊ", "q", "##q", "Q", "##Q", "ⓐ", "Ⓐ", "ｑ", "Ｑ", "##ø", "##Ø", "İ", "i", "##i",
]  # fmt: skip
TEXTS = [
    "Aéa É 中国Qq!", "ØøaØ，ŋŊ Ʊʊ", "a\u0301Q²µ", "ß ẞ ﬁ İi", "豈Ⓐⓐ Ｑｑ", "A\u200ba\u00adÉ", "", " \t\n",
    "é" * 120, "𝅘𝅥 Q🙂A", "A\U000e0100a \U000e0100", "a\ufffdA\x00q", "Q\u2028a\x85q\x1cA",
    "\u0301 A\u0301q",
]  # fmt: skip


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_token_ids_match_the_paddlenlp_tokenizer(tmp_path, family, lower_case):
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in CASED), encoding="utf-8")
    spec = parse_spec({"vocab_size": len(CASED)}, {"do_lower_case": lower_case})
    theirs = tokenizer_class(family)(str(path), do_lower_case=lower_case)
    tokenizer = open_tokenizer(path, spec, 64)
    for text in TEXTS:
        expected = theirs.convert_tokens_to_ids(theirs.tokenize(text))
        assert tokenizer.encode(text) == expected, text


def test_cased_token_ids_match_for_all_kinds_of_characters(tmp_path):
    characters = sorted({chr(point) for point in range(33, 0x2100)} - set("\x85\u2028\u2029"))
    tokens = [*CASED[:5], *(c for c in characters if not c.isspace()), *("##" + c for c in characters)]
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    theirs = transformers.BertTokenizer(str(path), do_lower_case=False)
    tokenizer = open_tokenizer(path, parse_spec({"vocab_size": len(tokens)}, {"do_lower_case": False}), 64)
    for point in [*range(0x2100), *range(0x2100, 0x110000, 499), *range(0xE00F0, 0xE0200, 7)]:
        # PaddleNLP asks this Python.
        is_same_here = unicodedata.category(chr(point)) == category(chr(point))
        if is_same_here and not 0xD800 <= point < 0xE000:
            text = f"a{chr(point)}B 中{chr(point)}\u0316"
            expected = theirs.convert_tokens_to_ids(theirs.tokenize(text))
            assert tokenizer.encode(text) == expected, hex(point)


def test_cased_and_uncased_tokenizers_have_different_hashes(tmp_path):
    folder = write_new(tmp_path / "m", "bert")
    files = folder / "config.json", folder / "vocab.txt"
    uncased = open_tokenizer(files[1], read_spec(*files), 64).sha256
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert open_tokenizer(files[1], read_spec(*files), 64).sha256 != uncased  # encoded rows are cached by it


def test_a_cased_model_stays_cased_through_training_and_export(tmp_path, capfd):
    folder, saved = write_new(tmp_path / "m", "bert", do_lower_case=False), tmp_path / "saved"
    source = open_model(str(folder), model_type="bert", from_scratch=True)
    saved.mkdir()
    new_classifier(source, 0, 0.0).write(saved, source.vocab_file, 16)
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 16}
    assert json.loads((saved / "tokenizer_config.json").read_text()) == settings
    export_pair(ExportConfig(str(saved), str(tmp_path / "ship")))
    assert not PairPredictor(tmp_path / "ship", "paddle").tokenizer.lower_case


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"use_jieba": True}, "use_jieba is true"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is false"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is false"),
        ({"strip_accents": False}, "strip_accents is false"),
        ({"tokenizer_class": "ErnieTinyTokenizer"}, 'tokenizer_class is "ErnieTinyTokenizer"'),
        ({"do_lower_case": "yes"}, 'do_lower_case is "yes"; write true or false'),
        ([], "1: a list instead of a JSON object"),
    ],
)
def test_unsupported_tokenizer_settings_are_refused(tmp_path, settings, reason):
    folder = write_new(tmp_path / "m", "roformer")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=reason) as caught:
        read_spec(folder / "config.json", folder / "vocab.txt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"model_type": "gpt"}, {"model_type": "ernie_m"}, {"architectures": ["ErnieMModel"]}]
)
def test_a_model_without_word_pieces_is_refused_with_advice(tmp_path, changes):
    folder = write_model(tmp_path / "m", **changes)
    with pytest.raises(InputError, match="is not supported; give a model of one of these: albert, .*ernie, "):
        open_model(str(folder), model_type="", from_scratch=True)
    bert = {"architectures": ["BertForMaskedLM"]}
    named = [parse_spec({"vocab_size": 9, **one}) for one in (changes, bert)]
    assert [(spec.family, bool(spec.unknown_family)) for spec in named] == [("", True), ("bert", False)]


def test_pretraining_accepts_an_ernie_and_a_bert_in_lower_case(make, tmp_path):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    assert ernie_config(make("bert").spec, **rates).model_type == "bert"
    with pytest.raises(InputError, match="electra cannot be pretrained here; give a model of model_type"):
        ernie_config(make("electra").spec, **rates)
    write_new(tmp_path / "cased", "ernie", do_lower_case=False)
    model_source.check_lower_case(open_model(str(tmp_path / "new-bert"), model_type="", from_scratch=True))
    with pytest.raises(InputError, match="keeps case .*; give another model"):
        model_source.check_lower_case(
            open_model(str(tmp_path / "cased"), model_type="ernie", from_scratch=True)
        )


@pytest.mark.parametrize(
    "name, family, is_cased",
    [
        ("bert-base-chinese", "bert", True),
        ("bert-base-uncased", "bert", False),
        ("hfl/roberta-wwm-ext", "roberta", False),
        ("nezha-base-chinese", "nezha", True),
        ("albert-chinese-tiny", "albert", True),
        ("roformer-chinese-char-base", "roformer", False),
        ("ppminilm-6l-768h", "ppminilm", False),
        ("ernie-health-chinese", "electra", False),
        ("ernie-2.0-base-zh", "ernie", False),
        ("ernie-3.0-nano-zh", "ernie", False),
        ("ernie-gram-zh", "ernie_gram", False),
    ],
)
def test_a_built_in_name_sets_the_family_and_the_casing(monkeypatch, tmp_path, name, family, is_cased):
    def download(name, address, *others):
        path = tmp_path / address.rsplit("/", 1)[-1]
        path.write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
        return path

    monkeypatch.setattr(model_source, "_download", download)
    source = open_model(name, model_type="", from_scratch=False)
    assert source.spec.family == family and source.weights is not None
    assert ("use_task_id" in source.spec.config) == ("3.0" in name)
    assert open_tokenizer(source.vocab_file, source.spec, 64).lower_case is not is_cased


@pytest.mark.parametrize(
    "name, reason",
    [
        ("ernie-tiny", "has no word pieces or no weights; give another model"),
        ("roformer-chinese-base", "use_jieba is true"),
        ("albert-base-v1", "has no word pieces"),
        ("gpt2-en", "neither a folder nor a built-in ernie model"),
        ("hfl/absent", "is not a folder"),
    ],
)
def test_an_unsupported_built_in_name_is_refused(name, reason):
    with pytest.raises(InputError, match=reason) as caught:
        open_model(name, model_type="", from_scratch=False)
    told = caught.value.message.partition("; fetch its folder")[0]
    assert "--" not in told  # a path has another flag in every command


def test_a_built_in_name_of_another_family_names_it():
    with pytest.raises(InputError, match="nor a built-in ernie model .*; pass model_type ernie_gram"):
        open_model("ernie-gram-zh", model_type="ernie", from_scratch=True)


@pytest.mark.parametrize("family, most", [("ernie", 40), ("roberta", 39), ("nezha", 40)])
def test_max_seq_len_above_the_model_positions_is_refused(make, tmp_path, family, most):
    write_new(tmp_path / f"new-{family}", family, max_position_embeddings=40)
    model = make(family)
    assert model.spec.max_positions == most
    ids = np.full((1, most), 5)
    assert np.isfinite(logits_of(model, ids, np.zeros_like(ids))).all()
    with pytest.raises(InputError, match=f"more than the model's {most} positions"):
        open_tokenizer(tmp_path / f"new-{family}" / "vocab.txt", model.spec, most + 1)


@pytest.mark.parametrize("family", ["bert", "xlm_roberta"])
def test_one_token_type_is_that_of_both_texts_here_and_exported(tmp_path, family):
    folder = write_new(tmp_path / "new", family)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "type_vocab_size": 1}))
    model = new_classifier(open_model(str(folder), model_type=family, from_scratch=True), 0, 0.0)
    logits = logits_of(model)
    assert np.array_equal(logits_of(model, IDS, TYPES * 0), logits)
    (tmp_path / "trained").mkdir()
    model.write(tmp_path / "trained", folder / "vocab.txt", 40)
    again, _ = load_classifier(str(tmp_path / "trained"))
    assert again.family == family and np.array_equal(logits_of(again), logits)
    for backend in ("onnx", "paddle"):
        export_pair(ExportConfig(str(tmp_path / "trained"), str(tmp_path / backend), format=backend))
        found = PairPredictor(str(tmp_path / backend), backend).logits_of_ids(IDS, TYPES)
        assert np.abs(found - logits).max() < 1e-5


@pytest.mark.parametrize("told, length", [(None, 128), (24, 24), (10**30, 128), (257, 128)])
def test_an_unset_or_invalid_length_falls_back_to_the_default(tmp_path, told, length):
    folder = write_model(tmp_path / "m")
    if told is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": told}))
    for positions, expected in ((256, length), (20, 20)):
        config = parse_spec({"vocab_size": 9, "max_position_embeddings": positions}).to_config()
        (folder / "config.json").write_text(json.dumps(config))
        assert read_spec(folder / "config.json", folder / "vocab.txt").inference_length == expected
