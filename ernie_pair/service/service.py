"""The routes: POST /predict, /explain, /rank, /search, and those of OpenAI, Cohere and Jina.

GET /health, /metrics, /v1/models, /openapi.json, which /docs shows, and / to try it.
"""

import asyncio
import base64
import logging
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from operator import getitem
from pathlib import Path
from threading import Lock
from typing import Any, Awaitable, Callable, Dict, List, Optional, Sequence, Tuple, Type

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ernie_pair.core.errors import ErniePairError, InputError
from ernie_pair.core.files.json_file import shown
from ernie_pair.inference.embedder import TextEmbedder, unit_rows
from ernie_pair.inference.explanation import Explanation
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.inference.scores import Prediction, Windows, best_places
from ernie_pair.inference.token_rows import BatchRules, Reading
from ernie_pair.report.page import render_page
from ernie_pair.retrieval.index_folder import State
from ernie_pair.retrieval.searcher import Hit, TextRecall, rerank
from ernie_pair.runtime.gpu import ask_gpu_memory
from ernie_pair.service import bodies
from ernie_pair.service.batcher import (
    ENDING,
    Batching,
    BusyError,
    MicroBatcher,
    ModelError,
    Predict,
    estimate_tokens,
)
from ernie_pair.service.request import (
    ANY,
    DOCS_FILES,
    AccessCheck,
    BoundedRequest,
    Limits,
    RefusedError,
    describe_fault,
    error_response,
)
from ernie_pair.service.request_log import Answered
from ernie_pair.service.watch import Shadow, Watch, WatchOptions, version_of
from ernie_pair.version import __version__

PAGE = Path(__file__).with_name("try.html")
# The page needs no other file, and connects only to this service.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
DOCS_POLICY = PAGE_POLICY.replace("'unsafe-inline'", "'self' 'unsafe-inline'")
DOCS_LIBRARY = "fastapi_offline"  # has the script and the style of Swagger UI
NO_CLASSIFIER = "the service has no classifier: start it with --model_path"
MISSING = {
    "/search": "the service has no index: start it with --index and --embedding_model",
    "/v1/embeddings": "the service has no embedding model: start it with --embedding_model",
    "/docs": "fastapi-offline is not installed, which draws /docs from /openapi.json: pip install it",
    **dict.fromkeys(("/predict", "/explain", "/rank", "/rerank", "/v1/rerank", "/v2/rerank"), NO_CLASSIFIER),
}
CLIENT_LEFT = 499  # only for the metrics: the client has disconnected
DIGITS = 6
LOOK_SECONDS = 1.0  # between two looks whether the index was changed
RETRY_SECONDS = 10.0  # until one that could not be opened is tried again
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)  # the buckets of /metrics, and of pairs
PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GPU_SECONDS = 5.0  # for which the memory of the GPUs is taken to be as it was
TOKENS = tuple(1 << power for power in range(4, 18, 2))

REQUEST_ID, LONGEST_NAME = "x-request-id", 128  # a header of requests and of their answers
MODEL = "x-model"  # a header of answers: the first 12 digits of the fingerprint

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]
_ANSWERED: ContextVar[List[Answered]] = ContextVar("answered")  # by the calls for this request


@dataclass(frozen=True)
class ServedModels:
    """What a service answers with: a classifier, an embedding model, or both, and an index.

    ``model_name`` and ``embedding_name``: what clients call the models. ``cuts``: texts that are too long for
    the embedding model are truncated instead of refused. ``copies``: the same on other GPUs.
    """

    predictor: Optional[PairPredictor] = None
    embedder: Optional[TextEmbedder] = None
    texts: Optional[TextRecall] = None
    model_name: str = "classifier"
    embedding_name: str = "embedder"
    cuts: bool = False
    copies: Tuple["ServedModels", ...] = ()

    @property
    def names(self) -> List[str]:
        """Return the names of the models, each once."""
        named = [(self.model_name, self.predictor), (self.embedding_name, self.embedder)]
        return list(dict.fromkeys(name for name, model in named if model is not None))

    @property
    def versions(self) -> Dict[str, bodies.Version]:
        """Return {queue: which model answers it}."""
        found, predictor, embedder = {}, self.predictor, self.embedder
        if predictor is not None:
            found["pairs"] = version_of(self.model_name, predictor.identity[0], predictor.exported.folder)
        if embedder is not None:
            folder = Path(embedder.model.name)
            found["texts"] = version_of(self.embedding_name, embedder.fingerprint, folder)
        return found

    @property
    def form(self) -> Tuple[object, object]:
        """Return the form of its answers: the classes, and the length of a vector."""
        predictor, embedder = self.predictor, self.embedder
        return predictor and predictor.exported.labels, embedder and embedder.dim

    def queues(self) -> Dict[str, Tuple[Predict, BatchRules, Callable[[Any], int]]]:
        """Return {queue: what answers lists, which batches suit it, what estimates the tokens of an item}."""
        found: Dict[str, Any] = {}
        predictor, embedder, lock = self.predictor, self.embedder, Lock()  # of the latter, for two queues
        if predictor is not None:
            tokens_of = partial(estimate_tokens, predictor.exported.max_seq_len, "")
            own = Lock()
            found["pairs"] = partial(_ask_alone, own, predictor.predict), predictor.rules, tokens_of
            explain = partial(_ask_alone, own, partial(_explain, predictor))
            found["explained"] = explain, BatchRules(), tokens_of
        rules, longest, prompt = BatchRules(), 0, ""  # of BM25
        if embedder is not None:
            rules, longest, prompt = embedder.model.rules, embedder.max_seq_len, embedder.prompt
            tokens_of = partial(estimate_tokens, longest, prompt)
            found["texts"] = partial(_ask_alone, lock, embedder.embed), rules, tokens_of
            prompt = embedder.settings.prompt_of("query")
        if self.texts is not None:
            tokens_of = partial(estimate_tokens, longest, prompt)
            found["queries"] = partial(_ask_alone, lock, partial(_recall, embedder)), rules, tokens_of
        return found


def _ask_alone(lock: Lock, ask: Predict, texts: List[Any]) -> Any:
    with lock:
        return ask(texts)


def _explain(predictor: PairPredictor, pairs: List[TextPair]) -> List[Explanation]:
    return [predictor.explain(*pair) for pair in pairs]


class ServiceMetrics:
    """The numbers of one service since its start, which /metrics reports to Prometheus."""

    def __init__(self):
        self.registry = CollectorRegistry()
        named: Dict[str, Any] = {"namespace": "ernie_pair", "registry": self.registry}
        self._requests = Counter("requests", "Requests for an answer of a model.", ["status"], **named)
        self._errors = Counter("errors", "Requests that were answered with 4xx or 5xx.", **named)
        words = "Time to the answer, whatever its status."
        self._seconds = Histogram("request_seconds", words, ["endpoint"], buckets=SECONDS, **named)
        self.pairs = Counter("pairs", "Pairs that were answered.", **named)
        self.texts = Counter("texts", "Texts that were embedded.", **named)
        self._pairs = Histogram("batch_pairs", "Pairs in one call of the model.", buckets=PAIRS, **named)
        words = "Tokens in one call of the model, estimated by their characters."
        self._tokens = Histogram("batch_tokens", words, ["queue"], buckets=TOKENS, **named)
        self._waiting = Gauge("waiting_pairs", "Pairs and texts in the queue.", **named)
        ProcessCollector(registry=self.registry)
        words = "Memory of a GPU, as nvidia-smi numbers it."
        kinds = ("gpu_memory_used_bytes", "gpu_memory_total_bytes")
        self._memory = [Gauge(kind, words, ["gpu"], **named) for kind in kinds]
        self._ask_gpus_at = 0.0

    def count(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a finished request, with its HTTP status and its time."""
        self._requests.labels(str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)
        if status != 200:
            self._errors.inc()

    def count_call(self, queue: str, pairs: int, tokens: int) -> None:
        """Count a call of a model for a queue: pairs, texts or queries."""
        if queue == "pairs":
            self._pairs.observe(pairs)
        self._tokens.labels(queue).observe(tokens)

    def text(self, waiting: int) -> bytes:
        """Return the numbers in the text format of Prometheus; ``waiting``: the pairs in the queue."""
        self._waiting.set(waiting)
        if time.monotonic() >= self._ask_gpus_at:
            self._ask_gpus_at = float("inf")  # until nvidia-smi has answered, which may hang as its GPU does
            found = ask_gpu_memory()
            for kind, gauge in enumerate(self._memory):
                gauge.clear()
                for gpu, memory in found.items():
                    gauge.labels(str(gpu)).set(memory[kind])
            self._ask_gpus_at = time.monotonic() + GPU_SECONDS
        return generate_latest(self.registry)


class AnsweredRoute(APIRoute):
    """A route whose body is read within the limits of the service, which times and counts its answers."""

    def get_route_handler(self) -> Handler:  # type: ignore[override]
        """Return FastAPI's handler within `Service.answer`."""
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            return await request.app.state.service.answer(request, handle)

        return answered


async def _unless_left(request: Request, answer: Awaitable[Response]) -> Response:
    """Wait for ``answer``. Raises ClientDisconnect, and cancels it, when the client disconnects."""
    waiting, has_left = asyncio.current_task(), False
    assert waiting is not None

    async def leave() -> None:
        nonlocal has_left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_left = True
        waiting.cancel()

    leaving = asyncio.ensure_future(leave())
    try:
        return await answer
    except asyncio.CancelledError:
        if has_left:
            raise ClientDisconnect from None
        raise
    finally:
        leaving.cancel()


Reopen = Callable[[], Tuple[ServedModels, Optional[Shadow]]]


class Service:
    """Answers requests with what is ``served``; ``reopen`` opens that again, for `reload`."""

    def __init__(
        self,
        served: ServedModels,
        batching: Batching,
        limits: Limits,
        watched: WatchOptions = WatchOptions(),  # noqa: B008
        reopen: Optional[Reopen] = None,
    ):
        self.served, self.limits, self.metrics = served, limits, ServiceMetrics()
        self.started, self._page = int(time.time()), render_page(PAGE)
        self.texts, self._looked = served.texts, 0.0
        self._batching, self.reopens, self._reloading = batching, reopen, asyncio.Lock()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        scoring = served.predictor or served.texts
        self.watch = Watch(watched, self.metrics.registry, None if scoring is None else scoring.unit)
        self.failed = 0  # calls of models that are not served any longer
        self._leaving: Dict[str, MicroBatcher] = {}  # their queues, until what waits is answered
        self._tried: State = None
        self._tried_at = 0.0
        self._reopening: Optional[asyncio.Future] = None
        self._running = AsyncExitStack()
        self._counting = ThreadPoolExecutor(1, "count-tokens")  # a long request takes a part of a second
        self.batchers: Dict[str, MicroBatcher] = {}
        self.bodies: Dict[str, Type[bodies.Body]] = {}

    async def __aenter__(self) -> "Service":
        """Start the queues; that of an index ends before the one of the model that scores its texts."""
        self._loop = asyncio.get_running_loop()
        await self._serve(self.served)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # which waited, see `serve`
        return self

    async def __aexit__(self, *exception) -> None:
        """Answer what is waiting, then stop; queries whose texts have been retrieved are still scored."""
        self._loop = None
        await self._running.aclose()
        self._counting.shutdown()
        await asyncio.to_thread(self.watch.close)

    async def _serve(self, served: ServedModels) -> None:
        """Start queues for what is ``served``; from then on requests are answered by it."""
        running = AsyncExitStack()
        batchers: Dict[str, MicroBatcher] = {}
        copies = [each.queues() for each in (served, *served.copies)]
        for name, (_, rules, tokens_of) in copies[0].items():
            models, within = [each[name][0] for each in copies], self._batching.within(rules)
            part_of: Any = Prediction.part if name == "pairs" else getitem
            called = partial(self.metrics.count_call, name)
            batcher = MicroBatcher(models, within, called, part_of, tokens_of)
            batchers[name] = await running.enter_async_context(batcher)
        self.served, self.texts, self.versions = served, served.texts, served.versions
        self.batchers, self._running = batchers, running
        self.watch.show(self.versions.values())

    async def reload(self) -> bodies.Reloaded:
        """Open again what is served, and answer by it once it is open; until then as before.

        What waits is answered by the models that it waits for. Raises RefusedError of status 409, with the
        reason, which is logged, for what cannot be opened, or answers in another form; the old goes on.
        """
        async with self._reloading:
            assert self.reopens is not None  # otherwise nothing asks
            try:
                served, shadow = await asyncio.to_thread(self.reopens)
                if served.form != self.served.form:
                    raise InputError(f"its answers have another form, {served.form}, not {self.served.form}")
            except Exception as error:
                reason = f"not reloaded, the service goes on as it was: {error}"
                logger.error("%s", reason)
                raise RefusedError(409, reason) from None
            running, self._leaving = self._running, self.batchers
            await self._serve(served)
            before, self.watch.shadow = self.watch.shadow, shadow
            await running.aclose()
            self.failed += sum(batcher.failed for batcher in self._leaving.values())
            self._leaving = {}
            if before is not None:
                await asyncio.to_thread(before.close)
        models = [*self.versions.values()]
        logger.info("reloaded: %s", ", ".join(f"{one.name} {one.fingerprint[:12]}" for one in models))
        return bodies.Reloaded(models=models)

    def ask_reload(self) -> None:
        """Reload soon, asked by a signal or a thread."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self.reload(), self._loop)  # which logs why it failed

    def reject_new(self) -> None:
        """Answer waiting requests with 503, now and from now on."""
        for batcher in (*self.batchers.values(), *self._leaving.values()):
            batcher.reject_new()

    @property
    def waiting(self) -> int:
        """Return how many pairs and texts wait for a model."""
        return sum(batcher.waiting for name, batcher in self.batchers.items() if name != "queries")

    async def answer(self, request: Request, handle: Handler) -> Response:
        """Return the answer of ``handle``, or in the form of the client why there is none; count it."""
        path, started, named = request.url.path, time.perf_counter(), _name_of(request)
        bounded, body = BoundedRequest(request, self.limits), self.bodies[path]
        refusing = partial(error_response, path)
        answered: List[Answered] = []
        _ANSWERED.set(answered)
        try:
            if request.url.query:
                asked = shown(request.url.query)
                raise RefusedError(422, f"{asked} stands in the address; send {body.example()}")
            if not (await bounded.body()).strip():
                raise RefusedError(400, f"the body is empty; send {body.example()}")
            response = await _unless_left(bounded, handle(bounded))
        except RequestValidationError as error:
            response = refusing(describe_fault(error, body))
        except RefusedError as refused:
            response = refusing(refused)
        except BusyError:
            response = refusing(RefusedError(503, "too many pairs are waiting; try again in a second"))
        except ClientDisconnect:
            response = refusing(RefusedError(CLIENT_LEFT, "the client has left"))
        except ENDING:
            raise
        except BaseException as error:
            found = None if isinstance(error, ModelError) else error  # which is in the log
            logger.error("the request %s to %s failed", named, path, exc_info=found)
            response = refusing(RefusedError(500, "the model failed; the log of the service says why"))
        response.headers[REQUEST_ID] = named
        seconds = time.perf_counter() - started
        self.metrics.count(path, response.status_code, seconds)
        model = self._model_of("texts" if path == "/v1/embeddings" else "pairs")
        for each in answered:
            model, each.request, each.endpoint, each.seconds = each.model, named, path, seconds
        if response.status_code == 200:
            response.background = BackgroundTask(self.watch.note, answered)
        if model:
            response.headers[MODEL] = model[:12]
        return response

    def _model_of(self, queue: str) -> str:
        """Return the fingerprint of the model that answers a queue, or else of the other one, '' for none."""
        found = self.versions.get(queue) or next(iter(self.versions.values()), None)
        return "" if found is None else found.fingerprint

    async def predict(self, body: bodies.PredictBody) -> bodies.PredictAnswer:
        """Classify pairs of texts: the label, the class and the probabilities of each, in their order.

        Of a model without classes the answer holds a score of each pair alone.
        """
        started = time.perf_counter()
        self.limits.check(body)
        found = await self._ask(body.pairs)
        more: Dict[str, Any] = {}
        if found.classes is not None:
            more = {"labels": found.labels, "classes": found.classes.tolist()}
        numbers: Any = found.scores if found.probabilities is None else found.probabilities
        scores = numbers.round(DIGITS).tolist()
        return bodies.PredictAnswer(**more, scores=scores, milliseconds=_milliseconds_since(started))

    async def explain(self, body: bodies.ExplainBody) -> Explanation:
        """Tell why a pair has its score: tokens, what both texts share, the score without each word.

        It costs the model as many pairs as there are words.
        """
        self.limits.check(body)
        (found,) = await self.batchers["explained"].ask([(body.text_a, body.text_b)])
        return found

    async def rank(self, body: bodies.RankBody) -> bodies.Ranking:
        """Rank candidates by how well they match the query, the best first."""
        started = time.perf_counter()
        self.limits.check(body)
        best = await self._best(body.query, body.candidates, body.top_k or bodies.TOP_K)
        texts = body.candidates
        ranking = [bodies.Place(place=n, text=texts[n], score=score, **window) for n, score, window in best]
        return bodies.Ranking(ranking=ranking, milliseconds=_milliseconds_since(started))

    async def search(self, body: bodies.SearchBody) -> bodies.Hits:
        """Find the texts of the index that match the query best, the best first, one of each answer.

        A top_k above the texts that the service retrieves for a query, --recall_k, is refused.
        """
        started, texts = time.perf_counter(), self.texts
        assert texts is not None  # otherwise there is no such route
        self._look_for_change(texts)
        self.limits.check(body)
        self._check_search(body, texts)
        where = tuple(sorted((body.where or {}).items()))
        (hits,) = await self.batchers["queries"].ask([(texts, where, body.query)])
        scores = np.array([hit.score for hit in hits])
        if self.served.predictor is not None and len(hits) > 0:
            scores, windows = await self._score([(body.query, hit.text) for hit in hits])
            hits = [hit.read_in(window) for hit, window in zip(hits, windows)]
        answering = texts.answering_of(body.where or {}, 0)  # of a top_k that is not above recall_k
        best = rerank(hits, scores, body.top_k or bodies.TOP_K, body.threshold, answering)
        embedder, reading = self.served.embedder, None
        if embedder is not None:
            reading = _reading([embedder.count_tokens(body.query, "query")], embedder.max_seq_len)
        told = np.array([[hit.score for hit in best]])
        _ANSWERED.get()[:] = [Answered([[body.query]], self._model_of("pairs"), told, None, reading)]
        found = [bodies.Found.model_validate(hit.content(DIGITS)) for hit in best]
        return bodies.Hits(hits=found, answered=bool(found), milliseconds=_milliseconds_since(started))

    def _look_for_change(self, texts: TextRecall) -> None:
        """Open an index that was changed, in a thread; searches meanwhile are answered by what is open.

        It is looked for once in LOOK_SECONDS at most; one that cannot be opened is tried again after
        RETRY_SECONDS, since its files may have been copied one by one.
        """
        is_busy = self._reopening is not None and not self._reopening.done()
        if is_busy or time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked, (opened, there) = time.monotonic(), texts.state
        is_new = there != self._tried or self._looked - self._tried_at >= RETRY_SECONDS
        if there not in (None, opened) and is_new:
            self._tried, self._tried_at = there, self._looked
            self._reopening = asyncio.get_running_loop().run_in_executor(None, self._reopen, texts)

    def _reopen(self, texts: TextRecall) -> None:
        try:
            found = texts.reopened()
            if self.texts is not texts:  # it was reloaded meanwhile
                return
            self.texts = found
        except (ErniePairError, OSError) as error:
            logger.error("/search goes on with the index as it was opened: %s", error)
            return
        logger.info("/search searches the %d texts of the index as it was changed", self.texts.count)

    def _check_search(self, body: bodies.SearchBody, texts: TextRecall) -> None:
        """Raise RefusedError for what the model or the index has not: a threshold, so many texts, tokens."""
        unit, predictor = texts.unit, self.served.predictor
        if predictor is not None:
            unit = predictor.unit
        try:
            unit.check_inside(body.threshold)
            texts.check_columns(body.where or {})
        except InputError as error:
            raise RefusedError(422, error.message.removeprefix("--")) from None
        if body.top_k is not None and body.top_k > texts.recall_k < texts.count:
            reason = (
                f"top_k {body.top_k} is above the {texts.recall_k} texts that this service retrieves; ask "
            )
            raise RefusedError(422, reason + "for fewer, or start it with a larger --recall_k")
        reason = texts.why_refused(body.query, self.served.cuts)
        if reason:
            raise RefusedError(413, reason)

    async def embeddings(self, body: bodies.EmbeddingsBody) -> bodies.Embeddings:
        """Embed texts as OpenAI does: the vectors are those of `ernie-pair embed`.

        "dimensions" shortens the vectors of a model trained for it; they are then of length 1 again.
        """
        embedder, name = self.served.embedder, self.served.embedding_name
        assert embedder is not None  # otherwise there is no such route
        self.limits.check(body)
        _check_model(body.model, [name])
        longest, dim = embedder.settings.dims[-1], body.dimensions or 0
        if dim > longest or (dim not in (0, longest) and len(embedder.settings.dims) == 1):
            reason = f"above the {longest} of the model" if dim > longest else "not what it was trained for"
            raise RefusedError(422, f"dimensions {dim} is {reason}; leave it out", "dimensions")
        loop = asyncio.get_running_loop()
        reading = await loop.run_in_executor(self._counting, self._count_tokens, body.input)
        tokens, model = int(reading.tokens.sum()), self._model_of("texts")
        vectors = await self.batchers["texts"].ask(body.input)
        scores = np.zeros((len(body.input), 0))
        _ANSWERED.get().append(Answered([[text] for text in body.input], model, scores, None, reading))
        self.metrics.texts.inc(len(body.input))
        if 0 < dim < vectors.shape[1]:
            vectors = vectors[:, :dim]
            vectors = unit_rows(vectors, name) if embedder.settings.is_unit else vectors
        encoded = vectors.tolist()
        if body.encoding_format == "base64":  # of their bytes, the least of a number first
            encoded = [base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii") for vector in vectors]
        one = partial(bodies.Embedding, object="embedding")
        data = [one(index=place, embedding=each) for place, each in enumerate(encoded)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return bodies.Embeddings(object="list", data=data, model=name, usage=usage)

    def _count_tokens(self, texts: Sequence[str]) -> Reading:
        """Count the tokens of texts that the model reads. Raises RefusedError for one that it would cut."""
        embedder = self.served.embedder
        assert embedder is not None
        most, counts = embedder.max_seq_len, list(map(embedder.count_tokens, texts))
        for place, (tokens, _) in enumerate(counts):
            if tokens > most and not self.served.cuts:
                reason = f"input[{place}] has {tokens} tokens, above the {most} of the model; shorten it, or "
                reason += "start the service with --long_text cut"
                raise RefusedError(422, reason, "input", "context_length_exceeded")
        return _reading(counts, most)

    async def rerank_v1(self, body: bodies.RerankBody) -> bodies.Reranking:
        """Rank documents for the clients of Jina, the best first; the answer holds the documents."""
        return await self._rerank(body, returned=True)

    async def rerank_v2(self, body: bodies.RerankBody) -> bodies.Reranking:
        """Rank documents for the clients of Cohere, the best first, by their index among those given."""
        return await self._rerank(body, returned=False)

    async def rerank_texts(self, body: bodies.RerankTextsBody) -> List[bodies.RankedText]:
        """Rank texts for the clients of text-embeddings-inference, the best first."""
        self.limits.check(body)
        if body.raw_scores:
            reason = (
                "raw_scores: this service gives probabilities, or the scores of a model without; leave it out"
            )
            raise RefusedError(422, reason, "raw_scores")
        answer, best = [], await self._best(body.query, body.texts, None)
        if body.truncate is False and any(one.reading.cut.any() for one in _ANSWERED.get() if one.reading):
            reason = (
                "truncate: a text is longer than the model reads with the query; shorten it, or leave it out"
            )
            raise RefusedError(413, reason, "texts")
        for n, score, window in best:
            more: Dict[str, Any] = {"text": body.texts[n]} if body.return_text else {}
            answer.append(bodies.RankedText(index=n, score=score, **more, **window))
        return answer

    async def _rerank(self, body: bodies.RerankBody, returned: bool) -> bodies.Reranking:
        self.limits.check(body)
        _check_model(body.model, [self.served.model_name])
        longest = self._check_rankable().exported.max_seq_len
        if body.max_tokens_per_doc is not None and body.max_tokens_per_doc < longest:
            reason = (
                f"max_tokens_per_doc: the model reads {longest} tokens of query and document together, and "
                "only fewer cannot be asked for; leave it out"
            )
            raise RefusedError(422, reason, "max_tokens_per_doc")
        returned = returned if body.return_documents is None else body.return_documents
        results = []
        for n, score, window in await self._best(body.query, body.documents, body.top_n):
            more: Dict[str, Any] = {"document": bodies.Document(text=body.documents[n])} if returned else {}
            results.append(bodies.Reranked(index=n, relevance_score=score, **more, **window))
        return bodies.Reranking(id=str(uuid.uuid4()), model=self.served.model_name, results=results)

    def _check_rankable(self) -> PairPredictor:
        """Return the classifier. Raises RefusedError for one with more than two classes."""
        predictor = self.served.predictor
        assert predictor is not None  # otherwise there is no such route
        if predictor.num_classes > 2:
            reason = f"the model has {predictor.num_classes} classes, and candidates are ranked by one score"
            raise RefusedError(422, reason)
        return predictor

    async def _ask(self, pairs: Sequence[Sequence[str]]) -> Prediction:
        model = self._model_of("pairs")
        found = await self.batchers["pairs"].ask(pairs)
        self.metrics.pairs.inc(len(pairs))
        _ANSWERED.get().append(Answered(pairs, model, found.rows, found.labels, found.reading))
        return found

    async def _best(
        self, query: str, texts: Sequence[str], top_k: Optional[int]
    ) -> List[Tuple[int, float, Dict[str, Any]]]:
        """Return the place, score and window, if any, of the ``top_k`` best texts, None: of all."""
        self._check_rankable()
        scores, windows = await self._score([(query, text) for text in texts])
        named = [{} if window is None else {"window": window} for window in windows]
        best = best_places(scores, top_k or len(texts))
        return [(place, round(float(scores[place]), DIGITS), named[place]) for place in best]

    async def _score(self, pairs: Sequence[TextPair]) -> Tuple[np.ndarray, Windows]:
        """Return what `PairScorer.best_windows` does. Raises RefusedError as it raises InputError."""
        most, loop = self.limits.max_pairs, asyncio.get_running_loop()
        predictor = self._check_rankable()
        if not predictor.window_overlap:
            return predictor.in_windows(pairs).best([await self._ask(pairs)])
        try:
            cut = await loop.run_in_executor(self._counting, predictor.in_windows, pairs)
        except InputError as error:
            raise RefusedError(413, error.message, "query") from None
        parts = [cut.pairs[first : first + most] for first in range(0, len(cut.pairs), most)]
        return cut.best([await self._ask(part) for part in parts])

    async def models(self) -> bodies.Models:
        """List the models that are served, for the clients of OpenAI."""
        return bodies.Models(data=[bodies.Model(id=name, created=self.started) for name in self.served.names])

    async def model(self, name: str) -> bodies.Model:
        """Describe one of these models; the status is 404 if it is not served."""
        _check_model(name, self.served.names)
        return bodies.Model(id=name, created=self.started)

    async def health(self, response: Response) -> bodies.Health:
        """Describe the state of the service and what it serves; the status is 503 when it is stopping."""
        predictor, embedder, texts = self.served.predictor, self.served.embedder, self.texts
        alive = all(batcher.is_alive for batcher in self.batchers.values())
        response.status_code = 200 if alive else 503
        failed = self.failed + sum(each.failed for each in self.batchers.values())
        found: Dict[str, Any] = {"failed_calls": failed, "versions": [*self.versions.values()]}
        if predictor is not None:
            exported, own = predictor.exported, ("backend", "precision", "threshold", "symmetric")
            found.update({name: getattr(predictor, name) for name in own})
            same = ("target", "label_range", "max_seq_len", "temperature")
            found.update({name: getattr(exported, name) for name in same}, labels=list(exported.labels))
            found["match"] = predictor.match if predictor.num_classes == 2 else None
            found["caution"] = exported.learned_nothing or None
        if embedder is not None:
            found["vector_length"] = embedder.dim
        if texts is not None:
            found.update(indexed_texts=texts.count, example=texts.example)
        worth = [*([predictor.exported.verdict] if predictor else []), *([texts.verdict] if texts else [])]
        found["verdict"] = "; ".join(filter(None, worth)) or None
        status = "ok" if alive else "stopping"
        return bodies.Health(status=status, models=self.served.names, waiting_pairs=self.waiting, **found)

    async def counters(self) -> Response:
        """Report counters and times in the text format of Prometheus."""
        text = await asyncio.to_thread(self.metrics.text, self.waiting)  # which may ask nvidia-smi
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def page(self) -> HTMLResponse:
        """Return the HTML page to try two sentences, to rank candidates and to search the index."""
        return HTMLResponse(self._page, headers={"Content-Security-Policy": PAGE_POLICY})

    def add_routes(self, app: FastAPI) -> None:
        """Add a route to ``app`` for what is served alone."""
        served = self.served
        for path, answer, model in (
            ("/predict", self.predict, served.predictor),
            ("/explain", self.explain, served.predictor),
            ("/rank", self.rank, served.predictor),
            ("/rerank", self.rerank_texts, served.predictor),
            ("/v1/rerank", self.rerank_v1, served.predictor),
            ("/v2/rerank", self.rerank_v2, served.predictor),
            ("/v1/embeddings", self.embeddings, served.embedder),
            ("/search", self.search, served.texts),
        ):
            if model is None:
                continue
            self.bodies[path] = answer.__annotations__["body"]
            app.router.add_api_route(
                path,
                answer,
                methods=["POST"],
                responses=bodies.describe_refusals(path),
                response_model_exclude_unset=True,
                route_class_override=AnsweredRoute,
            )
        reports: Dict[str, Callable[..., Awaitable[Any]]] = {
            "/v1/models": self.models,
            "/v1/models/{name}": self.model,
            "/health": self.health,
            "/metrics": self.counters,
            "/": self.page,
        }
        for path, report in reports.items():
            app.get(path, include_in_schema=path != "/")(report)
            app.head(path, include_in_schema=False)(report)


def _recall(embedder: Optional[TextEmbedder], asked: List[Tuple[TextRecall, Any, str]]) -> List[List[Hit]]:
    """Return the hits of each (texts, their {column: value} as pairs, query); equal ones go together."""
    found: Dict[Any, Any] = {}
    for texts, where in dict.fromkeys(one[:2] for one in asked):
        queries = [one[2] for one in asked if one[:2] == (texts, where)]
        found[texts, where] = iter(texts.recall(queries, where=dict(where), embedder=embedder))
    return [next(found[one[:2]]) for one in asked]


def _reading(counts: Sequence[Tuple[int, int]], most: int) -> Reading:
    """Return how texts were read, from their [tokens, unknown tokens] and the ``most`` tokens of a text."""
    tokens, unknown = np.array(counts, dtype=np.int64).T
    return Reading(np.minimum(tokens, most), unknown, tokens > most)


def _name_of(request: Request) -> str:
    """Return the name of a request: that of its client, if it is ASCII and not long, or a new one."""
    given = request.headers.get(REQUEST_ID, "")
    is_name = 0 < len(given) <= LONGEST_NAME and all("!" <= character <= "~" for character in given)
    return given if is_name else uuid.uuid4().hex


def _milliseconds_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 2)


def _check_model(asked: Optional[str], served: Sequence[str]) -> None:
    """Raise RefusedError for a model that is not one of those ``served``; None: it was left out."""
    if asked is not None and asked not in served:
        reason = f"the model {shown(asked)} is not served here; ask for {' or '.join(served)}"
        raise RefusedError(404, reason, "model", "model_not_found")


def _add_docs(app: FastAPI) -> None:
    """Add Swagger UI at /docs, with its script and its style from an installed library, if there is one."""
    library = find_spec(DOCS_LIBRARY)
    if library is None or library.origin is None:
        return
    app.mount(DOCS_FILES, StaticFiles(directory=Path(library.origin).parent / "static"))
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=app.title,
        swagger_js_url=f"{DOCS_FILES[1:]}swagger-ui-bundle.js",
        swagger_css_url=f"{DOCS_FILES[1:]}swagger-ui.css",
        swagger_favicon_url="data:,",
    )
    page.headers["Content-Security-Policy"] = DOCS_POLICY

    async def docs() -> HTMLResponse:
        return page

    app.get("/docs", include_in_schema=False)(docs)


def create_app(
    served: ServedModels,
    batching: Batching,
    limits: Limits,
    hosts: Sequence[str] = (ANY,),
    api_key: str = "",
    *watching: Any,
) -> FastAPI:
    """Return the ASGI application; ``hosts``: the names, besides addresses, that requests may use for it.

    There is a route for what is ``served`` alone. ``api_key``: see `AccessCheck`; empty: none is needed, and
    nobody may reload. ``watching``: what else a `Service` takes.
    """
    service = Service(served, batching, limits, *watching)

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        async with service:
            yield

    # FastAPI's own pages load their scripts from other sites.
    app = FastAPI(title="ernie-pair", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    factory: Any = AccessCheck  # mypy accepts no class for the callable that Starlette describes
    app.add_middleware(factory, hosts=hosts, key=api_key)
    service.add_routes(app)
    if service.reopens is not None:
        answer = service.reload if api_key else _refuse_reload
        app.post(bodies.RELOAD, responses=bodies.describe_refusals(bodies.RELOAD))(answer)
    _add_docs(app)
    app.exception_handler(HTTPException)(_refuse_route)
    return app


async def _refuse_reload() -> bodies.Reloaded:
    """Refuse to open the models again: without a key anyone could ask for it."""
    raise RefusedError(403, "the service has no key; start it with one in ERNIE_PAIR_API_KEY, or send SIGHUP")


async def _refuse_route(request: Request, error: HTTPException) -> JSONResponse:
    """Return why there is no answer: a RefusedError, or a path or a method that no route has."""
    path = request.url.path
    if isinstance(error, RefusedError):
        return error_response(path, error)
    reason = str(error.detail)
    if error.status_code == 404:
        reason = f"{MISSING.get(path, 'there is no such path here')}; /openapi.json describes those that are"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        reason = f"{path} does not accept {request.method}; use {allowed}, as /openapi.json describes it"
    response = error_response(path, RefusedError(error.status_code, reason))
    response.headers.update(error.headers or {})
    return response
