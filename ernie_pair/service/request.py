"""From the bytes of a request to a body that its route takes, or to a refusal in a line; and who may ask."""

import asyncio
import hmac
import ipaddress
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Type

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
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


ANY, MISDIRECTED, UNAUTHORIZED = "*", 421, 401
OPEN = ("/", "/docs", "/openapi.json", "/health")  # what needs no key: it says nothing about texts
DOCS_FILES = "/docs/files/"  # nor do the script and the style of /docs
NO_KEY = "the key is missing or wrong; send the header Authorization: Bearer KEY with that of the service"


def error_response(path: str, refused: RefusedError) -> JSONResponse:
    """Return a refusal in the form that clients of ``path`` read: OpenAI's, Cohere's, or {"error": reason}.

    Theirs have no status 422: it becomes 400.
    """
    status, reason = refused.status_code, _encodable(refused.detail)
    content: Dict[str, Any] = {"error": reason}
    if path.startswith("/v1/"):
        kind = "invalid_request_error" if status < 500 else "server_error"
        param = refused.param and _encodable(refused.param)
        content = {"error": {"message": reason, "type": kind, "param": param, "code": refused.code}}
    elif path.startswith("/v2/"):
        content = {"message": reason}
    if path.startswith(("/v1/", "/v2/")) and status == 422:
        status = 400
    return JSONResponse(content, status, {"Retry-After": "1"} if status == 503 else None)


def _encodable(text: str) -> str:
    """Return a text in which half of a character, of a request, is written as its number."""
    return text.encode("utf-8", "backslashreplace").decode()


class AccessCheck:
    """ASGI middleware that refuses requests to a foreign host, with status 421, or without the key, with 401.

    Hosts are addresses, localhost, ``hosts`` with any port, and no Host at all. The key is that of the header
    ``Authorization: Bearer KEY``; OPEN and DOCS_FILES need none, and without a ``key`` nothing does. How long
    a comparison takes does not depend on how much of a key is right.
    """

    def __init__(self, app, hosts: Sequence[str], key: str):
        self.app, self.key = app, key.encode("ascii")
        self.hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}

    async def __call__(self, scope, receive, send) -> None:
        """Pass a request on to the application, or refuse it."""
        refused = self._find_refusal(scope) if scope["type"] == "http" else None
        if refused is None:
            return await self.app(scope, receive, send)
        response = error_response(scope["path"], refused)
        response.headers["connection"] = "close"  # its body is not read
        if refused.status_code == UNAUTHORIZED:
            response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _find_refusal(self, scope) -> Optional[RefusedError]:
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if ANY not in self.hosts and not all(map(self._is_allowed, given)):
            reason = f"the service is not called {given[0][:60]}; name it with --allowed_hosts"
            return RefusedError(MISDIRECTED, reason)
        if not self.key or scope["path"] in OPEN or scope["path"].startswith(DOCS_FILES):
            return None
        keys = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = (keys[0] if len(keys) == 1 else b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self.key):
            return None
        return RefusedError(UNAUTHORIZED, NO_KEY, code="invalid_api_key")

    def _is_allowed(self, given: str) -> bool:
        text = given.strip().lower()  # of [::1]:8000 the host is ::1
        is_in_brackets = text.startswith("[")
        name = text[1:].partition("]")[0] if is_in_brackets else text.partition(":")[0].rstrip(".")
        with suppress(ValueError):
            return not name or name in self.hosts or bool(ipaddress.ip_address(name))
        return False
