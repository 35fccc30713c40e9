"""The routes: POST /predict, GET /health, /metrics and /openapi.json, and GET / to try two sentences."""

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Awaitable, Dict, List, Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ernie_pair.inference.predictor import PairPredictor, Prediction, TextPair
from ernie_pair.server.batcher import Answer, Batching, BusyError, MicroBatcher, answer_function
from ernie_pair.server.documentation import PREDICT_DOCUMENTATION, ROUTE_DOCUMENTATION
from ernie_pair.server.hosts import ANY, HostCheck
from ernie_pair.server.metrics import CONTENT_TYPE, Numbers
from ernie_pair.server.request import Limits, RefusedError, pairs_of, read_body

PAGE = Path(__file__).with_name("page.html")
# The page brings everything with it, and talks to this service alone.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

CLIENT_LEFT = 499  # nobody is told; the metrics count it

logger = logging.getLogger(__name__)


class Service:
    """The answers of one predictor to requests, a method per route."""

    def __init__(self, predictor: PairPredictor, batching: Batching, limits: Limits):
        self.predictor, self.limits, self.numbers = predictor, limits, Numbers()
        self.batcher = MicroBatcher(answer_function(predictor), batching, self.numbers.called)

    async def predict(self, request: Request) -> JSONResponse:
        """Answer {"pairs": [[a, b], ...]} with the label, the class and the probabilities of each pair.

        The answer is {"labels": [...], "classes": [...], "scores": [[...], ...], "milliseconds": ...}, of a
        model without classes {"scores": [...], "milliseconds": ...}.
        """
        started, status = time.perf_counter(), 500
        pairs: List[TextPair] = []
        content: Mapping[str, object]
        try:
            body = await read_body(request.stream(), request.headers.get("content-length", ""), self.limits)
            pairs = pairs_of(body, self.limits)
            answer = await self._unless_left(request, self.batcher.ask(pairs))
            status, content = 200, _content_of(answer, time.perf_counter() - started)
        except RefusedError as refused:
            status, content = refused.status, _error(refused)
        except BusyError:
            status, content = 503, _error("too many pairs are waiting; ask again in a second")
        except ClientDisconnect:
            status, content = CLIENT_LEFT, _error("the client has left")
        except Exception:
            logger.exception("a request of %d pairs failed", len(pairs))
            content = _error("the model failed; the log of the service says why")
        self.numbers.answered(status, len(pairs), time.perf_counter() - started)
        return JSONResponse(content, status, {"Retry-After": "1"} if status == 503 else None)

    async def _unless_left(self, request: Request, answer: Awaitable[Answer]) -> Answer:
        """Wait for ``answer``. Raises ClientDisconnect, and gives the answer up, when the client leaves."""
        waiting, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientDisconnect
            return waiting.result()
        finally:
            waiting.cancel()
            leaving.cancel()

    async def health(self) -> JSONResponse:
        """Answer with the state of the service and what it serves; the status is 503 when it is stopping."""
        exported, alive = self.predictor.exported, self.batcher.is_alive
        content = {
            "status": "ok" if alive else "stopping",
            "backend": self.predictor.backend,
            "precision": self.predictor.precision,
            "target": exported.target,
            "label_range": exported.label_range,
            "labels": list(exported.labels),
            "max_seq_len": exported.max_seq_len,
            "temperature": exported.temperature,
            "threshold": self.predictor.threshold,
            "symmetric": self.predictor.symmetric,
            "waiting_pairs": self.batcher.waiting,
        }
        return JSONResponse(content, 200 if alive else 503)

    async def metrics(self) -> Response:
        """Answer with counters and times in the text format of Prometheus."""
        return Response(self.numbers.text(self.batcher.waiting), media_type=CONTENT_TYPE)

    async def page(self) -> HTMLResponse:
        """Answer with the HTML page to try two sentences."""
        return HTMLResponse(
            PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": PAGE_POLICY}
        )


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def create_app(
    predictor: PairPredictor, batching: Batching, limits: Limits, hosts: Sequence[str] = (ANY,)
) -> FastAPI:
    """Return the ASGI application; ``hosts``: the names, besides addresses, by which it may be asked."""
    service = Service(predictor, batching, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        async with service.batcher:
            yield

    # FastAPI's own pages fetch their scripts from elsewhere.
    app = FastAPI(title="ernie-pair", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.turn_away = service.batcher.turn_away
    factory: Any = HostCheck  # mypy takes no class for the callable that Starlette describes
    app.add_middleware(factory, hosts=hosts)
    app.post("/predict", **PREDICT_DOCUMENTATION)(service.predict)
    for path, answer in (("/", service.page), ("/health", service.health), ("/metrics", service.metrics)):
        app.get(path, **ROUTE_DOCUMENTATION[path])(answer)
        app.head(path, include_in_schema=False)(answer)
    app.exception_handler(HTTPException)(_refuse_route)
    return app


async def _refuse_route(request: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse(_error(error.detail), error.status_code, error.headers)


def _content_of(answer: Answer, seconds: float) -> Dict[str, object]:
    if not isinstance(answer, Prediction):
        return {"scores": answer.round(6).tolist(), "milliseconds": round(seconds * 1000, 2)}
    scores = [[round(share, 6) for share in row] for row in answer.probabilities.tolist()]
    classes = [int(number) for number in answer.classes]
    content = {"labels": answer.labels, "classes": classes, "scores": scores}
    return {**content, "milliseconds": round(seconds * 1000, 2)}


def _error(reason) -> Dict[str, str]:
    return {"error": str(reason)}
