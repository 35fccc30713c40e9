"""Indexes of texts: their content, their search results, and how a killed run is resumed."""

import gzip
import json
import os
import signal
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from children import python
from tiny_search import DIM, HashEmbedder, index_of, texts_of, use_embedder, write_embedder, write_lines

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.progress import CountProgress
from ernie_pair.retrieval import build_index as building
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.index import Expected, IndexShape, VectorIndex, train_index, write_index
from ernie_pair.retrieval.index_folder import FILES, open_index_folder
from ernie_pair.retrieval.searcher import PairSearcher

pytest.importorskip("faiss")
TEXTS = texts_of(400)


def exact(queries, count):
    made = HashEmbedder()
    cosines = made.embed(queries) @ made.embed(TEXTS).T
    return [[f"t{place}" for place in row] for row in np.argsort(-cosines, axis=1, kind="stable")[:, :count]]


def hashes_of(folder):
    return {name: sha256((folder / name).read_bytes()).hexdigest() for name in FILES}


def test_a_top_k_above_recall_k_returns_that_many_hits(tmp_path, embedder):
    searcher = PairSearcher(index_of(tmp_path, TEXTS), "any", recall_k=5, threads=1)
    for query, hits in zip(TEXTS, searcher.search_many(TEXTS[:3], top_k=120)):
        assert [hit.id for hit in hits] == exact([query], 120)[0]
    assert len(searcher.search(TEXTS[0], top_k=9999)) == 400  # the whole index
    assert [len(hits) for hits in searcher.texts.recall(TEXTS[:2])] == [5, 5]


def test_empty_lists_are_skipped_until_all_hits_are_found(tmp_path, embedder, capfd):
    """With 60 texts in 40 lists, most lists hold one text or none; only one list is probed at first."""
    index = index_of(tmp_path, TEXTS[:60], kind="ivf", lists=40)
    told = capfd.readouterr().err
    assert "60 texts are few for 40 lists" in told and "--lists 1 has" in told
    assert "WARNING clustering" not in told
    searcher = PairSearcher(index, "any", breadth=1, threads=1)
    for query in texts_of(12, seed=7):
        assert len(searcher.search(query, top_k=10)) == 10
    assert [len(hits) for hits in searcher.search_many(texts_of(12, seed=7), top_k=60)] == [60] * 12
    alone = [searcher.texts.recall([query])[0] for query in texts_of(12, seed=7)]  # as the service asks
    assert alone == searcher.texts.recall(texts_of(12, seed=7)) and {len(hits) for hits in alone} == {50}


def count_progress(monkeypatch):
    """{unit: [how many are announced, how many are counted]}"""
    counted = {}

    class Counting(CountProgress):
        def __init__(self, total, unit):
            super().__init__(total, unit)
            counted[unit] = [total, 0]

        def advance(self, count):
            counted[self._unit][1] += count

    monkeypatch.setattr(building, "CountProgress", Counting)
    return counted


FORMS = {  # name: the lines of the file; a file without ids counts its lines
    "texts.txt": lambda rows: [text for _, text in rows],
    "chinese.tsv": lambda rows: ["编号\t问题", *map("\t".join, rows)],
    "texts.jsonl": lambda rows: [json.dumps({"text": text, "id": name, "more": [1]}) for name, text in rows],
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("packed", [False, True])
def test_every_file_format_gives_the_same_texts(tmp_path, embedder, name, packed):
    rows = [(f"t{place}", text) for place, text in enumerate(TEXTS)]
    path = write_lines(tmp_path / name, FORMS[name](rows))
    if packed:
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = path.with_name(f"{name}.gz")
    make_index(IndexConfig(str(path), str(tmp_path / "index"), embedding_model="any"))
    folder = open_index_folder(tmp_path / "index")
    assert [folder.texts[place] for place in range(400)] == TEXTS
    begin = "" if name == "texts.txt" else "t"
    assert [folder.ids[place] for place in (0, 7, 399)] == [f"{begin}{place}" for place in (0, 7, 399)]
    assert [text for chunk in folder.texts.chunks(33) for text in chunk] == TEXTS


def test_a_killed_run_reuses_its_vectors_bit_identically(tmp_path, embedder, monkeypatch, capfd):
    path = write_lines(tmp_path / "texts.txt", TEXTS)
    flags = ["--input_file", str(path), "--embedding_model", "any", "--output_dir"]
    killed = python(Path(__file__).with_name("killed_index.py"), json.dumps([*flags, str(tmp_path / "cut")]))
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "cut").exists()
    pieces = tmp_path / ".cut.vectors" / "pieces.txt"
    assert len(pieces.read_text().splitlines()) == 3  # the key, and two chunks
    counted = count_progress(monkeypatch)
    make_index(IndexConfig(str(path), str(tmp_path / "cut"), embedding_model="any"))
    assert embedder.calls == [50] * 6 and "reused 100 of 400 vectors" in capfd.readouterr().err
    assert counted == {"text": [300, 300], "vector": [400, 400]}
    make_index(IndexConfig(str(path), str(tmp_path / "whole"), embedding_model="any"))
    assert hashes_of(tmp_path / "cut") == hashes_of(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["cut", "texts.txt", "whole"]  # nothing else is left


def test_vectors_of_another_column_are_not_reused(tmp_path, embedder):
    rows = ["question\treply", *(f"{one}\t{other}" for one, other in zip(TEXTS, TEXTS[::-1]))]
    path = str(write_lines(tmp_path / "faq.tsv", rows))
    words = ["--input_file", path, "--embedding_model", "any", "--output_dir", str(tmp_path / "cut")]
    words += ["--text_column", "question"]
    assert python(Path(__file__).with_name("killed_index.py"), json.dumps(words)).returncode < 0
    for name in ("cut", "whole"):
        make_index(IndexConfig(path, str(tmp_path / name), embedding_model="any", text_column="reply"))
    assert hashes_of(tmp_path / "cut") == hashes_of(tmp_path / "whole")


def test_vectors_of_another_model_are_not_reused(tmp_path, embedder, monkeypatch):
    path = write_lines(tmp_path / "texts.txt", TEXTS)
    config = IndexConfig(str(path), str(tmp_path / "index"), embedding_model="any")
    monkeypatch.setattr(building, "write_index", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_index(config)
    monkeypatch.undo()
    other = HashEmbedder("other" * 13)
    use_embedder(monkeypatch, other)
    monkeypatch.setattr(building, "CHUNK", 50)
    make_index(config)
    assert sum(other.calls) == 400 and not (tmp_path / ".index.vectors").exists()


def test_a_damaged_chunk_of_a_killed_run_is_recomputed(tmp_path, embedder, monkeypatch):
    path = write_lines(tmp_path / "texts.txt", TEXTS)
    config = IndexConfig(str(path), str(tmp_path / "index"), embedding_model="any")
    with monkeypatch.context() as failing:
        failing.setattr(building, "write_index", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make_index(config)
    chunk = tmp_path / ".index.vectors" / "vectors.npy"
    content = bytearray(chunk.read_bytes())
    content[-3] ^= 1
    chunk.write_bytes(content)
    embedder.calls.clear()
    make_index(config)
    assert embedder.calls == [50]


def test_rerunning_the_same_command_does_nothing(tmp_path, embedder, capfd):
    index_of(tmp_path, TEXTS)
    before = hashes_of(tmp_path / "index")
    embedder.calls.clear()
    index_of(tmp_path, TEXTS)
    assert embedder.calls == [] and "nothing to do" in capfd.readouterr().err
    with pytest.raises(InputError, match="made with --kind|made with kind"):
        index_of(tmp_path, TEXTS, kind="hnsw")
    index_of(tmp_path, TEXTS[:60], overwrite=True)
    assert hashes_of(tmp_path / "index") != before and len(open_index_folder(tmp_path / "index").texts) == 60


def test_lists_are_searched_until_each_query_has_all_hits(tmp_path):
    """As by faiss itself, query by query: twice as many lists, until the last place is filled."""
    rng = np.random.default_rng(5)
    vectors, queries = (rng.normal(size=(count, DIM)).astype(np.float32) for count in (60, 400))
    for rows in (vectors, queries):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = train_index(IndexShape("ivf", lists=12), 60, DIM, lambda: iter([vectors]))
    index.add(vectors)
    write_index(index, tmp_path / "index")
    for breadth, count in ((1, 1), (1, 2), (3, 9), (0, 60), (1, 60), (1, 61)):
        found = VectorIndex(tmp_path / "index", Expected("ivf", "fp32", 60, DIM), 1, breadth).nearest(
            queries, count
        )
        for row, query in enumerate(queries):
            index.nprobe = min(breadth or 12, 12)
            while index.search(query[None], min(count, 60))[1][0, -1] < 0:
                index.nprobe = min(2 * index.nprobe, 12)
            cosines, places = index.search(query[None], count)
            assert np.array_equal(found[1][row], places[0])
            np.testing.assert_allclose(found[0][row], cosines[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_the_index_is_identical_for_any_number_of_threads(tmp_path, embedder, kind):
    for threads in (1, 2):
        (tmp_path / str(threads)).mkdir()
        index_of(tmp_path / str(threads), TEXTS, kind=kind, threads=threads)
    assert hashes_of(tmp_path / "1" / "index") == hashes_of(tmp_path / "2" / "index")


def test_end_to_end_by_command_with_a_real_model(tmp_path):
    """Checks the exit codes, stdout and the file of answers."""
    model = write_embedder(tmp_path / "model")
    path = write_lines(tmp_path / "faq.tsv", (f"q{place}\t{text}" for place, text in enumerate(TEXTS[:120])))
    queries = write_lines(tmp_path / "queries.txt", TEXTS[:5])
    index = ["index", "--input_file", path, "--embedding_model", model, "--output_dir", tmp_path / "index"]
    asked = ["search", "--index", tmp_path / "index", "--embedding_model", model, "--model_path", model]
    asked += ["--top_k", "3"]
    answers = ["--input_file", queries, "--output_file", tmp_path / "answers.jsonl"]
    said = []
    for words, typed in ((index, ""), ([*asked, *answers], ""), (asked, f"{TEXTS[0]}\n\n{TEXTS[1]}\n")):
        done = python("-m", "ernie_pair", *words, given=typed)
        assert done.returncode == 0, done.stderr
        assert words is asked or f"{tmp_path}/" in done.stderr  # what was written where
        said.append(done.stdout)
    written = (tmp_path / "answers.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in written.splitlines()]
    assert TEXTS[0] in written  # as it is, and not in escapes
    assert [row["query"] for row in rows] == TEXTS[:5] and all(len(row["hits"]) == 3 for row in rows)
    typed_rows = [json.loads(line) for line in said[2].splitlines()]
    assert [row["hits"][0]["id"] for row in typed_rows] == [row["hits"][0]["id"] for row in rows[:2]]
    with pytest.raises(InputError, match="has 21[0-9] tokens, above the 128 of the model"):
        PairSearcher(tmp_path / "index", model).search("今" * 210)
    config = IndexConfig(str(path), str(tmp_path / "index"), embedding_model="x")
    assert exit_code_of(lambda: make_index(config)) == 2


def test_an_index_is_opened_memory_mapped(tmp_path, embedder):
    """Several processes can then share it, and its file may be replaced while it is open."""
    path = index_of(tmp_path, TEXTS) / "index.faiss"
    opened = VectorIndex(path, Expected("flat", "fp32", 400, DIM), threads=1)
    assert str(path) in Path("/proc/self/maps").read_text()
    path.unlink()
    query = HashEmbedder().embed(TEXTS[5:6])
    assert opened.nearest(query, 1)[1].tolist() == [[5]]
