"""Match embeddings: what they are computed from, a start that keeps its answers, every way to run them."""

import json
from dataclasses import replace

import numpy as np
import paddle
import pytest
import tiny_pretrain
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_pair import CHARACTERS, VOCAB, train_config, write_model, write_new
from tiny_ship import logits_of_trained, random_texts, ship

from ernie_pair import load
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.commands import ToHuggingFaceConfig, convert_to_hugging_face
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.networks.classifier import build_classifier, load_classifier, load_initial_weights
from ernie_pair.models.networks.encoders import set_weight
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.networks.match_embeddings import SHARE_SCALE, TOKEN_SCALE, match_levels
from ernie_pair.models.networks.text_encoder import build_text_encoder, load_text_weights
from ernie_pair.models.source import ModelSource, open_model, with_match
from ernie_pair.models.spec import parse_spec
from ernie_pair.pairs.train.initial_model import open_initial_model
from ernie_pair.weights.parameter_names import LEVELS, ROWS, TYPES, fit_rows

SPECIAL = [0, 1, 2, 3, VOCAB.index("[UNK]")]
WITH_TYPES = [name for name, family in FAMILIES.items() if family.takes_types]
# Several runs of several lengths, some in both texts twice.
PAIRS = [
    ("今天天气真好", "天气真不好"),
    ("你我他", "他我你"),
    ("左右左右", "右左右"),
    ("上", "下"),
    *random_texts(12, longest=15),
]


def longest_runs(ids, types):
    """The length of each token's longest run in the other text, at most LEVELS, by trying all places."""
    found = np.zeros_like(ids)
    width = len(ids)
    for length in range(1, LEVELS + 1):
        for i in range(width - length + 1):
            for j in range(width - length + 1):
                one, other = slice(i, i + length), slice(j, j + length)
                is_run = (ids[one] == ids[other]).all() and (types[one] != types[other]).all()
                if is_run and not np.isin(ids[one], SPECIAL).any():
                    found[one] = np.maximum(found[one], length)
    return found


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=3, max_size=14), st.data())
def test_levels_are_the_lengths_of_common_runs(ids, data):
    rows = np.array([ids, ids[::-1]])
    heads = [[data.draw(st.integers(1, len(ids)))] for _ in rows]
    types = (np.arange(len(ids)) >= heads).astype(np.int64)
    levels = match_levels(paddle.to_tensor(rows), paddle.to_tensor(types), SPECIAL).numpy()
    assert levels.tolist() == [longest_runs(*each).tolist() for each in zip(rows, types)]


def start_of(folder, family="ernie", **changes):
    """A folder of a classifier without match embeddings, and a model with them that starts from it."""
    source = open_model(str(write_new(folder / "new", family)), model_type=family, from_scratch=True)
    source = replace(source, spec=source.spec.replace(**changes))
    (folder / "plain").mkdir()
    build_classifier(source, 3, 0.0).write(folder / "plain", source.vocab_file)
    source = open_model(str(folder / "plain"), model_type="")
    source = with_match(source, True)
    model = build_classifier(source, 4, 0.0)
    load_initial_weights(model, source)
    model.eval()
    return folder / "plain", model, source.vocab_file


def with_rows(model):
    table = dict(model.named_parameters())[f"{model.attribute}.{TYPES}"]
    rows = np.random.default_rng(0).normal(0, 1, table.shape).astype(np.float32)
    rows[: model.spec.token_types] = table.numpy()[: model.spec.token_types]
    set_weight(table, rows)
    return model


def with_head(model):
    rng = np.random.default_rng(1)
    for name, weight in with_rows(model).match_head.named_parameters():
        drawn = rng.random(weight.shape) if "information" in name else rng.normal(0, 1e-3, weight.shape)
        set_weight(weight, drawn.astype(np.float32))
    return model


def test_the_head_adds_up_shares_and_tokens(tmp_path):
    head = with_head(start_of(tmp_path)[1]).match_head
    information, matched, unmatched, shares = (
        getattr(head, name).numpy() if name == "shares" else getattr(head, name).weight.numpy()
        for name in ("information", "matched", "unmatched", "shares")
    )
    ids = np.array([1, 5, 6, 7, 2, 6, 7, 9, 2, 0])
    levels = longest_runs(ids, np.array([0] * 5 + [1] * 5))
    words, found, expected = ids[[1, 2, 3, 5, 6, 7]], levels[[1, 2, 3, 5, 6, 7]], 0.0
    for place, weights in enumerate((np.ones(6), information[words, 0])):
        for level in range(LEVELS):
            share = weights[found > level].sum() / weights.sum()
            expected = expected + SHARE_SCALE * share * shares[place * LEVELS + level]
    tokens = np.where(found[:, None] > 0, matched[words], unmatched[words]).sum(axis=0)
    added = head(paddle.to_tensor(ids[None]), paddle.to_tensor(2 * levels[None]), SPECIAL, 2)
    np.testing.assert_allclose(added.numpy()[0], expected + TOKEN_SCALE * tokens / 6**0.5, rtol=1e-4)


def write(model, vocab_file, folder):
    folder.mkdir()
    model.write(folder, vocab_file)
    return folder


@pytest.mark.parametrize("family", WITH_TYPES)
def test_a_start_computes_what_it_computed(tmp_path, family):
    plain, model, vocab_file = start_of(
        tmp_path, family, **{"type_vocab_size": 1} if "roberta" in family else {}
    )
    before = logits_of_trained(plain, PAIRS)
    assert np.array_equal(logits_of_trained(write(model, vocab_file, tmp_path / "same"), PAIRS), before)
    there = write(with_rows(model), vocab_file, tmp_path / "rows")
    changed = ~np.isclose(logits_of_trained(there, PAIRS), before, atol=1e-4).all(axis=1)
    has_common = [bool(set(a) & set(b) & set(CHARACTERS)) for a, b in PAIRS]
    assert changed.tolist() == has_common


def test_a_random_start_begins_without_a_difference(tmp_path):
    config = train_config(tmp_path)
    start = open_initial_model(config, config.model_name_or_path)
    table = dict(start.model.named_parameters())[f"ernie.{TYPES}"].numpy()
    assert start.model.spec.unmatched_ids == SPECIAL
    assert np.array_equal(table, np.tile(table[:2], (ROWS, 1))) and len(table) == 2 * ROWS


@pytest.mark.parametrize("form", ["paddle", "onnx", "int8"])
def test_an_export_answers_like_the_model(tmp_path, form):
    _, model, vocab_file = start_of(tmp_path)
    there = write(with_head(model), vocab_file, tmp_path / "rows")
    flags = {"quantize": "int8", "max_accuracy_drop": 0.1} if form == "int8" else {}
    shipped = ship(there, tmp_path / "shipped", "onnx" if form == "int8" else form, **flags)
    expected, answers = (load(str(folder)).predict(PAIRS).probabilities for folder in (there, shipped))
    np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_fused_kernels_answer_and_learn_like_paddle(tmp_path):
    _, model, _ = start_of(tmp_path)
    with_head(model)
    ids = paddle.to_tensor([[1, 5, 6, 7, 2, 6, 7, 9, 2], [1, 5, 2, 5, 2, 0, 0, 0, 0]])
    types = paddle.to_tensor([[0, 0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0, 0]])
    answers = []
    for kernels in ("plain", "fused"):
        choose_path(model, KernelFlags(kernels=kernels), "cpu")
        logits = model(ids, types)
        logits.square().sum().backward()
        table = model.ernie.embeddings.token_type_embeddings.weight
        answers.append((logits.numpy(), table.grad.numpy()))
        model.clear_gradients()
    for one, other in zip(*answers):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    used = np.abs(answers[0][1]).sum(axis=1) > 0
    assert used.tolist() == [True, True, True, True, True, True, False, False]  # no run of three


STARTS = {  # the class and the files of a start -> whether auto gives it match embeddings
    "random": (("ErnieForPretraining",), [], True),
    "a pretraining": (("ErnieForPretraining",), ["static_vars.safetensors"], True),
    "a converted pretraining": (("ErnieForPretraining",), ["model_state.pdparams", "conversion.json"], True),
    "published": (("ErnieForMaskedLM",), ["model_state.pdparams"], False),
    "a trained classifier": (("ErnieForSequenceClassification",), [], False),
    "one by the mean": (("MeanPooledPairClassifier",), ["model_state.pdparams"], False),
}


def source_of(folder, family="ernie", named=(), files=()):
    folder = write_model(folder, model_type=family, architectures=list(named))
    for name in files:
        (folder / name).write_text("")
    spec = parse_spec(json.loads((folder / "config.json").read_text()))
    return ModelSource("it", spec, folder / "vocab.txt", folder / files[0] if files else None, folder=folder)


@pytest.mark.parametrize("start", STARTS)
def test_auto_goes_by_the_start(tmp_path, start):
    named, files, expected = STARTS[start]
    source = source_of(tmp_path, "ernie", named, files)
    assert with_match(source, "auto").spec.has_match is expected
    made = with_match(source, True)
    assert made.spec.unmatched_ids == SPECIAL
    assert with_match(made, True) is made and with_match(made, "auto").spec.has_match
    assert with_match(made, False).spec == source.spec


def test_a_family_without_token_types_has_none(tmp_path):
    source = source_of(tmp_path, "distilbert")
    assert not with_match(source, "auto").spec.has_match
    with pytest.raises(InputError, match="match_embeddings=True: it has no token types"):
        with_match(source, True)


def test_transformers_gets_such_a_model_only_without_them(tmp_path, capfd):
    plain, model, vocab_file = start_of(tmp_path, "bert")
    there = write(model, vocab_file, tmp_path / "rows")
    with pytest.raises(InputError, match="transformers has them; pass drop_match_embeddings=True"):
        convert_to_hugging_face(ToHuggingFaceConfig(str(there), str(tmp_path / "hf")))
    convert_to_hugging_face(ToHuggingFaceConfig(str(there), str(tmp_path / "hf"), drop_match_embeddings=True))
    assert "left out: match_head.*, and the rows of matched tokens" in capfd.readouterr().err
    assert "match_embeddings" not in json.loads((tmp_path / "hf/config.json").read_text())
    np.testing.assert_array_equal(logits_of_trained(tmp_path / "hf", PAIRS), logits_of_trained(plain, PAIRS))


def test_a_format_of_transformers_is_trained_without_them(tmp_path):
    config = train_config(tmp_path, save_format="both")
    assert not open_initial_model(config, config.model_name_or_path).model.spec.has_match


def test_what_a_start_has_and_a_run_has_not_is_said(tmp_path):
    _, model, vocab_file = start_of(tmp_path)
    there = write(model, vocab_file, tmp_path / "rows")
    (there / "calibration.json").write_text("{}")
    config = replace(train_config(tmp_path, match_embeddings=False), from_scratch=False)
    told = open_initial_model(config, str(there)).beginning
    assert "its match embeddings are left out, which changes its answers" in told
    assert "its calibration.json is not taken over" in told


def test_a_model_in_memory_keeps_what_it_has(tmp_path):
    plain, model, vocab_file = start_of(tmp_path)
    there = write(model, vocab_file, tmp_path / "rows")
    for folder, has_match in ((plain, False), (there, True)):
        assert load_classifier(str(folder))[0].spec.has_match is has_match
        source = open_model(str(folder), model_type="")
        for asked in (True, False):
            assert with_match(source, asked).spec.has_match is asked


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"match_embeddings": 1}, "match_embeddings is 1, and takes true or false"),
        ({"match_embeddings": True}, "match_embeddings is true, and unmatched_ids is missing"),
        ({"match_embeddings": True, "unmatched_ids": []}, "unmatched_ids is"),
        ({"match_embeddings": True, "unmatched_ids": [9]}, "unmatched_ids is"),
    ],
)
def test_a_damaged_description_is_an_error(keys, fault):
    with pytest.raises(InputError, match=fault):
        parse_spec({"vocab_size": 9, "model_type": "ernie", **keys})


def test_a_table_of_another_size_is_an_error():
    with pytest.raises(CheckpointError, match="has 5 rows, and config.json says type_vocab_size 2"):
        fit_rows(np.zeros((5, 4), np.float32), 2, True, "model")


def test_vectors_and_pretraining_read_the_encoder_without_them(tmp_path):
    model = tiny_pretrain.write_model(tmp_path / "model")
    tiny_pretrain.write_corpus(tmp_path / "data", model)
    source = with_match(open_model(str(model), model_type="ernie", from_scratch=True), True)
    there = write(with_head(build_classifier(source, 3, 0.0)), source.vocab_file, tmp_path / "rows")
    for known in (open_model(str(there), model_type=""), with_match(open_model(str(there)), False)):
        encoder = build_text_encoder(known, 0, 0.0)
        load_text_weights(encoder, known)
        assert encoder.ernie.embeddings.token_type_embeddings.weight.shape == [2, 32]
        assert "match_embeddings" not in encoder.spec.config
    flags = {"model_name_or_path": there, "from_scratch": "false", "max_steps": 1}
    assert "rows/model_state.pdparams has no head for masked" in tiny_pretrain.pretrain(
        tmp_path, tmp_path / "out", **flags
    )
    written = json.loads((tmp_path / "out/model_last/config.json").read_text())
    assert "match_embeddings" not in written and "unmatched_ids" not in written
