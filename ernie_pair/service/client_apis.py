"""What clients of OpenAI, Cohere and Jina send, and what they expect.

POST /v1/embeddings   {"input": ["text a", "text b"], "model": "embedder", "encoding_format": "base64"}
POST /v1/rerank       {"query": "text", "documents": ["text a", {"text": "text b"}], "top_n": 1}
POST /v2/rerank       the same, to which Cohere's client sends it
"""

import base64
import uuid
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ernie_pair.core.files.json_file import is_whole_number, shown
from ernie_pair.inference.embedder import TextEmbedder, unit_rows
from ernie_pair.inference.scores import best_places
from ernie_pair.service.request import (
    EMBEDDINGS_EXAMPLE,
    RERANK_EXAMPLE,
    Limits,
    RefusedError,
    fields_in,
    list_in,
    query_in,
    refuse_bad_text,
)

FORMATS = ("float", "base64")
DIGITS = 6


def embeddings_request_of(
    body: bytes, limits: Limits, model: str, dims: Sequence[int]
) -> Tuple[List[str], str, int]:
    """Return (texts to embed, one of FORMATS, numbers of a vector, 0 for all) of the body of /v1/embeddings.

    It asks ``model``, whose vectors may have the lengths ``dims``. Raises RefusedError.
    """
    given = _fields_in(body, "/v1/embeddings", model)
    texts = given.get("input")
    texts = [texts] if isinstance(texts, str) else list_in(given, "input", EMBEDDINGS_EXAMPLE, limits)
    for place, text in enumerate(texts):
        if isinstance(text, (int, list)):
            reason = (
                f"input {place} is token ids, which are not taken; send texts: this model has another "
                "tokenizer than OpenAI's, which LangChain's client is told with "
                "check_embedding_ctx_length=False"
            )
            raise RefusedError(422, reason, "input")
        if not isinstance(text, str):
            raise RefusedError(422, f"input {place} is not a text; send {EMBEDDINGS_EXAMPLE}", "input")
        refuse_bad_text(f"input {place}", text, limits)
    form, dimensions = given.get("encoding_format", FORMATS[0]), given.get("dimensions", 0)
    if form not in FORMATS:
        raise RefusedError(
            422, f"encoding_format is not {' or '.join(FORMATS)}; correct it", "encoding_format"
        )
    if "dimensions" in given and not is_whole_number(dimensions, 1, dims[-1]):
        raise RefusedError(422, f"dimensions is not a number from 1 to {dims[-1]}; correct it", "dimensions")
    if dimensions not in (0, dims[-1]) and len(dims) == 1:
        reason = f"its vectors of {dims[-1]} numbers were not trained to be shortened; leave it out"
        raise RefusedError(422, f"dimensions {dimensions}: {reason}", "dimensions")
    return texts, form, dimensions


def embeddings_answer(
    vectors: np.ndarray, form: str, dimensions: int, model: str, tokens: int, is_unit: bool
) -> Dict[str, object]:
    """Return OpenAI's answer: vectors float32 [N, D], shortened, and then of length 1 again if they were."""
    if 0 < dimensions < vectors.shape[1]:
        vectors = vectors[:, :dimensions]
        vectors = unit_rows(vectors, model) if is_unit else vectors
    encoded = vectors.tolist()
    if form != FORMATS[0]:  # as base64 of their bytes, the least of a number first
        encoded = [base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii") for vector in vectors]
    data: List[Dict[str, object]] = [
        {"object": "embedding", "index": place, "embedding": each} for place, each in enumerate(encoded)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def count_tokens(texts: Sequence[str], embedder: TextEmbedder, cuts: bool) -> int:
    """Count the tokens of ``texts`` that the model reads. Raises RefusedError for long ones, not ``cuts``."""
    most, total = embedder.max_seq_len, 0
    for place, text in enumerate(texts):
        tokens = embedder.num_tokens(text)
        if tokens > most and not cuts:
            raise RefusedError(
                422,
                f"input {place} has {tokens} tokens, above the {most} of the model; shorten it, or start the "
                "service with --long_text cut",
                "input",
                "context_length_exceeded",
            )
        total += min(tokens, most)
    return total


def rerank_request_of(
    body: bytes, limits: Limits, model: str, max_seq_len: int, return_documents: bool
) -> Tuple[str, List[str], Optional[int], bool]:
    """Return (query, documents, how many of the best to return, None for all, are they to be in the answer).

    Of the body of /v1/rerank or /v2/rerank, which asks ``model``, that reads ``max_seq_len`` tokens;
    ``return_documents``: what counts if the body does not say it. Raises RefusedError.
    """
    given = _fields_in(body, "/v1/rerank", model)
    query, documents = query_in(given, RERANK_EXAMPLE, limits), []
    for place, document in enumerate(list_in(given, "documents", RERANK_EXAMPLE, limits)):
        text = document.get("text") if isinstance(document, dict) else document
        if not isinstance(text, str) or isinstance(document, dict) and set(document) != {"text"}:
            reason = f'document {place} is neither a text nor {{"text": "..."}}; send {RERANK_EXAMPLE}'
            raise RefusedError(422, reason, "documents")
        refuse_bad_text(f"document {place}", text, limits)
        documents.append(text)
    top_n, returned = given.get("top_n"), given.get("return_documents", return_documents)
    if top_n is not None and not is_whole_number(top_n, 1):
        raise RefusedError(422, "top_n is not a whole number of 1 or more; correct it", "top_n")
    if not isinstance(returned, bool):
        raise RefusedError(422, "return_documents is neither true nor false; correct it", "return_documents")
    most = given.get("max_tokens_per_doc", max_seq_len)
    if not is_whole_number(most, max_seq_len):
        reason = (
            f"max_tokens_per_doc: the model reads {max_seq_len} tokens of query and document together, and "
            "only fewer cannot be asked for; leave it out"
        )
        raise RefusedError(422, reason, "max_tokens_per_doc")
    return query, documents, top_n, returned


def rerank_answer(
    documents: Sequence[str], scores: np.ndarray, top_n: Optional[int], returned: bool, model: str
) -> Dict[str, object]:
    """Return the answer of Cohere and Jina for the scores [N] of the documents, the best first."""
    results: List[Dict[str, object]] = []
    for place in best_places(scores, top_n or len(scores)):
        document = {"document": {"text": documents[place]}} if returned else {}
        results.append({"index": place, "relevance_score": round(float(scores[place]), DIGITS), **document})
    return {"id": str(uuid.uuid4()), "model": model, "results": results}


def model_entry(name: str, created: int) -> Dict[str, object]:
    """Return OpenAI's description of a model, served since ``created`` in seconds of Unix time."""
    return {"id": name, "object": "model", "created": created, "owned_by": "ernie-pair"}


def _fields_in(body: bytes, route: str, model: str) -> Dict[str, Any]:
    """Return the fields of a body, see `fields_in`. Raises RefusedError for another ``model``, too."""
    given = fields_in(body, route)
    if given.get("model", model) != model:
        raise not_served(given["model"], [model])
    return given


def not_served(asked: object, served: Sequence[str]) -> RefusedError:
    """Return the refusal of a model that is not one of those ``served``."""
    reason = f"the model {shown(asked)} is not served here; ask for {' or '.join(served)}"
    return RefusedError(404, reason, "model", "model_not_found")
