"""The latency of the service under several numbers of clients.

Each backend is served by a separate process. A client asks about one pair, waits for the answer and asks
again, so there are as many requests in flight as clients.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles
from typing import Iterator, List, Sequence, Tuple

from ernie_pair.core.errors import InputError
from ernie_pair.pairs.data.pair_file import read_pairs
from ernie_pair.runtime.processes.child_command import words_of
from tables import Row

ADDRESS = re.compile(r"at http://127\.0\.0\.1:(\d+)")
HEAD = "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def measured(config, folder: Path) -> Iterator[Row]:
    pairs = read_pairs(Path(config.pair_file), None)
    texts = zip(pairs.left, pairs.right)
    bodies = [json.dumps({"pairs": [pair]}, ensure_ascii=False).encode() for pair in texts]
    yield Row("backend, clients", "p50, p95, p99: ms", "requests/s")
    for backend in config.backends.split():
        with served(command_of(config, backend), backend) as (port, _):
            for clients in map(int, config.clients.split()):
                taken = asyncio.run(milliseconds_of(port, bodies, clients, config.seconds))
                shares = quantiles(taken, n=100, method="inclusive")
                figures = ", ".join(f"{shares[place]:.1f}" for place in (49, 94, 98))
                yield Row(f"{backend}, {clients}", figures, f"{len(taken) / config.seconds:.1f}")


def command_of(config, backend: str) -> List[str]:
    name, _, precision = backend.partition(":")
    flags = {"model_path": config.model, "port": 0, "backend": name, "threads": config.threads}
    flags.update(max_wait_ms=config.max_wait_ms, device=config.device)
    flags.update({"precision": precision} if precision else {})
    return [sys.executable, "-m", "ernie_pair", *words_of("serve", **flags)]


@contextlib.contextmanager
def served(
    command: Sequence[str], name: str, cores: Sequence[int] = (), **environment: str
) -> Iterator[Tuple[int, int]]:
    """Run the service ``name``, on ``cores`` alone if there are any, and yield its port and process id.

    Raises InputError if it does not start.
    """
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        preexec_fn=lambda: os.sched_setaffinity(0, cores or os.sched_getaffinity(0)),
    ) as service:  # fmt: skip
        try:
            line = ""
            for line in service.stderr:
                address = ADDRESS.search(line)
                if address is not None:
                    yield int(address[1]), service.pid
                    return
            raise InputError(f"the service of {name} does not start: {line.strip()}")
        finally:
            service.terminate()
            service.communicate()


async def milliseconds_of(
    port: int, bodies: List[bytes], clients: int, seconds: float, path: str = "/predict"
) -> List[float]:
    """Return what each request took in ``seconds`` with ``clients``, after a warm-up; or InputError."""
    warm_until = time.perf_counter() + seconds / 5
    until = warm_until + seconds
    taken: List[float] = []

    async def ask_on(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in islice(cycle(bodies), first, None):
            started = time.perf_counter()
            if started >= until:
                break
            writer.write(HEAD.format(path, len(body)).encode() + body)
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = re.search(r"content-length: (\d+)", head, re.I)
            answer = await reader.readexactly(int(size[1]) if size else 0)
            if " 200 " not in head.splitlines()[0]:
                raise InputError(f"the service answers {head.splitlines()[0]}: {answer.decode()[:200]}")
            if started >= warm_until:
                taken.append(1000 * (time.perf_counter() - started))
        writer.close()

    step = max(1, len(bodies) // clients)
    await asyncio.gather(*(ask_on(number * step) for number in range(clients)))
    if len(taken) < 2:
        raise InputError(f"{len(taken)} requests were answered in {seconds:g} s; pass more --seconds")
    return taken
