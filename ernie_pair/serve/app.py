"""The routes: POST /predict, GET /health, GET /metrics, and GET / to try two sentences."""

import logging
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Dict

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ernie_pair.predictor import PairPredictor, Prediction
from ernie_pair.serve.batcher import Batching, BusyError, MicroBatcher
from ernie_pair.serve.numbers import CONTENT_TYPE, Numbers
from ernie_pair.serve.questions import Limits, RefusedError, pairs_of, read_body

PAGE = Path(__file__).with_name("page.html")
# The page brings everything with it, and talks to this service alone.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

logger = logging.getLogger(__name__)


class Service:
    """One predictor behind its routes."""

    def __init__(self, predictor: PairPredictor, batching: Batching, limits: Limits):
        self.predictor, self.limits, self.numbers = predictor, limits, Numbers()
        self.batcher = MicroBatcher(predictor.predict, batching, self.numbers.called)

    async def predict(self, request: Request) -> JSONResponse:
        """{"pairs": [[a, b], ...]} -> {"labels", "classes", "scores": [[...], ...], "milliseconds"}"""
        started, status, pairs = time.perf_counter(), 500, []
        try:
            body = await read_body(request.stream(), request.headers.get("content-length", ""), self.limits)
            pairs = pairs_of(body, self.limits)
            answer = await self.batcher.ask(pairs)
            status, content = 200, _content_of(answer, time.perf_counter() - started)
        except RefusedError as refused:
            status, content = refused.status, _error(refused)
        except BusyError:
            status, content = 503, _error("too many pairs are waiting; ask again in a second")
        except ClientDisconnect:
            status, content = 400, _error("the client has gone")
        except Exception:
            logger.exception("a request of %d pairs failed", len(pairs))
            content = _error("the model failed; the log of the service says why")
        self.numbers.answered(status, len(pairs), time.perf_counter() - started)
        return JSONResponse(content, status, {"Retry-After": "1"} if status == 503 else None)

    async def health(self) -> JSONResponse:
        shipped, alive = self.predictor.shipped, self.batcher.is_alive
        content = {
            "status": "ok" if alive else "stopping",
            "backend": self.predictor.backend,
            "labels": list(shipped.labels),
            "max_seq_len": shipped.max_seq_len,
            "temperature": shipped.temperature,
            "threshold": self.predictor.threshold,
            "symmetric": self.predictor.symmetric,
            "waiting_pairs": self.batcher.waiting,
        }
        return JSONResponse(content, 200 if alive else 503)

    async def metrics(self) -> Response:
        return Response(self.numbers.text(self.batcher.waiting), media_type=CONTENT_TYPE)

    async def page(self) -> HTMLResponse:
        return HTMLResponse(
            PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": PAGE_POLICY}
        )


def create_app(predictor: PairPredictor, batching: Batching, limits: Limits) -> FastAPI:
    service = Service(predictor, batching, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        async with service.batcher:
            yield

    # FastAPI's own pages fetch their scripts from elsewhere.
    app = FastAPI(title="ernie-pair", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.post("/predict")(service.predict)
    for path, answer in (("/", service.page), ("/health", service.health), ("/metrics", service.metrics)):
        app.api_route(path, methods=["GET", "HEAD"])(answer)
    app.exception_handler(HTTPException)(_refuse_route)
    return app


async def _refuse_route(request: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse(_error(error.detail), error.status_code, error.headers)


def _content_of(answer: Prediction, seconds: float) -> Dict[str, object]:
    scores = [[round(share, 6) for share in row] for row in answer.probabilities.tolist()]
    classes = [int(number) for number in answer.classes]
    content = {"labels": answer.labels, "classes": classes, "scores": scores}
    return {**content, "milliseconds": round(seconds * 1000, 2)}


def _error(reason) -> Dict[str, str]:
    return {"error": str(reason)}
