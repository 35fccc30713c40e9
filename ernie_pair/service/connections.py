"""Connections of the service: their number, their time limits, and how they are closed.

uvicorn reads and answers requests. What it has no setting for is added here: a connection must send the
head of a request within HEAD_SECONDS, a client that does not read its answer is disconnected, connections
stay below the limit of open files, and at shutdown all connected clients are answered first.
"""

import asyncio
import logging
import os
import resource
import select
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from ernie_pair.core.errors import MachineError

HEAD_SECONDS = 10.0  # for the head of a request to arrive, after connecting or after the previous answer
READ_SECONDS = 10.0  # for a client to read an answer
KEEP_ALIVE_SECONDS = 5  # without a byte after an answer
LAST_REQUESTS_SECONDS = 1.0  # for connected clients to send a request at shutdown
STEPS_TO_CONNECT = 5  # of the event loop, from accepting a connection to its protocol
MAX_BACKLOG = 128  # connections in the system's backlog until they are accepted
OTHER_FILES = 32  # other files that the process may open
_REASON = b'{"error": "too many connections; try again in a second"}'
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(_REASON), _REASON)
)

logger = logging.getLogger(__name__)


def limit_connections(wanted: int) -> Tuple[int, int]:
    """Return how many connections at a time, and how many in the system's backlog until they are accepted.

    They are ``wanted`` connections, or as many as the limit of open files allows, which is raised as far as
    the system does. Raises MachineError when it leaves none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else OTHER_FILES
    backlog = min(MAX_BACKLOG, max(1, _finite(hard) // 16))
    # The backlog is accepted at once, a few times before the first of its connections is rejected.
    others = in_use + OTHER_FILES + 4 * backlog
    if soft != resource.RLIM_INFINITY and soft < wanted + others:
        soft = min(_finite(hard), wanted + others)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = _finite(soft) - others
    if left < 1:
        raise MachineError(f"{soft} files may be open at a time, too few for a service; raise ulimit -n")
    if left < wanted:
        logger.warning("only %d connections at a time: %d files may be open (ulimit -n)", left, soft)
    return min(wanted, left), backlog


def _finite(limit: int) -> int:
    return 1 << 30 if limit == resource.RLIM_INFINITY else limit


class BoundedProtocol(H11Protocol):
    """A connection of uvicorn with time limits; at most ``most`` of them are open at a time."""

    most = 1000

    # A TCP server passes a Transport, as H11Protocol itself expects.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the head of a request within HEAD_SECONDS; answer 503 and close when there are too many."""
        self.limits: Dict[str, asyncio.TimerHandle] = {}
        self.is_rejected = len(self.connections) >= self.most
        if self.is_rejected:
            transport.write(FULL)
            transport.close()
            return
        super().connection_made(transport)
        self._expect("a request", HEAD_SECONDS)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """Stop all time limits of the connection."""
        if not self.is_rejected:
            self._stop_expecting("a request")
            self._stop_expecting("reading")
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, and stop the time limit of its head when that is complete."""
        if self.is_rejected:
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before and not self.cycle.response_complete:
            self._stop_expecting("a request")  # its body has a limit of its own

    def on_response_complete(self) -> None:
        """Expect the head of the next request within HEAD_SECONDS after an answer."""
        self._expect("a request", HEAD_SECONDS)
        answered = self.cycle
        super().on_response_complete()
        if self.cycle is not answered:  # the next request had already arrived
            self._stop_expecting("a request")

    def pause_writing(self) -> None:
        """Expect the client to read the answer within READ_SECONDS."""
        self._expect("reading", READ_SECONDS)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Stop the time limit of a client that reads its answer again."""
        self._stop_expecting("reading")
        super().resume_writing()

    @property
    def is_unused(self) -> bool:
        """Return whether there is no request to answer."""
        return self.cycle is None or self.cycle.response_complete

    def _expect(self, what: str, within: float) -> None:
        """Abort the connection after so many seconds, unless ``what`` is no longer expected by then."""
        self._stop_expecting(what)
        self.limits[what] = self.loop.call_later(within, self.transport.abort)

    def _stop_expecting(self, what: str) -> None:
        if what in self.limits:
            self.limits.pop(what).cancel()


class PatientServer(uvicorn.Server):
    """A server that stops when all connected clients have an answer, or after ``stop_seconds``.

    ``reject_new`` is called after that time: what still waits must be answered at once.
    """

    def __init__(self, config: uvicorn.Config, stop_seconds: float, reject_new: Callable[[], None]):
        super().__init__(config)
        self.stop_seconds, self.reject_new = stop_seconds, reject_new
        self.is_asked_to_stop = False

    def stop(self) -> None:
        """Stop gracefully, whether the server has started yet or not."""
        self.is_asked_to_stop = True

    async def startup(self, sockets: Optional[List] = None) -> None:
        """Start to listen, and keep a signal that arrives meanwhile for a graceful stop."""
        await super().startup(sockets)
        # After a signal that arrived meanwhile, uvicorn would leave at once, without answering connected
        # clients.
        self.is_asked_to_stop = self.is_asked_to_stop or self.should_exit
        self.should_exit = self.lifespan.should_exit

    async def on_tick(self, counter: int) -> bool:
        """Return whether it is time to shut down."""
        return await super().on_tick(counter) or self.is_asked_to_stop

    async def shutdown(self, sockets: Optional[List] = None) -> None:
        """Answer all connected clients, then shut down. They have LAST_REQUESTS_SECONDS to send a request."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(self.stop_seconds, self.reject_new)
        headers = self.server_state.default_headers
        self.server_state.default_headers = [*headers, CLOSE_HEADER]
        await self._accept_all(sockets or [])
        until = loop.time() + min(LAST_REQUESTS_SECONDS, self.stop_seconds)
        connections = self.server_state.connections
        while loop.time() < until and any(getattr(each, "is_unused", False) for each in connections):
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)
        late.cancel()

    async def _accept_all(self, sockets: List) -> None:
        """Accept all connections in the backlog, and stop listening."""
        queues = select.poll()
        for listener in sockets:
            queues.register(listener, select.POLLIN)
        quiet = 0
        for _ in range(1000):  # clients that keep on connecting are not waited for
            quiet = 0 if queues.poll(0) else quiet + 1
            if quiet > STEPS_TO_CONNECT:
                break
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for listener in sockets:
            listener.close()
