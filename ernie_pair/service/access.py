"""Who may ask the service: the names that it answers to, the key that requests carry, and how it refuses."""

import hmac
import ipaddress
from contextlib import suppress
from typing import Any, Dict, Optional, Sequence

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
