"""Parse the body of a request, or refuse it with a one-line error; `client_apis` has those of /v1 and /v2.

POST /predict  {"pairs": [["怎么注销信用卡", "如何注销信用卡"], ["你好", "再见"]]}
POST /rank     {"query": "怎么注销信用卡", "candidates": ["如何注销信用卡", "再见"], "top_k": 1}
POST /search   {"query": "怎么注销信用卡", "top_k": 3, "threshold": 0.5}

A field of null is as good as none, and one that a route does not know is refused. A body may be packed, which
the header Content-Encoding: gzip says.
"""

import asyncio
import zlib
from dataclasses import dataclass
from typing import Any, AsyncIterator, Dict, List, Optional, Tuple

from data_tools.text.text_files import is_blank
from ernie_pair.core.files.json_file import JsonError, is_number, is_whole_number, parse_json, shown
from ernie_pair.inference.predictor import TextPair

EXAMPLE = '{"pairs": [["text a", "text b"]]}'
RANK_EXAMPLE = '{"query": "text", "candidates": ["text a", "text b"]}'
SEARCH_EXAMPLE = '{"query": "text", "top_k": 3}'
EMBEDDINGS_EXAMPLE = '{"input": ["text a", "text b"]}'
RERANK_EXAMPLE = '{"query": "text", "documents": ["text a", "text b"]}'
BODIES = {"/predict": EXAMPLE, "/rank": RANK_EXAMPLE, "/search": SEARCH_EXAMPLE}
BODIES.update({"/v1/embeddings": EMBEDDINGS_EXAMPLE, "/v1/rerank": RERANK_EXAMPLE})
BODIES["/v2/rerank"] = RERANK_EXAMPLE
FIELDS = {  # that a route takes
    "/predict": ("pairs",),
    "/rank": ("query", "candidates", "top_k"),
    "/search": ("query", "top_k", "threshold"),
    "/v1/embeddings": ("input", "model", "encoding_format", "dimensions", "user"),
}
FIELDS["/v1/rerank"] = FIELDS["/v2/rerank"] = (
    "query", "documents", "model", "top_n", "return_documents", "max_tokens_per_doc",
)  # fmt: skip
BODY_SECONDS = 10.0  # for a body to arrive
PLAIN, GZIP = ("", "identity"), ("gzip", "x-gzip")  # values of Content-Encoding
BEGIN_OF_GZIP = b"\x1f\x8b"
TOP_K = 10  # if a request does not say how many it wants


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    max_body: int  # bytes
    max_pairs: int  # per request; candidates likewise
    max_chars: int  # per text


class RefusedError(Exception):
    """The reason why a request is refused, with the HTTP ``status`` of the answer.

    ``param``: the field of the request that is wrong, and ``code``: its fault, for OpenAI's clients.
    """

    def __init__(self, status: int, reason: str, param: Optional[str] = None, code: Optional[str] = None):
        super().__init__(reason)
        self.status, self.param, self.code = status, param, code


async def read_body(chunks: AsyncIterator[bytes], announced: str, limits: Limits) -> bytes:
    """Read the whole body; ``announced``: its content-length, empty if there is none.

    Raises RefusedError: 413 when it is above the limit, 408 when it does not arrive within BODY_SECONDS.
    """
    too_large = RefusedError(413, f"the body is above {limits.max_body} bytes; send fewer pairs at a time")

    async def join() -> bytes:
        body = bytearray()
        async for chunk in chunks:
            body += chunk
            if len(body) > limits.max_body:
                raise too_large
        return bytes(body)

    if announced.isdecimal() and int(announced) > limits.max_body:
        raise too_large
    try:
        return await asyncio.wait_for(join(), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {BODY_SECONDS:.0f} seconds") from None


def inflated(body: bytes, encoding: str, limits: Limits) -> bytes:
    """Return a body as it was before packing; ``encoding``: its Content-Encoding, empty if there is none.

    Raises RefusedError: 415 for another encoding than gzip, or one that is not said, 413 for a body that is
    above the limit when inflated, 400 for damaged gzip.
    """
    kind = encoding.strip().lower()
    if kind in PLAIN:
        if body.startswith(BEGIN_OF_GZIP):
            raise RefusedError(415, "the body is gzip; say so with the header Content-Encoding: gzip")
        return body
    if kind not in GZIP:
        reason = f"Content-Encoding {shown(encoding)} is not read here; send the body as it is, or as gzip"
        raise RefusedError(415, reason)
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)  # of gzip alone
    try:
        content = unpacking.decompress(body, limits.max_body + 1)
    except zlib.error:
        raise RefusedError(400, "the body is not gzip, as its Content-Encoding says; correct one") from None
    if len(content) > limits.max_body:
        raise RefusedError(413, f"the inflated body is above {limits.max_body} bytes; send fewer at a time")
    if not unpacking.eof or unpacking.unused_data:
        raise RefusedError(400, "the body is not one whole gzip; pack it again")
    return content


def pairs_of(body: bytes, limits: Limits) -> List[TextPair]:
    """Return the pairs in a body of /predict. Raises RefusedError: 400 no JSON, 413 too large, 422 else."""
    pairs = list_in(fields_in(body, "/predict"), "pairs", EXAMPLE, limits)
    for place, pair in enumerate(pairs):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise RefusedError(422, f"pair {place} is not a list of two texts; send {EXAMPLE}")
        for name, text in zip("ab", pair):
            refuse_bad_text(f"pair {place}: text {name}", text, limits)
    return list(map(tuple, pairs))


def rank_question_of(body: bytes, limits: Limits) -> Tuple[str, List[str], int]:
    """Return (query, candidates, how many of the best to return). Raises RefusedError as `pairs_of`."""
    given = fields_in(body, "/rank")
    query = query_in(given, RANK_EXAMPLE, limits)
    candidates = list_in(given, "candidates", RANK_EXAMPLE, limits)
    for place, text in enumerate(candidates):
        if not isinstance(text, str):
            raise RefusedError(422, f"candidate {place} is not a text; send {RANK_EXAMPLE}")
        refuse_bad_text(f"candidate {place}", text, limits)
    return query, candidates, _top_k_in(given)


def search_question_of(body: bytes, limits: Limits) -> Tuple[str, Optional[int], Optional[float]]:
    """Return (query, top_k: how many texts to return, the threshold that their scores must reach).

    Of the body of /search; top_k and threshold are None where it does not say them. Which of them are valid
    depends on the model and the index, and is not checked here. Raises RefusedError as `pairs_of` does.
    """
    given = fields_in(body, "/search")
    threshold = given.get("threshold")
    if threshold is not None and not is_number(threshold):
        raise RefusedError(422, "threshold is not a number; leave it out for none")
    top_k = _top_k_in(given) if "top_k" in given else None
    return query_in(given, SEARCH_EXAMPLE, limits), top_k, threshold


def fields_in(body: bytes, route: str) -> Dict[str, Any]:
    """Return the fields of a body that are not null; {} for JSON that is no object.

    Raises RefusedError: 400 for no JSON, 422 for a field that is not one of the FIELDS of ``route``.
    """
    example = BODIES[route]
    if not body.strip():
        raise RefusedError(400, f"the body is empty; send {example}")
    try:
        question = parse_json(body)
    except JsonError as error:
        raise RefusedError(400, f"the body cannot be read: {error}; send {example}") from None
    given = question if isinstance(question, dict) else {}
    unknown = [name for name in given if name not in FIELDS[route]]
    if unknown:
        reason = f"{shown(unknown[0])} is not known here; leave it out, and send {example}"
        raise RefusedError(422, reason, shown(unknown[0])[1:-1], "unknown_parameter")
    return {name: value for name, value in given.items() if value is not None}


def list_in(question: Dict[str, Any], name: str, example: str, limits: Limits) -> List[Any]:
    """Return the list called ``name``. Raises RefusedError: 422 for none or an empty one, 413 if too long."""
    found = question.get(name)
    if not isinstance(found, list):
        raise RefusedError(422, f"the body holds no list of {name}; send {example}", name)
    if not found:
        raise RefusedError(422, f"the list of {name} is empty; send {example}", name)
    if len(found) > limits.max_pairs:
        reason = f"{len(found)} {name} are above {limits.max_pairs}; send fewer at a time"
        raise RefusedError(413, reason, name)
    return found


def query_in(question: Dict[str, Any], example: str, limits: Limits) -> str:
    """Return the query. Raises RefusedError: 422 for none, 413 for one that is too long."""
    query = question.get("query")
    if not isinstance(query, str):
        raise RefusedError(422, f"the body holds no query; send {example}", "query")
    refuse_bad_text("the query", query, limits)
    return query


def _top_k_in(question: Dict[str, Any]) -> int:
    top_k = question.get("top_k", TOP_K)
    if not is_whole_number(top_k, 1):
        raise RefusedError(422, "top_k is not a whole number of 1 or more; correct it")
    return top_k


def refuse_bad_text(where: str, text: str, limits: Limits) -> None:
    """Raise RefusedError for a text, called ``where``, without a visible character or of too many."""
    if not text.strip():
        raise RefusedError(422, f"{where} is empty; fill it in")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise RefusedError(422, f"{where} has half of a character; fix it")
    if is_blank(text):
        raise RefusedError(422, f"{where} has no visible character; fill it in")
    if len(text) > limits.max_chars:
        raise RefusedError(413, f"{where} has {len(text)} characters, above {limits.max_chars}; cut it")
