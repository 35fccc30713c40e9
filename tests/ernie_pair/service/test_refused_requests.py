"""Requests that are refused: the status, and a line that names the field, in the form of each client."""

import gzip
import json
import zlib
from types import SimpleNamespace

import pytest
from fake_predictor import Model, ask
from tiny_search import HashEmbedder

from ernie_pair.inference.scores import PROBABILITY

for library in ("httpx", "fastapi", "prometheus_client"):
    pytest.importorskip(library)

PAIR = ["a", "b"]
Q = {"query": "q"}
PACKED = gzip.compress(json.dumps({"pairs": [PAIR]}).encode())
REFUSED = [
    ("/predict", b"", 400, 'the body is empty; send {"pairs": [["'),
    ("/predict", b"{", 400, "not JSON, Expecting property name"),
    ("/predict", b"\xff", 400, "not UTF-8 (byte 0xff)"),
    ("/predict", b"[" * 1900, 400, "nested too deep"),
    ("/predict", [], 422, "the body: "),
    ("/predict", {}, 422, "pairs: Field required; send {"),
    ("/predict", {"pairs": []}, 422, "pairs: "),
    ("/predict", {"pairs": "ab"}, 422, "pairs: "),
    ("/predict", {"pairs": [PAIR, "ab"]}, 422, "pairs[1]: "),
    ("/predict", {"pairs": [["a"]]}, 422, "pairs[0]: "),
    ("/predict", {"pairs": [["a", 1]]}, 422, "pairs[0][1]: "),
    ("/predict", {"pairs": [["a", " "]]}, 422, "pairs[0][1]: it has no visible character; fill it in"),
    ("/predict", {"pairs": [["a", "\x01\u200b"]]}, 422, "pairs[0][1]: it has no visible character"),
    ("/predict", {"pairs": [["\ud800", "b"]]}, 422, "pairs[0][0]: "),
    ("/predict", {"pairs": [PAIR], "\ud800": 1}, 422, "the body: "),
    ("/predict", {"pairs": [PAIR], "threshold": 0.9}, 422, "threshold: Extra inputs are not permitted; send"),
    ("/predict", {"pairs": [PAIR], "x" * 900: 1}, 422, "xxx"),
    ("/predict", {"pairs": [PAIR] * 6}, 413, "6 pairs are above 5; send fewer"),
    ("/predict", {"pairs": [["a", "b" * 21]]}, 413, "pairs[0] has 21 characters, above 20; cut it"),
    ("/predict", b" " * 2001, 413, "the body is above 2000 bytes; send fewer"),
    ("/predict?top_k=3", {}, 422, '"top_k=3" stands in the address; send {'),
    ("/rank", {}, 422, "query: "),
    ("/rank", {"query": " ", "candidates": ["a"]}, 422, "query: "),
    ("/rank", {"query": "\x01\x7f", "candidates": ["a"]}, 422, "query: "),
    ("/rank", {"query": "q" * 21, "candidates": ["a"]}, 413, "query has 21 characters"),
    ("/rank", Q, 422, "candidates: "),
    ("/rank", {**Q, "candidates": []}, 422, "candidates: "),
    ("/rank", {**Q, "candidates": ["a", 1]}, 422, "candidates[1]: "),
    ("/rank", {**Q, "candidates": ["a"] * 6}, 413, "6 candidates are above 5"),
    ("/rank", {**Q, "candidates": ["a"], "top_k": 0}, 422, "top_k: "),
    ("/rank", {**Q, "candidates": ["a"], "top_k": 1.5}, 422, "top_k: "),
    ("/search", {}, 422, "query: "),
    ("/search", {**Q, "threshold": "a"}, 422, "threshold: "),
    ("/search", b'{"query": "q", "threshold": NaN}', 400, "NaN"),
    ("/search", {**Q, "top_k": True}, 422, "top_k: "),
    ("/search", {**Q, "recall_k": None}, 422, "recall_k: "),
    ("/v1/embeddings", b"", 400, "the body is empty"),
    ("/v1/embeddings", {}, 400, "input: "),
    ("/v1/embeddings", {"input": []}, 400, "input: "),
    ("/v1/embeddings", {"input": ""}, 400, "input[0]: "),
    ("/v1/embeddings", {"input": ["a", "\x02"]}, 400, "input[1]: "),
    ("/v1/embeddings", {"input": [1, 2]}, 400, "input: token ids are not taken"),
    ("/v1/embeddings", {"input": [[1, 2]]}, 400, "check_embedding_ctx_length=False"),
    ("/v1/embeddings", {"input": [None]}, 400, "input[0]: "),
    ("/v1/embeddings", {"input": ["a"] * 6}, 413, "6 input are above 5"),
    ("/v1/embeddings", {"input": "a" * 19}, 400, "input[0] has 21 tokens, above the 20 of the model"),
    ("/v1/embeddings", {"input": "a", "dimensions": 17}, 400, "dimensions 17 is above the 16"),
    ("/v1/embeddings", {"input": "a", "dimensions": 0}, 400, "dimensions: "),
    ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, "encoding_format: "),
    ("/v1/embeddings", {"input": "a", "truncate": 3}, 400, "truncate: "),
    ("/v1/embeddings", {"input": "a", "model": "gpt"}, 404, 'the model "gpt" is not served here'),
]
RERANKS = [
    (Q, "documents: "),
    ({**Q, "documents": []}, "documents: "),
    ({"query": "\x01", "documents": ["a"]}, "query: "),
    ({**Q, "documents": ["a", 1]}, "documents[1]: "),
    ({**Q, "documents": [{"text": "a", "title": "b"}]}, "documents[0]: "),
    ({**Q, "documents": ["a"], "top_n": 0}, "top_n: "),
    ({**Q, "documents": ["a"], "return_documents": 1}, "return_documents: "),
    ({**Q, "documents": ["a"], "max_tokens_per_doc": 9}, "max_tokens_per_doc: the model reads 128"),
    ({**Q, "documents": ["a"], "priority": 1}, "priority: "),
]
REFUSED += [(path, body, 400, word) for path in ("/v1/rerank", "/v2/rerank") for body, word in RERANKS]


def read_refusal(path, content):
    """Return the reason of a refusal, whose form is that of the clients of ``path``."""
    if path.startswith("/v2/"):
        assert list(content) == ["message"]
        return content["message"]
    assert list(content) == ["error"]
    if not path.startswith("/v1/"):
        return content["error"]
    error = content["error"]
    assert error["type"] == "invalid_request_error" and set(error) == {"message", "type", "param", "code"}
    word = error["message"].partition(":")[0].partition("[")[0].partition(" ")[0]
    assert error["param"] in (None, word, "model") or "above" in error["message"]
    return error["message"]


@pytest.mark.parametrize("path, body, status, word", REFUSED, ids=range(len(REFUSED)))
def test_a_bad_request_is_refused_before_it_reaches_a_model(path, body, status, word):
    model, embedder = Model(), HashEmbedder()
    index = SimpleNamespace(unit=PROBABILITY, recall_k=5, count=9, recall=None)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def send(client):
        return await client.post(path, content=content), await client.get("/metrics")

    answer, metrics = ask(model, send, texts=index, embedder=embedder)
    said = read_refusal(path, answer.json())
    assert answer.status_code == status and word in said and "\n" not in said and len(said) < 300
    assert model.calls == embedder.calls == []
    assert f'ernie_pair_requests_total{{status="{status}"}} 1.0' in metrics.text


ENCODED = [
    (PACKED, "gzip", 200, ""),
    (PACKED, "X-GZIP", 200, ""),
    (b'{"pairs": [["a", "b"]]}', "identity", 200, ""),
    (PACKED, "", 400, "the body cannot be read: not UTF-8"),
    (PACKED, "br", 415, 'Content-Encoding "br" is not read here; send the body as it is, or as gzip'),
    (PACKED, "gzip, gzip", 415, 'Content-Encoding "gzip, gzip" is not read here'),
    (b'{"pairs": []}', "gzip", 400, "the body is not one whole gzip, as its Content-Encoding says"),
    (zlib.compress(b"{}"), "gzip", 400, "the body is not one whole gzip"),
    (PACKED[:-9], "gzip", 400, "the body is not one whole gzip"),
    (PACKED * 2, "gzip", 400, "the body is not one whole gzip"),
    (gzip.compress(b" " * 2001), "gzip", 413, "the inflated body is above 2000 bytes; send fewer"),
    (gzip.compress(b"[" * (1 << 20)), "gzip", 413, "the inflated body is above 2000 bytes"),
    (gzip.compress(b"[" * 2000), "gzip", 400, "the body cannot be read: nested too deep"),
]


@pytest.mark.parametrize("body, encoding, status, reason", ENCODED, ids=range(len(ENCODED)))
def test_a_packed_body_is_inflated_within_the_limit(body, encoding, status, reason):
    headers = {"content-encoding": encoding} if encoding else {}
    answer = ask(Model(), lambda client: client.post("/predict", content=body, headers=headers))
    said = answer.json()
    assert answer.status_code == status
    assert said["labels"] == ["even"] if status == 200 else reason in said["error"]
