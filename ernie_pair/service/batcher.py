"""Requests that arrive together are answered by one call of the model (dynamic batching).

A call costs nearly the same for one pair as for many. So requests collect while the model is busy; and right
after a call the next one waits a few milliseconds for as many requests as there were just before, because
clients that got an answer send the next request. A single client waits for nobody. Each copy of a model runs
in a thread, so the event loop serves pages and takes further requests meanwhile.
"""

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Callable, Deque, List, Sequence, Union

from ernie_pair.core.errors import Stopped
from ernie_pair.inference.scores import Prediction
from ernie_pair.inference.token_rows import BatchRules

logger = logging.getLogger(__name__)

MAX_BATCH = 64  # pairs per call where no number of tokens bounds it
Predict = Callable[[List[Any]], Any]
# What ends a task or the process. Anything else that a model raises fails a request: a panic of a library in
# Rust is a BaseException, and no Exception.
ENDING = (KeyboardInterrupt, SystemExit, GeneratorExit, Stopped, asyncio.CancelledError)


class ModelError(Exception):
    """What a request gets when the call of the model has failed, whatever the model raised."""


class BusyError(Exception):
    """Raised when so many pairs are waiting that one more would wait too long."""


@dataclass(frozen=True)
class Batching:
    """How many pairs (or queries) of several requests join in a call of the model, and how long they wait."""

    max_batch: int  # pairs per call, 0: see `within`; a request that would exceed it waits for the next
    max_wait: float  # seconds that a call waits for others, once the model is free and there is a request
    max_waiting: int  # pairs that may be in the queue
    max_tokens: int = 0  # per call, as `estimate_tokens` counts them, likewise; 0: any number

    def within(self, rules: BatchRules) -> "Batching":
        """Return it for a model of ``rules``: where tokens alone bound its batches, they bound a call too."""
        tokens = rules.most_tokens if rules.rows else 0
        return replace(self, max_batch=self.max_batch or rules.rows or MAX_BATCH, max_tokens=tokens)

    def has_room(self, pairs: int, tokens: int) -> bool:
        """Return whether so many fit into a call."""
        return pairs <= self.max_batch and (tokens <= self.max_tokens or not self.max_tokens)


def estimate_tokens(longest: int, prompt: str, item: Union[str, Sequence[Any]]) -> int:
    """Return the tokens of a text, or of those in a sequence, at most: as if each character were one."""
    lengths = [len(part) for part in ([item] if isinstance(item, str) else item) if isinstance(part, str)]
    return min(len(prompt) + sum(lengths) + len(lengths) + 1, longest)


@dataclass(eq=False)
class _Request:
    pairs: Sequence[Any]
    tokens: int
    answer: asyncio.Future
    arrived: float


class MicroBatcher:
    """A queue of requests, used with ``async with``; ``called`` gets the pairs and tokens of every call.

    Each of ``models`` answers lists of pairs, or of others, in a thread of its own: one that is free takes
    the oldest. ``part_of`` takes the answers to some out of an answer, ``tokens_of`` estimates a pair.
    """

    def __init__(
        self,
        models: Sequence[Predict],
        batching: Batching,
        called: Callable[[int, int], None] = lambda pairs, tokens: None,
        part_of: Callable[[Any, slice], Any] = Prediction.part,
        tokens_of: Callable[[Any], int] = lambda pair: 0,
    ):
        self._models, self._batching, self._called = models, batching, called
        self._part_of, self._tokens_of = part_of, tokens_of
        self._requests: Deque[_Request] = deque()
        self.waiting = self._tokens = 0  # pairs and tokens in the queue
        self._closing = self._is_rejecting = False
        self.failed = 0  # calls
        # Requests that may arrive together: those of the last call, and those that waited behind it.
        self._expected = 1
        self._answered = float("-inf")  # when the last call ended
        self._news, self._turn = asyncio.Event(), asyncio.Lock()  # to take the next requests
        self._workers: List[asyncio.Task] = []

    async def __aenter__(self) -> "MicroBatcher":
        self._workers = [asyncio.ensure_future(self._work(model)) for model in self._models]
        return self

    async def __aexit__(self, *exception) -> None:
        """Answer what is waiting, then stop."""
        self._closing = True
        self._news.set()
        for error in filter(None, await asyncio.gather(*self._workers, return_exceptions=True)):
            raise error

    @property
    def is_alive(self) -> bool:
        """Return whether requests are being answered."""
        return bool(self._workers) and not any(worker.done() for worker in self._workers)

    async def ask(self, pairs: Sequence[Any]) -> Any:
        """Wait for the answers to these pairs. Raises BusyError, and ModelError when the model has failed."""
        if self._is_rejecting or self.waiting + len(pairs) > self._batching.max_waiting:
            raise BusyError
        loop = asyncio.get_running_loop()
        request = _Request(pairs, sum(map(self._tokens_of, pairs)), loop.create_future(), loop.time())
        self._requests.append(request)
        self.waiting += len(pairs)
        self._tokens += request.tokens
        self._news.set()
        try:
            return await request.answer
        except asyncio.CancelledError:  # the client has disconnected: nothing is computed for it
            with suppress(ValueError):
                self._remove(request)
            raise

    def reject_new(self) -> None:
        """Answer waiting requests with BusyError, now and from now on; running calls are still answered."""
        self._is_rejecting = self._closing = True
        self._news.set()
        while self._requests:
            _settle(self._remove(self._requests[0]).answer, error=BusyError())

    def _remove(self, request: _Request) -> _Request:
        self._requests.remove(request)
        self.waiting -= len(request.pairs)
        self._tokens -= request.tokens
        return request

    async def _work(self, model: Predict) -> None:
        """Answer the oldest requests by ``model``, again and again, until there are none at the end."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        try:
            while taken := await self._next():
                await self._answer(taken, model, thread)
        finally:  # whatever ends it, nobody waits for it any longer
            self.reject_new()
            thread.shutdown(wait=False)

    async def _next(self) -> List[_Request]:
        """Wait for the requests of the next call; none at the end. One model at a time waits, in turn."""
        async with self._turn:
            while True:
                while not self._requests and not self._closing:
                    self._news.clear()
                    await self._news.wait()
                if not self._requests:
                    return []
                await self._wait_for_more()
                if self._requests:  # otherwise all of them have disconnected
                    return self._take()

    async def _wait_for_more(self) -> None:
        """Wait while the next call has room and holds fewer requests than there were just before."""
        now, max_wait = asyncio.get_running_loop().time, self._batching.max_wait
        if now() - self._answered >= max_wait:
            return  # the model was idle: no client is about to send its next request
        until = max(self._requests[0].arrived, self._answered) + max_wait
        has_room = self._batching.has_room
        while has_room(self.waiting + 1, self._tokens + 1) and len(self._requests) < self._expected:
            if now() >= until or self._closing:
                return
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), until - now())
            except asyncio.TimeoutError:
                return

    def _take(self) -> List[_Request]:
        """Take the oldest request, and those after it that fit into its call, from the queue."""
        taken: List[_Request] = []
        pairs = tokens = 0
        while self._requests:
            oldest = self._requests[0]
            pairs, tokens = pairs + len(oldest.pairs), tokens + oldest.tokens
            if taken and not self._batching.has_room(pairs, tokens):
                break
            taken.append(self._remove(oldest))
        return taken

    async def _answer(self, requests: List[_Request], model: Predict, thread: ThreadPoolExecutor) -> None:
        pairs = [pair for request in requests for pair in request.pairs]
        self._called(len(pairs), sum(request.tokens for request in requests))
        loop = asyncio.get_running_loop()
        ends = list(accumulate(len(request.pairs) for request in requests))
        try:
            answer = await loop.run_in_executor(thread, model, pairs)
            parts = [self._part_of(answer, slice(*both)) for both in zip([0, *ends], ends)]
        except BaseException as error:  # whatever it is, the waiting requests must get it
            if len(requests) > 1 and not isinstance(error, ENDING):
                for request in requests:  # one of them may be at fault
                    await self._answer([request], model, thread)
                return
            self.failed += 1
            for request in requests:
                _settle(request.answer, error=ModelError(repr(error)))
            if isinstance(error, ENDING):
                raise
            logger.error("a call of the model failed", exc_info=error)
            return
        self._expected, self._answered = len(requests) + len(self._requests), loop.time()
        for request, part in zip(requests, parts):
            _settle(request.answer, part)


def _settle(waiting: asyncio.Future, answer: Any = None, error=None) -> None:
    if waiting.done():  # cancelled: nobody waits for it
        return
    if error is None:
        waiting.set_result(answer)
    else:
        waiting.set_exception(error)
