"""The micro-batches of the next step, made ready by a thread while this one is computed."""

import queue
import threading
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

POLL_SECONDS = 0.1  # until a thread that has something to hand over sees that nobody wants it any more
LAST_ITEM_SECONDS = 30.0  # for the item that it is at; one that never comes ends with the process


class ReadAhead:
    """A context that yields ``place(item)`` for each of ``items``, made by a thread one item ahead.

    The first is made by the caller's own thread: what ``items`` starts, loader processes for example, is
    then forked where no other thread runs. An error of ``items`` or ``place`` is raised where the item would
    have come. Nobody needs to know how far the thread is: a run resumes from the samples that were trained.
    """

    def __init__(self, items: Iterable[List], place: Callable[[List], List]):
        self._items, self._place = iter(items), place
        # (an item, None), or in place of one (None, the error that ends them); (None, None) is the end.
        self._ready: queue.Queue[Tuple[Any, Optional[BaseException]]] = queue.Queue(maxsize=1)
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
            item, error = self._ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item

    def _work(self) -> None:
        try:
            for item in self._items:
                if not self._hand_over(self._place(item)):
                    return
            self._hand_over(None)
        except BaseException as error:  # it is the training's to raise
            self._hand_over(None, error)

    def _hand_over(self, item: Optional[List], error: Optional[BaseException] = None) -> bool:
        """Wait for room; return whether anybody still wants it."""
        while not self._left.is_set():
            try:
                self._ready.put((item, error), timeout=POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False
