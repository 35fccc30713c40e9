"""Texts that are searched only where a column that rides along with them has a value."""

import json

import numpy as np
import pytest
from tiny_search import HashEmbedder, texts_of, write_lines

from ernie_pair.core.errors import InputError
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.search_texts import SearchConfig, search_texts
from ernie_pair.retrieval.searcher import PairSearcher, TextRecall
from ernie_pair.retrieval.word_index import words_of

for library in ("bm25s", "faiss", "rjieba"):
    pytest.importorskip(library)
TEXTS = texts_of(300)
QUERIES = texts_of(12, seed=5)
CITIES, KINDS = ("北京", "上海", ""), [f"k{number}" for number in range(40)]
ROWS = [
    {"id": f"t{n}", "text": text, "city": CITIES[n % 3], "kind": KINDS[n * 7 % 40], "answer": str(n // 2)}
    for n, text in enumerate(TEXTS)
]
FILTERS = [{"city": "北京"}, {"city": ""}, {"kind": "k3"}, {"city": "上海", "kind": "k3"}, {"kind": "none"}]


def indexed(folder, columns="city,kind", **flags):
    path = write_lines(folder / "rows.jsonl", (json.dumps(row, ensure_ascii=False) for row in ROWS))
    model = "" if flags.get("retrieval") == "bm25" else "any"
    make_index(IndexConfig(str(path), str(folder / "index"), model, payload_columns=columns, **flags))
    return folder / "index"


def fitting(where):
    return [n for n, row in enumerate(ROWS) if all(row[column] == value for column, value in where.items())]


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_the_nearest_of_the_rows_that_fit_are_found(tmp_path, embedder, monkeypatch, kind, dtype):
    if kind == "hnsw":  # so that the graph is walked without a filter
        monkeypatch.setattr("ernie_pair.retrieval.index.SMALL_GRAPH", 0)
    index = indexed(tmp_path, kind=kind, dtype=dtype)
    searcher = PairSearcher(index, "any", recall_k=9, breadth=0 if kind == "flat" else 400)
    cosines = HashEmbedder().embed(QUERIES) @ HashEmbedder().embed(TEXTS).T
    for where in FILTERS:
        fits = fitting(where)
        for query, row in zip(QUERIES, cosines):
            hits = searcher.search(query, 9, where)
            places = [int(hit.id[1:]) for hit in hits]
            assert len(places) == min(9, len(fits)) and {*places} <= {*fits}
            best = sorted(row[fits])[::-1][: len(places)]
            assert row[places] == pytest.approx(best, abs=2e-5 if dtype == "fp32" else 0.05)
            assert all({**dict.fromkeys(where, ""), **hit.payload}.items() >= where.items() for hit in hits)


def test_few_lists_of_ivf_are_searched_on_until_enough_rows_fit(tmp_path, embedder):
    searcher = PairSearcher(indexed(tmp_path, kind="ivf", lists=20), "any", recall_k=8, breadth=1)
    wanted = fitting({"kind": "k3"})
    hits = searcher.search(QUERIES[0], 8, {"kind": "k3"})
    assert sorted(int(hit.id[1:]) for hit in hits) == wanted and len(wanted) in (7, 8)


def test_words_are_looked_for_in_the_rows_that_fit(tmp_path):
    searcher = PairSearcher(indexed(tmp_path, retrieval="bm25"), recall_k=5)
    every = PairSearcher(tmp_path / "index", recall_k=300)
    for where in FILTERS:
        for query in QUERIES:
            scores = [(hit.id, hit.score) for hit in every.search(query, 300)]
            wanted = [one for one in scores if int(one[0][1:]) in fitting(where)][:5]
            assert [(hit.id, hit.score) for hit in searcher.search(query, 5, where)] == wanted
            shared = {*words_of(query)}
            assert all(shared & {*words_of(hit.text)} for hit in searcher.search(query, 5, where))


def test_both_and_answers_keep_to_the_rows_that_fit(tmp_path, embedder):
    searcher = PairSearcher(indexed(tmp_path, "city,kind,answer", retrieval="both"), "any", recall_k=4)
    hits = searcher.search(QUERIES[0], 4, {"city": "北京"})
    assert len({hit.payload["answer"] for hit in hits}) == len(hits) == 4
    assert all(int(hit.id[1:]) % 3 == 0 for hit in hits)


def test_where_of_the_command_and_what_is_wrong_with_it(tmp_path, capsys):
    index = str(indexed(tmp_path, retrieval="bm25"))
    hits = search_texts(SearchConfig(index, text=TEXTS[3], where="city=北京, kind=k21"))
    assert [hit.id for hit in hits] == ["t3", "t123"]  # the only ones
    assert search_texts(SearchConfig(index, text=TEXTS[3], where="kind=a,b")) == []
    assert "nothing with --where kind=a,b is found" in capsys.readouterr().err
    assert SearchConfig(index, where="kind=a,b,city=").filters == {"kind": "a,b", "city": ""}
    for where, reason in (
        ("country=x", "where country=x: .* has no such column beside its texts .there: city, kind"),
        ("city", "'city' is no COLUMN=VALUE; write category=账户"),
        ("=x", "'=x' is no COLUMN=VALUE"),
        ("city=a,city=b", "names city twice; leave one value"),
    ):
        with pytest.raises(InputError, match=reason):
            search_texts(SearchConfig(index, text="今", where=where))


def test_a_file_of_queries_is_answered_from_the_rows_that_fit(tmp_path):
    index = indexed(tmp_path, retrieval="bm25")
    asked = write_lines(tmp_path / "asked.txt", QUERIES)
    flags = {"input_file": str(asked), "output_file": str(tmp_path / "out.jsonl"), "where": "city=上海"}
    search_texts(SearchConfig(str(index), **flags))
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    found = [int(hit["id"][1:]) for row in rows for hit in row["hits"]]
    assert len(rows) == 12 and found and {place % 3 for place in found} == {1}


def test_a_state_that_takes_the_place_of_another_is_opened(tmp_path, monkeypatch):
    """The files are read one after the other: of a state that is gone, none is mixed with the next."""
    index, other = indexed(tmp_path, retrieval="bm25"), tmp_path / "other"
    other.mkdir()
    ROWS.reverse()
    try:
        indexed(other, retrieval="bm25")
    finally:
        ROWS.reverse()
    usual, swapped = TextRecall.__init__, []

    def swapped_before(self, folder, *given, **named):
        if not swapped:
            swapped.append(index.rename(tmp_path / "gone"))
            (other / "index").rename(index)
        usual(self, folder, *given, **named)

    monkeypatch.setattr(TextRecall, "__init__", swapped_before)
    hits = PairSearcher(index).search(TEXTS[0])
    assert swapped and hits[0].id == "t0" and hits[0].text == TEXTS[0]


def test_a_column_is_read_once(tmp_path, monkeypatch):
    from ernie_pair.retrieval.index_folder import open_index_folder

    folder = open_index_folder(indexed(tmp_path, retrieval="bm25"))
    first = folder.rows_where({"city": "北京"})
    monkeypatch.setattr("json.loads", lambda text: 1 / 0)
    assert np.array_equal(folder.rows_where({"city": ""}), np.arange(300) % 3 == 2)
    assert np.array_equal(first, np.arange(300) % 3 == 0)
