"""`ordered_map` by Ray tasks: the same results and errors, on one machine or on a cluster.

A task whose worker is lost is retried, up to three times. Ray's own output is suppressed, and none of its
processes outlives the run.
"""

import logging
import os
import socket
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, TypeVar

from ernie_pair.core.errors import ErniePairError, MachineError
from ernie_pair.core.installation import import_optional
from ernie_pair.core.process_pool import IN_FLIGHT_PER_WORKER, in_order, most_processes

Item = TypeVar("Item")
Result = TypeVar("Result")
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
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, address: str = ""
) -> Iterator[Result]:
    """Map ``function`` over ``items`` by at most ``workers`` tasks of Ray at a time.

    ``address``: HOST:PORT of a cluster; empty: a local Ray, started for this call. ``function``, its items
    and results are pickled; the workers import the modules of their types. What ``function`` raises is raised
    here, in place of its result. Raises MachineError if Ray, a cluster or a task cannot be started.
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
        what, cure = "a local Ray", "fix that"
        if address:  # which may have a token from Ray 2.60 on
            what = f"the cluster at --ray_address {address}"
            cure = "fix that, set RAY_AUTH_MODE=token if it has a token"
        raise MachineError(f"{what} cannot be used ({why}); {cure}, or pass --engine local") from None
    tasks = _Tasks(ray, function, workers)
    try:
        yield from in_order(tasks.submit, tasks.result_of, items, workers * IN_FLIGHT_PER_WORKER)
    finally:
        try:
            tasks.stop()
        finally:
            ray.shutdown()


@contextmanager
def _in_root() -> Iterator[None]:
    """Leave the working folder for a while: Ray puts it first on the path of the workers that it starts."""
    folder = os.getcwd()
    os.chdir("/")
    try:
        yield
    finally:
        os.chdir(folder)


class _Tasks:
    """Calls of ``function``, of which at most ``workers`` are unfinished."""

    def __init__(self, ray, function: Callable, workers: int):
        self._ray, self._workers = ray, workers
        self._function = ray.put(function)
        self._task = ray.remote(max_retries=3)(lambda of_all, item: of_all(item))
        self._running: List = []

    def submit(self, item):
        if len(self._running) >= self._workers:
            _, self._running = self._ray.wait(self._running, num_returns=1, fetch_local=False)
        self._running.append(self._task.remote(self._function, item))
        return self._running[-1]

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
            self._ray.wait(self._running, num_returns=len(self._running), timeout=_SECONDS_TO_LEAVE)
