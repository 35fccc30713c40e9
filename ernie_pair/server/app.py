"""The routes: POST /predict, /rank and /search, GET /health, /metrics and /openapi.json, and GET / to try."""

from contextlib import asynccontextmanager
from typing import Any, Dict, Optional, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.search.searcher import TextRecall
from ernie_pair.server.batcher import Batching
from ernie_pair.server.documentation import POST_DOCUMENTATION, ROUTE_DOCUMENTATION
from ernie_pair.server.hosts import ANY, HostCheck
from ernie_pair.server.request import BODIES, Limits
from ernie_pair.server.service import Service, error_content

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
