"""What SentenceTransformer and CrossEncoder say of a folder is what this package says of it."""

import json
from random import Random

import numpy as np
import pytest
from other_libraries.families import classifier_here, different_rows, rows_here, scores_there
from other_libraries.texts import WITH_SYMBOLS, assigned_characters, random_strings, sentences
from tiny_embedding import embedding_config, write_files
from tiny_models import change, write_sentence
from tiny_pair import CHARACTERS, write_model

from ernie_pair.core.errors import ErniePairError
from ernie_pair.embeddings.embed_config import ExportEmbeddingConfig
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.embeddings.train.train_embedding import train_embedding
from ernie_pair.evaluation.embeddings.export_embedding import export_embedding
from ernie_pair.models.commands import ToHuggingFaceConfig, convert_to_hugging_face
from ernie_pair.models.embedding_json import NORMALIZE, Step

MOST = 1e-5  # of numbers up to 1, between models of the two libraries
OF_OURS = 2e-6  # where this package has written the model
TEXTS = [*WITH_SYMBOLS, *sentences(30), " ".join(sentences(9))]
OF_CHARACTERS = ["".join(CHARACTERS[place : place + 1 + place % 9]) for place in range(12)] * 2 + [
    "你她" * 30
]
PROMPTS = {"query": OF_CHARACTERS[1], "document": OF_CHARACTERS[3]}


def compare(newest, folder, texts, ours=None, most=MOST, prompt_name=None):
    """Compare the vectors of both; returns the embedder, the vectors here, and all arrays of there."""
    about, arrays = newest.ask("vectors", folder=folder, texts=texts, prompt_name=prompt_name)
    ours, there = ours or open_embedder(folder), arrays["vectors"]
    here = ours.embed(texts, None if prompt_name is None else ours.settings.prompts[prompt_name])
    assert ours.max_seq_len == about["max_seq_length"] and here.shape == there.shape
    assert np.abs(here - there).max() < most * max(1, np.abs(there).max())
    return ours, here, arrays


MEAN, CLS = ["Pooling", {"pooling_mode": "mean"}], ["Pooling", {"pooling_mode": "cls"}]
UNIT = ["Normalize", {}]
CHAINS = {
    "cls": [CLS],
    "max": [["Pooling", {"pooling_mode": "max"}]],
    "last token": [["Pooling", {"pooling_mode": "lasttoken"}]],
    "mean by root": [["Pooling", {"pooling_mode": "mean_sqrt_len_tokens"}]],
    "mean": [MEAN, UNIT],
    "cls and mean": [["Pooling", {"pooling_mode": ["cls", "mean"]}], UNIT],
    "dense": [MEAN, ["Dense", {"out_features": 8}], UNIT],
    "two dense": [
        CLS,
        ["Dense", {"out_features": 12, "activation": "Identity"}],
        ["Dense", {"out_features": 6, "bias": False}],
    ],
}


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_sentence_folder_gives_the_vectors_of_its_library(newest, tmp_path, family, chain):
    encoder = newest.make(tmp_path / "encoder", family)
    folder = newest.make_sentence(tmp_path / "folder", encoder, CHAINS[chain], max_seq_length=24)
    embedder, _, _ = compare(newest, folder, TEXTS)
    assert embedder.max_seq_len == 24 and embedder.num_cut > 0


@pytest.mark.parametrize("name", ["query", "passage"])
def test_a_named_prompt_is_put_before_each_text(newest, tmp_path, name):
    prompts = {"query": "query: ", "passage": "passage: "}
    encoder = newest.make(tmp_path / "encoder", "xlm-roberta")
    folder = newest.make_sentence(tmp_path / "folder", encoder, [MEAN, UNIT], prompts=prompts)
    _, prompted, _ = compare(newest, folder, TEXTS, prompt_name=name)
    embedder, plain, _ = compare(newest, folder, TEXTS)
    by_role = {"query": embedder.embed_queries, "passage": embedder.embed_passages}[name]
    assert np.array_equal(by_role(TEXTS), prompted)
    assert np.abs(plain - prompted).max() > 100 * MOST


def test_an_unknown_module_is_refused_by_its_name(newest, tmp_path):
    encoder = newest.make(tmp_path / "encoder", "bert")
    folder = newest.make_sentence(tmp_path / "folder", encoder, [MEAN, ["LayerNorm", {"dimension": 16}]])
    with pytest.raises(ErniePairError, match="LayerNorm"):
        open_embedder(folder)


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_a_classifier_gives_what_a_cross_encoder_predicts(newest, tmp_path, family):
    folder = newest.make(tmp_path / "model", family, kind="ForSequenceClassification", num_labels=1)
    left, right = TEXTS, TEXTS[::-1]
    there = scores_there(newest, folder, left, right, 40)
    assert np.abs(classifier_here(folder, rows_here(folder, left, right, 40))["logits"] - there).max() < MOST
    assert np.ptp(there) > 100 * MOST and (there > 0).all() and (there < 1).all()


def test_an_older_folder_keeps_its_length_and_lower_cases(newest, tmp_path):
    """sentence_bert_config.json as sentence-transformers 2 wrote it."""
    encoder = newest.make(tmp_path / "encoder", "bert", lower_case=False)
    folder = newest.make_sentence(tmp_path / "folder", encoder, CHAINS["mean"])
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12, "do_lower_case": true}')
    embedder, _, _ = compare(newest, folder, ["Refund My ORDER", *TEXTS])
    assert embedder.max_seq_len == 12


def test_a_plain_encoder_is_asked_by_its_mean(newest, tmp_path):
    folder = newest.make(tmp_path / "encoder", "bert")
    change(folder / "tokenizer_config.json", model_max_length=None)
    compare(newest, folder, [*sentences(20), " ".join(sentences(9))], most=OF_OURS)


def train(folder, spread=0.2, **changes):
    write_files(folder, spread)
    family = {name: changes.pop(name) for name in ("hidden_act", "pad_token_id") if name in changes}
    model_type = changes.get("model_type", "ernie")
    write_model(folder / "model", model_type=model_type, initializer_range=spread, **family)
    train_embedding(embedding_config(folder, epochs=1, eval_freq=1000, **changes))
    return open_embedder(folder / "out")


@pytest.mark.parametrize("family", ["ernie", "bert", "roberta"])
def test_a_trained_model_is_opened_there(newest, tmp_path, family):
    settings = {"dims": "8", "learning_rate": 1e-3, "pooling": "cls+mean", "save_format": "hf"}
    ours = train(tmp_path, model_type=family, pad_token_id=0, **settings)
    assert ours.settings.dims == (8, 64)
    compare(newest, tmp_path / "out" / "best", OF_CHARACTERS, ours, OF_OURS)


def test_a_converted_model_is_opened_there(newest, tmp_path):
    ours = train(tmp_path, hidden_act="gelu")
    convert_to_hugging_face(ToHuggingFaceConfig(str(tmp_path / "out"), str(tmp_path / "theirs")))
    compare(newest, tmp_path / "theirs", OF_CHARACTERS, ours, OF_OURS)
    assert open_embedder(tmp_path / "theirs").fingerprint == ours.fingerprint


RESIDUAL = Step("dense", 6, bias=False, activation="identity", residual=True)
STEPS = {
    "lasttoken+max": (Step("dense", 8, activation="silu"), NORMALIZE, RESIDUAL),
    "weightedmean+mean_sqrt_len_tokens+cls": (Step("truncate", 50),),
    "mean": (Step("dense", 32, activation="relu", residual=True), NORMALIZE),
}


@pytest.mark.parametrize("pooling, steps", STEPS.items(), ids=STEPS)
@pytest.mark.parametrize("prompt_name", [None, *PROMPTS])
def test_modules_and_prompts_are_the_same_there(newest, tmp_path, pooling, steps, prompt_name):
    folder = write_sentence(tmp_path / "m", pooling, steps, prompts=PROMPTS, default_prompt="query")
    compare(newest, folder, OF_CHARACTERS, most=OF_OURS, prompt_name=prompt_name)


VARIANTS = {
    "cls": (["cls"], False),
    "max": (["max"], True),
    "root": (["mean_sqrt_len_tokens"], True),
    "last": (["lasttoken"], False),
    "weighted": (["weightedmean"], False),
    "several": (["lasttoken", "cls", "mean"], False),
}


@pytest.mark.parametrize("modes, is_unit", VARIANTS.values(), ids=VARIANTS)
def test_a_published_model_with_other_modules(newest, minilm, tmp_path, modes, is_unit):
    for path in minilm.iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "modules.json").unlink()
    modules = json.loads((minilm / "modules.json").read_text())[: 3 if is_unit else 2]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    config = {"embedding_dimension": 384, "pooling_mode": modes, "include_prompt": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    (tmp_path / "2_Normalize").mkdir()
    compare(newest, tmp_path, [*sentences(20), " ".join(sentences(40))], most=OF_OURS)


def test_a_published_model_is_exported(newest, minilm, tmp_path):
    pytest.importorskip("onnxruntime")
    export_embedding(ExportEmbeddingConfig(str(minilm), str(tmp_path / "x")))
    exported = open_embedder(tmp_path / "x")
    compare(newest, minilm, sentences(20), exported, OF_OURS)
    assert exported.fingerprint == open_embedder(minilm).fingerprint


def test_its_ids_are_those_of_its_own_tokenizer(newest, minilm):
    strings = [*(f"a{character}b" for character in assigned_characters()), *random_strings()]
    different = different_rows(newest, minilm, strings, max_length=256)
    shown = [(strings[number], ours, theirs) for number, ours, theirs in different[:5]]
    assert not different, (len(different), shown)


def test_its_vectors_are_those_of_sentence_transformers(newest, minilm):
    """Of 1,000 texts of customer service, each with a symbol in it; some are longer than the model reads."""
    rng, long = Random(2), " ".join(sentences(80))
    texts = [f"{rng.choice(WITH_SYMBOLS)} {question}" for question in sentences(996, seed=2)]
    texts += [long, long[::-1], *(f"{long} {symbols}" for symbols in WITH_SYMBOLS[:2])]
    embedder, here, arrays = compare(newest, minilm, texts)
    assert embedder.max_seq_len == 256 and len(here) == 1000 and embedder.num_cut == 4
    assert np.abs(here @ here.T - arrays["similarities"]).max() < MOST


def test_texts_with_symbols_have_the_same_vectors(newest, minilm):
    """What differed when their symbols were cut off as words: cosines down to 0.70."""
    texts = ["5¥ each", "good👍👍 job", "a≥b and c≤d", "25°C, not 30°C", "10€/month"]
    _, here, arrays = compare(newest, minilm, texts)
    assert (here * arrays["vectors"]).sum(axis=1) == pytest.approx(1, abs=1e-6)
