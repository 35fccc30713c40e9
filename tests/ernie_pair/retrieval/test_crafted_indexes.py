"""Index folders that somebody made up: their hashes are right, and a number in them is not.

Each is refused in one line, before a search or `index --add` uses what is in it.
"""

import json

import numpy as np
import pytest
from tiny_search import HashEmbedder, index_of, texts_of, use_embedder, write_lines

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.searcher import PairSearcher

faiss = pytest.importorskip("faiss")
pytest.importorskip("bm25s")
TEXTS = texts_of(60)
LISTS = {"kind": "ivf", "lists": 4}
BOTH = {"retrieval": "both"}
LINKS = {"kind": "hnsw", "links": 4}
INT8 = {"dtype": "int8"}


def array(name, change):
    """Return what puts ``change`` of an array into its file."""
    return lambda folder: np.save(folder / name, change(np.load(folder / name)))


def at(place, value):
    def change(found):
        found[place] = value
        return found

    return change


def said(name="index.json", **changes):
    """Return what makes a file of JSON say something else."""

    def craft(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return craft


def text(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def vectors(change, words="Flat", metric=faiss.METRIC_INNER_PRODUCT):
    """Return what writes another index of the vectors, which ``change`` has changed."""

    def craft(folder):
        found = change(HashEmbedder().embed(TEXTS))
        index = faiss.index_factory(found.shape[1], words, metric)
        index.train(found)
        index.add(found)
        faiss.write_index(index, str(folder / "index.faiss"))

    return craft


CRAFTED = {  # name: (flags of the index, what is done to it)
    "offsets that do not rise": ({}, array("texts.offsets.npy", at(3, 1 << 40))),
    "offsets below 0": ({}, array("ids.offsets.npy", at(2, -5))),
    "no offsets": ({}, array("texts.offsets.npy", lambda a: a[:0])),
    "a header of nothing": ({}, text("ids.offsets.npy", b"\x93NUMPY\x01\x00\x04\x00{{{\n")),
    "fewer ids": ({}, array("ids.offsets.npy", lambda a: np.delete(a, 3))),
    "another format": ({}, said(format=3)),
    "retrieval by a number": ({}, said(retrieval=1)),
    "a recall of 7": ({}, said(recall_at_10=7)),
    "a negative count": ({}, said(texts=-60)),
    "more texts": ({}, said(texts=61)),
    "another dim": ({}, said(dim=8)),
    "half of a character": ({}, said(prompt="\ud800")),
    "a file of elsewhere": ({}, lambda f: said(files={**hashes(f), "../../etc/passwd": "0"})(f)),
    "another precision": ({}, said(precision="fp16")),
    "another kind": ({}, said(kind="hnsw")),
    "distances": ({}, vectors(np.asarray, metric=faiss.METRIC_L2)),
    "distances of hnsw": (LINKS, vectors(np.asarray, "HNSW4,Flat", faiss.METRIC_L2)),
    "codes of another kind": ({}, vectors(np.asarray, "PQ4x4")),
    "bits of 4 for 8": (INT8, vectors(np.asarray, "SQ4")),
    "NaN": ({}, vectors(at((7, 3), np.nan))),
    "vectors not of length 1": ({}, vectors(lambda a: a * 3)),
    "fewer vectors": ({}, vectors(lambda a: a[:59])),
    "begins of BM25 out of range": (BOTH, array("bm25.begins.npy", at(-1, 1 << 40))),
    "begins of BM25 that fall": (BOTH, array("bm25.begins.npy", at(3, 0))),
    "places of BM25": (BOTH, array("bm25.places.npy", at(4, 60))),
    "places of BM25 below 0": (BOTH, array("bm25.places.npy", at(4, -1))),
    "fewer places": (BOTH, array("bm25.places.npy", lambda a: a[:-1])),
    "words as a list": (BOTH, text("bm25.vocab.json", b"[]")),
    "another word": (BOTH, said("bm25.vocab.json", word=9)),
    "BM25 of other texts": (BOTH, said("bm25.json", num_docs=61)),
    "BM25 by another library": (BOTH, said("bm25.json", method="bm25+")),
}


def hashes(folder):
    return json.loads((folder / "index.json").read_text())["files"]


def crafted(folder, name):
    """The index ``name``, whose index.json has the hashes of what is there."""
    flags, craft = CRAFTED[name]
    index = index_of(folder, TEXTS, **flags)
    craft(index)
    there = {file: sha256_of_file(index / file) for file in hashes(index) if (index / file).is_file()}
    said(files={**hashes(index), **there})(index)
    return index


@pytest.fixture(autouse=True)
def embedder(monkeypatch):
    use_embedder(monkeypatch, HashEmbedder())


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_index_is_refused(tmp_path, name, capfd):
    index = crafted(tmp_path, name)
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    with pytest.raises(CheckpointError) as refused:
        PairSearcher(index, "any")
    message = refused.value.message
    assert "\n" not in message and str(index) in message and "make the index again" in message
    more = write_lines(tmp_path / "more.txt", ["今天"])
    flags = IndexConfig(str(more), str(index), embedding_model="any", add=True)
    if CRAFTED[name][0] is not BOTH:  # of which BM25 is made again, of all texts
        assert exit_code_of(lambda: make_index(flags)) in (2, 3)
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("flags", [{}, LISTS, LINKS], ids=["flat", "ivf", "hnsw"])
def test_an_index_in_the_cache_of_a_hub_is_opened(tmp_path, flags, dtype):
    """There each file is a link; its hash says what it holds."""
    index = index_of(tmp_path, TEXTS, dtype=dtype, **flags)
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in index.iterdir():
        (linked / path.name).symlink_to(path)
    wanted = PairSearcher(index, "any").search(TEXTS[3])
    assert PairSearcher(linked, "any").search(TEXTS[3]) == wanted and wanted[0].id == "t3"
