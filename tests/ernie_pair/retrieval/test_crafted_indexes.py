"""Index folders that somebody made up: their hashes are right, and a number in them is not.

Each is refused in one line, before a search or `index --add` uses what is in it.
"""

import json
import os

import numpy as np
import pytest
from tiny_search import DIM, HashEmbedder, index_of, texts_of, use_embedder, write_lines

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.searcher import PairSearcher

faiss = pytest.importorskip("faiss")
pytest.importorskip("bm25s")
COUNT = 60
TEXTS = texts_of(COUNT)
LISTS = {"kind": "ivf", "lists": 4}
BOTH = {"retrieval": "both"}
LINKS = {"kind": "hnsw"}


def array(name, change):
    """Return what puts ``change`` of an array, in place or returned, in the place of the file ``name``."""

    def craft(folder):
        found = np.load(folder / name)
        changed = change(found)
        np.save(folder / name, found if changed is None else changed)

    return craft


def at(place, value):
    def change(found):
        found[place] = value

    return change


def said(**changes):
    """Return what makes index.json say something else."""

    def craft(folder):
        path = folder / "index.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return craft


def objects(name, change):
    def craft(folder):
        found = json.loads((folder / name).read_text(encoding="utf-8"))
        change(found)
        (folder / name).write_text(json.dumps(found), encoding="utf-8")

    return craft


def first_word(number):
    return objects("bm25.vocab.json", lambda words: words.update(dict.fromkeys(list(words)[:1], number)))


def content(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def text(name, written):
    return content(name, lambda _: written)


def vectors(change, words="Flat", metric=faiss.METRIC_INNER_PRODUCT):
    """Return what writes another index of the vectors, which ``change`` has changed."""

    def craft(folder):
        found = HashEmbedder().embed(TEXTS)
        changed = change(found)
        found = found if changed is None else changed
        index = faiss.index_factory(found.shape[1], words, metric)
        index.train(found)
        index.add(found)
        faiss.write_index(index, str(folder / "index.faiss"))

    return craft


def same(found):
    return None


def inside(change):
    def craft(folder):
        index = faiss.read_index(str(folder / "index.faiss"))
        change(index)
        faiss.write_index(index, str(folder / "index.faiss"))

    return craft


def put(name, place, value):
    """Return what sets a number in a vector of the graph of hnsw."""

    def change(index):
        found = getattr(index.hnsw, name)
        pointer = faiss.rev_swig_ptr(found.data(), found.size())
        pointer[place] = value

    return inside(change)


def ranges(index):
    faiss.rev_swig_ptr(index.sq.trained.data(), 2 * DIM)[3] = np.nan


def centre(index):
    flat = faiss.downcast_index(index.quantizer)
    faiss.rev_swig_ptr(flat.get_xb(), DIM)[0] = np.inf


def list_ids(place, value):
    def change(index):
        ids = faiss.rev_swig_ptr(index.invlists.get_ids(place), index.invlists.list_size(place))
        ids[0] = value if value != "again" else ids[1]

    return inside(change)


def entry(value):
    def change(index):
        index.hnsw.entry_point = value

    return inside(change)


def cut(name, size):
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - size)


def odd_first(found):
    """Move the second offset into a character."""
    found[1] += 1


CRAFTED = {  # name: (flags of the index, what is done to it)
    "offsets that do not rise": ({}, array("texts.offsets.npy", at(3, 1 << 40))),
    "offsets below 0": ({}, array("ids.offsets.npy", at(2, -5))),
    "an offset in a character": ({}, array("texts.offsets.npy", odd_first)),
    "offsets of another type": ({}, array("ids.offsets.npy", lambda a: a.astype(np.int32))),
    "offsets in two rows": ({}, array("ids.offsets.npy", lambda a: a.reshape(1, -1))),
    "offsets of floats": ({}, array("texts.offsets.npy", lambda a: a.astype(float))),
    "no offsets": ({}, array("texts.offsets.npy", lambda a: a[:0])),
    "an archive of offsets": ({}, text("ids.offsets.npy", b"PK\x03\x04")),
    "a header of nothing": ({}, text("ids.offsets.npy", b"\x93NUMPY\x01\x00\x04\x00{{{\n")),
    "fewer ids": ({}, array("ids.offsets.npy", lambda a: np.delete(a, 3))),
    "bytes that are not UTF-8": ({}, content("texts.utf8", lambda c: b"\xff" * len(c))),
    "an id twice": ({}, content("ids.utf8", lambda c: c.replace(b"t11", b"t10"))),
    "a cut table": ({}, cut("texts.utf8", 3)),
    "format true": ({}, said(format=True)),
    "an answer that is no payload": ({}, said(answer="text")),
    "a verdict that is a number": ({}, lambda f: (f / "measured.json").write_text('{"verdict": 1}')),
    "a negative count": ({}, said(texts=-60)),
    "more texts": ({}, said(texts=61)),
    "another dim": ({}, said(dim=8)),
    "a fingerprint in two lines": ({}, said(fingerprint="f" * 64 + "\n")),
    "half of a character": ({}, said(prompt="\ud800")),
    "a file of elsewhere": ({}, lambda f: said(files={**hashes(f), "../../etc/passwd": "0"})(f)),
    "another precision": ({}, said(precision="fp16")),
    "another kind": ({}, said(kind="hnsw")),
    "distances": ({}, vectors(same, metric=faiss.METRIC_L2)),
    "distances of hnsw": (LINKS, vectors(same, "HNSW4,Flat", faiss.METRIC_L2)),
    "distances of int8": ({"dtype": "int8"}, vectors(same, "SQ8", faiss.METRIC_L2)),
    "codes of another kind": ({}, vectors(same, "PQ4x4")),
    "bits of 4 for 8": ({"dtype": "int8"}, vectors(same, "SQ4")),
    "NaN": ({}, vectors(at((7, 3), np.nan))),
    "infinity in fp16": ({"dtype": "fp16"}, vectors(at((7, 3), np.inf), "SQfp16")),
    "vectors not of length 1": ({}, vectors(lambda a: a * 3)),
    "fewer vectors": ({}, vectors(lambda a: a[:59])),
    "shorter vectors": ({}, vectors(lambda a: a[:, :8] * 2)),
    "a cut faiss file": ({}, cut("index.faiss", 9)),
    "a made-up length": (LINKS, content("index.faiss", lambda c: c[:60] + b"\0\0\0\0\x20\0\0\0" * 4)),
    "ranges of int8": ({"dtype": "int8"}, inside(ranges)),
    "an id outside of a list": (LISTS, list_ids(1, 1 << 40)),
    "an id below 0": (LISTS, list_ids(1, -3)),
    "an id of a list twice": (LISTS, list_ids(1, "again")),
    "a centre": (LISTS, inside(centre)),
    "a link to nothing": (LINKS, put("neighbors", 2, 1 << 30)),
    "a link below -1": (LINKS, put("neighbors", 2, -7)),
    "a level": (LINKS, put("levels", 5, 99)),
    "begins of links": (LINKS, put("offsets", 5, 3)),
    "an entry": (LINKS, entry(1 << 20)),
    "begins of BM25 out of range": (BOTH, array("bm25.begins.npy", at(-1, 1 << 40))),
    "begins of BM25 that fall": (BOTH, array("bm25.begins.npy", at(3, 0))),
    "begins of BM25 below 0": (BOTH, array("bm25.begins.npy", at(2, -4))),
    "places of BM25": (BOTH, array("bm25.places.npy", at(4, 60))),
    "places of BM25 below 0": (BOTH, array("bm25.places.npy", at(4, -1))),
    "places of BM25 twice": (BOTH, array("bm25.places.npy", lambda a: np.zeros_like(a))),
    "fewer places": (BOTH, array("bm25.places.npy", lambda a: a[:-1])),
    "scores of BM25": (BOTH, array("bm25.scores.npy", at(4, np.nan))),
    "scores below 0": (BOTH, array("bm25.scores.npy", at(4, -1))),
    "scores of words": (BOTH, array("bm25.scores.npy", lambda a: a.astype("U4"))),
    "a number of a word": (BOTH, first_word(1 << 40)),
    "a word that is true": (BOTH, first_word(True)),
    "words as a list": (BOTH, text("bm25.vocab.json", b"[]")),
    "BM25 of other texts": (BOTH, objects("bm25.json", lambda s: s.update(num_docs=61))),
    "BM25 by another library": (BOTH, objects("bm25.json", lambda s: s.update(method="bm25+"))),
}


def hashes(folder):
    return json.loads((folder / "index.json").read_text())["files"]


def crafted(folder, name):
    """The index ``name``, whose index.json has the hashes of what is there."""
    flags, craft = CRAFTED[name]
    index = index_of(folder, TEXTS, **flags)
    craft(index)
    path = index / "index.json"
    said = json.loads(path.read_text())
    said["files"] = {
        file: sha256_of_file(index / file) if (index / file).is_file() else other
        for file, other in said["files"].items()
    }
    path.write_text(json.dumps(said))
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
