"""The micro-batches of the next step, made ready by a thread while this one is computed."""

import queue
import threading
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional

POLL_SECONDS = 0.1  # until a thread that has something to hand over sees that nobody wants it any more
LAST_ITEM_SECONDS = 30.0  # for the item that it is at; one that never comes ends with the process


class _Made(NamedTuple):
    value: Any
    error: Optional[BaseException] = None


_END = _Made(None)


class ReadAhead:
    """A context that yields ``place(item)`` for each of ``items``, made by a thread one item ahead.

    The first is made by the caller's own thread: what ``items`` starts, loader processes for example, is
    then forked where no other thread runs. An error of ``items`` or ``place`` is raised where the item would
    have come. Nobody needs to know how far the thread is: a run resumes from the samples that were trained.
    """

    def __init__(self, items: Iterable[List], place: Callable[[List], List]):
        self._items, self._place = iter(items), place
        self._ready: queue.Queue[_Made] = queue.Queue(maxsize=1)
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._work, name="read ahead", daemon=True)

    def __enter__(self) -> Iterator[List]:
        return self._taken()

    def __exit__(self, *reason) -> None:
        self._left.set()
        if self._thread.is_alive():
            self._thread.join(LAST_ITEM_SECONDS)
        close = getattr(self._items, "close", None)
        if close is not None and not self._thread.is_alive():
            close()  # of a generator: its loader processes end

    def _taken(self) -> Iterator[List]:
        for first in self._items:
            placed = self._place(first)
            self._thread.start()
            yield placed
            break
        else:
            return
        while True:
            made = self._ready.get()
            if made is _END:
                return
            if made.error is not None:
                raise made.error
            yield made.value

    def _work(self) -> None:
        try:
            for item in self._items:
                if not self._hand_over(_Made(self._place(item))):
                    return
            self._hand_over(_END)
        except BaseException as error:  # it is the training's to raise
            self._hand_over(_Made(None, error))

    def _hand_over(self, made: _Made) -> bool:
        """Wait for room for ``made``; return whether anybody still wants it."""
        while not self._left.is_set():
            try:
                self._ready.put(made, timeout=POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False
