"""The routes: POST /predict, /rank, /search, and those of OpenAI, Cohere and Jina.

GET /health, /metrics, /v1/models, /openapi.json, which /docs shows, and / to try it.
"""

import asyncio
import logging
import time
from collections import Counter as Counts
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from operator import getitem
from pathlib import Path
from threading import Lock
from typing import Any, Awaitable, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

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

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import shown
from ernie_pair.inference.embedder import TextEmbedder
from ernie_pair.inference.predictor import PairPredictor, Prediction, TextPair
from ernie_pair.inference.scores import best_places, refuse_unrankable, unit_of
from ernie_pair.retrieval.searcher import TextRecall, rerank
from ernie_pair.service.access import ANY, HostCheck, KeyCheck, error_response
from ernie_pair.service.batcher import ENDING, Batching, BusyError, MicroBatcher, ModelError, answer_function
from ernie_pair.service.client_apis import (
    count_tokens,
    embeddings_answer,
    embeddings_request_of,
    model_entry,
    not_served,
    rerank_answer,
    rerank_request_of,
)
from ernie_pair.service.documentation import POST_DOCUMENTATION, ROUTE_DOCUMENTATION, Health, api_page
from ernie_pair.service.request import (
    BODIES,
    TOP_K,
    Limits,
    RefusedError,
    inflated,
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

        routes = "Requests to /predict, /rank, /search, embeddings and rerank, by status."
        self._requests = new(Counter, "requests", routes, "status")
        self._errors = new(Counter, "errors", "Requests that were answered with 4xx or 5xx.")
        self._pairs = new(Counter, "pairs", "Pairs that were answered.")
        self._seconds = new(Histogram, "request_seconds", "Time to the answer.", buckets=SECONDS)
        self._latest: Dict[str, Deque[float]] = defaultdict(lambda: deque(maxlen=LATEST))
        self._counts: Counts[str] = Counts()
        self._sums: Dict[str, float] = defaultdict(float)
        here.register(self)
        self.texts = new(Counter, "texts", "Texts that were embedded.")
        self.batches = new(Histogram, "batch_pairs", "Pairs in one call of the model.", buckets=PAIRS)
        self._waiting = new(Gauge, "waiting_pairs", "Pairs and texts in the queue.")
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
            labels = {"endpoint": endpoint}
            for share in QUANTILES:
                value = np.quantile(latest, share, method="inverted_cdf")
                summary.add_sample(summary.name, {**labels, "quantile": str(share)}, float(value))
            summary.add_sample(f"{summary.name}_count", labels, self._counts[endpoint])
            summary.add_sample(f"{summary.name}_sum", labels, self._sums[endpoint])
        yield summary

    def text(self, waiting: int) -> bytes:
        """Return the numbers in the text format of Prometheus; ``waiting``: the pairs in the queue."""
        self._waiting.set(waiting)
        return generate_latest(self._registry)


PAGE = Path(__file__).with_name("page.html")
# The page needs no other file, and connects only to this service.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
API_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
NO_CLASSIFIER = "the service has no classifier: start it with --model_path"
MISSING = {
    "/search": "the service has no index: start it with --index and --embedding_model",
    "/v1/embeddings": "the service has no embedding model: start it with --embedding_model",
    **dict.fromkeys(("/predict", "/rank", "/v1/rerank", "/v2/rerank"), NO_CLASSIFIER),
}
FOREIGN = ("/v1/embeddings", "/v1/rerank", "/v2/rerank")  # whose answers are those of other services
LONGEST_SHOWN = 80  # characters of a path
CLIENT_LEFT = 499  # only for the metrics: the client has disconnected
DIGITS = 6

logger = logging.getLogger(__name__)

Reply = Tuple[Dict[str, object], int]  # the content of an answer, and how many pairs the model scored for it


@dataclass(frozen=True)
class Served:
    """What a service answers with: a classifier, an embedding model, or both, and an index.

    ``model_name`` and ``embedding_name``: what clients call the models. ``cuts``: texts that are too long for
    the embedding model are truncated instead of refused.
    """

    predictor: Optional[PairPredictor] = None
    embedder: Optional[TextEmbedder] = None
    texts: Optional[TextRecall] = None
    model_name: str = "classifier"
    embedding_name: str = "embedder"
    cuts: bool = False

    @property
    def names(self) -> List[str]:
        """Return the names of the models, each once."""
        named = [(self.model_name, self.predictor), (self.embedding_name, self.embedder)]
        return list(dict.fromkeys(name for name, model in named if model is not None))


def _answering(
    answer: Callable[["Service", Request, bytes], Awaitable[Reply]],
) -> Callable[["Service", Request], Awaitable[JSONResponse]]:
    """Return the route that answers a request with what ``answer`` makes of its body, or why it does not."""

    async def answered(self: "Service", request: Request) -> JSONResponse:
        endpoint, started, pairs = request.url.path, time.perf_counter(), 0
        refusing = partial(error_response, endpoint)
        try:
            if request.url.query:
                asked = shown(request.url.query)
                raise RefusedError(422, f"{asked} stands in the address; send {BODIES[endpoint]}")
            given = request.headers.get
            body = await read_body(request.stream(), given("content-length", ""), self.limits)
            body = inflated(body, given("content-encoding", ""), self.limits)
            reply, pairs = await _unless_left(request, answer(self, request, body))
            milliseconds = round((time.perf_counter() - started) * 1000, 2)
            response = JSONResponse(reply if endpoint in FOREIGN else {**reply, "milliseconds": milliseconds})
        except RefusedError as refused:
            response = refusing(refused.status, refused, refused.param, refused.code)
        except BusyError:
            response = refusing(503, "too many pairs are waiting; try again in a second")
        except ClientDisconnect:
            response = refusing(CLIENT_LEFT, "the client has left")
        except ENDING:
            raise
        except BaseException as error:
            if not isinstance(error, ModelError):  # which is in the log
                logger.error("a request to %s failed", endpoint, exc_info=error)
            response = refusing(500, "the model failed; the log of the service says why")
        self.numbers.answered(endpoint, response.status_code, pairs, time.perf_counter() - started)
        return response

    answered.__name__, answered.__doc__ = answer.__name__, answer.__doc__  # which FastAPI shows
    return answered


async def _unless_left(request: Request, answer: Awaitable[Reply]) -> Reply:
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


class Service:
    """Answers requests with what is ``served``."""

    def __init__(self, served: Served, batching: Batching, limits: Limits):
        self.served, self.limits, self.numbers = served, limits, Numbers()
        self.started = int(time.time())
        self._running, self._embedding = AsyncExitStack(), Lock()
        self._counting = ThreadPoolExecutor(1, "count-tokens")  # a long request takes a part of a second
        predictor, embedder, texts = served.predictor, served.embedder, served.texts
        self.batchers: Dict[str, MicroBatcher] = {}
        if predictor is not None:
            calls = self.numbers.batches.observe
            self.batchers["pairs"] = MicroBatcher(answer_function(predictor), batching, calls)
        if embedder is not None:
            asked = partial(self._ask_alone, embedder.embed)
            self.batchers["texts"] = MicroBatcher(asked, batching, part_of=getitem)
        if texts is not None:
            asked = partial(self._ask_alone, texts.recall)
            self.batchers["queries"] = MicroBatcher(asked, batching, part_of=getitem)

    def _ask_alone(self, embed: Callable[[List[str]], Any], texts: List[str]) -> Any:
        """Return ``embed`` of texts in a thread of its own, beside another that asks the same model."""
        with self._embedding:
            return embed(texts)

    async def __aenter__(self) -> "Service":
        """Start the queues; that of an index ends before the one of the model that scores its texts."""
        for batcher in self.batchers.values():
            await self._running.enter_async_context(batcher)
        return self

    async def __aexit__(self, *exception) -> None:
        """Answer what is waiting, then stop; queries whose texts have been retrieved are still scored."""
        await self._running.aclose()
        self._counting.shutdown()

    def turn_away(self) -> None:
        """Answer waiting requests with 503, now and from now on."""
        for batcher in self.batchers.values():
            batcher.turn_away()

    @property
    def waiting(self) -> int:
        """Return how many pairs and texts wait for a model."""
        return sum(batcher.waiting for name, batcher in self.batchers.items() if name != "queries")

    @_answering
    async def embeddings(self, request: Request, body: bytes) -> Reply:
        """Answer OpenAI's {"input": ["text a", "text b"]} with the vectors of the texts, as `embed` does.

        "encoding_format" is float or base64, "dimensions" shortens the vectors of a model trained for it.
        """
        embedder, name = self.served.embedder, self.served.embedding_name
        assert embedder is not None  # otherwise there is no such route
        texts, form, dimensions = embeddings_request_of(body, self.limits, name, embedder.settings.dims)
        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(self._counting, count_tokens, texts, embedder, self.served.cuts)
        vectors = await self.batchers["texts"].ask(texts)
        self.numbers.texts.inc(len(texts))
        return embeddings_answer(vectors, form, dimensions, name, tokens, embedder.settings.is_unit), 0

    @_answering
    async def rerank(self, request: Request, body: bytes) -> Reply:
        """Answer {"query": a, "documents": [b, ...], "top_n": n} of Cohere and Jina, the best first.

        The answer is {"results": [{"index": 0, "relevance_score": 0.98, "document": {"text": b}}, ...], ...},
        of /v2 without the documents unless the request says return_documents.
        """
        name, longest = self.served.model_name, self._ranker.exported.max_seq_len
        query, documents, top_n, returned = rerank_request_of(
            body, self.limits, name, longest, return_documents=request.url.path == "/v1/rerank"
        )
        scores = await self._scores([(query, text) for text in documents])
        return rerank_answer(documents, scores, top_n, returned, name), len(documents)

    @property
    def _ranker(self) -> PairPredictor:
        """Return the classifier. Raises RefusedError for one with more than two classes."""
        assert self.served.predictor is not None  # otherwise there is no such route
        try:
            refuse_unrankable(len(self.served.predictor.exported.labels), "the model")
        except ValueError as error:
            raise RefusedError(422, str(error)) from None
        return self.served.predictor

    async def models(self) -> JSONResponse:
        """Answer OpenAI's clients with the names of the models."""
        data = [model_entry(name, self.started) for name in self.served.names]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, name: str) -> JSONResponse:
        """Answer OpenAI's clients with what is said of one model; the status is 404 if it is not served."""
        if name in self.served.names:
            return JSONResponse(model_entry(name, self.started))
        refused = not_served(name, self.served.names)
        return error_response("/v1/models", refused.status, refused, refused.param, refused.code)

    @_answering
    async def predict(self, request: Request, body: bytes) -> Reply:
        """Answer {"pairs": [[a, b], ...]} with the label, the class and the probabilities of each pair.

        The answer is {"labels": [...], "classes": [...], "scores": [[...], ...], "milliseconds": ...}, of a
        model without classes {"scores": [...], "milliseconds": ...}.
        """
        pairs = pairs_of(body, self.limits)
        answer = await self.batchers["pairs"].ask(pairs)
        if not isinstance(answer, Prediction):
            return {"scores": answer.round(DIGITS).tolist()}, len(pairs)
        scores = [[round(share, DIGITS) for share in row] for row in answer.probabilities.tolist()]
        classes = [int(number) for number in answer.classes]
        return {"labels": answer.labels, "classes": classes, "scores": scores}, len(pairs)

    @_answering
    async def rank(self, request: Request, body: bytes) -> Reply:
        """Answer {"query": a, "candidates": [b, ...], "top_k": k} with the best candidates, the best first.

        The answer is {"ranking": [{"place": 0, "text": b, "score": 0.98}, ...], "milliseconds": ...}.
        """
        query, candidates, top_k = rank_question_of(body, self.limits)
        assert self._ranker
        scores = await self._scores([(query, text) for text in candidates])
        best = [(place, round(float(scores[place]), DIGITS)) for place in best_places(scores, top_k)]
        ranking = [{"place": place, "text": candidates[place], "score": score} for place, score in best]
        return {"ranking": ranking}, len(candidates)

    @_answering
    async def search(self, request: Request, body: bytes) -> Reply:
        """Answer {"query": a, "top_k": k, "threshold": t} with the best texts of the index, the best first.

        A k above the texts that the service retrieves for a query, --recall_k, is refused.
        The answer is {"hits": [{"id": ..., "text": ..., "score": 0.98, "similarity": 0.71}, ...],
        "milliseconds": ...}.
        """
        texts, predictor = self.served.texts, self.served.predictor
        assert texts is not None  # otherwise there is no such route
        query, top_k, threshold = search_question_of(body, self.limits)
        unit = texts.unit
        if predictor is not None:
            unit = unit_of(predictor.exported.has_classes, predictor.exported.label_range)
        try:
            unit.refuse_outside(threshold)
        except InputError as error:
            raise RefusedError(422, error.message.replace("--threshold", "threshold", 1)) from None
        most = texts.recall_k
        if top_k is not None and top_k > most < texts.count:
            raise RefusedError(
                422,
                f"top_k {top_k} is above the {most} texts that this service retrieves; ask for fewer, or "
                "start it with a larger --recall_k",
            )
        reason = texts.why_refused(query, self.served.cuts)
        if reason:
            raise RefusedError(413, reason)
        (hits,) = await self.batchers["queries"].ask([query])
        scores = np.array([hit.score for hit in hits])
        is_scored = predictor is not None and len(hits) > 0
        if is_scored:
            scores = await self._scores([(query, hit.text) for hit in hits])
        best = rerank(hits, scores, top_k or TOP_K, threshold)
        return {"hits": [hit.content(DIGITS) for hit in best]}, len(hits) if is_scored else 0

    async def _scores(self, pairs: List[TextPair]) -> np.ndarray:
        answer, predictor = await self.batchers["pairs"].ask(pairs), self.served.predictor
        if isinstance(answer, Prediction) and predictor is not None:
            return answer.probabilities[:, predictor.match]
        return answer

    async def health(self) -> JSONResponse:
        """Answer with the state of the service and what it serves; the status is 503 when it is stopping."""
        predictor, embedder, texts = self.served.predictor, self.served.embedder, self.served.texts
        alive = all(batcher.is_alive for batcher in self.batchers.values())
        content: Dict[str, object] = dict.fromkeys(Health.model_fields)
        content.update(status="ok" if alive else "stopping", models=self.served.names)
        content["waiting_pairs"] = self.waiting
        content["failed_calls"] = sum(batcher.failed for batcher in self.batchers.values())
        if predictor is not None:
            exported = predictor.exported
            content.update(
                backend=predictor.backend,
                precision=predictor.precision,
                target=exported.target,
                label_range=exported.label_range,
                labels=list(exported.labels),
                max_seq_len=exported.max_seq_len,
                temperature=exported.temperature,
                threshold=predictor.threshold,
                symmetric=predictor.symmetric,
            )
        if embedder is not None:
            content["vector_length"] = embedder.dim
        if texts is not None:
            content["indexed_texts"] = texts.count
        return JSONResponse(content, 200 if alive else 503)

    async def metrics(self) -> Response:
        """Answer with counters and times in the text format of Prometheus."""
        return Response(self.numbers.text(self.waiting), media_type=CONTENT_TYPE)

    async def api_page(self, request: Request) -> HTMLResponse:
        """Answer with the HTML page that describes the service, which is what /openapi.json says."""
        content = api_page(request.app.openapi())
        return HTMLResponse(content, headers={"Content-Security-Policy": API_PAGE_POLICY})

    async def page(self) -> HTMLResponse:
        """Answer with the HTML page to try two sentences, to rank candidates and to search the index."""
        content = PAGE.read_text(encoding="utf-8")
        return HTMLResponse(content, headers={"Content-Security-Policy": PAGE_POLICY})


def create_app(
    served: Served, batching: Batching, limits: Limits, hosts: Sequence[str] = (ANY,), api_key: str = ""
) -> FastAPI:
    """Return the ASGI application; ``hosts``: the names, besides addresses, that requests may use for it.

    There is a route for what is ``served`` alone. ``api_key``: see `KeyCheck`; empty: none is needed.
    """
    service = Service(served, batching, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        async with service:
            yield

    # FastAPI's own pages load their scripts from other sites.
    app = FastAPI(title="ernie-pair", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.turn_away = service.turn_away
    factory: Any = KeyCheck  # mypy accepts no class for the callable that Starlette describes
    if api_key:
        app.add_middleware(factory, key=api_key)
    factory = HostCheck
    app.add_middleware(factory, hosts=hosts)
    asked: Dict[str, Callable[[Request], Awaitable[JSONResponse]]] = {}
    if served.predictor is not None:
        asked = {"/predict": service.predict, "/rank": service.rank}
        asked.update({"/v1/rerank": service.rerank, "/v2/rerank": service.rerank})
    if served.embedder is not None:
        asked["/v1/embeddings"] = service.embeddings
    if served.texts is not None:
        asked["/search"] = service.search
    for path, method in asked.items():
        app.post(path, **POST_DOCUMENTATION[path])(method)
    told: Dict[str, Callable[..., Awaitable[Response]]] = {"/v1/models": service.models}
    told.update({"/v1/models/{name}": service.model, "/": service.page, "/docs": service.api_page})
    told.update({"/health": service.health, "/metrics": service.metrics})
    for path, answer in told.items():
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
        reason = f"{MISSING.get(path, f'there is no {shown} here')}; available: {there}"
    elif error.status_code == 405 and path in methods:
        body = f" {BODIES[path]}" if path in BODIES else ""
        reason = f"{path} does not accept {request.method}; use {methods[path]}{body}"
    response = error_response(path, error.status_code, reason)
    response.headers.update(error.headers or {})
    return response
