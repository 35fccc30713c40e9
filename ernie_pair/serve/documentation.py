"""The description of the routes in /openapi.json: their requests, answers, and an example of each."""

from typing import Any, Dict, List, Optional, Union

from pydantic import BaseModel, Field

from ernie_pair.serve.request import TOP_K

QUESTION = {"pairs": [["怎么注销信用卡", "如何注销信用卡"], ["你好", "再见"]]}
_PAIR = {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}
_BODY = {
    "type": "object",
    "required": ["pairs"],
    "properties": {"pairs": {"type": "array", "items": _PAIR, "minItems": 1}},
    "example": QUESTION,
}
_TOP_K = {"type": "integer", "minimum": 1, "default": TOP_K}
_RANK_BODY = {
    "type": "object",
    "required": ["query", "candidates"],
    "properties": {
        "query": {"type": "string"},
        "candidates": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "top_k": _TOP_K,
    },
    "example": {"query": "怎么注销信用卡", "candidates": ["如何注销信用卡", "再见"]},
}
_SEARCH_BODY = {
    "type": "object",
    "required": ["query"],
    "properties": {
        "query": {"type": "string"},
        "top_k": {**_TOP_K, "description": "at most the --recall_k of the service"},
        "threshold": {
            "type": "number",
            "description": "hits that score less are left out: a probability, without classes a score",
        },
    },
    "example": {"query": "怎么注销信用卡"},
}


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
    similarity: float = Field(description="the cosine of the embeddings, by which it was retrieved")


class Hits(BaseModel):
    """The best texts of the index, best first."""

    hits: List[Found] = Field(description="at most top_k of them, those below the threshold left out")
    milliseconds: float = Field(description="from the request to the answer, the queue included")


class Refusal(BaseModel):
    """The reason why a request was not answered."""

    error: str = Field(description="what is wrong, and how to fix it, in one line")


class Health(BaseModel):
    """The state of the service, and the exported model that it serves."""

    status: str = Field(description="ok or stopping")
    backend: str = Field(description="onnx, paddle or onnx-int8")
    precision: str = Field(description="of the products: fp32, bf16, or int8")
    target: str = Field(description="what the model is for: classification, regression or ranking")
    label_range: Optional[List[float]] = Field(description="the lowest and the highest score, where known")
    labels: List[str] = Field(description="the names of the classes; score if there are none")
    max_seq_len: int = Field(description="tokens per pair; longer pairs are cut")
    temperature: float = Field(description="what the logits are divided by")
    threshold: Optional[float] = Field(description="pairs of this probability or more are of class 1")
    symmetric: str = Field(description="average: both orders of a pair are scored; none: the given one")
    waiting_pairs: int = Field(description="pairs in the queue")
    indexed_texts: Optional[int] = Field(
        description="texts that /search looks through; null: it has no index"
    )


_REFUSALS = {
    400: "The body is empty, or not JSON.",
    408: "The body did not arrive in time.",
    413: "Too many bytes, pairs, candidates or characters.",
    421: "The service does not accept the Host header.",
    422: "JSON, but not of the expected form.",
    500: "The model failed.",
    503: "Too many pairs are waiting, or the service is stopping; try again after Retry-After seconds.",
}


def _post(summary: str, answer: type, words: str, body: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "summary": summary,
        "response_model": None,
        "responses": {
            200: {"model": answer, "description": words},
            **{code: {"model": Refusal, "description": text} for code, text in _REFUSALS.items()},
        },
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}
        },
    }


POST_DOCUMENTATION: Dict[str, Dict[str, Any]] = {
    "/predict": _post("Classify pairs of texts", Answer, "The labels and the probabilities.", _BODY),
    "/rank": _post("Rank candidates by how well they match a query", Ranking, "The best.", _RANK_BODY),
    "/search": _post("Find the texts of the index that match a query", Hits, "The best.", _SEARCH_BODY),
}
ROUTE_DOCUMENTATION: Dict[str, Dict[str, Any]] = {
    "/": {"summary": "A page to try two sentences, to rank and to search"},
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


def curl_line(address: str) -> str:
    """Return a command that sends a request to the service at ``address``."""
    return f"""curl {address}/predict -d '{{"pairs": [["怎么注销信用卡", "如何注销信用卡"]]}}'"""
