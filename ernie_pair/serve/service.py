"""The routes: POST /predict, /rank and /search, GET /health, /metrics, /openapi.json, and GET / to try."""

import asyncio
import ipaddress
import logging
import math
import time
from collections import Counter as Counts
from collections import defaultdict, deque
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Awaitable, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from data_tools.files.errors import InputError
from ernie_pair.inference.predictor import PairPredictor, Prediction, TextPair
from ernie_pair.inference.scores import best_places, refuse_unrankable, unit_of
from ernie_pair.search.searcher import TextRecall, rerank
from ernie_pair.serve.batcher import Batching, BusyError, MicroBatcher, answer_function
from ernie_pair.serve.documentation import POST_DOCUMENTATION, ROUTE_DOCUMENTATION
from ernie_pair.serve.request import (
    BODIES,
    TOP_K,
    Limits,
    RefusedError,
    pairs_of,
    rank_question_of,
    read_body,
    search_question_of,
)

NAMESPACE = "ernie_pair"
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUANTILES = (0.5, 0.99)
LATEST = 2048  # answers of an endpoint that its quantiles cover


class Numbers(Collector):
    """The numbers of one service since its start, which /metrics reports to Prometheus.

    It collects one of them itself, the median and the 99th percentile of the latest answers of each endpoint:
    prometheus_client's own Summary has no quantiles, and those of a histogram are no finer than its buckets.
    """

    def __init__(self):
        self._registry = here = CollectorRegistry()

        def new(kind, name: str, words: str, *labels: str, **more):
            return kind(f"{NAMESPACE}_{name}", words, labels, registry=here, **more)

        routes = "Requests to /predict, /rank and /search, by status."
        self._requests = new(Counter, "requests", routes, "status")
        self._errors = new(Counter, "errors", "Requests that were answered with 4xx or 5xx.")
        self._pairs = new(Counter, "pairs", "Pairs that were answered.")
        self._seconds = new(Histogram, "request_seconds", "Time to the answer.", buckets=SECONDS)
        self._latest: Dict[str, Deque[float]] = defaultdict(lambda: deque(maxlen=LATEST))
        self._counts: Counts[str] = Counts()
        self._sums: Dict[str, float] = defaultdict(float)
        here.register(self)
        self.batches = new(Histogram, "batch_pairs", "Pairs in one call of the model.", buckets=PAIRS)
        self._waiting = new(Gauge, "waiting_pairs", "Pairs in the queue.")
        ProcessCollector(registry=here)

    def answered(self, endpoint: str, status: int, pairs: int, seconds: float) -> None:
        """Count a finished request, with its HTTP status, its pairs and its time."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)
        if status != 200:
            self._errors.inc()
            return
        self._pairs.inc(pairs)
        self._latest[endpoint].append(seconds)
        self._counts[endpoint] += 1
        self._sums[endpoint] += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the summary of the endpoints, when prometheus_client asks for it."""
        words = f"Time to an answer of status 200; the quantiles are those of the latest {LATEST}."
        summary = Metric(f"{NAMESPACE}_endpoint_seconds", words, "summary")
        for endpoint, latest in sorted(self._latest.items()):
            labels, ordered = {"endpoint": endpoint}, sorted(latest)
            for share in QUANTILES:
                value = quantile(ordered, share)
                summary.add_sample(summary.name, {**labels, "quantile": str(share)}, value)
            summary.add_sample(f"{summary.name}_count", labels, self._counts[endpoint])
            summary.add_sample(f"{summary.name}_sum", labels, self._sums[endpoint])
        yield summary

    def text(self, waiting: int) -> bytes:
        """Return the numbers in the text format of Prometheus; ``waiting``: the pairs in the queue."""
        self._waiting.set(waiting)
        return generate_latest(self._registry)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of ascending numbers, at least one, that ``share`` of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


PAGE = Path(__file__).with_name("page.html")
# The page needs no other file, and connects only to this service.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ANY, MISDIRECTED = "*", 421
NO_INDEX = "the service has no index: start it with --index and --embedding_model"
LONGEST_SHOWN = 80  # characters of a path
CLIENT_LEFT = 499  # only for the metrics: the client has disconnected
DIGITS = 6

logger = logging.getLogger(__name__)

Reply = Tuple[Dict[str, object], int]  # the content of an answer, and how many pairs the model scored for it


class Service:
    """Answers requests with one predictor, and with one index if there is one."""

    def __init__(
        self, predictor: PairPredictor, batching: Batching, limits: Limits, texts: Optional[TextRecall] = None
    ):
        self.predictor, self.limits, self.numbers, self.texts = predictor, limits, Numbers(), texts
        self.batcher = MicroBatcher(answer_function(predictor), batching, self.numbers.batches.observe)
        recall: Any = None if texts is None else texts.recall
        self.recall = MicroBatcher(recall, batching, part_of=lambda hits, mine: hits[mine])
        self._running = AsyncExitStack()

    async def __aenter__(self) -> "Service":
        """Start the queues: that of the model, and before it that of the index."""
        await self._running.enter_async_context(self.batcher)
        if self.texts is not None:
            await self._running.enter_async_context(self.recall)
        return self

    async def __aexit__(self, *exception) -> None:
        """Answer what is waiting, then stop; queries whose texts have been retrieved are still scored."""
        await self._running.aclose()

    def turn_away(self) -> None:
        """Answer waiting requests with 503, now and from now on."""
        self.recall.turn_away()
        self.batcher.turn_away()

    async def predict(self, request: Request) -> JSONResponse:
        """Answer {"pairs": [[a, b], ...]} with the label, the class and the probabilities of each pair.

        The answer is {"labels": [...], "classes": [...], "scores": [[...], ...], "milliseconds": ...}, of a
        model without classes {"scores": [...], "milliseconds": ...}.
        """
        return await self._answered(request, "/predict", pairs_of, self._predicted)

    async def rank(self, request: Request) -> JSONResponse:
        """Answer {"query": a, "candidates": [b, ...], "top_k": k} with the best candidates, the best first.

        The answer is {"ranking": [{"place": 0, "text": b, "score": 0.98}, ...], "milliseconds": ...}.
        """
        return await self._answered(request, "/rank", rank_question_of, self._ranked)

    async def search(self, request: Request) -> JSONResponse:
        """Answer {"query": a, "top_k": k, "threshold": t} with the best texts of the index, the best first.

        A k above the texts that the service retrieves for a query, --recall_k, is refused.
        The answer is {"hits": [{"id": ..., "text": ..., "score": 0.98, "similarity": 0.71}, ...],
        "milliseconds": ...}.
        """
        return await self._answered(request, "/search", search_question_of, self._found)

    async def _answered(
        self,
        request: Request,
        endpoint: str,
        question_of: Callable[[bytes, Limits], Any],
        answer: Callable[[Any], Awaitable[Reply]],
    ) -> JSONResponse:
        started, status, pairs = time.perf_counter(), 500, 0
        content: Mapping[str, object]
        try:
            body = await read_body(request.stream(), request.headers.get("content-length", ""), self.limits)
            reply, pairs = await self._unless_left(request, answer(question_of(body, self.limits)))
            milliseconds = round((time.perf_counter() - started) * 1000, 2)
            status, content = 200, {**reply, "milliseconds": milliseconds}
        except RefusedError as refused:
            status, content = refused.status, error_content(refused)
        except BusyError:
            status, content = 503, error_content("too many pairs are waiting; try again in a second")
        except ClientDisconnect:
            status, content = CLIENT_LEFT, error_content("the client has left")
        except Exception:
            logger.exception("a request to %s failed", endpoint)
            content = error_content("the model failed; the log of the service says why")
        self.numbers.answered(endpoint, status, pairs, time.perf_counter() - started)
        return JSONResponse(content, status, {"Retry-After": "1"} if status == 503 else None)

    async def _predicted(self, pairs: List[TextPair]) -> Reply:
        answer = await self.batcher.ask(pairs)
        if not isinstance(answer, Prediction):
            return {"scores": answer.round(DIGITS).tolist()}, len(pairs)
        scores = [[round(share, DIGITS) for share in row] for row in answer.probabilities.tolist()]
        classes = [int(number) for number in answer.classes]
        return {"labels": answer.labels, "classes": classes, "scores": scores}, len(pairs)

    async def _ranked(self, question: Tuple[str, List[str], int]) -> Reply:
        try:
            refuse_unrankable(len(self.predictor.exported.labels), "the model")
        except ValueError as error:
            raise RefusedError(422, str(error)) from None
        query, candidates, top_k = question
        scores = await self._scores([(query, text) for text in candidates])
        best = [(place, round(float(scores[place]), DIGITS)) for place in best_places(scores, top_k)]
        ranking = [{"place": place, "text": candidates[place], "score": score} for place, score in best]
        return {"ranking": ranking}, len(candidates)

    async def _found(self, question: Tuple[str, Optional[int], Optional[float]]) -> Reply:
        assert self.texts is not None  # otherwise there is no such route
        query, top_k, threshold = question
        try:
            exported = self.predictor.exported
            unit_of(exported.has_classes, exported.label_range).refuse_outside(threshold)
        except InputError as error:
            raise RefusedError(422, error.message.replace("--threshold", "threshold", 1)) from None
        most = self.texts.recall_k
        if top_k is not None and top_k > most < self.texts.count:
            raise RefusedError(
                422,
                f"top_k {top_k} is above the {most} texts that this service retrieves; ask for fewer, or "
                "start it with a larger --recall_k",
            )
        reason = self.texts.why_refused(query)
        if reason:
            raise RefusedError(413, reason)
        (hits,) = await self.recall.ask([query])
        scores = await self._scores([(query, hit.text) for hit in hits])
        best = rerank(hits, scores, top_k or TOP_K, threshold)
        return {"hits": [hit.content(DIGITS) for hit in best]}, len(hits)

    async def _scores(self, pairs: List[TextPair]) -> np.ndarray:
        answer = await self.batcher.ask(pairs)
        return answer.probabilities[:, 1] if isinstance(answer, Prediction) else answer

    async def _unless_left(self, request: Request, answer: Awaitable[Reply]) -> Reply:
        """Wait for ``answer``. Raises ClientDisconnect, and cancels it, when the client disconnects."""

        async def leave() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        waiting, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(leave())
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
            "indexed_texts": None if self.texts is None else self.texts.count,
        }
        return JSONResponse(content, 200 if alive else 503)

    async def metrics(self) -> Response:
        """Answer with counters and times in the text format of Prometheus."""
        return Response(self.numbers.text(self.batcher.waiting), media_type=CONTENT_TYPE)

    async def page(self) -> HTMLResponse:
        """Answer with the HTML page to try two sentences, to rank candidates and to search the index."""
        content = PAGE.read_text(encoding="utf-8")
        return HTMLResponse(content, headers={"Content-Security-Policy": PAGE_POLICY})


def error_content(reason) -> Dict[str, str]:
    """Return the content of an error response."""
    return {"error": str(reason)}


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
        content = error_content(f"the service is not called {given[0][:60]}; name it with --allowed_hosts")
        await JSONResponse(content, MISDIRECTED, {"connection": "close"})(scope, receive, send)

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
    path, reason = request.url.path, str(error.detail)
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    methods = {route.path: "POST" if "POST" in (route.methods or ()) else "GET" for route in routes}
    if error.status_code == 404:
        there = ", ".join(f"{method} {route}" for route, method in methods.items())
        shown = path if len(path) <= LONGEST_SHOWN else f"{path[:LONGEST_SHOWN]}..."
        why = NO_INDEX if path == "/search" else f"there is no {shown} here"
        reason = f"{why}; available: {there}"
    elif error.status_code == 405 and path in methods:
        body = f" {BODIES[path]}" if path in BODIES else ""
        reason = f"{path} does not accept {request.method}; use {methods[path]}{body}"
    return JSONResponse(error_content(reason), error.status_code, error.headers)
