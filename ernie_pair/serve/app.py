"""The routes: POST /predict, /rank and /search, GET /health, /metrics and /openapi.json, and GET / to try."""

import ipaddress
import json
from contextlib import asynccontextmanager
from typing import Any, Dict, Optional, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.search.searcher import TextRecall
from ernie_pair.serve.batcher import Batching
from ernie_pair.serve.documentation import POST_DOCUMENTATION, ROUTE_DOCUMENTATION
from ernie_pair.serve.request import BODIES, Limits
from ernie_pair.serve.service import Service, error_content

ANY = "*"
MISDIRECTED = 421


class HostCheck:
    """ASGI middleware that refuses requests whose Host is a name other than ``hosts``.

    Allowed are addresses, localhost, ``hosts`` with any port, and a missing Host, which browsers never
    send. A refusal has status 421.
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
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": MISDIRECTED, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})

    def _is_allowed(self, given: str) -> bool:
        name = _name_of(given)
        return not name or name in self.hosts or _is_address(name)


def _name_of(given: str) -> str:
    """Return the host in a Host header, without its port: of [::1]:8000 it is ::1."""
    text = given.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


NO_INDEX = "the service has no index: start it with --index and --embedding_model"
LONGEST_SHOWN = 80  # characters of a path


def create_app(
    predictor: PairPredictor,
    batching: Batching,
    limits: Limits,
    hosts: Sequence[str] = (ANY,),
    texts: Optional[TextRecall] = None,
) -> FastAPI:
    """Return the ASGI application; ``hosts``: the names, besides addresses, that requests may use for it.

    ``texts``: the index that /search uses; without one there is no such route.
    """
    service = Service(predictor, batching, limits, texts)

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        async with service:
            yield

    # FastAPI's own pages load their scripts from other sites.
    app = FastAPI(title="ernie-pair", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.turn_away = service.turn_away
    factory: Any = HostCheck  # mypy accepts no class for the callable that Starlette describes
    app.add_middleware(factory, hosts=hosts)
    asked = {"/predict": service.predict, "/rank": service.rank}
    if texts is not None:
        asked["/search"] = service.search
    for path, method in asked.items():
        app.post(path, **POST_DOCUMENTATION[path])(method)
    for path, answer in (("/", service.page), ("/health", service.health), ("/metrics", service.metrics)):
        app.get(path, **ROUTE_DOCUMENTATION[path])(answer)
        app.head(path, include_in_schema=False)(answer)
    app.exception_handler(HTTPException)(_refuse_route)
    return app


async def _refuse_route(request: Request, error: HTTPException) -> JSONResponse:
    """Answer which routes there are, or which method this one takes."""
    path, methods = request.url.path, _methods_of(request.app)
    reason = str(error.detail)
    if error.status_code == 404:
        there = ", ".join(f"{method} {route}" for route, method in methods.items())
        why = NO_INDEX if path == "/search" else f"there is no {_shortened(path)} here"
        reason = f"{why}; available: {there}"
    elif error.status_code == 405 and path in methods:
        body = f" {BODIES[path]}" if path in BODIES else ""
        reason = f"{path} does not accept {request.method}; use {methods[path]}{body}"
    return JSONResponse(error_content(reason), error.status_code, error.headers)


def _methods_of(app: FastAPI) -> Dict[str, str]:
    """Return {path of a route: its method}."""
    asked = {route.path: route.methods or set() for route in app.routes if isinstance(route, Route)}
    return {path: "POST" if "POST" in methods else "GET" for path, methods in asked.items()}


def _shortened(path: str) -> str:
    return path if len(path) <= LONGEST_SHOWN else f"{path[:LONGEST_SHOWN]}..."
