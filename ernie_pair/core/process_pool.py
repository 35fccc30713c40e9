"""Map a function over items in other processes, or by Ray, and make items ready ahead in a thread.

The results, and the first error, are the same in one process, in several and on a cluster; memory is bounded,
and dead workers are detected. A Ray task whose worker is lost is retried, up to three times; Ray's own output
is suppressed, and none of its processes outlives the run.
"""

import logging
import os
import queue
import signal
import socket
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing import get_context, util
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]  # not in its stubs
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, TypeVar

from ernie_pair.core.errors import ErniePairError, InputError, MachineError, counted
from ernie_pair.core.installation import import_optional
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
        self._process = context.Process(target=_serve_items, args=(function, other), daemon=True)
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


def _serve_items(function: Callable, end: Connection) -> None:
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


_SECONDS_TO_ANSWER, _SECONDS_TO_LEAVE = 10, 60


def require_ray(address: str = ""):
    """Return the module of Ray. Raises InputError without it, MachineError if HOST:PORT does not answer."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # its default causes a warning; no task uses a GPU
    os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."  # skips every line of its notices of lost workers
    ray = import_optional("ray", "ray")
    if address:
        # If nothing listens, Ray would wait for minutes, then end this process.
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
        except (OSError, OverflowError) as error:
            raise MachineError(
                f"no Ray cluster at --ray_address {address} ({error}); start it, or fix the address"
            ) from None
    return ray


def ray_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    address: str = "",
    on_gpus: bool = False,
) -> Iterator[Result]:
    """Map ``function`` over ``items`` by at most ``workers`` tasks of Ray at a time.

    ``address``: HOST:PORT of a cluster; empty: a local Ray, started for this call. ``function``, its items
    and results are pickled; the workers import the modules of their types. ``on_gpus``: each worker is an
    actor, and sees one GPU, which it has alone. What ``function`` raises is raised here, in place of its
    result. Raises MachineError if Ray, a cluster or a task cannot be started, InputError for too few GPUs.
    """
    ray = require_ray(address)
    where: Dict[str, Any] = {"address": address}
    if not address:  # "local": do not join a Ray that runs here already
        where = {"address": "local", "num_cpus": most_processes(workers), "include_dashboard": False}
    try:
        with _in_root():
            ray.init(**where, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # of many types: each means that Ray cannot be used
        why = " ".join(str(error).split())[:200]
        what, hint = "a local Ray", "fix that"
        if address:  # which may have a token from Ray 2.60 on
            what = f"the cluster at --ray_address {address}"
            hint = "fix that, set RAY_AUTH_MODE=token if it has a token"
        raise MachineError(f"{what} cannot be used ({why}); {hint}, or pass --engine local") from None
    with ExitStack() as stack:
        stack.callback(ray.shutdown)
        tasks = _Tasks(ray, function, workers, on_gpus)
        stack.callback(tasks.stop)
        yield from in_order(tasks.submit, tasks.result_of, items, workers * IN_FLIGHT_PER_WORKER)


@contextmanager
def _in_root() -> Iterator[None]:
    """Leave the working folder for a while: Ray puts it first on the path of the workers that it starts."""
    folder = os.getcwd()
    os.chdir("/")
    try:
        yield
    finally:
        os.chdir(folder)


class _OnGpu:
    """An actor, which keeps its GPU: a task would leave it after each call, and with it the model there."""

    def call(self, function: Callable, item):
        return function(item)


class _Tasks:
    """Calls of ``function``, of which at most ``workers`` are unfinished."""

    def __init__(self, ray, function: Callable, workers: int, on_gpus: bool):
        self._ray, self._function = ray, ray.put(function)
        if on_gpus:
            count = int(ray.cluster_resources().get("GPU", 0))
            if workers > count:
                raise InputError(
                    f"--workers {workers}: Ray sees {counted(count, 'GPU')}, and each takes one; "
                    + (f"use --workers {count}" if count else "pass --device cpu")
                )
            kind = ray.remote(num_gpus=1, max_restarts=3, max_task_retries=3)(_OnGpu)
            self._actors = [kind.remote() for _ in range(workers)]  # they end with the last reference
            self._idle = [actor.call for actor in self._actors]
        else:
            self._idle = [ray.remote(max_retries=3)(lambda of_all, item: of_all(item))] * workers
        self._running: Dict[Any, Any] = {}  # a call: what computes it

    def submit(self, item):
        if not self._idle:
            (ended,), _ = self._ray.wait(list(self._running), num_returns=1, fetch_local=False)
            self._idle.append(self._running.pop(ended))
        worker = self._idle.pop(0)
        call = worker.remote(self._function, item)
        self._running[call] = worker
        return call

    def result_of(self, task):
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.RayError as error:
            cause = error.cause if isinstance(error, errors.RayTaskError) else error
            if isinstance(cause, ErniePairError):
                raise cause from None
            if not isinstance(cause, errors.RayError):
                raise cause from error
            reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
            raise MachineError(
                f"Ray gave up on a task ({reason}); check that each of its machines has "
                "ernie-pair and enough memory, then run again"
            ) from None

    def stop(self) -> None:
        """Wait for the running tasks: a `ray.cancel` just as one ends crashes Ray 2.40."""
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_SECONDS_TO_LEAVE)


POLL_SECONDS = 0.1  # until a thread that has something to hand over sees that nobody wants it any more
LAST_ITEM_SECONDS = 30.0  # for the item that it is at; one that never comes ends with the process


class ReadAhead:
    """A context that yields ``place(item)`` for each of ``items``, made by a thread one item ahead.

    The first is made by the caller's own thread: what ``items`` starts, loader processes for example, is
    then forked where no other thread runs. An error of ``items`` or ``place`` is raised where the item would
    have come. Nobody needs to know how far the thread is: a run resumes from the samples that were trained.
    """

    def __init__(self, items: Iterable[Any], place: Callable[[Any], Any]):
        self._items, self._place = iter(items), place
        # (an item, None), or in place of one (None, the error that ends them); (None, None) is the end.
        self._ready: queue.Queue[Tuple[Any, Optional[BaseException]]] = queue.Queue(maxsize=1)
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._work, name="read ahead", daemon=True)

    def __enter__(self) -> Iterator[Any]:
        return self._iterate()

    def __exit__(self, *reason) -> None:
        self._left.set()
        if self._thread.is_alive():
            self._thread.join(LAST_ITEM_SECONDS)
        close = getattr(self._items, "close", None)
        if close is not None and not self._thread.is_alive():
            close()  # of a generator: its loader processes end

    def _iterate(self) -> Iterator[Any]:
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
                if not self._put_unless_left(self._place(item)):
                    return
            self._put_unless_left(None)
        except BaseException as error:  # it is the training's to raise
            self._put_unless_left(None, error)

    def _put_unless_left(self, item: Any, error: Optional[BaseException] = None) -> bool:
        """Wait for room; return whether anybody still wants it."""
        while not self._left.is_set():
            try:
                self._ready.put((item, error), timeout=POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False
