"""Vectors of texts beside a loop over them, scikit-learn's unit rows, and what is written beside numpy."""

import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.preprocessing import normalize
from tiny_pair import VOCAB
from tiny_ship import random_texts

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import CheckpointError, InputError, NumbersError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.inference.embedder import (
    EmbedderOptions,
    EmbeddingModel,
    TextEmbedder,
    check_vectors,
    unit_rows,
)
from ernie_pair.inference.token_rows import BatchRules
from ernie_pair.inference.vector_files import (
    DTYPES,
    SCALES_FILE,
    VECTORS_FILE,
    VectorFile,
    VectorWriter,
    pack_vectors,
)
from ernie_pair.models.embedding_json import EmbeddingSettings

PROMPTS = {"query": "今天", "passage": "明"}
SETTINGS = EmbeddingSettings("mean", 8, (4, 8), 12, 0.05, prompts=PROMPTS)
TABLE = np.random.default_rng(3).normal(size=(len(VOCAB), 8)).astype(np.float32)
TEXTS = [left for left, _ in random_texts(90, seed=6, longest=24)]


def embedder_of(settings=SETTINGS, forward=None, **options):
    """A model whose vector is the sum of the numbers of the tokens, but those of padding."""
    tokenizer = WordPiece(VOCAB)

    def sums(ids, types):
        assert not types.any() and len(ids) <= 7
        return np.einsum("bsd,bs->bd", TABLE[ids], (ids != tokenizer.pad_id).astype(np.float32))

    model = EmbeddingModel("m", settings, "0" * 64, tokenizer, forward or sums, "fake")
    return TextEmbedder(model, batch_size=7, **options)


def vector_of(text, dim=8):
    ids = [VOCAB.index(token) for token in ("[CLS]", *text[:10], "[SEP]")]
    return TABLE[ids].sum(axis=0)[:dim]


@pytest.mark.parametrize("dim", [0, 4, 8])
@pytest.mark.parametrize("is_unit", [True, False])
def test_each_text_has_the_vector_of_its_own_tokens(dim, is_unit):
    settings = SETTINGS if is_unit else replace(SETTINGS, steps=(), similarity="dot")
    embedder = embedder_of(settings, dim=dim)
    ways = {"": embedder.embed, PROMPTS["query"]: embedder.embed_queries, "明": embedder.embed_passages}
    for prompt, embed in ways.items():
        wanted = np.stack([vector_of(prompt + text, dim or 8) for text in TEXTS])
        wanted = normalize(wanted) if is_unit else wanted
        found = embed(TEXTS)
        assert np.allclose(found, wanted, atol=1e-5) and found.dtype == np.float32
        assert np.array_equal(embed(iter(TEXTS[40:41]))[0], found[40])
    assert embedder.num_cut == sum(len(prompt + text) > 10 for prompt in ways for text in TEXTS) + sum(
        len(prompt + TEXTS[40]) > 10 for prompt in ways
    )
    assert embedder.num_tokens(TEXTS[0]) == len(TEXTS[0]) + 2 and embedder.has_roles
    assert embedder.num_tokens(TEXTS[0], "query") == len(TEXTS[0]) + 4
    assert np.allclose(embedder.unit_vectors(TEXTS, "query"), unit_rows(embedder.embed_queries(TEXTS), "m"))
    asked = embedder_of(settings, prompt="明").embed(TEXTS)
    assert np.allclose(asked, embedder_of(settings).embed_passages(TEXTS))
    assert embedder_of(settings).dim == 8 and EmbedderOptions().max_seq_len == EmbedderOptions().threads == 0


def test_batches_are_of_the_size_that_suits_the_model():
    sizes = {}
    for rules in (BatchRules(), BatchRules(30), BatchRules(rows=len(TEXTS))):
        asked = sizes[rules] = []
        found = embedder_of(forward=lambda ids, types: (asked.append(ids.size), TABLE[ids[:, 1]])[1])  # noqa: B023
        found.model = found.model._replace(rules=rules)
        found.embed(TEXTS)
    plain, few, many = sizes.values()
    assert len(plain) == -(-len(TEXTS) // 7) and max(few) <= 30 and len(many) == 1


@pytest.mark.parametrize("is_unit", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_an_error(is_unit, value):
    settings = SETTINGS if is_unit else replace(SETTINGS, steps=(), similarity="dot")
    broken = embedder_of(
        settings, lambda ids, types: np.where(ids[:, :1] * 0 + ids[:, 1:2] == 4, value, TABLE[ids[:, 1]])
    )
    texts = [VOCAB[5], VOCAB[6], VOCAB[4]]
    with pytest.raises(NumbersError, match="m: .*vector.* 2 is NaN"):
        broken.embed(texts)
    assert broken.embed(texts[:2]).shape == (2, 8)
    for wrong in ("今", ["今", 5]):
        with pytest.raises(InputError, match="texts must be a list of texts"):
            broken.embed(wrong)


def test_unit_rows_are_those_of_scikit_learn():
    vectors = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32) * 9
    found = unit_rows(vectors, "m")
    assert np.allclose(found, normalize(vectors), atol=1e-7) and found.dtype == np.float32
    check_vectors(found, "m")
    check_vectors(vectors, "m", is_unit=False)
    for value in (0, np.nan, np.inf):
        bad = vectors.copy()
        bad[7] = value
        with pytest.raises(NumbersError, match="m: the vector of text 7 is NaN, infinite or zero"):
            unit_rows(bad, "m")
        if value:
            with pytest.raises(NumbersError, match=r"m: vector 107 is NaN, infinite"):
                check_vectors(bad, "m", 100, is_unit=False)
    for longer in (0.0011, -0.0011, 0.0009, -0.0009):
        changed = found.copy()
        changed[3] *= 1 + longer
        if abs(longer) > 1e-3:
            with pytest.raises(NumbersError, match=f"m: vector 3 is .* of length {1 + longer:.4g} instead"):
                check_vectors(changed, "m")
        else:
            check_vectors(changed, "m")


def writer_in(folder, dtype, key=1):
    return VectorWriter(folder, 23, 5, dtype, 4, {"key": key})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stop, is_damaged", [(0, False), (1, False), (3, True), (6, False)])
def test_pieces_of_several_runs_are_the_whole_in_numpy(tmp_path, dtype, stop, is_damaged):
    vectors = np.random.default_rng(1).normal(size=(23, 5)).astype(np.float32)
    vectors[9] = 0
    packed = pack_vectors(vectors, dtype)
    writer = writer_in(tmp_path, dtype)
    for run in range(2):
        assert writer.done == (stop - is_damaged if run else 0)
        for number in range(writer.done, stop if run == 0 else 6):
            writer.append({name: array[4 * number : 4 * number + 4] for name, array in packed.items()})
        if run == 0:
            for name in packed:
                content = (tmp_path / name).read_bytes()
                (tmp_path / name).write_bytes(content[: len(content) - is_damaged] + b"cut" * is_damaged)
            writer = writer_in(tmp_path, dtype)
    (tmp_path / "draft").mkdir()
    writer.publish_into(tmp_path / "draft")
    for name, array in packed.items():
        assert np.array_equal(np.load(tmp_path / "draft" / name), array)
    hashes = {name: sha256_of_file(tmp_path / "draft" / name) for name in packed}
    file = VectorFile(tmp_path / "draft", "f", 23, 5, dtype, hashes)
    file.verify()
    with pytest.raises(CheckpointError, match="vectors.npy is not the file that was written"):
        replace(file, files={**hashes, VECTORS_FILE: "0" * 64}).verify()
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    off = {"float32": 0, "float16": 2**-11, "int8": 1 / 253}[dtype] * largest
    assert (np.abs(file.rows(0, 23) - vectors) <= off).all()
    assert np.array_equal(file.rows(7, 11), file.rows(0, 23)[7:11])
    assert writer_in(tmp_path, dtype, key=2).done == 0
    if dtype == "int8":
        assert np.abs(packed[VECTORS_FILE]).max(axis=1).tolist() == [127] * 9 + [0] + [127] * 13
        assert (packed[SCALES_FILE] > 0).all()


class Payload:
    def __reduce__(self):
        return os.system, ("touch canary",)


def test_a_pickle_in_place_of_vectors_is_never_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / VECTORS_FILE).write_bytes(pickle.dumps(Payload()))
    for count in (0, 3):
        with pytest.raises(CheckpointError, match="vectors.npy cannot be read"):
            VectorFile(tmp_path, "f", count, 5, "float16", {}).rows(0, count)
    assert not (tmp_path / "canary").exists()
    for wrong in (np.zeros((3, 4), np.float16), np.zeros((3, 5), np.float32)):
        np.save(tmp_path / VECTORS_FILE, wrong)
        with pytest.raises(CheckpointError, match=r"vectors.npy holds float.* says float16 \[3, 5\]"):
            VectorFile(tmp_path, "f", 3, 5, "float16", {}).rows(0, 3)


def test_numbers_beyond_float16_are_refused():
    for largest, dtype in ((65504, "float16"), (1e30, "int8"), (1e30, "float32")):
        assert np.isfinite(pack_vectors(np.full((2, 3), largest, np.float32), dtype)[VECTORS_FILE]).all()
    with pytest.raises(NumbersError, match="above 65504, which float16 cannot"):
        pack_vectors(np.full((2, 3), -65536, np.float32), "float16")
