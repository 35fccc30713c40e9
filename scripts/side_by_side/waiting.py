"""Cases of what people wait for: vectors, scores of pairs, answers of a service, whole commands.

Both sides have the same weights, random ones of a BERT: a folder of transformers, which both read.
"""

import asyncio
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from statistics import quantiles
from typing import Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from other_libraries.client import NO_NETWORK, PATH_OF_PEER, THREADS, last_line

from ernie_pair import ExportConfig, ExportEmbeddingConfig, PairConfig, PairTrainer, PredictConfig, export
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.embed_config import EmbedConfig
from ernie_pair.models.commands import ToHuggingFaceConfig, convert_to_hugging_face
from ernie_pair.models.source import open_model
from ernie_pair.runtime.processes.child_command import words_of
from side_by_side.cases import (
    BASE,
    Bench,
    Case,
    Shape,
    in_turn,
    our_lane,
    our_lanes,
    pair_settings,
    peer_lanes,
    read_rows,
    silence,
    write_model,
    write_pairs,
    write_rows,
)
from side_by_side.lanes import Lane, Turn, rotated

ADDRESS = re.compile(r"at http://127\.0\.0\.1:(\d+)")
HEAD = "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
CLIENTS = (1, 4, 16)
SECONDS = 5.0  # of load in each turn
RUN = "run"  # what a command writes, in the folder of its case
ONE_PAIR = ("怎么修改密码", "如何更改登录密码")


def write_both(bench: Bench) -> Tuple[Path, Path]:
    """Write a classifier of pairs on a BERT, and return its folder and its folder of transformers."""
    flags, shape, folder = bench
    write_model(folder / "start", flags.vocab_file, "bert", shape)
    config = PairConfig(
        str(folder / "trainer"), from_scratch=True, match_embeddings=False, device=flags.device,
        max_seq_len=shape.max_seq_len,
    )  # fmt: skip
    PairTrainer(str(folder / "start"), config).save_model(folder / "ours")
    theirs = folder / "theirs"
    convert_to_hugging_face(ToHuggingFaceConfig(model_path=str(folder / "ours"), output_dir=str(theirs)))
    return folder / "ours", theirs


def embed_lanes(bench: Bench) -> List[Lane]:
    """Return the lanes that compute the vectors of texts: `embed`, its export, SentenceTransformer.encode."""
    flags, shape, folder = bench
    _, theirs = write_both(bench)
    rows = [[text] for row in read_rows(flags.pair_file, shape.pairs) for text in row]
    texts = folder / "texts.txt"
    texts.write_text("".join(f"{text}\n" for (text,) in rows), encoding="utf-8")
    spec = open_model(str(theirs), model_type="").spec
    settings = {"input_file": str(texts), "device": flags.device, "batch_size": shape.batch_size}
    settings["output_dir"] = str(folder / "vectors")
    lanes = our_lanes(bench, EmbedConfig, "embed", {**settings, "model_path": str(theirs)})
    for quantize, precision in (("none", "fp32"), ("int8", "int8")) if flags.device == "cpu" else ():
        ship, name = str(folder / f"ship_{precision}"), f"exported onnx {precision}"
        export(ExportEmbeddingConfig(model_path=str(theirs), output_dir=ship, quantize=quantize))
        task = {"task": "embed", "flags": {**settings, "model_path": ship}}
        lanes.append(our_lane(folder, name, precision, task))
    task = {"task": "embed", "folder": str(theirs), "texts": str(texts), "batch_size": shape.batch_size}
    return [*lanes, *peer_lanes(bench, task, theirs, spec)]


def rerank_lanes(bench: Bench) -> List[Lane]:
    """Return the lanes that score pairs: `predict` of a trained model, and CrossEncoder.predict."""
    flags, shape, folder = bench
    ours, theirs = write_both(bench)
    rows = read_rows(flags.pair_file, shape.pairs)
    texts = write_rows(folder / "pairs.tsv", rows, is_labelled=False)
    spec = open_model(str(ours), model_type="").spec
    settings = {"model_path": str(ours), "input_file": texts, "output_file": str(folder / "out.tsv")}
    settings.update(batch_size=shape.batch_size, device=flags.device)
    lanes = our_lanes(bench, PredictConfig, "ask_trained", settings)
    task = {"task": "rerank", "folder": str(theirs), "texts": texts, "batch_size": shape.batch_size}
    return [*lanes, *peer_lanes(bench, task, theirs, spec)]


def serving(clients: int) -> Callable[[Bench], List[Lane]]:
    """Return the measurement of services that answer with vectors, under the load of ``clients``."""

    def measure(bench: Bench) -> List[Lane]:
        flags, shape, folder = bench
        with silence():
            _, theirs = write_both(bench)
            export(ExportEmbeddingConfig(model_path=str(theirs), output_dir=str(folder / "ship")))
        ours = [sys.executable, "-m", "ernie_pair", "serve", "--port", "0", "--embedding_model"]
        commands = {
            "service": ([*ours, str(theirs)], {}),
            "exported service": ([*ours, str(folder / "ship")], {}),
        }
        if flags.peer_python:
            words = [flags.peer_python, "-m", "side_by_side.peer.service", str(theirs), str(flags.threads)]
            commands["peer service"] = (words, {**PATH_OF_PEER, **NO_NETWORK})
        texts = [text for row in read_rows(flags.pair_file, shape.pairs) for text in row]
        bodies = [json.dumps({"input": text}, ensure_ascii=False).encode() for text in texts]
        threads = dict.fromkeys(THREADS, str(flags.threads))
        cores = sorted(os.sched_getaffinity(0))[: flags.threads]
        lanes = [Lane(name, "peer" if name.startswith("peer") else "ours", "fp32") for name in commands]
        with ExitStack() as stack:
            services = []
            for name, (words, environment) in commands.items():
                services.append(stack.enter_context(served(words, name, cores, **environment, **threads)))
            for number, turn in enumerate([lanes, *rotated(lanes, flags.rounds)]):  # the first one warms up
                for lane in turn:
                    port, pid = services[lanes.index(lane)]
                    before = processor_seconds(pid)
                    taken = asyncio.run(milliseconds_of(port, bodies, clients, SECONDS, "/v1/embeddings"))
                    cpu = (processor_seconds(pid) - before) / len(taken)
                    if number:
                        worst = quantiles(taken, n=100, method="inclusive")[98]
                        lane.turns.append(Turn(worst / 1e3, cpu, _peak_gb(pid)))
        return lanes

    return measure


@contextmanager
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


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, those that ended too, to the nanosecond."""
    clock = ctypes.c_int()
    ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    return time.clock_gettime(clock.value)


def _peak_gb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e9


def waiting_for(commands_of: Callable[[Bench], Dict[str, List[str]]]) -> Callable[[Bench], List[Lane]]:
    """Return the measurement of whole commands, from the shell to their end, in turn."""

    def measure(bench: Bench) -> List[Lane]:
        flags = bench.flags
        with silence():
            commands = commands_of(bench)
        lanes = [Lane(name, "peer" if name.startswith("peer") else "ours", "fp32") for name in commands]
        cores = sorted(os.sched_getaffinity(0))[: flags.threads]
        threads = dict.fromkeys(THREADS, str(flags.threads))
        for number, turn in enumerate([lanes, *rotated(lanes, flags.rounds)]):  # the first fills the cache
            for lane in turn:
                words = commands[lane.name]
                own = {**PATH_OF_PEER, **NO_NETWORK} if lane.side == "peer" else {}
                shutil.rmtree(bench.folder / RUN, ignore_errors=True)
                took = _run(lane.name, words, {**os.environ, **own, **threads}, cores)
                lane.turns += [took] if number else []
        return lanes

    return measure


def _run(name: str, words: Sequence[str], environment: Mapping[str, str], cores: Sequence[int]) -> Turn:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        started = time.perf_counter()
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        if process.returncode:
            log.seek(0)
            raise InputError(f"{name} ended with code {process.returncode}: {last_line(log.read())}")
    return Turn(seconds, used.ru_utime + used.ru_stime, None)  # ru_maxrss would be that of this process


def _ours(command: str, **flags) -> List[str]:
    return [sys.executable, "-m", "ernie_pair", command, *words_of(**flags)]


def _theirs(bench: Bench, *words: str) -> Dict[str, List[str]]:
    python = bench.flags.peer_python
    return {"peer command": [python, "-m", "side_by_side.peer.cold", *words]} if python else {}


def cold_predict(bench: Bench) -> Dict[str, List[str]]:
    ours, theirs = write_both(bench)
    export(ExportConfig(model_path=str(ours), output_dir=str(bench.folder / "ship")))
    pair = ["--pair", *ONE_PAIR]
    return {
        "predict": [*_ours("predict", model_path=ours), *pair],
        "predict exported": [*_ours("predict", model_path=bench.folder / "ship"), *pair],
        **_theirs(bench, "predict", str(theirs), *ONE_PAIR),
    }


def cold_embed(bench: Bench) -> Dict[str, List[str]]:
    _, theirs = write_both(bench)
    ship, text = bench.folder / "ship", bench.folder / "text.txt"
    export(ExportEmbeddingConfig(model_path=str(theirs), output_dir=str(ship)))
    text.write_text(f"{ONE_PAIR[0]}\n", encoding="utf-8")
    places = {"input_file": text, "output_dir": bench.folder / RUN}
    return {
        "embed": _ours("embed", model_path=theirs, **places),
        "embed exported": _ours("embed", model_path=ship, **places),
        **_theirs(bench, "embed", str(theirs), ONE_PAIR[0]),
    }


def cold_train(bench: Bench) -> Dict[str, List[str]]:
    """Return the commands that train one step from the first weights, and write the model."""
    flags, shape, folder = bench
    _, theirs = write_both(bench)
    write_pairs(folder, flags.pair_file, shape, 1)
    settings = pair_settings(folder, shape, flags.device, 1, 1)
    settings.update(model_name_or_path=str(theirs), from_scratch=False, output_dir=str(folder / RUN))
    sizes = (str(shape.batch_size), str(shape.max_seq_len))
    return {
        "train": _ours("train", **settings),
        **_theirs(bench, "train", str(theirs), settings["train_file"], str(folder / RUN), *sizes),
    }


TEXTS, SCORES = "the vectors of the texts of {pairs} pairs", "the scores of {pairs} pairs"
REQUEST = "a request for the vector of one text; by the clock its 99th percentile"
COMMAND = "one command, from the shell to its end"
MINI = {"num_hidden_layers": 6, "hidden_size": 384}  # of MiniLM
MODEL = "{num_hidden_layers} x {hidden_size}"
CASES_OF_WAITING = {
    "embed-mini": Case(f"embed {MODEL}, {{pairs}} pairs", TEXTS, Shape(**MINI), in_turn(embed_lanes)),
    "embed-base": Case(f"embed {MODEL}, {{pairs}} pairs", TEXTS, Shape(**BASE), in_turn(embed_lanes)),
    "rerank-mini": Case(f"rerank {MODEL}, {{pairs}} pairs", SCORES, Shape(**MINI), in_turn(rerank_lanes)),
    "rerank-base": Case(f"rerank {MODEL}, {{pairs}} pairs", SCORES, Shape(**BASE), in_turn(rerank_lanes)),
    **{
        f"serve-{count}": Case(f"serve {MODEL}, clients {count}", REQUEST, Shape(**MINI), serving(count))
        for count in CLIENTS
    },
    **{
        f"cold-{name}": Case(f"cold {name} {MODEL}", COMMAND, Shape(), waiting_for(commands))
        for name, commands in (
            ("predict", cold_predict), ("embed", cold_embed), ("train", cold_train),
        )
    },
}  # fmt: skip
