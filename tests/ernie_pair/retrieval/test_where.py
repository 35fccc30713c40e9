"""Texts that are searched only where a column that rides along with them has a value."""

import json

import numpy as np
import pytest
from tiny_search import DIM, HashEmbedder, texts_of, write_lines

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.index_folder import INDEX_MANIFEST, Answering, keep_measured
from ernie_pair.retrieval.search_texts import SearchConfig, search_texts
from ernie_pair.retrieval.searcher import PairSearcher

for library in ("bm25s", "faiss", "rjieba"):
    pytest.importorskip(library)
TEXTS = texts_of(300)
QUERIES = texts_of(12, seed=5)
CITIES, KINDS = ("北京", "上海", ""), [f"k{number}" for number in range(40)]
ROWS = [
    {"id": f"t{n}", "text": text, "city": CITIES[n % 3], "kind": KINDS[n * 7 % 40], "answer": str(n // 2)}
    for n, text in enumerate(TEXTS)
]
FILTERS = [{}, {"city": "北京"}, {"city": ""}, {"city": "上海", "kind": "k3"}, {"kind": "none"}]


def indexed(folder, columns="city,kind", **flags):
    path = write_lines(folder / "rows.jsonl", (json.dumps(row, ensure_ascii=False) for row in ROWS))
    model = "" if flags.get("retrieval") == "bm25" else "any"
    make_index(IndexConfig(str(path), str(folder / "index"), model, payload_columns=columns, **flags))
    return folder / "index"


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_the_nearest_of_all_and_of_the_rows_that_fit_are_found(tmp_path, embedder, monkeypatch, kind, dtype):
    monkeypatch.setattr("ernie_pair.retrieval.index.SMALL_GRAPH", 0)  # without a filter the graph is walked
    index = indexed(tmp_path, kind=kind, dtype=dtype)
    manifest = json.loads((index / INDEX_MANIFEST).read_text())
    assert (manifest["texts"], manifest["dim"], manifest["format"]) == (300, DIM, 2)
    assert manifest["recall_at_10"] > 0.8 and manifest["retrieval"] == "vectors"
    searcher = PairSearcher(index, "any", recall_k=9, breadth=0 if kind == "flat" else 400)
    cosines = HashEmbedder().embed(QUERIES) @ HashEmbedder().embed(TEXTS).T
    for where in FILTERS:
        fits = [n for n, one in enumerate(ROWS) if all(one[name] == value for name, value in where.items())]
        for row, hits in zip(cosines, searcher.search_many(QUERIES, 9, where)):
            places, best = [int(hit.id[1:]) for hit in hits], [fits[n] for n in np.argsort(-row[fits])[:9]]
            assert {*places} <= {*fits} and len(places) == len(best)
            assert row[places] == pytest.approx(row[best], abs=1e-4 if dtype == "fp32" else 0.06)
            assert places == best or (kind, dtype) != ("flat", "fp32")


def test_few_lists_of_ivf_are_searched_on_until_enough_rows_fit(tmp_path, embedder):
    searcher = PairSearcher(indexed(tmp_path, kind="ivf", lists=20), "any", recall_k=8, breadth=1)
    hits = searcher.search(QUERIES[0], 8, {"kind": "k3"})
    assert len(hits) == 7 and all(ROWS[int(hit.id[1:])]["kind"] == "k3" for hit in hits)


def test_both_and_answers_keep_to_the_rows_that_fit(tmp_path, embedder):
    searcher = PairSearcher(indexed(tmp_path, "city,kind,answer", retrieval="both"), "any", recall_k=4)
    hits = searcher.search(QUERIES[0], 4, {"city": "北京"})
    assert len({hit.payload["answer"] for hit in hits}) == len(hits) == 4
    assert all(int(hit.id[1:]) % 3 == 0 for hit in hits)


def test_a_fused_rank_has_no_threshold_for_other_searches(tmp_path, embedder, capfd):
    index = indexed(tmp_path, retrieval="both")
    flags = {"fingerprint": embedder.fingerprint, "index_sha256": sha256_of_file(index / INDEX_MANIFEST)}
    saved = Answering(
        "both", "", threshold=0.18, asked=0.9, precision=0.9, interval=(0.8, 1.0), coverage=0.5, questions=9,
        recall_k=20, **flags,
    )  # fmt: skip
    keep_measured(index, answering=[saved], measured=[saved.key])
    searcher = PairSearcher(index, "any", recall_k=20)
    few = searcher.search(QUERIES[0])
    assert all(hit.score >= 0.18 for hit in few) and "is not used" not in capfd.readouterr().err
    for more in ({"top_k": 21}, {"where": {"city": "北京"}}):
        assert len(searcher.search(QUERIES[0], **more)) > len(few)
    assert capfd.readouterr().err.count("holds for 20 texts found, without a filter; it is not used") == 1


def test_where_of_the_command_and_what_is_wrong_with_it(tmp_path, capsys):
    index = str(indexed(tmp_path, retrieval="bm25"))
    hits = search_texts(SearchConfig(index, text=TEXTS[3], where="city=北京, kind=k21"))
    assert [hit.id for hit in hits] == ["t3", "t123"]  # the only ones
    assert search_texts(SearchConfig(index, text=TEXTS[3], where="kind=a,b")) == []
    assert "nothing with --where kind=a,b is found" in capsys.readouterr().err
    asked, out = write_lines(tmp_path / "asked.txt", QUERIES), tmp_path / "out.jsonl"
    search_texts(SearchConfig(index, input_file=str(asked), output_file=str(out), where="city=上海"))
    found = [hit["id"] for row in out.read_text().splitlines() for hit in json.loads(row)["hits"]]
    assert len(found) > 12 and {int(name[1:]) % 3 for name in found} == {1}
    assert SearchConfig(index, where="kind=a,b,city=").filters == {"kind": "a,b", "city": ""}
    for where, reason in (
        ("country=x", "where country=x: .* has no such column beside its texts .there: city, kind"),
        ("city", "'city' is no COLUMN=VALUE; write category=账户"),
        ("=x", "'=x' is no COLUMN=VALUE"),
        ("city=a,city=b", "names city twice; leave one value"),
    ):
        with pytest.raises(InputError, match=reason):
            search_texts(SearchConfig(index, text="今", where=where))


def test_a_graph_that_does_not_reach_enough_compares_all(tmp_path, embedder, monkeypatch):
    """Threads that build a graph may leave a part of it that no path leaves."""
    monkeypatch.setattr("ernie_pair.retrieval.index.SMALL_GRAPH", 0)
    searcher = PairSearcher(indexed(tmp_path, kind="hnsw"), "any", recall_k=9, breadth=400)
    expected = [[hit.id for hit in hits] for hits in searcher.search_many(QUERIES, 9)]
    graph = searcher.texts._index._index

    class Cut:
        ntotal = graph.ntotal

        def search(self, vectors, asked, params=None):
            cosines, places = graph.search(vectors, asked, params=params)
            places[::2, 3:] = -1
            return cosines, places

    searcher.texts._index._index = Cut()
    assert [[hit.id for hit in hits] for hits in searcher.search_many(QUERIES, 9)] == expected
