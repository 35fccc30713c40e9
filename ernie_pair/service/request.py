"""From the bytes of a request to a body that its route takes, or to a refusal in one line."""

import asyncio
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Optional, Type

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ernie_pair.core.files.json_file import JsonError, parse_json, shown
from ernie_pair.service.bodies import Body

BODY_SECONDS = 10.0  # for a body to arrive


class RefusedError(HTTPException):
    """The reason why a request is refused, in ``detail``, with the HTTP status of the answer.

    ``param``: the field of the request that is wrong, and ``code``: its fault, for OpenAI's clients.
    """

    def __init__(self, status: int, reason: str, param: Optional[str] = None, code: Optional[str] = None):
        super().__init__(status, reason)
        self.param, self.code = param, code


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    max_body: int  # bytes
    max_pairs: int  # per request; candidates likewise
    max_chars: int  # per text

    def check(self, body: BaseModel) -> None:
        """Raise RefusedError of status 413 for a list of a body that is too long, or a text of it."""
        for name, value in body:
            rows = value if isinstance(value, list) else [value]
            if len(rows) > self.max_pairs:
                reason = f"{len(rows)} {name} are above {self.max_pairs}; send fewer at a time"
                raise RefusedError(413, reason, name)
            for place, row in enumerate(rows):
                for text in row if isinstance(row, list) else (row,):
                    if isinstance(text, str) and len(text) > self.max_chars:
                        where = f"{name}[{place}]" if isinstance(value, list) else name
                        reason = f"{where} has {len(text)} characters, above {self.max_chars}; cut it"
                        raise RefusedError(413, reason, name)


class BoundedRequest(Request):
    """A request whose body, of any content type, is JSON within ``limits``, and may be packed as gzip."""

    def __init__(self, request: Request, limits: Limits):
        headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
        as_json = [*headers, (b"content-type", b"application/json")]
        super().__init__({**request.scope, "headers": as_json}, request.receive)
        self.limits = limits

    async def body(self) -> bytes:
        """Return the body, unpacked. Raises RefusedError: 413 too large, 408 too late, 415, 400."""
        if not hasattr(self, "_body"):
            try:
                packed = await asyncio.wait_for(self._read(), BODY_SECONDS)
            except asyncio.TimeoutError:
                reason = f"the body did not arrive within {BODY_SECONDS:.0f} seconds"
                raise RefusedError(408, reason) from None
            self._body = inflate(packed, self.headers.get("content-encoding", ""), self.limits)
        return self._body

    async def json(self) -> Any:
        """Return the content of the body. Raises RefusedError for what is no JSON."""
        try:
            return parse_json(await self.body())
        except JsonError as error:
            raise RefusedError(400, f"the body cannot be read: {error}") from None

    async def _read(self) -> bytes:
        too_large = RefusedError(413, f"the body is above {self.limits.max_body} bytes; send fewer at a time")
        announced = self.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self.limits.max_body:
            raise too_large
        body = bytearray()
        async for chunk in self.stream():
            body += chunk
            if len(body) > self.limits.max_body:
                raise too_large
        return bytes(body)


def inflate(body: bytes, encoding: str, limits: Limits) -> bytes:
    """Return a body as it was before packing; ``encoding``: its Content-Encoding, empty if there is none.

    Raises RefusedError: 415 for another encoding than gzip, 413 for a body that is above the limit when
    inflated, 400 for damaged gzip.
    """
    kind = encoding.strip().lower()
    if kind in ("", "identity"):
        return body
    if kind not in ("gzip", "x-gzip"):
        reason = f"Content-Encoding {shown(encoding)} is not read here; send the body as it is, or as gzip"
        raise RefusedError(415, reason)
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)  # of gzip alone
    content = b""
    with suppress(zlib.error):  # which leaves it unfinished
        content = unpacking.decompress(body, limits.max_body + 1)
    if len(content) > limits.max_body:
        raise RefusedError(413, f"the inflated body is above {limits.max_body} bytes; send fewer at a time")
    if not unpacking.eof or unpacking.unused_data:
        raise RefusedError(400, "the body is not one whole gzip, as its Content-Encoding says; pack it again")
    return content


def describe_fault(error: RequestValidationError, body: Type[Body]) -> RefusedError:
    """Return the refusal for the first fault that FastAPI has found in a body, which names the field."""
    fault = error.errors()[0]
    where, reason = "", fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch":  # of `Text`
        reason = "it has no visible character; fill it in"
    for part in fault["loc"][1:]:
        where += f"[{part}]" if isinstance(part, int) else shown(part)[1:-1]
    code = "unknown_parameter" if fault["type"] == "extra_forbidden" else None
    reason = f"{where or 'the body'}: {reason}; send {body.example()}"
    return RefusedError(422, reason, where.partition("[")[0] or None, code)
