"""The latency of the service under several numbers of clients.

Each backend is served by a separate process. A client asks about one pair, waits for the answer and asks
again, so there are as many requests in flight as clients.
"""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles
from typing import Iterator, List, NamedTuple

from data_tools.files.errors import InputError
from ernie_pair.pair.data.pair_file import read_pairs
from tables import Row

ADDRESS = re.compile(r"at http://127\.0\.0\.1:(\d+)")
HEAD = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n"


class Latency(NamedTuple):
    """Milliseconds per request in one measurement, and requests answered per second."""

    p50: float
    p95: float
    p99: float
    per_second: float


def measured(config, folder: Path) -> Iterator[Row]:
    """Yield a row for each backend and number of clients."""
    pairs = read_pairs(Path(config.pair_file), None)
    bodies = [
        json.dumps({"pairs": [pair]}, ensure_ascii=False).encode() for pair in zip(pairs.left, pairs.right)
    ]
    yield Row("backend, clients", "p50, p95, p99: ms", "requests/s")
    for backend in config.backends.split():
        with served(config, backend) as port:
            for clients in map(int, config.clients.split()):
                latency = asyncio.run(latency_of(port, bodies, clients, config.seconds))
                figures = ", ".join(f"{value:.1f}" for value in latency[:3])
                yield Row(f"{backend}, {clients}", figures, f"{latency.per_second:.1f}")


@contextlib.contextmanager
def served(config, backend: str) -> Iterator[int]:
    """Serve the model, and yield the port. Raises InputError when the service does not start."""
    name, _, precision = backend.partition(":")
    flags = {"model": config.model, "port": 0, "backend": name, "threads": config.threads}
    flags.update(max_wait_ms=config.max_wait_ms, device=config.device)
    flags.update({"precision": precision} if precision else {})
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    command = [sys.executable, "-m", "ernie_pair", "serve", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        try:
            said = ""
            for said in service.stderr:
                found = ADDRESS.search(said)
                if found is not None:
                    yield int(found[1])
                    return
            raise InputError(f"the service of {backend} does not start: {said.strip()}")
        finally:
            service.terminate()
            service.communicate()


async def latency_of(port: int, bodies: List[bytes], clients: int, seconds: float) -> Latency:
    """Ask for ``seconds`` with ``clients`` at a time, after a warm-up of a fifth of that.

    Raises InputError for fewer than two answers, or for an error in one.
    """
    warm_until = time.perf_counter() + seconds / 5
    until = warm_until + seconds
    taken: List[float] = []

    async def ask_on(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in islice(cycle(bodies), first, None):
            started = time.perf_counter()
            if started >= until:
                break
            await _ask(reader, writer, body)
            if started >= warm_until:
                taken.append(1000 * (time.perf_counter() - started))
        writer.close()

    step = max(1, len(bodies) // clients)
    await asyncio.gather(*(ask_on(number * step) for number in range(clients)))
    if len(taken) < 2:
        raise InputError(f"{len(taken)} requests were answered in {seconds:g} s; pass more --seconds")
    shares = quantiles(taken, n=100)
    return Latency(shares[49], shares[94], shares[98], len(taken) / seconds)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(HEAD.format(len(body)).encode() + body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = re.search(r"content-length: (\d+)", head, re.I)
    answer = await reader.readexactly(int(size[1]) if size else 0)
    if " 200 " not in head.splitlines()[0]:
        raise InputError(f"the service answers {head.splitlines()[0]}: {answer.decode()[:200]}")
