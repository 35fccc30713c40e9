"""A published model, all-MiniLM-L6-v2: its ids and vectors are those of sentence-transformers."""

from random import Random

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from other_libraries.families import different_rows  # noqa: E402
from other_libraries.texts import WITH_SYMBOLS, assigned_characters, random_strings, sentences  # noqa: E402

from ernie_pair.embedding.open_embedder import open_embedder  # noqa: E402

MOST = 1e-5


@pytest.fixture(scope="module")
def texts():
    """1,000 texts of customer service, each with a symbol in it; some are longer than the model reads."""
    rng, long = Random(2), " ".join(sentences(80))
    found = [f"{rng.choice(WITH_SYMBOLS)} {question}" for question in sentences(996, seed=2)]
    return [*found, long, long[::-1], *(f"{long} {symbols}" for symbols in WITH_SYMBOLS[:2])]


def test_its_ids_are_those_of_its_own_tokenizer(newest, minilm):
    strings = [*(f"a{character}b" for character in assigned_characters()), *random_strings()]
    found = different_rows(newest, minilm, strings, max_length=256)
    assert not found, (len(found), [(strings[number], ours, theirs) for number, ours, theirs in found[:5]])


def test_its_vectors_are_those_of_sentence_transformers(newest, minilm, texts):
    said, arrays = newest.ask("vectors", folder=minilm, texts=texts)
    embedder = open_embedder(minilm)
    assert embedder.max_seq_len == said["max_seq_length"] == 256
    here = embedder.embed(texts)
    assert len(here) == 1000 and embedder.num_cut == 4
    assert np.abs(here - arrays["vectors"]).max() < MOST
    assert np.abs(here @ here.T - arrays["similarities"]).max() < MOST


def test_texts_with_symbols_have_the_same_vectors(newest, minilm):
    """What differed when their symbols were cut off as words: cosines down to 0.70."""
    texts = ["5¥ each", "good👍👍 job", "a≥b and c≤d", "25°C, not 30°C", "10€/month"]
    _, arrays = newest.ask("vectors", folder=minilm, texts=texts)
    cosines = (open_embedder(minilm).embed(texts) * arrays["vectors"]).sum(axis=1)
    assert cosines == pytest.approx(1, abs=1e-6)
