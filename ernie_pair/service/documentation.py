"""The description of the routes in /openapi.json, with an example of each, and its page /docs."""

import json
from html import escape
from typing import Any, Dict, List, Optional, Union

from pydantic import BaseModel, Field

from ernie_pair.service.request import TOP_K

_TEXT = {"type": "string"}
_MODEL = {"type": "string", "description": "the name of the model, as in /v1/models; may be left out"}
_TOP_K = {"type": "integer", "minimum": 1, "default": TOP_K}
_DOCUMENT = {"type": "object", "required": ["text"], "properties": {"text": _TEXT}}


def _list_of(items: Dict[str, Any]) -> Dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


def _body(required: List[str], example: Dict[str, Any], **properties: Dict[str, Any]) -> Dict[str, Any]:
    closed = {"type": "object", "additionalProperties": False, "required": required}
    return {**closed, "properties": properties, "example": example}


_BODY = _body(
    ["pairs"],
    {"pairs": [["怎么注销信用卡", "如何注销信用卡"], ["你好", "再见"]]},
    pairs=_list_of({"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2}),
)
_RANK_BODY = _body(
    ["query", "candidates"],
    {"query": "怎么注销信用卡", "candidates": ["如何注销信用卡", "再见"]},
    query=_TEXT,
    candidates=_list_of(_TEXT),
    top_k=_TOP_K,
)
_SEARCH_BODY = _body(
    ["query"],
    {"query": "怎么注销信用卡"},
    query=_TEXT,
    top_k={**_TOP_K, "description": "at most the --recall_k of the service"},
    threshold={
        "type": "number",
        "description": "hits that score less are left out: a probability, without classes a score",
    },
)
_EMBEDDINGS_BODY = _body(
    ["input"],
    {"input": ["怎么注销信用卡", "再见"]},
    input={"oneOf": [_TEXT, _list_of(_TEXT)]},
    model=_MODEL,
    encoding_format={"type": "string", "enum": ["float", "base64"], "default": "float"},
    dimensions={"type": "integer", "minimum": 1, "description": "numbers of a vector"},
    user={"type": "string", "description": "has no effect"},
)
_RERANK_BODY = _body(
    ["query", "documents"],
    {"query": "怎么注销信用卡", "documents": ["如何注销信用卡", "再见"]},
    query=_TEXT,
    documents=_list_of({"oneOf": [_TEXT, _DOCUMENT]}),
    top_n={"type": "integer", "minimum": 1, "description": "how many of the best; all if left out"},
    return_documents={"type": "boolean", "description": "by default true for /v1, false for /v2"},
    max_tokens_per_doc={"type": "integer", "description": "not below the tokens that the model reads"},
    model=_MODEL,
)


class Answer(BaseModel):
    """One label and one list of probabilities for each pair, in the order of the pairs.

    A model without classes, see `target` of /health, gives one score for each pair instead.
    """

    labels: Optional[List[str]] = Field(
        None, description="the name of the class of each pair; absent without classes", examples=[["1", "0"]]
    )
    classes: Optional[List[int]] = Field(
        None, description="the index of that class; absent without classes", examples=[[1, 0]]
    )
    scores: Union[List[List[float]], List[float]] = Field(
        description="the probability of each class, in the order of `labels` of /health; without classes "
        "the score",
        examples=[[[0.08, 0.92], [0.97, 0.03]]],
    )
    milliseconds: float = Field(description="from the request to the answer, the queue included")


class Place(BaseModel):
    """A candidate and how well it matches the query."""

    place: int = Field(description="its position in the given `candidates`, counted from 0")
    text: str = Field(description="the candidate")
    score: float = Field(description="how well it matches the query: a probability, without classes a score")


class Ranking(BaseModel):
    """The best candidates, the best first; ties in the given order."""

    ranking: List[Place] = Field(description="at most top_k of them")
    milliseconds: float = Field(description="from the request to the answer, the queue included")


class Found(BaseModel):
    """A text of the index that may answer the query."""

    id: str = Field(description="its id in the file of texts, or its line number from 0")
    text: str = Field(description="the text")
    score: float = Field(description="how well it matches the query: a probability, without classes a score")
    similarity: Optional[float] = Field(
        description="the cosine of the embeddings; null: not found by the index's vectors"
    )
    bm25: Optional[float] = Field(None, description="its BM25 score; absent: not found by its words")


class Hits(BaseModel):
    """The best texts of the index, best first."""

    hits: List[Found] = Field(description="at most top_k of them, those below the threshold left out")
    milliseconds: float = Field(description="from the request to the answer, the queue included")


class Embeddings(BaseModel):
    """The vectors of the texts, in their order, as OpenAI's clients read them."""

    object: str = Field(description="list")
    data: List[Dict[str, Any]] = Field(
        description="of each text its index and its embedding: numbers, or base64 of little-endian float32",
        examples=[[{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}]],
    )
    model: str = Field(description="the name of the model")
    usage: Dict[str, int] = Field(description="the tokens that the model has read")


class Reranking(BaseModel):
    """The best documents, the best first, as the clients of Cohere and Jina read them."""

    id: str = Field(description="another one for each answer")
    model: str = Field(description="the name of the model")
    results: List[Dict[str, Any]] = Field(
        description="the index of a document, its relevance_score and, if it was asked for, the document",
        examples=[[{"index": 0, "relevance_score": 0.92, "document": {"text": "如何注销信用卡"}}]],
    )


class Model(BaseModel):
    """A model that is served, as OpenAI's clients read it."""

    id: str = Field(description="its name: that of its folder")
    object: str = Field(description="model")
    created: int = Field(description="when the service was started, in seconds of Unix time")
    owned_by: str = Field(description="ernie-pair")


class Models(BaseModel):
    """The models that are served."""

    object: str = Field(description="list")
    data: List[Model]


class Refusal(BaseModel):
    """The reason why a request was not answered."""

    error: str = Field(description="what is wrong, and how to fix it, in one line")


class ForeignRefusal(BaseModel):
    """The reason why a request was not answered, as OpenAI's clients read it; of /v2 only the message."""

    error: Dict[str, Optional[str]] = Field(description="message, type, param and code")


class Health(BaseModel):
    """The state of the service, and what it serves; what is of a classifier is null without one."""

    status: str = Field(description="ok or stopping")
    models: List[str] = Field(description="the names of the models, as in /v1/models")
    backend: Optional[str] = Field(description="onnx, paddle or onnx-int8")
    precision: Optional[str] = Field(description="of the products: fp32, bf16, or int8")
    target: Optional[str] = Field(description="what it is for: classification, regression or ranking")
    label_range: Optional[List[float]] = Field(description="the lowest and the highest score, where known")
    labels: Optional[List[str]] = Field(description="the names of the classes; score if there are none")
    max_seq_len: Optional[int] = Field(description="tokens per pair; longer pairs are cut")
    temperature: Optional[float] = Field(description="what the logits are divided by")
    threshold: Optional[float] = Field(description="pairs of this probability or more are of class 1")
    symmetric: Optional[str] = Field(
        description="average: both orders of a pair are scored; none: the given one"
    )
    vector_length: Optional[int] = Field(description="numbers of a vector; null: no embedding model")
    waiting_pairs: int = Field(description="pairs and texts in the queue")
    failed_calls: int = Field(description="calls of a model that failed since the start, answered with 500")
    indexed_texts: Optional[int] = Field(
        description="texts that /search looks through; null: it has no index"
    )


_REFUSALS = {
    400: "The body is empty, or not JSON.",
    401: "The service has a key, and the request another one or none.",
    408: "The body did not arrive in time.",
    413: "Too many bytes, pairs, candidates or characters.",
    415: "The body has a Content-Encoding other than gzip, or is gzip without that header.",
    421: "The service does not accept the Host header.",
    422: "JSON, but not of the expected form; 400 under /v1 and /v2.",
    500: "The model failed.",
    503: "Too many pairs are waiting, or the service is stopping; try again after Retry-After seconds.",
}


def _post(
    summary: str, answer: type, words: str, body: Dict[str, Any], refusal: type = Refusal
) -> Dict[str, Any]:
    return {
        "summary": summary,
        "response_model": None,
        "responses": {
            200: {"model": answer, "description": words},
            **{code: {"model": refusal, "description": text} for code, text in _REFUSALS.items()},
        },
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}
        },
    }


POST_DOCUMENTATION: Dict[str, Dict[str, Any]] = {
    "/predict": _post("Classify pairs of texts", Answer, "The labels and the probabilities.", _BODY),
    "/rank": _post("Rank candidates by how well they match a query", Ranking, "The best.", _RANK_BODY),
    "/search": _post("Find the texts of the index that match a query", Hits, "The best.", _SEARCH_BODY),
    "/v1/embeddings": _post(
        "Embed texts, for the clients of OpenAI", Embeddings, "The vectors.", _EMBEDDINGS_BODY, ForeignRefusal
    ),
    "/v1/rerank": _post(
        "Rank documents, for the clients of Jina", Reranking, "The best.", _RERANK_BODY, ForeignRefusal
    ),
    "/v2/rerank": _post(
        "Rank documents, for the clients of Cohere", Reranking, "The best.", _RERANK_BODY, ForeignRefusal
    ),
}
ROUTE_DOCUMENTATION: Dict[str, Dict[str, Any]] = {
    "/": {"summary": "A page to try two sentences, to rank and to search"},
    "/docs": {"summary": "This description as a page"},
    "/v1/models": {
        "summary": "The models that are served, for the clients of OpenAI",
        "response_model": None,
        "responses": {200: {"model": Models, "description": "Their names."}},
    },
    "/v1/models/{name}": {
        "summary": "One of these models",
        "response_model": None,
        "responses": {
            200: {"model": Model, "description": "It is served."},
            404: {"model": ForeignRefusal, "description": "It is not."},
        },
    },
    "/health": {
        "summary": "The state of the service, and what it serves",
        "response_model": None,
        "responses": {
            200: {"model": Health, "description": "It is running."},
            503: {"model": Health, "description": "It is stopping."},
        },
    },
    "/metrics": {"summary": "Counters and times for Prometheus", "response_model": None},
}


_TRIED = {
    "/predict": {"pairs": [["怎么注销信用卡", "如何注销信用卡"]]},
    "/v1/embeddings": {"input": ["怎么注销信用卡", "再见"]},
    "/search": {"query": "怎么注销信用卡"},
}


def curl_line(address: str, path: str = "/predict", key: str = "") -> str:
    """Return a command that asks the service at ``address``; ``key``: the environment variable of its key."""
    header = f' -H "Authorization: Bearer ${key}"' if key else ""
    return f"curl {address}{path}{header} -d '{json.dumps(_TRIED[path], ensure_ascii=False)}'"


_API_STYLE = """
:root { color-scheme: light dark; } body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; } pre, code { font-family: ui-monospace, monospace; }
pre { padding: .75rem; border: 1px solid; border-radius: .5rem; white-space: pre-wrap; }
td { padding-right: 1rem; vertical-align: top; }
"""


def api_page(document: Dict[str, Any]) -> str:
    """Return the HTML page of an OpenAPI ``document``, which loads nothing and needs no script."""
    parts = [
        f"<h1>{escape(document['info']['title'])}</h1>",
        '<p><a href="openapi.json">openapi.json</a></p>',
    ]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            parts += [
                f"<h2><code>{method.upper()} {escape(path)}</code></h2>",
                f"<p>{escape(route['summary'])}</p>",
            ]
            for media in route.get("requestBody", {}).get("content", {}).values():
                example = json.dumps(media["schema"]["example"], ensure_ascii=False)
                parts.append(f"<pre>{escape(example)}</pre>{_fields(media['schema'], document)}")
            for status, response in route["responses"].items():
                parts.append(f"<p><b>{status}</b> {escape(response['description'])}</p>")
                schema = response.get("content", {}).get("application/json", {}).get("schema", {})
                parts.append(_fields(schema, document) if status == "200" else "")
    head = f'<meta charset="utf-8"><title>API</title><style>{_API_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _fields(schema: Dict[str, Any], document: Dict[str, Any]) -> str:
    """Return the table of the fields of an object, whose schema may be a reference."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    rows = []
    for name, field in schema.get("properties", {}).items():
        kinds = field.get("anyOf") or field.get("oneOf") or [field]
        kind = " or ".join(str(one.get("type", "object")) for one in kinds)
        cells = (f"<code>{escape(name)}</code>", kind, escape(field.get("description", "")))
        rows.append("<tr>{}</tr>".format("".join(f"<td>{cell}</td>" for cell in cells)))
    return f"<table>{''.join(rows)}</table>"
