"""Who may ask the service: the names that it answers to, the key that requests carry, and how it refuses."""

import hmac
import ipaddress
from typing import Any, Dict, Sequence

from fastapi.responses import JSONResponse

from ernie_pair.service.request import RefusedError

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


class HostCheck:
    """ASGI middleware that refuses requests whose Host is a name other than ``hosts``.

    Allowed are addresses, localhost, ``hosts`` with any port, and no Host at all. A refusal has status 421.
    """

    def __init__(self, app, hosts: Sequence[str]):
        self.app, self.hosts = app, {"localhost", *(host.lower().rstrip(".") for host in hosts)}

    async def __call__(self, scope, receive, send) -> None:
        """Pass a request on to the application, or refuse it."""
        if scope["type"] != "http" or ANY in self.hosts:
            return await self.app(scope, receive, send)
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if all(map(self._is_allowed, given)):
            return await self.app(scope, receive, send)
        reason = f"the service is not called {given[0][:60]}; name it with --allowed_hosts"
        await _refuse(RefusedError(MISDIRECTED, reason), scope, receive, send)

    def _is_allowed(self, given: str) -> bool:
        text = given.strip().lower()  # of [::1]:8000 the host is ::1
        ends = text[1:].partition("]") if text.startswith("[") else text.partition(":")
        name = ends[0] if text.startswith("[") else ends[0].rstrip(".")
        if not name or name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class KeyCheck:
    """ASGI middleware that refuses requests without the header ``Authorization: Bearer KEY``, but to OPEN.

    A refusal has status 401. How long a comparison takes does not depend on how much of a key is right.
    """

    def __init__(self, app, key: str):
        self.app, self.key = app, key.encode("ascii")

    async def __call__(self, scope, receive, send) -> None:
        """Pass a request on to the application, or refuse it."""
        path = scope.get("path", "")
        is_open = scope["type"] != "http" or path in OPEN or path.startswith(DOCS_FILES)
        if is_open or self._is_right(scope["headers"]):
            return await self.app(scope, receive, send)
        await _refuse(RefusedError(UNAUTHORIZED, NO_KEY, code="invalid_api_key"), scope, receive, send)

    def _is_right(self, headers) -> bool:
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self.key)


async def _refuse(refused: RefusedError, scope, receive, send) -> None:
    response = error_response(scope["path"], refused)
    response.headers["connection"] = "close"  # its body is not read
    if refused.status_code == UNAUTHORIZED:
        response.headers["www-authenticate"] = "Bearer"
    await response(scope, receive, send)
