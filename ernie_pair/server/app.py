"""The routes: POST /predict, /rank and /search, GET /health, /metrics and /openapi.json, and GET / to try."""

from contextlib import asynccontextmanager
from typing import Any, Optional, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.search.searcher import TextRecall
from ernie_pair.server.batcher import Batching
from ernie_pair.server.documentation import POST_DOCUMENTATION, ROUTE_DOCUMENTATION
from ernie_pair.server.hosts import ANY, HostCheck
from ernie_pair.server.request import Limits
from ernie_pair.server.service import Service, error_content


def create_app(
    predictor: PairPredictor,
    batching: Batching,
    limits: Limits,
    hosts: Sequence[str] = (ANY,),
    texts: Optional[TextRecall] = None,
) -> FastAPI:
    """Return the ASGI application; ``hosts``: the names, besides addresses, by which it may be asked.

    ``texts``: the index that /search looks in; without one there is no such route.
    """
    service = Service(predictor, batching, limits, texts)

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        async with service:
            yield

    # FastAPI's own pages fetch their scripts from elsewhere.
    app = FastAPI(title="ernie-pair", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.turn_away = service.turn_away
    factory: Any = HostCheck  # mypy takes no class for the callable that Starlette describes
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
    return JSONResponse(error_content(error.detail), error.status_code, error.headers)
