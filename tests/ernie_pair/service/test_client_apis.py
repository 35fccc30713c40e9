"""The clients of OpenAI, Cohere and Jina: answers, refusals in their forms, keys; and the page of the API."""

import base64
import json
import re
import urllib.error
import urllib.request
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from fake_predictor import Model, ask
from started import service
from tiny_search import HashEmbedder, texts_of, write_exports, write_lines

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.inference.embedder import EmbedderOptions
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.token_rows import Reading
from ernie_pair.retrieval.searcher import PairSearcher
from ernie_pair.service.serve import API_KEY, ServeConfig, key_of

# Looked up, not imported, which takes seconds of every worker.
if not all(map(find_spec, ("cohere", "httpx", "fastapi", "openai", "prometheus_client"))):
    pytest.skip("a client or the service is not installed", allow_module_level=True)

KEY = "sk-pairs-1"
TEXTS = ["今天", "明天好", "再见"]


def post(path, content, **settings):
    """The status and the content of the answer to one request, of a service with two models made up."""
    settings = {"embedder": HashEmbedder(), **settings}
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = ask(Model(), lambda client: client.post(path, content=body), **settings)
    return answer.status_code, answer.json()


def test_embeddings_are_those_of_the_model_as_numbers_or_base64():
    wanted = HashEmbedder().embed(TEXTS)
    status, answer = post(
        "/v1/embeddings", {"input": TEXTS, "model": "encoder", "user": "me", "dimensions": None}
    )
    assert status == 200 and np.array_equal([row["embedding"] for row in answer["data"]], wanted)
    assert [row["index"] for row in answer["data"]] == [0, 1, 2]
    tokens = sum(len(text) + 2 for text in TEXTS)
    assert answer["model"] == "encoder" and answer["object"] == "list"
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    _, answer = post("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})
    (row,) = answer["data"]
    assert np.array_equal(np.frombuffer(base64.b64decode(row["embedding"]), "<f4"), wanted[0])


def test_vectors_are_shortened_where_trained_for_it():
    embedder = HashEmbedder()
    status, answer = post("/v1/embeddings", {"input": TEXTS, "dimensions": 16})
    assert status == 200 and len(answer["data"][0]["embedding"]) == 16
    _, refused = post("/v1/embeddings", {"input": TEXTS, "dimensions": 5})
    assert "is not what it was trained for" in refused["error"]["message"]
    embedder.settings = replace(embedder.settings, dims=(4, 16))
    _, answer = post("/v1/embeddings", {"input": TEXTS, "dimensions": 5}, embedder=embedder)
    found = np.array([row["embedding"] for row in answer["data"]])
    whole = embedder.embed(TEXTS)[:, :5]
    assert np.allclose(found, whole / np.linalg.norm(whole, axis=1, keepdims=True), atol=1e-6)


def test_a_failing_embedding_model_is_a_server_error():
    embedder = HashEmbedder()
    embedder.embed = lambda texts: 1 / 0
    status, answer = post("/v1/embeddings", {"input": "a"}, embedder=embedder)
    assert status == 500 and answer["error"]["type"] == "server_error"


def test_texts_are_reranked_as_tei_does(monkeypatch):
    asked = {"query": "今天", "texts": TEXTS, "truncate": True, "truncation_direction": "Right"}
    status, answer = post("/rerank", {**asked, "raw_scores": False, "return_text": True})
    _, other = post("/v1/rerank", {"query": "今天", "documents": TEXTS})
    assert status == 200 and [one["text"] for one in answer] == [TEXTS[one["index"]] for one in answer]
    wanted = [(one["index"], one["relevance_score"]) for one in other["results"]]
    assert [(one["index"], one["score"]) for one in answer] == wanted
    assert [one["index"] for one in answer] == [0, 2, 1]  # the first and the last have equal scores
    _, plain = post("/rerank", asked)
    assert all(set(one) == {"index", "score"} for one in plain)
    status, refused = post("/rerank", {**asked, "raw_scores": True})
    assert status == 422 and "raw_scores" in refused["error"]
    assert post("/rerank", {**asked, "truncate": False})[0] == 200
    cut = Reading(*np.ones((3, len(TEXTS)), dtype=int))
    cuts = lambda model, pairs: replace(predict(model, pairs), reading=cut)  # noqa: E731
    predict = Model.predict
    monkeypatch.setattr(Model, "predict", cuts)
    assert post("/rerank", asked)[0] == 200
    status, refused = post("/rerank", {**asked, "truncate": False})
    assert status == 413 and refused["error"].startswith("truncate: a text is longer than the model reads")


def test_a_request_keeps_its_name_or_gets_one(caplog):
    def named(headers, model=None):
        body = json.dumps({"pairs": [["a", "b"]]}).encode()
        return ask(model or Model(), lambda client: client.post("/predict", content=body, headers=headers))

    assert named({"X-Request-Id": "order-17"}).headers["x-request-id"] == "order-17"
    for given in ({}, {"X-Request-Id": "a b"}, {"X-Request-Id": "x" * 129}):
        found = [named(given).headers["x-request-id"] for _ in range(2)]
        assert len(set(found)) == 2 and all(len(name) == 32 for name in found)
    model = Model()
    model.predict = lambda pairs: 1 / 0
    answer = named({"X-Request-Id": "order-18"}, model)
    assert answer.status_code == 500 and "the request order-18 to /predict failed" in caplog.text


def test_a_client_of_langchain_may_send_2048_texts():
    usual, texts = ServeConfig(model_path="m"), [f"文本{n}" for n in range(2048)]
    limits = {"max_body": usual.max_body_kb * 1024, "max_pairs": usual.max_pairs}
    flags = {"limits": limits, "max_waiting": usual.max_waiting}
    status, answer = post("/v1/embeddings", {"input": texts}, **flags)
    assert status == 200 and len(answer["data"]) == 2048
    assert post("/v1/embeddings", {"input": [*texts, "再一条"]}, **flags)[0] == 413


def test_documents_are_reranked_best_first():
    body = {"query": "q", "documents": ["xxx", {"text": "x"}, "xx"], "model": "ship"}
    body["max_tokens_per_doc"] = 999
    status, answer = post("/v1/rerank", {**body, "top_n": 2})
    best = [{"index": 1, "relevance_score": 0.98, "document": {"text": "x"}}]
    best += [{"index": 2, "relevance_score": 0.97, "document": {"text": "xx"}}]
    assert status == 200 and answer["results"] == best and answer["model"] == "ship" and answer["id"]
    _, answer = post("/v1/rerank", {**body, "return_documents": False})
    assert [row["index"] for row in answer["results"]] == [1, 2, 0] and "document" not in answer["results"][0]
    assert "document" not in post("/v2/rerank", body)[1]["results"][0]


@pytest.mark.parametrize(
    "path, body, status", [("/v1/rerank", "documents", 400), ("/rank", "candidates", 422)]
)
def test_a_three_class_model_cannot_rank(path, body, status):
    model = Model()
    model.exported = replace(model.exported, labels=("a", "b", "c"))
    answer = ask(model, lambda client: client.post(path, json={"query": "q", body: ["a"]}))
    assert answer.status_code == status and "has 3 classes" in answer.text


def test_models_are_listed_and_described():
    async def asked(client):
        return [await client.get(f"/v1/models{name}") for name in ("", "/encoder", "/gpt")]

    listed, one, absent = ask(Model(), asked, embedder=HashEmbedder())
    assert [row["id"] for row in listed.json()["data"]] == ["ship", "encoder"]
    assert one.json() == listed.json()["data"][1] and one.json()["object"] == "model"
    assert absent.status_code == 404 and absent.json()["error"]["code"] == "model_not_found"


def test_what_is_not_served_has_no_route_and_says_why():
    async def asked(client):
        paths = ("/predict", "/explain", "/v2/rerank", "/search")
        return (await client.get("/health")).json(), [await client.post(path) for path in paths]

    health, answers = ask(None, asked, embedder=HashEmbedder())
    assert [answer.status_code for answer in answers] == [404] * 4
    assert all("no classifier: start it with --model_path" in answer.text for answer in answers[:3])
    assert health["models"] == ["encoder"] and health["labels"] is None and health["vector_length"] == 16
    status, answer = post("/v1/embeddings", {"input": "a"}, embedder=None)
    assert status == 404
    assert "no embedding model: start it with --embedding_model" in answer["error"]["message"]


def test_requests_without_the_key_are_refused_in_their_form():
    given = ["", KEY, f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer ", "Bearer \xff"]

    async def asked(client):
        for words in given:
            headers = {"authorization": words.encode("latin-1")} if words else {}
            for path in ("/predict", "/v1/embeddings", "/v2/rerank"):
                answer = await client.post(path, json={"input": "a"}, headers=headers)
                assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
                said = answer.json()
                assert KEY not in answer.text and set(said) == {"message" if path[:3] == "/v2" else "error"}
                assert path != "/v1/embeddings" or said["error"]["code"] == "invalid_api_key"
            assert (await client.get("/v1/models", headers=headers)).status_code == 401
            assert (await client.get("/metrics", headers=headers)).status_code == 401
            for path in ("/", "/openapi.json", "/health"):
                assert (await client.get(path, headers=headers)).status_code == 200
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} {KEY}"}
            assert (
                await client.post("/v1/embeddings", json={"input": "a"}, headers=headers)
            ).status_code == 200

    ask(Model(), asked, embedder=HashEmbedder(), key=KEY)


def test_a_key_comes_from_the_flag_or_the_environment():
    assert key_of("", {}) == "" and key_of("a", {}) == "a" and key_of("", {API_KEY: "b"}) == "b"
    assert key_of("a", {API_KEY: "b"}) == "a" and KEY not in repr(ServeConfig("m", api_key=KEY))
    for given, environment, reason in (
        ("", {API_KEY: ""}, f"{API_KEY} is empty"),
        ("a b", {}, "api_key holds a space"),
        ("", {API_KEY: "钥匙"}, f"{API_KEY} holds a space or a character that is not ASCII"),
    ):
        with pytest.raises(InputError, match=reason) as refused:
            key_of(given, environment)
        assert "a b" not in str(refused.value) and "钥匙" not in str(refused.value)


def test_swagger_ui_comes_from_the_service_alone():
    pytest.importorskip("fastapi_offline")

    async def all_of_it(client):
        page = await client.get("/docs")
        files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        return page, {name: await client.get(f"/{name}") for name in files if name != "data:,"}

    page, files = ask(Model(), all_of_it, key=KEY)
    assert len(files) == 2 and all(answer.status_code == 200 for answer in files.values())
    assert re.findall(r"https?://", page.text) == [] and "openapi.json" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_without_its_library_the_docs_page_says_so(monkeypatch):
    monkeypatch.setattr("ernie_pair.service.service.DOCS_LIBRARY", "no_such_library")
    answer = ask(Model(), lambda client: client.get("/docs"))
    assert answer.status_code == 404 and "fastapi-offline is not installed" in answer.json()["error"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier, an embedding model with vectors of 8 and 32 numbers, both exported, and an index."""
    from ernie_pair.__main__ import _run as run_here

    folder = write_exports(tmp_path_factory.mktemp("clients"))
    texts = write_lines(folder / "texts.txt", texts_of(60))
    run_here(
        f"index --input_file {texts} --output_dir {folder}/index --embedding_model {folder}/encoder "
        "--retrieval both".split()
    )
    run_here(
        f"embed --model_path {folder}/encoder --input_file {texts} --output_dir {folder}/vectors".split()
    )
    return folder


def test_the_clients_of_openai_and_cohere_are_answered(folder):
    import cohere
    import openai

    texts = texts_of(60)
    embedder, models = open_embedder(folder / "encoder"), ("--model_path", folder / "ship")
    models += ("--embedding_model", folder / "encoder", "--index", folder / "index")
    with service(*models, key=KEY) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)
        assert [model.id for model in client.models.list()] == ["ship", "encoder"]
        assert client.models.retrieve("encoder").object == "model"
        answer = client.embeddings.create(input=texts, model="encoder")
        vectors = np.array([row.embedding for row in answer.data], dtype=np.float32)
        assert np.array_equal(vectors, embedder.embed(texts)) and answer.usage.total_tokens > len(texts)
        written = np.load(folder / "vectors" / "vectors.npy")
        assert np.array_equal(vectors.astype(np.float16), written)
        plain = client.embeddings.create(input=texts, model="encoder", encoding_format="float")
        assert [row.embedding for row in plain.data] == [row.embedding for row in answer.data]
        short = client.embeddings.create(input=texts[0], model="encoder", dimensions=8).data[0].embedding
        shorter = open_embedder(folder / "encoder", options=EmbedderOptions(dim=8))
        assert np.allclose(short, shorter.embed(texts[:1])[0], atol=1e-6)
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            client.embeddings.create(input="今", model="text-embedding-3-small")
        with pytest.raises(openai.BadRequestError, match="token ids are not taken"):
            client.embeddings.create(input=[[1, 2]], model="encoder")
        with pytest.raises(openai.AuthenticationError, match="the key is missing or wrong"):
            openai.OpenAI(base_url=f"{address}/v1", api_key="sk", max_retries=0).models.list()
        ranker = cohere.ClientV2(api_key=KEY, base_url=address)
        ranked = ranker.rerank(model="ship", query=texts[0], documents=texts[:9], top_n=4).results
        wanted = PairPredictor(folder / "ship").rank(texts[0], texts[:9], top_k=4)
        assert [row.index for row in ranked] == [row.place for row in wanted]
        scores = [row.relevance_score for row in ranked]
        assert scores == pytest.approx([row.score for row in wanted], abs=1e-5)
        with pytest.raises(cohere.core.ApiError) as refused:
            ranker.rerank(model="ship", query=texts[0], documents=[])
        assert refused.value.status_code == 400 and "at least 1 item" in refused.value.body["message"]


def test_an_embedding_model_and_an_index_are_served_alone(folder):
    models = ("--embedding_model", folder / "encoder", "--index", folder / "index", "--long_text", "cut")
    with service(*models) as address:
        body = json.dumps({"input": ["今" * 99]}).encode()
        with urllib.request.urlopen(f"{address}/v1/embeddings", body, timeout=60) as answer:
            assert json.load(answer)["usage"]["total_tokens"] == 24
        body = json.dumps({"query": texts_of(60)[7], "top_k": 3}).encode()
        with urllib.request.urlopen(f"{address}/search", body, timeout=60) as answer:
            hits = json.load(answer)["hits"]
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{address}/predict", b"{}", timeout=60)
    wanted = PairSearcher(folder / "index", folder / "encoder").search(texts_of(60)[7], top_k=3)
    assert [hit["id"] for hit in hits] == [hit.id for hit in wanted] and hits[0]["id"] == "7"
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in wanted], abs=1e-5)
