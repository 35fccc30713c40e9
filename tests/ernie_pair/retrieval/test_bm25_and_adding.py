"""BM25 beside vectors and alone, one ranking of both, and texts that are added to an index."""

import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from children import python
from tiny_search import bm25_of as scores_of
from tiny_search import index_of, texts_of, write_lines

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.inference.word_index import BM25_FILES, words_of
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.index import read_index
from ernie_pair.retrieval.index_folder import FILES_OF, open_index_folder
from ernie_pair.retrieval.searcher import UNITS, PairSearcher, fuse

for library in ("bm25s", "faiss", "rjieba"):
    pytest.importorskip(library)
TEXTS = texts_of(300)
FAQ = ["怎么开户", "如何注销信用卡", "信用卡丢了怎么办", "iPhone 12 多少钱", "你好"]


def bm25_of(folder, texts=FAQ):
    path = write_lines(folder / "faq.tsv", (f"q{place}\t{text}" for place, text in enumerate(texts)))
    make_index(IndexConfig(str(path), str(folder / "index"), retrieval="bm25"))
    return folder / "index"


def add(folder, texts, begin, **flags):
    path = write_lines(folder / "more.tsv", (f"t{begin + place}\t{text}" for place, text in enumerate(texts)))
    make_index(IndexConfig(str(path), str(folder / "index"), add=True, **{"embedding_model": "any", **flags}))


def list_content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_word_is_counted_whole_by_its_parts_and_characters():
    assert words_of("中国科学院！") == ["中国", "科学", "学院", "科学院", "中国科学院", *"中国科学院"]
    assert words_of("ＩＰｈｏｎｅ １２，x") == ["iphone", "12", "x"] and words_of("？！ ") == []


def test_bm25_alone_needs_no_model_and_finds_shared_words(tmp_path):
    searcher = PairSearcher(bm25_of(tmp_path))
    hits = searcher.search("注销信用卡")
    assert [hit.id for hit in hits] == ["q1", "q2"] and hits[0].score == hits[0].bm25 > hits[1].score > 0
    assert hits[0].similarity is None and hits[0].content(3)["similarity"] is None
    assert [hit.id for hit in searcher.search("IPHONE")] == ["q3"] and searcher.search("再见") == []
    with pytest.raises(InputError, match="the query has no visible character"):
        searcher.search("\x00\x1b")
    manifest = json.loads((tmp_path / "index" / "index.json").read_text())
    assert manifest["format"] == 2 and set(manifest["files"]) == set(FILES_OF["bm25"])


def test_bm25_scores_are_those_of_the_formula(tmp_path):
    hits, scores = PairSearcher(bm25_of(tmp_path)).search("信用卡"), scores_of("信用卡", FAQ)
    assert {hit.id: hit.score for hit in hits} == pytest.approx(
        {f"q{n}": scores[n] for n in (1, 2)}, rel=1e-5
    )


def test_ties_of_bm25_are_in_the_order_of_the_texts(tmp_path):
    searcher = PairSearcher(bm25_of(tmp_path, ["开户", "再见", "开户", "开户"]))
    assert [hit.id for hit in searcher.search("开户", top_k=2)] == ["q0", "q2"]


@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_fused_by_their_reciprocals(seed):
    """Cormack et al. 2009, with 10 in the place of 60; a tie is in the order of the texts."""
    rng = np.random.default_rng(seed)
    rankings = [rng.permutation(12)[: rng.integers(0, 12)].tolist() for _ in range(seed + 1)]
    scores = np.zeros(12)
    for ranking in rankings:
        scores[ranking] += 1 / (10 + np.arange(1, len(ranking) + 1))
    fused = fuse([{place: -rank for rank, place in enumerate(ranking)} for ranking in rankings])
    places = np.argsort(-scores, kind="stable")
    assert list(fused) == [place for place in places if scores[place]]
    assert list(fused.values()) == pytest.approx(np.sort(scores[scores > 0])[::-1])
    assert UNITS["both"].most == fuse([{0: 1}, {0: 1}])[0] and list(fuse([{1: 1}, {0: 1}])) == [0, 1]


EQUAL = ["开户", "再见", "开户", "怎么开户", "开户", "开户"]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_equal_texts_have_equal_scores_in_the_files_order(tmp_path, embedder, kind, dtype):
    index = index_of(tmp_path, EQUAL * 20, retrieval="both", kind=kind, dtype=dtype)
    equal = [place for place in range(120) if EQUAL[place % 6] == "开户"]
    for retrieval, top_k in (("vectors", 3), ("vectors", 80), ("both", 3), ("bm25", 3)):
        model = "" if retrieval == "bm25" else "any"
        breadth = 0 if kind == "flat" else 200
        searcher = PairSearcher(index, model, recall_k=top_k, retrieval=retrieval, breadth=breadth)
        for hits in searcher.search_many(["开户"] * 3, top_k=top_k):
            wanted = [f"t{place}" for place in equal[:top_k]]
            assert (retrieval, [hit.id for hit in hits]) == (retrieval, wanted)
            assert len({hit.score for hit in hits}) == 1


def test_both_rank_as_one_and_each_can_be_asked_alone(tmp_path, embedder):
    index = index_of(tmp_path, TEXTS, retrieval="both")
    query, count = TEXTS[40], len(TEXTS)
    by = {
        name: PairSearcher(index, "" if name == "bm25" else "any", recall_k=count, retrieval=name)
        for name in ("auto", "vectors", "bm25")
    }
    hits = {name: searcher.search(query, top_k=count) for name, searcher in by.items()}
    ranks = [{int(hit.id[1:]): hit.score for hit in hits[name]} for name in ("vectors", "bm25")]
    fused = fuse(ranks)
    assert [int(hit.id[1:]) for hit in hits["auto"]] == list(fused) and hits["auto"][0].id == "t40"
    assert [hit.score for hit in hits["auto"]] == list(fused.values())
    scores = {hit.id: hit.score for hit in hits["bm25"]}
    assert all(hit.bm25 == scores.get(hit.id) and hit.similarity is not None for hit in hits["auto"])
    plain = PairSearcher(index_of(tmp_path / "index", TEXTS), "any").search(query)
    assert plain == hits["vectors"][:10] and "bm25" not in plain[0].content(3)


@pytest.mark.parametrize("kind, model, flags, reason", [
    ("vectors", "any", {"retrieval": "bm25"}, "retrieval bm25: .* was made with retrieval vectors"),
    ("vectors", "any", {"retrieval": "both"}, "retrieval both: .* was made with retrieval vectors"),
    ("bm25", "", {"retrieval": "vectors"}, "retrieval vectors: .* was made with retrieval bm25"),
    ("bm25", "any", {}, "embedding_model any: BM25 takes no model; leave it out"),
    ("bm25", "", {"breadth": 9}, "breadth=9: .* is a BM25 index"),
    ("bm25", "", {"threshold": -1}, "threshold=-1 is below 0.*a BM25 score"),
])  # fmt: skip
def test_what_an_index_was_not_made_for_is_refused(tmp_path, embedder, kind, model, flags, reason):
    index = bm25_of(tmp_path) if kind == "bm25" else index_of(tmp_path, TEXTS[:60])
    with pytest.raises(InputError, match=reason):
        PairSearcher(index, model, **flags)


def test_texts_without_a_word_make_no_bm25(tmp_path):
    with pytest.raises(InputError, match="no text has a word"):
        bm25_of(tmp_path, ["？？", "。"])


@pytest.mark.parametrize("name", BM25_FILES)
def test_a_damaged_bm25_file_is_named(tmp_path, name):
    path = bm25_of(tmp_path) / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=name):
        PairSearcher(path.parent)


@pytest.mark.parametrize("retrieval", ["vectors", "both"])
@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_added_texts_are_found_as_if_made_at_once(tmp_path, embedder, kind, retrieval):
    index_of(tmp_path, TEXTS[:200], kind=kind, retrieval=retrieval)
    embedder.calls.clear()
    add(tmp_path, TEXTS[200:], 200)
    assert sum(embedder.calls) == 100  # the others are not embedded again
    folder = open_index_folder(tmp_path / "index")
    assert [folder.texts[place] for place in range(300)] == TEXTS and folder.ids[299] == "t299"
    assert folder.manifest.kind == kind and folder.manifest.recall_at_10 > 0.8
    found = PairSearcher(tmp_path / "index", "any", breadth=0 if kind == "flat" else 400)
    (tmp_path / "whole").mkdir()
    whole = index_of(tmp_path / "whole", TEXTS, kind=kind, retrieval=retrieval)
    wanted = PairSearcher(whole, "any", breadth=0 if kind == "flat" else 400)
    for query in texts_of(9, seed=7):
        assert [hit.id for hit in found.search(query)] == [hit.id for hit in wanted.search(query)]
    if kind == "ivf":  # nothing is written that reading the vectors needs
        assert read_index(tmp_path / "index" / "index.faiss", folder.manifest.expected).direct_map.no()
    if kind == "flat":
        assert (whole / "index.faiss").read_bytes() == (tmp_path / "index/index.faiss").read_bytes()


def test_line_numbers_go_on_behind_those_of_the_index(tmp_path, embedder):
    path = write_lines(tmp_path / "a.txt", ["今天", "", "明天"])
    make_index(IndexConfig(str(path), str(tmp_path / "index"), "any", on_bad_row="skip"))
    for name in ("b.txt", "c.txt"):
        write_lines(tmp_path / name, ["今后", "明后"])
        make_index(IndexConfig(str(tmp_path / name), str(tmp_path / "index"), "any", add=True))
    ids = open_index_folder(tmp_path / "index").ids
    assert [ids[place] for place in range(6)] == ["0", "2", "3", "4", "5", "6"]


def test_an_addition_that_does_not_fit_changes_nothing(tmp_path, embedder):
    index_of(tmp_path, TEXTS[:60])
    before = list_content(tmp_path / "index")
    with pytest.raises(InputError, match="to add texts, give embedding_model, or their vectors"):
        add(tmp_path, TEXTS[60:62], 60, embedding_model="")
    embedder.fingerprint = "e" * 64
    with pytest.raises(InputError, match="vectors are of another model"):
        add(tmp_path, TEXTS[60:62], 60)
    embedder.fingerprint = "f" * 64
    embedder.settings = replace(embedder.settings, prompts={"passage": "p: "})
    with pytest.raises(InputError, match="are of another prompt"):
        add(tmp_path, TEXTS[60:62], 60)
    assert list_content(tmp_path / "index") == before


def test_a_killed_addition_leaves_the_index_and_goes_on(tmp_path, embedder, capfd):
    index_of(tmp_path, TEXTS[:60])
    before = list_content(tmp_path / "index")
    path = write_lines(tmp_path / "more.tsv", (f"n{place}\t{text}" for place, text in enumerate(TEXTS[60:])))
    flags = ["--input_file", str(path), "--embedding_model", "any", "--output_dir", str(tmp_path / "index")]
    killed = python(Path(__file__).with_name("killed_index.py"), json.dumps([*flags, "--add", "true"]))
    assert killed.returncode == -signal.SIGKILL and list_content(tmp_path / "index") == before
    make_index(IndexConfig(str(path), str(tmp_path / "index"), "any", add=True))
    assert "reused 100 of 240 vectors" in capfd.readouterr().err
    assert len(open_index_folder(tmp_path / "index").texts) == 300
    assert sorted(os.listdir(tmp_path)) == ["index", "more.tsv", "texts.jsonl"]


def test_a_full_disk_names_the_path(tmp_path, embedder, capfd):
    path = write_lines(tmp_path / "texts.txt", TEXTS)
    usual, config = resource.getrlimit(resource.RLIMIT_FSIZE), IndexConfig(str(path), f"{tmp_path}/i", "any")
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, usual[1]))  # above what the capture of this test writes
    try:
        code = exit_code_of(lambda: make_index(config))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert code == 5 and f"File too large at {tmp_path / 'i'}" in capfd.readouterr().err
