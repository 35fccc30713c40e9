"""/rank and /search of the service, and what /metrics says of each endpoint."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest
from fake_predictor import Model, ask
from test_serve import texts, waiting
from tiny_search import HashEmbedder, index_of, texts_of, use_embedder, write_lines

from ernie_pair.core.errors import InputError
from ernie_pair.inference.scores import Prediction
from ernie_pair.retrieval.build_index import IndexConfig, make_index
from ernie_pair.retrieval.index_folder import keep_measured, open_index_folder
from ernie_pair.retrieval.searcher import TextRecall
from ernie_pair.service.serve import ServeConfig

for library in ("httpx", "fastapi", "prometheus_client"):
    pytest.importorskip(library)


@pytest.fixture
def model():
    return Model()


def rank(client, *candidates, **more):
    return client.post("/rank", json={"query": "q", "candidates": candidates, **more})


def test_candidates_are_ranked_best_first_with_ties_in_order(model):
    answer = ask(model, lambda client: rank(client, "xxx", "x", "xxxx", "x", "xx", top_k=3))
    content = answer.json()
    assert answer.status_code == 200 and content.pop("milliseconds") >= 0
    places = [{"place": 1, "text": "x", "score": 0.98}, {"place": 3, "text": "x", "score": 0.98}]
    assert content == {"ranking": [*places, {"place": 4, "text": "xx", "score": 0.97}]}


def test_ranking_and_prediction_share_a_model_call(model):
    async def both(client):
        model.gate.clear()
        first = asyncio.ensure_future(rank(client, "x"))
        await waiting(client, model, 0)
        others = [rank(client, "x", "xx"), client.post("/predict", json={"pairs": texts(1)})]
        later = [asyncio.ensure_future(other) for other in others]
        await waiting(client, model, 3)
        model.gate.set()
        return await asyncio.gather(first, *later)

    answers = ask(model, both, max_wait=0.0)
    assert [answer.status_code for answer in answers] == [200] * 3 and model.calls == [1, 3]


@pytest.fixture
def recall(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    embedder = HashEmbedder()
    use_embedder(monkeypatch, embedder)
    return TextRecall(open_index_folder(index_of(tmp_path, texts_of(200))), embedder, recall_k=6, threads=1)


def search(client, query, **more):
    return client.post("/search", json={"query": query, **more})


def test_a_search_recalls_and_then_reranks_with_the_model(model, recall):
    query = texts_of(200)[17]
    near = {hit.id: hit for hit in recall.recall([query])[0]}
    answer = ask(model, lambda client: search(client, query, top_k=4), recall)
    assert answer.status_code == 200
    hits = answer.json()["hits"]
    assert len(hits) == 4 and {hit["id"] for hit in hits} <= set(near) and model.calls == [6]
    expected = [round(1 - (len(query) + len(hit["text"])) / 100, 6) for hit in hits]
    assert [hit["score"] for hit in hits] == expected == sorted(expected, reverse=True)
    assert [hit["similarity"] for hit in hits] == [round(near[hit["id"]].similarity, 6) for hit in hits]


def test_health_says_what_classifier_and_search_are_worth(model, recall, tmp_path):
    keep_measured(tmp_path / "index", "the search finds it")
    recall = TextRecall(open_index_folder(tmp_path / "index"), recall._embedder)
    model.exported = replace(model.exported, verdict="the classifier is good")
    for predictor, worth in (
        (None, "the search finds it"),
        (model, "the classifier is good; the search finds it"),
    ):
        health = ask(predictor, lambda client: client.get("/health"), recall, embedder=recall._embedder)
        assert health.json()["verdict"] == worth


def test_hits_below_the_threshold_are_left_out(model, recall):
    query = texts_of(200)[17]
    scores = [hit["score"] for hit in ask(model, lambda c: search(c, query), recall).json()["hits"]]
    middle = sorted(scores)[3]
    hits = ask(model, lambda c: search(c, query, threshold=middle), recall).json()["hits"]
    assert [hit["score"] for hit in hits] == [score for score in scores if score >= middle] != scores
    assert ask(model, lambda c: search(c, query, threshold=1.0), recall).json()["hits"] == []


def test_top_k_may_exceed_a_small_index(model, recall):
    recall.recall_k = recall.count  # as for an index of fewer texts than recall_k
    answer = ask(model, lambda client: search(client, "今天", top_k=999), recall, max_waiting=999)
    assert len(answer.json()["hits"]) == 200


def test_simultaneous_searches_are_embedded_together(model, recall):
    async def many(client):
        return await asyncio.gather(*(search(client, query) for query in texts_of(200)[:9]))

    before = len(recall._embedder.calls)
    answers = ask(model, many, recall, max_wait=0.3)
    asked = recall._embedder.calls[before:]
    assert sum(asked) == 9 and len(asked) <= 3
    for query, answer in zip(texts_of(200), answers):  # each has its own hits
        assert {hit["id"] for hit in answer.json()["hits"]} == {hit.id for hit in recall.recall([query])[0]}


BAD_SEARCHES = [
    ({"query": "今" * 19}, 413, "the query has 21 tokens, above the 20 of the model; shorten it"),
    ({"query": "今", "threshold": 2}, 422, "threshold 2.0 is above 1; use 1 or less: it is a probability"),
    ({"query": "今", "top_k": 7}, 422, "top_k 7 is above the 6 texts that this service retrieves"),
]


@pytest.mark.parametrize("body, status, reason", BAD_SEARCHES, ids=range(len(BAD_SEARCHES)))
def test_a_bad_search_is_refused_before_the_model_runs(model, recall, body, status, reason):
    answer = ask(model, lambda client: client.post("/search", json=body), recall)
    assert answer.status_code == status and reason in answer.json()["error"] and model.calls == []


def city_index(folder, begin=0):
    """An index of 40 texts from ``begin`` on, of the cities 0 to 3, by their words."""
    folder.mkdir()
    rows = [f"t{n}\t{text}\t{n % 4}" for n, text in enumerate(texts_of(80))][begin : begin + 40]
    path = write_lines(folder / "rows.tsv", ["id\ttext\tcity", *rows])
    flags = {"retrieval": "bm25", "payload_columns": "city"}
    make_index(IndexConfig(str(path), str(folder / "index"), **flags))
    return TextRecall(open_index_folder(folder / "index"), None, recall_k=6)


def test_searches_with_their_own_filters_share_a_call(tmp_path):
    texts, query = city_index(tmp_path / "made"), texts_of(80)[5]

    async def many(client):
        where = [{"city": str(number % 4)} for number in range(8)] + [None]
        return await asyncio.gather(*(search(client, query, where=each) for each in where))

    *answers, every = ask(None, many, texts, max_wait=0.3, max_batch=9)
    for number, answer in enumerate(answers):
        wanted = [hit.id for hit in texts.recall([query], where={"city": str(number % 4)})[0]]
        assert [hit["id"] for hit in answer.json()["hits"]] == wanted
        assert {int(name[1:]) % 4 for name in wanted} == {number % 4}
    assert [hit["id"] for hit in every.json()["hits"]] == [hit.id for hit in texts.recall([query])[0]]
    refused = ask(None, lambda client: search(client, query, where={"land": "x"}), texts)
    assert refused.status_code == 422 and refused.json()["error"].startswith("where land=x: ")
    assert ask(None, lambda client: search(client, query, where={"city": 1}), texts).status_code == 422


def test_a_changed_index_is_opened_beside_the_searches(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("ernie_pair.service.service.LOOK_SECONDS", 0.0)
    texts, new = city_index(tmp_path / "old"), city_index(tmp_path / "new", begin=40)
    place, opened, usual = tmp_path / "old" / "index", threading.Event(), TextRecall.reopened
    monkeypatch.setattr(TextRecall, "reopened", lambda texts: opened.wait(10) and usual(texts))

    async def all_of_them(client):
        async def found():
            return (await search(client, texts_of(80)[5])).json()["hits"]

        before = await found()
        place.rename(tmp_path / "gone")
        (tmp_path / "new" / "index").rename(place)
        assert await found() == before == await found()
        opened.set()
        while await found() == before:
            await asyncio.sleep(0.05)
        assert (await client.get("/health")).json()["example"] == new.example
        after = await found()
        (place / "index.json").write_text("{}")
        for _ in range(10):
            assert await found() == after
            await asyncio.sleep(0.05)
        return after

    assert all(int(hit["id"][1:]) >= 40 for hit in ask(None, all_of_them, texts))
    assert capfd.readouterr().err.count("goes on with the index as it was opened") == 1


def test_a_regression_threshold_must_lie_in_the_label_range(model, recall):
    model.exported = replace(model.exported, labels=("score",), target="regression", label_range=(0.0, 5.0))
    model.predict = lambda pairs: Prediction(None, None, None, np.linspace(4, 5, len(pairs)))
    refused = ask(model, lambda client: search(client, "今", threshold=6), recall)
    assert refused.status_code == 422 and "threshold 6.0 is above 5.0" in refused.json()["error"]
    hits = ask(model, lambda client: search(client, "今", threshold=4.5), recall).json()["hits"]
    assert len(hits) == 3 and min(hit["score"] for hit in hits) >= 4.5


def test_metrics_count_the_requests_to_each_endpoint(model, recall):
    async def some(client):
        for _ in range(3):
            await client.post("/predict", json={"pairs": texts(1)})
        await rank(client, "x")
        await rank(client, " ")  # refused
        await search(client, "今天")
        await client.post("/v1/embeddings", json={"input": ["今天", "明天"]})
        await client.post("/v2/rerank", json={"query": "q", "documents": ["x"]})
        return await client.get("/metrics")

    lines = ask(model, some, recall, embedder=HashEmbedder()).text.splitlines()
    numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    counts = {"/predict": 3, "/rank": 2, "/search": 1, "/v1/embeddings": 1, "/v2/rerank": 1}
    for endpoint, count in counts.items():
        assert numbers[f'ernie_pair_request_seconds_count{{endpoint="{endpoint}"}}'] == f"{count}.0"
        assert float(numbers[f'ernie_pair_request_seconds_sum{{endpoint="{endpoint}"}}']) > 0
    assert numbers['ernie_pair_requests_total{status="200"}'] == "7.0"
    assert numbers["ernie_pair_pairs_total"] == str(3.0 + 1 + 6 + 1)
    assert numbers["ernie_pair_texts_total"] == "2.0"


def test_openapi_describes_requests_and_responses(model, recall):
    async def all_routes(client):
        document = (await client.get("/openapi.json")).json()
        schemas = document["components"]["schemas"]

        def schema_of(content):
            found = content["application/json"]["schema"]
            return schemas[found.get("items", found)["$ref"].rsplit("/", 1)[-1]]  # TEI answers with a list

        own = {"/predict", "/explain", "/rank", "/search", "/health"}
        foreign = {"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank"}
        others = {"/metrics", "/v1/models", "/v1/models/{name}"}
        assert set(document["paths"]) == own | foreign | others
        for path in sorted(own | foreign):
            ((method, route),) = document["paths"][path].items()
            body = None
            if method == "post":
                schema = schema_of(route["requestBody"]["content"])
                body = schema["example"]
                assert set(schema["required"]) == set(body) and schema["additionalProperties"] is False
                refused = await client.post(path, content=b"{")
                assert set(refused.json()) == {
                    *schema_of(route["responses"][str(refused.status_code)]["content"])["properties"]
                }
            answer = await client.request(method.upper(), path, json=body)
            assert answer.status_code == 200
            answered = schema_of(route["responses"]["200"]["content"])
            (content, *_) = [*answer.json()] if path == "/rerank" else [answer.json()]
            assert set(answered["required"]) <= set(content) <= set(answered["properties"])

    ask(model, all_routes, recall, embedder=HashEmbedder())


def test_a_service_without_a_model_is_refused():
    with pytest.raises(InputError, match="nothing to serve; give model_path, embedding_model, or both"):
        ServeConfig()
    with pytest.raises(InputError, match="device gpu:1 is for a model, and BM25 takes none; leave it out"):
        ServeConfig(index="index", device="gpu:1")
