"""The body of POST /predict as pairs of texts, or a refusal in one line.

{"pairs": [["怎么开户", "如何开户"], ["你好", "再见"]]}
"""

import asyncio
from dataclasses import dataclass
from typing import AsyncIterator, List

from data_tools.files.json_file import JsonError, parse_json
from ernie_pair.inference.predictor import TextPair

EXAMPLE = '{"pairs": [["text a", "text b"]]}'
BODY_SECONDS = 10.0  # for a body to arrive


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    max_body: int  # bytes
    max_pairs: int  # of one request
    max_chars: int  # of one text


class RefusedError(Exception):
    """The reason why a request is refused, with the HTTP ``status`` of the answer."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status


async def read_body(chunks: AsyncIterator[bytes], announced: str, limits: Limits) -> bytes:
    """Read the whole body, ``announced`` being its content-length, empty where there is none.

    Raises RefusedError: 413 when it is above the limit, 408 when it does not arrive within BODY_SECONDS.
    """
    if announced.isdigit() and int(announced) > limits.max_body:
        raise _too_large(limits)
    try:
        return await asyncio.wait_for(_join(chunks, limits), BODY_SECONDS)
    except asyncio.TimeoutError:
        raise RefusedError(408, f"the body did not arrive within {BODY_SECONDS:.0f} seconds") from None


async def _join(chunks: AsyncIterator[bytes], limits: Limits) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limits.max_body:
            raise _too_large(limits)
    return bytes(body)


def _too_large(limits: Limits) -> RefusedError:
    return RefusedError(413, f"the body is above {limits.max_body} bytes; send fewer pairs at a time")


def pairs_of(body: bytes, limits: Limits) -> List[TextPair]:
    """Return the pairs of texts in a body.

    Raises RefusedError: 400 for what is no JSON, 413 for too much, 422 for anything else.
    """
    try:
        question = parse_json(body)
    except JsonError as error:
        raise RefusedError(400, f"the body is not JSON ({error}); send {EXAMPLE}") from None
    pairs = question.get("pairs") if isinstance(question, dict) else None
    if not isinstance(pairs, list) or not pairs:
        raise RefusedError(422, f"the body holds no list of pairs; send {EXAMPLE}")
    if len(pairs) > limits.max_pairs:
        raise RefusedError(413, f"{len(pairs)} pairs are above {limits.max_pairs}; send fewer at a time")
    for place, pair in enumerate(pairs):
        _refuse_bad_pair(place, pair, limits)
    return list(map(tuple, pairs))


def _refuse_bad_pair(place: int, pair, limits: Limits) -> None:
    if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
        raise RefusedError(422, f"pair {place} is not a list of two texts; send {EXAMPLE}")
    for name, text in zip("ab", pair):
        where = f"pair {place}: text {name}"
        if not text.strip():
            raise RefusedError(422, f"{where} is empty; fill it in")
        if len(text) > limits.max_chars:
            raise RefusedError(413, f"{where} has {len(text)} characters, above {limits.max_chars}; cut it")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RefusedError(422, f"{where} has half of a character; fix it")
