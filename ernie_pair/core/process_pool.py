"""Map a function over items in several processes: ordered results, bounded memory, dead workers detected."""

import os
import signal
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from multiprocessing import get_context, util
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]  # not in its stubs
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, Iterable, Iterator, List, TypeVar

from ernie_pair.core.errors import MachineError
from ernie_pair.core.run_module import RUN_MODULE

Item = TypeVar("Item")
Result = TypeVar("Result")
IN_FLIGHT_PER_WORKER = 3
_flags_of_python: Callable[[], List[str]] = util._args_from_interpreter_flags  # type: ignore[attr-defined]


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Map ``function`` over ``items``, in this process for one worker, otherwise in ``workers`` others.

    The results, and the first error, are the same for any number of workers. Raises MachineError when a
    worker dies.
    """
    if workers == 1:
        return map(function, items)
    return _parallel_map(function, items, most_processes(workers))


def most_processes(workers: int) -> int:
    """Return ``workers``, at most the number of CPUs, or four on a smaller machine."""
    return min(workers, max(4, os.cpu_count() or 1))


def in_order(
    submit: Callable[[Item], Any], result_of: Callable[[Any], Result], items: Iterable[Item], most: int
) -> Iterator[Result]:
    """Yield the results in the order of ``items``, of which at most ``most`` are in flight at a time.

    ``submit(item)`` starts one, ``result_of`` waits for what it returned. Whatever reading an item raises is
    raised after the results before it, as it would be in one process.
    """
    waiting: deque = deque()
    failure, items = None, iter(items)
    while True:
        try:
            item = next(items)
        except StopIteration:
            break
        except Exception as error:
            failure = error
            break
        if len(waiting) >= most:
            yield result_of(waiting.popleft())
        waiting.append(submit(item))
    while waiting:
        yield result_of(waiting.popleft())
    if failure:
        raise failure


def _parallel_map(function, items, workers: int) -> Iterator:
    own = threading.local()  # each thread has a process of its own

    def ask(item):
        if not hasattr(own, "worker"):
            own.worker = stack.enter_context(_Worker(function))
        return own.worker.ask(item)

    with ExitStack() as stack:
        threads = ThreadPoolExecutor(workers)
        try:
            yield from in_order(
                lambda item: threads.submit(ask, item), Future.result, items, workers * IN_FLIGHT_PER_WORKER
            )
        finally:
            threads.shutdown(wait=True, cancel_futures=True)


class _Worker(AbstractContextManager):
    """A process that answers one item at a time over a pipe.

    Unlike those of `concurrent.futures` it needs no named semaphores, which stay in /dev/shm when all
    processes of a run are killed at once.
    """

    def __init__(self, function: Callable):
        # Spawned, not forked: a fork would copy the locks of whatever threads run here.
        context = get_context("spawn")
        # It and the tracker beside it begin as `python -c`, with the working folder first on the path.
        util._args_from_interpreter_flags = _flags_before_program  # type: ignore[attr-defined]
        self._end, other = context.Pipe()
        self._process = context.Process(target=_answer, args=(function, other), daemon=True)
        self._process.start()
        other.close()  # so that the death of the process is the end of the pipe

    def __exit__(self, *exception) -> None:
        self._end.close()
        self._process.join()

    def ask(self, item):
        """Return the result, or raise what the function raised. Raises MachineError when the process died."""
        try:
            self._end.send(item)
            result, error = self._end.recv()
        except (EOFError, OSError):
            raise MachineError(
                "a worker died (killed, or out of memory); run again with fewer --workers"
            ) from None
        if error is not None:
            raise error
        return result


def _flags_before_program() -> List[str]:
    return [*_flags_of_python(), RUN_MODULE]


def _answer(function: Callable, end: Connection) -> None:
    """Work until the pipe is closed, by the parent or by its death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the workers
    while True:
        try:
            item = end.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[Any, Any] = (function(item), None)
        except Exception as error:
            answer = (None, ExceptionWithTraceback(error, error.__traceback__))
        try:
            content = ForkingPickler.dumps(answer)
        except Exception as reason:
            result, failed = answer
            what = f"the result of a worker, {type(result).__name__}," if failed is None else repr(failed.exc)
            content = ForkingPickler.dumps((None, TypeError(f"{what} cannot be pickled: {reason!r}")))
        try:
            end.send_bytes(content)
        except (BrokenPipeError, ConnectionError):
            return
