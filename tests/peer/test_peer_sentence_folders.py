"""What SentenceTransformer and CrossEncoder say of a folder is what this package says of it."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from other_libraries.families import classifier_here, rows_here, scores_there  # noqa: E402
from other_libraries.texts import WITH_SYMBOLS, sentences  # noqa: E402

from data_tools.files.errors import ErniePairError  # noqa: E402
from ernie_pair.embedding.open_embedder import open_embedder  # noqa: E402

MOST = 1e-5
TEXTS = [*WITH_SYMBOLS, *sentences(30), " ".join(sentences(9))]
NORMALIZE = ["Normalize", {}]
CHAINS = {
    "cls": [["Pooling", {"pooling_mode": "cls"}]],
    "max": [["Pooling", {"pooling_mode": "max"}]],
    "last token": [["Pooling", {"pooling_mode": "lasttoken"}]],
    "mean by root": [["Pooling", {"pooling_mode": "mean_sqrt_len_tokens"}]],
    "mean": [["Pooling", {"pooling_mode": "mean"}], NORMALIZE],
    "cls and mean": [["Pooling", {"pooling_mode": ["cls", "mean"]}], NORMALIZE],
    "dense": [["Pooling", {"pooling_mode": "mean"}], ["Dense", {"out_features": 8}], NORMALIZE],
    "two dense": [
        ["Pooling", {"pooling_mode": "cls"}],
        ["Dense", {"out_features": 12, "activation": "Identity"}],
        ["Dense", {"out_features": 6, "bias": False}],
    ],
}


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_sentence_folder_gives_the_vectors_of_its_library(newest, tmp_path, family, chain):
    encoder = newest.make(tmp_path / "encoder", family)
    folder = newest.make_sentence(tmp_path / "folder", encoder, CHAINS[chain], max_seq_length=24)
    said, arrays = newest.ask("vectors", folder=folder, texts=TEXTS)
    embedder = open_embedder(folder)
    assert embedder.max_seq_len == said["max_seq_length"] == 24
    here, there = embedder.embed(TEXTS), arrays["vectors"]
    assert here.shape == there.shape
    assert np.abs(here - there).max() < MOST * max(1, np.abs(there).max())
    assert embedder.num_cut > 0


@pytest.mark.parametrize("name", ["query", "passage"])
def test_a_named_prompt_is_put_before_each_text(newest, tmp_path, name):
    prompts = {"query": "query: ", "passage": "passage: "}
    encoder = newest.make(tmp_path / "encoder", "xlm-roberta")
    chain = [["Pooling", {"pooling_mode": "mean"}], NORMALIZE]
    folder = newest.make_sentence(tmp_path / "folder", encoder, chain, prompts=prompts)
    _, arrays = newest.ask("vectors", folder=folder, texts=TEXTS, prompt_name=name)
    _, plain = newest.ask("vectors", folder=folder, texts=TEXTS)
    embedder = open_embedder(folder)
    here = {"query": embedder.embed_queries, "passage": embedder.embed_passages}[name](TEXTS)
    assert np.abs(here - arrays["vectors"]).max() < MOST
    assert np.abs(embedder.embed(TEXTS) - plain["vectors"]).max() < MOST
    assert np.abs(plain["vectors"] - arrays["vectors"]).max() > 100 * MOST


def test_an_unknown_module_is_refused_by_its_name(newest, tmp_path):
    encoder = newest.make(tmp_path / "encoder", "bert")
    chain = [["Pooling", {"pooling_mode": "mean"}], ["LayerNorm", {"dimension": 16}]]
    with pytest.raises(ErniePairError, match="LayerNorm"):
        open_embedder(newest.make_sentence(tmp_path / "folder", encoder, chain))


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
    said, arrays = newest.ask("vectors", folder=folder, texts=["Refund My ORDER", *TEXTS])
    embedder = open_embedder(folder)
    assert embedder.max_seq_len == said["max_seq_length"] == 12
    assert np.abs(embedder.embed(["Refund My ORDER", *TEXTS]) - arrays["vectors"]).max() < MOST
