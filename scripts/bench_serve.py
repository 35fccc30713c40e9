"""Measure the latency of the service on this machine, under several numbers of clients, as a table.

python scripts/bench_serve.py --model exported --pair_file pairs.tsv --backends "onnx paddle paddle:bf16"

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
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles
from typing import Iterator, List, Literal, NamedTuple

from data_tools.files.errors import InputError
from data_tools.options.cli import run_command
from data_tools.options.options import Options, option
from ernie_pair.pair.data.pair_file import read_pairs

ADDRESS = re.compile(r"at http://127\.0\.0\.1:(\d+)")
HEAD = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n"


@dataclass(frozen=True)
class BenchConfig(Options):
    """Measure how long the service takes to answer; nothing is left on the disk."""

    EXAMPLE = "--model exported --pair_file pairs.tsv"

    model: str = option(help="the folder that ernie-pair export made", group="model")
    pair_file: str = option(help="pairs to ask about: text TAB text", group="data")
    backends: str = option(
        "onnx", help="backends with spaces between, :bf16 behind one for its precision", group="devices"
    )
    clients: str = option("1 4 16", help="numbers of concurrent clients", group="devices")
    seconds: float = option(5.0, help="time of one measurement", group="evaluation", unit="seconds", above=0)
    device: Literal["cpu", "gpu"] = option("cpu", help="where the service runs", group="devices")
    threads: int = option(0, help="threads of one forward pass; 0: one per core", group="devices", at_least=0)
    max_wait_ms: float = option(5.0, help="as in ernie-pair serve", group="devices", unit="ms", at_least=0)

    def __post_init__(self):
        super().__post_init__()
        for number in self.clients.split() or [""]:
            if not re.fullmatch("[1-9][0-9]{0,3}", number):
                raise InputError(f"--clients takes numbers from 1 to 9999, not '{number[:40]}'; use '1 4 16'")


class Latency(NamedTuple):
    """Milliseconds per request in one measurement, and requests answered per second."""

    p50: float
    p95: float
    p99: float
    per_second: float


def bench(config: BenchConfig) -> None:
    """Print a line for each backend and number of clients as soon as it is measured."""
    pairs = read_pairs(Path(config.pair_file), None)
    bodies = [
        json.dumps({"pairs": [pair]}, ensure_ascii=False).encode() for pair in zip(pairs.left, pairs.right)
    ]
    print(
        f"{'backend':<14}{'clients':>8}{'p50 ms':>9}{'p95 ms':>9}{'p99 ms':>9}{'requests/s':>12}", flush=True
    )
    for backend in config.backends.split():
        with served(config, backend) as port:
            for clients in map(int, config.clients.split()):
                found = asyncio.run(latency_of(port, bodies, clients, config.seconds))
                figures = "".join(f"{value:>9.1f}" for value in found[:3])
                print(f"{backend:<14}{clients:>8}{figures}{found.per_second:>12.1f}", flush=True)


@contextlib.contextmanager
def served(config: BenchConfig, backend: str) -> Iterator[int]:
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


def main() -> None:
    run_command(bench, BenchConfig)


if __name__ == "__main__":
    main()
