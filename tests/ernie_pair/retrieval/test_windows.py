"""Texts longer than a model reads: their windows, and that the best one counts wherever texts are found."""

import json

import numpy as np
import pytest
from fake_predictor import Model, ask
from tiny_models import write_bert
from tiny_search import HashEmbedder, bm25_of, index_of, texts_of, use_embedder, write_lines
from tiny_ship import MAX_SEQ_LEN, ship, write_trained

from data_tools.text.folder_tokenizer import open_folder_tokenizer
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.token_rows import windows_of
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.duplicates import AuditDuplicatesConfig, audit_duplicates
from ernie_pair.retrieval.evaluate_search import EvaluateSearchConfig, evaluate_search
from ernie_pair.retrieval.index_folder import open_index_folder
from ernie_pair.retrieval.search_texts import SearchConfig, read_hits, search_texts
from ernie_pair.retrieval.searcher import PairSearcher

for library in ("bm25s", "faiss", "rjieba"):
    pytest.importorskip(library)
OVERLAP, ROOM = 4, 18  # of HashEmbedder
SHORT = texts_of(30)
LONG = ["".join(texts_of(60, seed)[10:20]) for seed in range(4)]
TEXTS = [*SHORT[:15], *LONG, *SHORT[15:]]


@pytest.mark.parametrize("cased", [True, False])
def test_windows_fit_cover_their_text_and_share_tokens(module_path, cased):
    folder = write_trained(module_path / f"model{cased}") if cased else write_bert(module_path / "bert")
    vocab = folder / "vocab.txt"
    tokenizer = WordPiece.from_file(vocab) if cased else open_folder_tokenizer(vocab, "bert")
    rng = np.random.default_rng(5)
    for _ in range(200):
        letters = rng.choice(list("今天天气很好abcxyz é，。 \n"), int(rng.integers(1, 120)))
        text, room = "".join(letters), int(rng.integers(6, 30))
        overlap, count = int(rng.integers(1, room)), lambda part: len(tokenizer.encode(part))
        found = windows_of(text, tokenizer, count, room, overlap)
        begins, ends = zip(*found)
        assert begins[0] == 0 and ends[-1] == len(text) and sorted(begins) == list(begins)
        assert all(begin <= end for begin, end in zip(begins[1:], ends))
        assert all(count(text[begin:end]) <= room for begin, end in found)
        assert (len(found) == 1) == (count(text) <= room)
        if text.isalpha() and not text.isascii() and set(text) <= set("今天气很好"):
            assert all(end - begin == overlap for begin, end in list(zip(begins[1:], ends))[:-1])


@pytest.fixture(scope="module")
def folder(module_path):
    ship(write_trained(module_path / "trained", initializer_range=0.5), module_path / "ship", "onnx")
    return module_path


@pytest.mark.parametrize("name", ["trained", "ship"])
def test_a_long_candidate_has_the_score_of_its_best_window(folder, name):
    cut, scorer = (
        load(folder / name, threads=1, window_overlap=overlap, batch_tokens=0) for overlap in (0, 6)
    )
    cut.max_seq_len = scorer.max_seq_len = MAX_SEQ_LEN
    scorer.use_windows(6)
    query, texts = SHORT[0], [*TEXTS, *LONG]
    pairs = [(query, text) for text in texts]
    scores, windows = scorer.best_windows(pairs)
    before, is_long = cut.score(pairs), np.array([window is not None for window in windows])
    assert is_long.tolist() == [text in LONG for text in texts]
    assert np.array_equal(scores, scorer.score(pairs)) and (scores >= before).all()
    assert np.array_equal(scores[~is_long], before[~is_long]) and (scores > before).any()
    for score, window, text in zip(scores, windows, texts):
        if window is not None:
            assert window.text == text[window.begin : window.end]
            assert score == pytest.approx(cut.score([(query, window.text)])[0], abs=1e-5)
    ranked = scorer.rank(query, iter(texts), len(texts))
    assert [row.place for row in ranked] == np.argsort(-scores, kind="stable").tolist()
    assert [row.window for row in ranked] == [windows[row.place] for row in ranked]
    assert scorer.ranked_by == f"{cut.ranked_by} window_overlap 6" == f"{cut.identity[0]} window_overlap 6"


def test_a_query_or_an_overlap_that_leaves_no_window_is_refused(folder):
    with pytest.raises(InputError, match="window_overlap=19 is as long as a window: .* use 18 or less"):
        load(folder / "ship", window_overlap=19)
    scorer = load(folder / "ship", window_overlap=18)
    assert scorer.score([("今" * 19, "今"), ("今" * 18, "天" * 90)]).shape == (2,)
    with pytest.raises(InputError, match="the query of 19 tokens leaves no room .*; shorten it to 18"):
        scorer.rank("今" * 19, ["今", "天" * 90])


def test_the_service_ranks_by_windows_as_python_does():
    model, texts = Model(), ["x" * 5, "y" * 30, "z" * 12, "x" * 5]
    model.use_windows(2)  # beside a query of 2 tokens 10 are read
    lists = {"candidates": "/rank", "documents": "/v1/rerank", "texts": "/rerank"}

    async def all_routes(client):
        answers = [await client.post(p, json={"query": "ab", n: texts}) for n, p in lists.items()]
        long = await client.post("/v2/rerank", json={"query": "a" * 7, "documents": texts})
        return [answer.json() for answer in answers], long

    (ranking, reranking, tei), refused = ask(model, all_routes, limits={"max_chars": 99})
    assert refused.status_code == 413 and "the query of 7 tokens leaves no room" in refused.json()["message"]
    assert model.calls == [5, 3] * 3  # 4 texts are 8 windows, asked as --max_pairs allows
    wanted = {0: (0.93, None), 3: (0.93, None), 1: (0.88, (8, 18)), 2: (0.88, (2, 12))}
    for rows, place, score in (
        (ranking["ranking"], "place", "score"),
        (reranking["results"], "index", "relevance_score"),
        (tei, "index", "score"),
    ):
        assert [row[place] for row in rows] == [*wanted]
        for row in rows:
            text, (expected, span) = texts[row[place]], wanted[row[place]]
            part = span and {"begin": span[0], "end": span[1], "text": text[slice(*span)]}
            assert (row[score], row.get("window")) == (expected, part)


class Searched:
    """An index with windows beside {id: text}, whose windows are scored one by one."""

    def __init__(self, folder, retrieval="vectors", embedder=None, **flags):
        self.index, self.folder, self.embedder = folder / "index", folder, embedder or HashEmbedder()
        self.texts = {f"t{n}": text for n, text in enumerate(TEXTS)}
        index_of(folder, TEXTS, retrieval=retrieval, window_overlap=OVERLAP, **flags)

    def change(self, flag, texts):
        rows = (json.dumps({"id": name, "text": text}) for name, text in texts.items())
        words = ["--output_dir", str(self.index), f"--{flag}"]
        if flag == "delete":
            make_index(parse_config(IndexConfig, [*words, str(write_lines(self.folder / "ids.txt", texts))]))
            self.texts = {name: text for name, text in self.texts.items() if name not in texts}
            return
        path = str(write_lines(self.folder / "new.jsonl", rows))
        make_index(
            parse_config(IndexConfig, [*words, "true", "--input_file", path, "--embedding_model", "any"])
        )
        self.texts = {**{n: t for n, t in self.texts.items() if n not in texts}, **texts}

    def check(self, query):
        """All texts are found once each, with the score of the best of their windows, and that window."""
        spans = {name: self.embedder.windows_of(text, OVERLAP) for name, text in self.texts.items()}
        rows = [(name, span, self.texts[name][slice(*span)]) for name, each in spans.items() for span in each]
        folder, parts = open_index_folder(self.index), [text for *_, text in rows]
        assert [*folder.rows.chunks(999)] == [parts] and folder.manifest.windows == len(rows) > len(
            folder.texts
        )
        for retrieval in ("vectors", "bm25"):
            if folder.manifest.retrieval not in (retrieval, "both"):
                continue
            vectors = self.embedder.embed([query, *parts])
            scores = bm25_of(query, parts) if retrieval == "bm25" else (vectors[1:] @ vectors[0]).tolist()
            best = {}
            for (name, span, part), score in zip(rows, scores):
                if score > best.get(name, (-9.0,))[0]:
                    best[name] = (score, span, part)
            model = "any" if retrieval == "vectors" else ""
            hits = PairSearcher(self.index, model, retrieval=retrieval, recall_k=99).search(query, 99)
            found = {hit.id: hit for hit in hits}
            assert len(found) == len(hits) == sum(score > 0 or model != "" for score, *_ in best.values())
            for hit in hits:
                score, span, part = best[hit.id]
                assert hit.score == pytest.approx(score, rel=1e-4, abs=1e-6)
                assert hit.text == self.texts[hit.id]
                assert hit.window is None if len(spans[hit.id]) == 1 else hit.window.text == part
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_changes_keep_all_windows_of_a_text(tmp_path, embedder, kind):
    searched = Searched(tmp_path, "both", kind=kind)
    assert json.loads((searched.index / "index.json").read_text())["window_overlap"] == OVERLAP
    query = LONG[1][20:32]
    searched.check(query)
    searched.change("add", {"new": LONG[2][::-1], "short": "今天"})
    searched.change("update", {"t16": LONG[0][::-1], "t3": LONG[3][::-1], "t17": "你好"})
    searched.check(query)
    searched.change("delete", {"t15": "", "t0": "", "new": ""})
    searched.check(query)
    other = HashEmbedder("e" * 64)
    other.max_seq_len = 12
    monkeypatched = pytest.MonkeyPatch()
    with monkeypatched.context() as patch:
        use_embedder(patch, other)
        flags = {"upgrade_from": str(searched.index), "embedding_model": "any"}
        make_index(IndexConfig(output_dir=str(tmp_path / "upgraded"), **flags))
        searched.index, searched.embedder = tmp_path / "upgraded", other
        searched.check(query[:8])


def test_answers_filters_duplicates_and_measures_see_texts(tmp_path, embedder, monkeypatch):
    monkeypatch.setattr("ernie_pair.retrieval.evaluate_search.open_embedder", lambda *given: embedder)
    part = LONG[0][20:32]
    rows = [("a", LONG[0], "甲"), ("b", LONG[1] + part, "乙"), ("c", SHORT[3], "甲"), ("d", SHORT[20], "丙")]
    lines = [{"id": name, "text": text, "answer": answer} for name, text, answer in rows]
    path, index = write_lines(tmp_path / "rows.jsonl", map(json.dumps, lines)), tmp_path / "index"
    flags = {"payload_columns": "answer", "window_overlap": OVERLAP, "embedding_model": "any"}
    make_index(IndexConfig(str(path), str(index), **flags))
    searcher = PairSearcher(index, "any")
    hits = searcher.search(part)
    assert [hit.id for hit in hits[:2]] in (["a", "b"], ["b", "a"]) and len(hits) == 3
    assert [hit.id for hit in searcher.search(part, where={"answer": "丙"})] == ["d"]
    audit_duplicates(
        AuditDuplicatesConfig(str(index), str(tmp_path / "same.jsonl"), threshold=0.75, device="cpu")
    )
    same = [json.loads(line) for line in (tmp_path / "same.jsonl").read_text().splitlines()]
    assert {(row["id"], row["nearest_id"]) for row in same} == {("a", "b"), ("b", "a")}
    asked = write_lines(tmp_path / "asked.tsv", ["text\tid", f"{part}\ta", f"{LONG[1][:12]}\tb"])
    same = {"index": str(index), "embedding_model": "any", "device": "cpu"}
    measured = evaluate_search(EvaluateSearchConfig(input_file=str(asked), **same))
    assert measured["texts"] == 4 and measured["stages"]["vectors"]["recall@10"] == 1


def test_a_search_reranks_by_windows_and_writes_them(tmp_path, folder):
    index, output = index_of(tmp_path, TEXTS, "", retrieval="bm25"), tmp_path / "answers.jsonl"
    queries = write_lines(tmp_path / "queries.txt", [SHORT[2]])
    flags = {"model_path": str(folder / "ship"), "input_file": str(queries), "output_file": str(output)}
    search_texts(SearchConfig(str(index), window_overlap=5, top_k=50, **flags))
    (hits,) = read_hits(output)
    table = output.with_suffix(".tsv")
    search_texts(SearchConfig(str(index), window_overlap=5, top_k=50, **{**flags, "output_file": str(table)}))
    assert read_hits(table) == [hits]
    ranked = load(folder / "ship", window_overlap=5).rank(SHORT[2], [hit.text for hit in hits], len(hits))
    assert [row.place for row in ranked] == [*range(len(hits))]
    assert [row.window for row in ranked] == [hit.window for hit in hits] and any(hit.window for hit in hits)


def test_what_windows_cannot_be_made_of_is_refused(tmp_path, embedder):
    with pytest.raises(InputError, match="window_overlap=18 is as long as a window: hashes reads 18 tokens"):
        index_of(tmp_path, TEXTS, window_overlap=ROOM)
    assert not (tmp_path / "index").exists()
    with pytest.raises(InputError, match="window_overlap needs embedding_model; add it, or leave"):
        IndexConfig("texts.txt", "index", vectors="vectors", window_overlap=3)
    Searched(tmp_path)
    with pytest.raises(InputError, match="window_overlap=3: add keeps that of the index; leave it out"):
        IndexConfig("texts.txt", "index", embedding_model="any", window_overlap=3, add=True)
    before = (tmp_path / "index" / "index.json").read_bytes()
    flags = {"input_file": str(tmp_path / "texts.jsonl"), "output_dir": str(tmp_path / "index")}
    with pytest.raises(InputError, match="window_overlap=4, and vectors are of whole texts; give embed"):
        make_index(IndexConfig(vectors=str(tmp_path), add=True, **flags))
    assert (tmp_path / "index" / "index.json").read_bytes() == before
    manifest = json.loads(before)
    for fault in ({"windows": 1}, {"window_overlap": -1}, {"windows": 99}):
        (tmp_path / "index" / "index.json").write_text(json.dumps({**manifest, **fault}))
        with pytest.raises(CheckpointError, match="window"):
            open_index_folder(tmp_path / "index")
