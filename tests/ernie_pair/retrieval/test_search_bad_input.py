"""Invalid indexes and searches: each gives a one-line error and an exit code, and leaves nothing behind."""

import io
import json
import os
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_search import HashEmbedder, index_of, texts_of, use_embedder, write_lines

from ernie_pair.core.errors import CheckpointError, InputError, MachineError, NumbersError
from ernie_pair.inference.scores import COSINE, PROBABILITY, find_unit
from ernie_pair.retrieval import build_index as building
from ernie_pair.retrieval import index as faiss_index
from ernie_pair.retrieval import index_folder
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.search_texts import SearchConfig, read_hits, search_texts
from ernie_pair.retrieval.searcher import PairSearcher

pytest.importorskip("faiss")
TEXTS = texts_of(60)


@pytest.fixture
def embedder(monkeypatch):
    made = HashEmbedder()
    use_embedder(monkeypatch, made)
    return made


@pytest.fixture
def index(tmp_path, embedder):
    return index_of(tmp_path, TEXTS)


def refusal_of(path, **flags):
    """The error of indexing ``path``, after checking that no files were added beside it."""
    before = sorted(os.listdir(path.parent))
    with pytest.raises((InputError, NumbersError, MachineError)) as refused:
        make_index(IndexConfig(str(path), str(path.parent / "index"), embedding_model="any", **flags))
    assert sorted(os.listdir(path.parent)) == before and "\n" not in refused.value.message
    return refused.value


BAD_FILES = {  # what else a line can be is in the tests of the files of texts
    "empty.txt": (b"", "holds no text, so there is nothing to index"),
    "blank.txt": ("今天\n\n".encode(), "blank.txt:2: an empty text; fix the line, or pass --on_bad_row skip"),
    "twice.tsv": ("a\t今天\nb\t好\na\t明天\n".encode(), "twice.tsv:3: repeats the id of line 1"),
    "bytes.txt": (b"\xff\xff\xff\n", "bytes.txt:1: "),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_text_file_is_refused_with_its_line_number(tmp_path, embedder, name):
    content, reason = BAD_FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    error = refusal_of(path)
    assert error.exit_code == 2 and re.search(reason, error.message)
    assert embedder.calls == []  # the model was not run


def test_bad_lines_are_skipped_on_request(tmp_path, embedder):
    path = tmp_path / "texts.txt"
    path.write_bytes("今天\n\n明天\n".encode() + b"\xff\xff\n" + "好\n".encode())
    make_index(IndexConfig(str(path), str(tmp_path / "index"), embedding_model="any", on_bad_row="skip"))
    folder = index_folder.open_index_folder(tmp_path / "index")
    kept = [(folder.ids[place], folder.texts[place]) for place in range(3)]
    assert kept == [("0", "今天"), ("2", "明天"), ("4", "好")]
    assert json.loads((tmp_path / "index/index.json").read_text())["lines_left_out"] == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 3.0])
def test_vectors_not_of_unit_length_are_refused(tmp_path, embedder, monkeypatch, value):
    def broken(texts):
        vectors = HashEmbedder().embed(texts)
        vectors[7] *= value
        return vectors

    monkeypatch.setattr(embedder, "embed", broken)
    error = refusal_of(write_lines(tmp_path / "texts.txt", TEXTS))
    assert error.exit_code == 4 and "vector 7 is NaN, infinite or of length" in error.message


def test_too_little_memory_or_text_is_reported_at_once(tmp_path, embedder, monkeypatch):
    assert "absent.txt is not a file" in refusal_of(tmp_path / "absent.txt").message
    texts = write_lines(tmp_path / "texts.txt", TEXTS)
    error = refusal_of(texts, kind="ivf", lists=61)
    assert error.exit_code == 2 and "61 is above the 60 texts of " in error.message
    assert error.message.endswith("use 1, or leave it out")
    monkeypatch.setattr(faiss_index, "free_memory", lambda: 1000.0)
    error = refusal_of(texts)
    assert error.exit_code == 5 and "60 vectors of 16 takes about 0.0 GB" in error.message
    assert embedder.calls == []  # the model was not run


def test_a_folder_with_foreign_files_is_not_replaced(tmp_path, embedder):
    (tmp_path / "index").mkdir()
    write_lines(tmp_path / "index" / "dear.txt", ["dear"])
    error = refusal_of(write_lines(tmp_path / "texts.txt", TEXTS), overwrite=True)
    assert "index holds dear.txt, which would be lost" in error.message


def test_two_runs_cannot_build_the_same_index_at_once(tmp_path, embedder):
    path = write_lines(tmp_path / "texts.txt", TEXTS)
    for made in (False, True):
        with building.part_folder(tmp_path / ".index.vectors", "busy"):
            error = refusal_of(path, add=made)
        assert error.exit_code == 5 and "another run makes this index" in error.message
        make_index(IndexConfig(str(path), str(tmp_path / "index"), embedding_model="any", overwrite=True))


def test_an_index_of_another_model_is_refused(index, embedder):
    embedder.fingerprint = "e" * 64
    reason = "vectors are of another model .ffffffffffff. than hashes .eeeeeeeeeeee"
    with pytest.raises(InputError, match=reason):
        PairSearcher(index, "any")
    embedder.fingerprint, embedder.dim = "f" * 63 + "0", 32
    embedder.settings = replace(embedder.settings, dim=32, dims=(32,))
    with pytest.raises(InputError, match="of another model"):
        PairSearcher(index, "any")


@pytest.mark.parametrize("name", [*index_folder.FILES, index_folder.INDEX_MANIFEST])
def test_the_error_names_a_damaged_or_missing_index_file(index, embedder, name):
    whole = (index / name).read_bytes()
    for content in (whole[:-1] + bytes([whole[-1] ^ 1]), None):
        (index / name).unlink(missing_ok=True)
        if content is not None:
            (index / name).write_bytes(content)
        with pytest.raises((CheckpointError, InputError)) as refused:
            PairSearcher(index, "any")
        assert name in refused.value.message and "\n" not in refused.value.message


@pytest.mark.parametrize("unit, inside, outside", [
    (COSINE, -1, 1.5),
    (PROBABILITY, 1, -0.5),
    (find_unit(False, (0.0, 5.0)), 4.5, 5.5),
    (find_unit(False, None), -7.5, None),
], ids=["cosine", "probability", "regression", "ranking"])  # fmt: skip
def test_a_threshold_outside_the_score_range_is_refused(index, embedder, monkeypatch, unit, inside, outside):
    scorer = SimpleNamespace(unit=unit, check_rankable=lambda: None, ranked_by="")
    scorer.best_windows = lambda pairs: (np.linspace(-8, 5, len(pairs)), [None] * len(pairs))
    monkeypatch.setattr("ernie_pair.retrieval.searcher.load", lambda *given, **named: scorer)
    reranker = None if unit is COSINE else "ranker"
    found = PairSearcher(index, "any", reranker, threshold=inside).search(TEXTS[0], top_k=50)
    assert found == [] or min(hit.score for hit in found) >= inside
    assert found
    config_of(index, model_path="ranker", threshold=4.5)  # accepted: the range depends on the model
    if outside is not None:
        with pytest.raises(InputError, match=f"threshold={outside} is .*: it is {unit.name}"):
            PairSearcher(index, "any", reranker, threshold=outside)


def test_an_invalid_query_is_refused(index, embedder):
    searcher, cutting = PairSearcher(index, "any"), PairSearcher(index, "any", cuts=True)
    assert len(cutting.search("今" * 19, top_k=2)) == 2
    for each, query, reason in (
        (searcher, "", "the query is empty"),
        (cutting, " ", "the query is empty"),
        (searcher, "今" * 19, "has 21 tokens, above the 20 of the model"),
        (searcher, 3, "the query is 3"),
    ):
        with pytest.raises(InputError, match=reason):
            each.search(query)


def config_of(index, **flags):
    return SearchConfig(str(index), "any", **flags)


def test_a_long_query_in_a_file_is_reported_before_any_work(index, embedder, tmp_path):
    path = write_lines(tmp_path / "queries.txt", ["今天", "明" * 30])
    config = config_of(index, input_file=str(path), output_file=str(tmp_path / "out.jsonl"))
    embedder.calls.clear()
    with pytest.raises(InputError, match="queries.txt:2: the query has 32 tokens, above the 20 of the model"):
        search_texts(config)
    assert embedder.calls == [] and not (tmp_path / "out.jsonl").exists()
    write_lines(path, [])
    with pytest.raises(InputError, match="holds no query; give one on every line"):
        search_texts(config)


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".xlsx", ".parquet"])
def test_answers_are_a_table_where_the_ending_says_so(index, embedder, tmp_path, ending):
    path = write_lines(tmp_path / "queries.tsv", ["a\t今天", "b\t明天"])
    hits = []
    for name in ("out.jsonl", f"out{ending}"):
        config = config_of(index, input_file=str(path), output_file=str(tmp_path / name), top_k=2)
        search_texts(config)
        hits.append(read_hits(tmp_path / name))
    assert hits[0] == hits[1] and list(map(len, hits[0])) == [2, 2]
    (tmp_path / f"out{ending}").unlink()
    nothing = replace(config, threshold=0.9999999, overwrite=True)
    search_texts(nothing)
    assert read_hits(tmp_path / f"out{ending}") == [[], []]
    with pytest.raises(InputError, match="out.txt: name a file that ends with .tsv, .csv, .xlsx"):
        search_texts(replace(config, output_file=str(tmp_path / "out.txt")))


def test_existing_answers_are_not_overwritten(index, embedder, tmp_path, capfd):
    path = write_lines(tmp_path / "queries.tsv", ["a\t今天", "b\t明天"])
    config = config_of(index, input_file=str(path), output_file=str(tmp_path / "out.jsonl"), top_k=2)
    search_texts(config)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["id"], row["query"], len(row["hits"])) for row in rows] == [
        ("a", "今天", 2),
        ("b", "明天", 2),
    ]
    search_texts(config)
    assert "nothing to do" in capfd.readouterr().err
    write_lines(path, ["a\t昨天"])
    with pytest.raises(InputError, match="from other content of --input_file|content of input_file"):
        search_texts(config)


def test_a_byte_order_mark_on_stdin_is_dropped(index, embedder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeff今天\n\ufeff昨天\n"))
    search_texts(config_of(index))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["query"] == "今天" and second["query"] == "\ufeff昨天"  # only at the very beginning


def test_a_table_keeps_every_text(tmp_path):
    texts = ["", "今天", "a\tb\n", "好" * 5000]
    with index_folder.TextTableWriter(tmp_path, "x") as table:
        for text in texts:
            table.append(text)
    assert [index_folder.TextTable(tmp_path, "x")[place] for place in range(4)] == texts
