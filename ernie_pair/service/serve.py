"""ernie-pair serve: from its flags to the last answered request."""

import logging
import math
import os
import signal
import socket
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Literal, Mapping, Optional

from ernie_pair.core.cli.options import (
    ANY,
    data_option,
    devices_option,
    evaluation_option,
    model_folder_option,
    model_option,
    precision_option,
    speed_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.inference.backends import BACKEND_HELP, PRECISION_HELP, THREADS_HELP
from ernie_pair.inference.embedder import EmbedderOptions
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.token_rows import OVERLAP_HELP, BatchTokensFlag
from ernie_pair.kernels.choice import EMBEDDING_HELP, KernelFlags
from ernie_pair.retrieval.index import SEARCH_LIBRARIES
from ernie_pair.retrieval.index_folder import open_index_folder
from ernie_pair.retrieval.search_texts import RETRIEVAL_HELP
from ernie_pair.retrieval.searcher import RECALL_K, TextRecall
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.gpu import check_gpus, number_of
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.sockets import LOOPBACK, address_of, listen
from ernie_pair.runtime.processes.world import World
from ernie_pair.service.batcher import Batching

if TYPE_CHECKING:
    from ernie_pair.service.service import ServedModels
    from ernie_pair.service.watch import Shadow

API_KEY = "ERNIE_PAIR_API_KEY"
# How long a request waits for others to share its forward pass, when some have just been answered.
MAX_WAIT_SECONDS = 0.005
MODEL_SECONDS = 5  # for the running call of the model when the time to stop is over

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeConfig(BatchTokensFlag):
    """Serve a classifier, an embedding model or both over HTTP: POST /predict, /rank, /search; / to try them.

    Clients of OpenAI, Cohere, Jina and TEI find /v1/embeddings, /v1/rerank, /v2/rerank and /rerank; /docs
    documents all.
    """

    EXAMPLE = "--model_path exported --port 8000"
    NEEDS = dict.fromkeys(("fastapi", "uvicorn", "prometheus_client"), "")

    model_path: str = model_folder_option(
        "", help="the classifier: the folder that ernie-pair export made; empty: none"
    )
    host: str = devices_option(
        "127.0.0.1", help="address to listen on; 0.0.0.0: all interfaces, reachable from other machines"
    )
    port: int = devices_option(8000, help="port to listen on; 0: any free port", at_least=0, at_most=65535)
    backend: Literal["auto", "paddle", "onnx", "onnx-int8", "onnx-gpu"] = devices_option(
        "auto", help=BACKEND_HELP, only_with="model_path"
    )
    precision: Literal["fp32", "bf16", "fp16"] = precision_option(
        "fp32", help=PRECISION_HELP, only_with="model_path"
    )
    device: Literal["cpu", "gpu", "gpu:N"] = speed_option("cpu", help="where the models run")
    devices: str = speed_option(
        "",
        help="GPUs with the models each, which take turns at the requests, separated by commas: 0,1; "
        "empty: the one of --device",
        only_with="device=gpu",
    )
    threads: int = speed_option(0, help=THREADS_HELP, unit="threads", at_least=0)
    threshold: Optional[float] = evaluation_option(
        None,
        help="for two classes: predict 1 at this probability or above; none: as exported; searches have "
        "that of evaluate search, or of the request",
        at_least=0,
        at_most=1,
        only_with="model_path",
    )
    symmetric: Literal["auto", "none", "average"] = evaluation_option(
        "auto",
        help="average: score (a, b) and (b, a) and take the mean of the logits; auto: as exported",
        only_with="model_path",
    )
    window_overlap: int = evaluation_option(
        0, help=f"to rank: {OVERLAP_HELP}", unit="tokens", at_least=0, only_with="model_path"
    )
    index: str = model_option(
        "",
        help="index for /search, made by ernie-pair index; empty: no /search",
        needs={ANY: SEARCH_LIBRARIES},
        reads="FOLDER",
    )
    embedding_model: str = model_folder_option(
        "", help="for /v1/embeddings, and for --index the one that it was made with; empty: none"
    )
    embedding_precision: Literal["fp32", "bf16", "fp16"] = precision_option(
        "fp32", help=EMBEDDING_HELP, only_with="embedding_model"
    )
    retrieval: Literal["auto", "vectors", "bm25", "both"] = evaluation_option(
        "auto", help=f"for --index: {RETRIEVAL_HELP}", only_with="index"
    )
    long_text: Literal["stop", "cut"] = data_option(
        "stop",
        help="a text that is too long for the embedding model: refuse the request, or truncate it",
        only_with="embedding_model",
    )
    recall_k: int = evaluation_option(
        RECALL_K,
        help="for --index: texts found for a query, which the classifier reranks",
        unit="texts",
        at_least=1,
        only_with="index",
    )
    shadow_model_path: str = model_folder_option(
        "",
        help="an export that scores the pairs too, after they are answered, for the log and /metrics; empty: "
        "none",
        only_with="model_path",
    )
    log_requests: str = data_option(
        "",
        help="file for a JSON line of each pair or text that is answered: its scores, its model; empty: none",
        writes="FILE",
    )
    log_texts: Literal["text", "hash"] = data_option(
        "text", help="of the texts: keep them, or the SHA-256 of each alone", only_with="log_requests"
    )
    log_share: float = data_option(
        1.0, help="share of the requests that are logged", above=0, at_most=1, only_with="log_requests"
    )
    log_mb: int = data_option(
        1000,
        help="maximum size of the log: FILE and FILE.1 to FILE.9, the oldest lines, which go first",
        unit="MB",
        at_least=1,
        only_with="log_requests",
    )
    max_batch: int = devices_option(
        0,
        help="maximum pairs of several requests in one call of the model; 0: 64, or what its tokens allow",
        unit="pairs",
        at_least=0,
    )
    max_pairs: int = data_option(
        2048, help="maximum pairs or candidates in one request", unit="pairs", at_least=1
    )
    max_chars: int = data_option(2000, help="maximum characters per text", unit="characters", at_least=1)
    max_body_kb: int = data_option(8192, help="maximum size of a request", unit="KB", at_least=1)
    max_waiting: int = devices_option(
        4096, help="maximum pairs in the queue; further requests are rejected", unit="pairs", at_least=1
    )
    max_connections: int = devices_option(
        1000,
        help="maximum concurrent connections, as far as ulimit -n allows",
        unit="connections",
        at_least=1,
    )
    api_key: str = devices_option(
        "",
        help="a key that requests must carry, as Authorization: Bearer KEY; empty: that of the environment "
        "variable ERNIE_PAIR_API_KEY, which no list of processes shows, if it is set",
        secret=True,
    )
    allowed_hosts: str = devices_option(
        "", help="host names that requests may use, separated by commas, besides IP addresses; *: any"
    )
    stop_seconds: float = devices_option(
        30.0,
        help="after SIGTERM, how long open connections are still answered",
        unit="seconds",
        at_least=0,
        at_most=86400,
    )

    def __post_init__(self):
        super().__post_init__()
        for name, size in (("max_pairs", self.max_pairs), ("recall_k", self.recall_k if self.index else 0)):
            if self.max_waiting < size:
                raise InputError(
                    f"--max_waiting {self.max_waiting} has no room for one request of --{name} {size}; "
                    "raise the first or lower the second"
                )
        if not (self.model_path or self.embedding_model or self.index):
            raise InputError("nothing to serve; give --model_path, --embedding_model, or both")
        if self.device != "cpu" and not (self.model_path or self.embedding_model):
            raise InputError(f"--device {self.device} is for a model, and BM25 takes none; leave it out")
        self.each_device()

    def each_device(self) -> List[Any]:
        """Return --device, or gpu:N for each of --devices. Raises InputError."""
        words = self.devices.split(",") if self.devices else []
        if not all(map(str.isdecimal, words)) or len({*map(int, words)}) < len(words):
            raise InputError(f"--devices {self.devices}: give numbers of GPUs, each once: --devices 0,1")
        return [f"gpu:{int(word)}" for word in words] or [self.device]


def serve(config: ServeConfig) -> None:
    """Serve an exported model over HTTP until SIGTERM or SIGINT; in another thread, as long as the process.

    At the end the requests in progress are answered. Raises an ErniePairError.
    """
    start_console(World())
    key = key_of(config.api_key, os.environ)
    # While the models are opened a SIGHUP waits: what it asks for is opened next.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        with listen(config.host, config.port) as listener:
            _serve(config, key, listener)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_all(config: ServeConfig) -> "tuple[ServedModels, Optional[Shadow]]":
    """Open what the flags name, and the model in the shadow."""
    from ernie_pair.service.watch import Shadow

    first, path = config.each_device()[0], config.shadow_model_path
    of_shadow = replace(config, model_path=path or config.model_path, device=first, devices="")
    return _open_models(config), Shadow(partial(_open_predictor, of_shadow)) if path else None


def _open_predictor(config: ServeConfig) -> PairPredictor:
    """Open the classifier where its link leads now: the folder that is read stays the same one."""
    there = os.path.realpath(config.model_path)
    is_link = there != os.path.abspath(config.model_path)
    predictor = PairPredictor.of(replace(config, model_path=there) if is_link else config)
    predictor.decide_by(config.threshold, config.symmetric)
    predictor.use_windows(config.window_overlap)
    predictor.predict([("你好", "您好")])
    return predictor


def _open_models(config: ServeConfig) -> "ServedModels":
    """Open what the flags name on each device, and run each once: no request waits for a slow first pass."""
    first, *others = config.each_device()
    if config.devices:
        check_gpus(map(number_of, (first, *others)), f"--devices {config.devices}")
    served = _open_on(config, first)
    for name, model in ((served.model_name, served.predictor), (served.embedding_name, served.embedder)):
        if others and model is not None and model.backend.startswith("paddle"):
            raise InputError(
                f"--devices {config.devices}: {name} runs on Paddle, which keeps other threads waiting; "
                "export it with --format onnx-gpu, or start a service for each GPU"
            )
    return replace(served, copies=tuple(_open_on(config, device, served.texts) for device in others))


def _open_on(config: ServeConfig, device: Any, texts: Optional[TextRecall] = None) -> "ServedModels":
    """Open the models on ``device``, and the index, unless ``texts`` of it are open."""
    from ernie_pair.service.service import ServedModels

    config = replace(config, device=device, devices="")
    predictor = embedder = None
    threads = config.threads or cpu_threads()
    if config.model_path:
        predictor = _open_predictor(config)
    if config.embedding_model:
        kernels = KernelFlags(precision=config.embedding_precision)
        options = EmbedderOptions(threads=threads, batch_tokens=config.batch_tokens)
        embedder = open_embedder(config.embedding_model, device, options, kernels)
        embedder.embed(["你好"])
    if config.index and texts is None:
        folder = open_index_folder(Path(config.index))
        if predictor is not None:
            predictor.check_rankable()
            predictor.use_windows(config.window_overlap or folder.manifest.window_overlap)
        by = "" if predictor is None else predictor.ranked_by
        texts = TextRecall.open(
            folder, embedder, config.recall_k, threads, retrieval=config.retrieval, reranker=by
        )
        texts.recall(["你好"])
        logger.info("/search searches the %d texts of %s by %s", texts.count, config.index, texts.retrieval)
    paths = config.model_path, config.embedding_model
    model_name, embedding_name = (os.path.basename(os.path.abspath(path)) for path in paths)
    cuts = config.long_text == "cut"
    return ServedModels(predictor, embedder, texts, model_name, embedding_name, cuts)


def key_of(given: str, environment: Mapping[str, str]) -> str:
    """Return the key of --api_key, or of the ``environment``; '' for none. Raises InputError, without it."""
    name = "--api_key" if given else API_KEY
    key = given or environment.get(API_KEY, "")
    if API_KEY in environment and not key:
        raise InputError(f"{API_KEY} is empty, and anyone could ask the service; fill it in, or unset it")
    if not all("!" <= character <= "~" for character in key):
        raise InputError(f"{name} holds a space or a character that is not ASCII; choose another key")
    return key


def _serve(config: ServeConfig, key: str, listener: socket.socket) -> None:
    """Open what the flags name, answer requests until a signal, and say on start how to ask."""
    import uvicorn

    from ernie_pair.service.bodies import curl_line
    from ernie_pair.service.connections import (
        KEEP_ALIVE_SECONDS,
        BoundedProtocol,
        PatientServer,
        limit_connections,
    )
    from ernie_pair.service.request import Limits
    from ernie_pair.service.request_log import RequestLog
    from ernie_pair.service.service import create_app
    from ernie_pair.service.watch import WatchOptions

    log = RequestLog(Path(config.log_requests), config.log_mb << 20) if config.log_requests else None
    watched = WatchOptions(log, config.log_share, config.log_texts == "hash")
    served, shadow = _open_all(config)
    batching = Batching(config.max_batch, MAX_WAIT_SECONDS, config.max_waiting)
    limits = Limits(config.max_body_kb * 1024, config.max_pairs, config.max_chars)
    hosts = [config.host, socket.gethostname(), *map(str.strip, config.allowed_hosts.split(","))]
    app = create_app(
        served, batching, limits, [*filter(None, hosts)], key, watched, lambda: _open_all(config)
    )
    app.state.service.watch.shadow = shadow
    connections, backlog = limit_connections(config.max_connections)
    settings = uvicorn.Config(
        app,
        loop="asyncio",
        http=type("Connection", (BoundedProtocol,), {"most": connections}),
        backlog=backlog,
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(config.stop_seconds) + MODEL_SECONDS,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # no line for each bad request
    server = PatientServer(settings, config.stop_seconds, app.state.service.reject_new)
    # For a signal before uvicorn handles signals; and uvicorn raises the one that stopped it again.
    if threading.current_thread() is threading.main_thread():  # which alone may
        signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
        signal.signal(signal.SIGHUP, lambda number, frame: app.state.service.ask_reload())
    address = address_of(listener)
    if config.host not in LOOPBACK and not key:
        logger.warning("%s can be used by anyone who reaches it: set a key in %s", address, API_KEY)
    predictor, embedder = served.predictor, served.embedder
    if predictor is not None:
        if predictor.exported.has_classes:
            logger.info("%s", predictor.describe_decision(config.threshold))
        if predictor.exported.learned_nothing:
            logger.warning("%s: %s", config.model_path, predictor.exported.learned_nothing)
    for each in (served, *served.copies):
        if each.predictor is not None:
            logger.info("%s by %s at %s", config.model_path, each.predictor.describe(), address)
        if each.embedder is not None:
            logger.info("%s by %s at %s", config.embedding_model, each.embedder.backend, address)
    tried = "/predict" if predictor is not None else "/v1/embeddings" if embedder is not None else "/search"
    logger.info("try it: %s", curl_line(address, tried, API_KEY if key else ""))
    server.run(sockets=[listener])
    logger.info("stopped")
