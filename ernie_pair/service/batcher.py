"""Requests that arrive together are answered by one call of the model (dynamic batching).

A call costs nearly the same for one pair as for many. So requests collect while the model is busy; and right
after a call the next one waits a few milliseconds for as many requests as there were just before, because
clients that got an answer send the next request. A single client waits for nobody. One thread runs the model,
so the event loop serves pages and takes further requests meanwhile.
"""

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Callable, Deque, List, Optional, Sequence

from ernie_pair.core.errors import Stopped
from ernie_pair.inference.scores import Prediction

logger = logging.getLogger(__name__)

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

    max_batch: int  # pairs per call; a request that would exceed it waits for the next
    max_wait: float  # seconds that a call waits for others, once the model is free and there is a request
    max_waiting: int  # pairs that may be in the queue


@dataclass(eq=False)
class _Request:
    pairs: Sequence[Any]
    answer: asyncio.Future
    arrived: float


class MicroBatcher:
    """A queue of requests, used with ``async with``; ``called`` gets the number of pairs of every call.

    ``predict`` answers a list of pairs, or of others; ``part_of`` takes the answers to some out of them.
    """

    def __init__(
        self,
        predict: Callable[[List[Any]], Any],
        batching: Batching,
        called: Callable[[int], None] = lambda pairs: None,
        part_of: Callable[[Any, slice], Any] = Prediction.part,
    ):
        self._predict, self._batching, self._called = predict, batching, called
        self._part_of = part_of
        self._requests: Deque[_Request] = deque()
        self._closing = self._is_rejecting = False
        self.failed = 0  # calls
        # Requests that may arrive together: those of the last call, and those that waited behind it.
        self._expected = 1
        self._answered = float("-inf")  # when the last call ended
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._news: asyncio.Event  # set by __aenter__
        self._worker: Optional[asyncio.Task] = None

    async def __aenter__(self) -> "MicroBatcher":
        self._news = asyncio.Event()  # here, in the event loop that it belongs to
        self._worker = asyncio.ensure_future(self._work())
        return self

    async def __aexit__(self, *exception) -> None:
        """Answer what is waiting, then stop."""
        self._closing = True
        self._news.set()
        if self._worker is not None:
            await self._worker
        self._thread.shutdown()

    @property
    def is_alive(self) -> bool:
        """Return whether requests are being answered."""
        return self._worker is not None and not self._worker.done()

    @property
    def waiting(self) -> int:
        """Return the number of pairs in the queue."""
        return sum(len(request.pairs) for request in self._requests)

    async def ask(self, pairs: Sequence[Any]) -> Any:
        """Wait for the answers to these pairs. Raises BusyError, and ModelError when the model has failed."""
        if self._is_rejecting or self.waiting + len(pairs) > self._batching.max_waiting:
            raise BusyError
        loop = asyncio.get_running_loop()
        request = _Request(pairs, loop.create_future(), loop.time())
        self._requests.append(request)
        self._news.set()
        try:
            return await request.answer
        except asyncio.CancelledError:  # the client has disconnected: nothing is computed for it
            with suppress(ValueError):
                self._requests.remove(request)
            raise

    def reject_new(self) -> None:
        """Answer waiting requests with BusyError, now and from now on; the running call is still answered."""
        self._is_rejecting = True
        while self._requests:
            _settle(self._requests.popleft().answer, error=BusyError())

    async def _work(self) -> None:
        try:
            while True:
                while not self._requests and not self._closing:
                    self._news.clear()
                    await self._news.wait()
                if not self._requests:
                    return
                await self._wait_for_more()
                if self._requests:  # otherwise all of them have disconnected
                    await self._answer(self._take())
        finally:  # whatever ends it, nobody waits for it any longer
            self.reject_new()

    async def _wait_for_more(self) -> None:
        """Wait while the next call has room and holds fewer requests than there were just before."""
        now, max_wait = asyncio.get_running_loop().time, self._batching.max_wait
        if now() - self._answered >= max_wait:
            return  # the model was idle: no client is about to send its next request
        until = max(self._requests[0].arrived, self._answered) + max_wait
        while self.waiting < self._batching.max_batch and len(self._requests) < self._expected:
            if now() >= until or self._closing:
                return
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), until - now())
            except asyncio.TimeoutError:
                return

    def _take(self) -> List[_Request]:
        """Take the oldest request, and those after it that fit into its call, from the queue."""
        taken = [self._requests.popleft()]
        size = len(taken[0].pairs)
        while self._requests and size + len(self._requests[0].pairs) <= self._batching.max_batch:
            taken.append(self._requests.popleft())
            size += len(taken[-1].pairs)
        return taken

    async def _answer(self, requests: List[_Request]) -> None:
        pairs = [pair for request in requests for pair in request.pairs]
        self._called(len(pairs))
        loop = asyncio.get_running_loop()
        ends = list(accumulate(len(request.pairs) for request in requests))
        try:
            answer = await loop.run_in_executor(self._thread, self._predict, pairs)
            parts = [self._part_of(answer, slice(*both)) for both in zip([0, *ends], ends)]
        except BaseException as error:  # whatever it is, the waiting requests must get it
            if len(requests) > 1 and not isinstance(error, ENDING):
                for request in requests:  # one of them may be at fault
                    await self._answer([request])
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
