"""ernie-pair board OUT...: VisualDL on the curves of runs, including unfinished ones."""

import logging
import os
import signal
import socket
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, List, Literal
from unittest.mock import patch

from data_tools.base.errors import counted
from data_tools.base.optional_import import import_optional
from data_tools.base.options import Options, option
from ernie_pair.dashboard.board_records import BoardRecords
from ernie_pair.dashboard.plot_runs import RUNS_HELP
from ernie_pair.dashboard.run_folder import open_runs
from ernie_pair.processes.console import start_console
from ernie_pair.processes.listener import LOOPBACK, address_of, listen
from ernie_pair.processes.world import World

TABS = ("scalar", "histogram", "pr_curve", "text", "hyper_parameters")
FIRST_PAGE = "/app/scalar"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BoardConfig(Options):
    """Show runs in VisualDL until Ctrl-C: one chart per metric, with training and validation of all runs.

    It connects to no other machine. Runs are only read, and are followed while they are still going on.
    """

    EXAMPLE = "output/a output/b --lang zh"

    outs: List[str] = option(help=RUNS_HELP, positional=True, group="data")
    lang: Literal["en", "zh"] = option("en", help="the language of the page", group="evaluation")
    host: str = option(
        "127.0.0.1",
        help="address to listen on; 0.0.0.0: all interfaces, reachable from other machines",
        group="devices",
    )
    port: int = option(
        8040, help="port to listen on; 0: any free port", group="devices", at_least=0, at_most=65535
    )
    refresh: float = option(
        5.0,
        help="time between checks of the runs for new points",
        group="evaluation",
        unit="seconds",
        above=0,
        at_most=3600,
    )


def board(config: BoardConfig) -> None:
    """Serve VisualDL on the runs until SIGTERM or SIGINT, then remove the records made for it.

    Raises InputError for a folder without a run or if visualdl is not installed, MachineError for a port
    that is not available.
    """
    start_console(World())
    import_optional("visualdl", "cpu")
    runs = open_runs(config.outs)
    with listen(config.host, config.port) as listener, tempfile.TemporaryDirectory(prefix="board-") as folder:
        records = BoardRecords(Path(folder), runs)
        stopped = threading.Event()
        follower = threading.Thread(target=_follow, args=(records, config.refresh, stopped), daemon=True)
        try:
            names = [run.name for run in runs]
            with _standing_in(folder):  # VisualDL shows the paths of its records: these are the names
                server = _server_of(config, names, listener)
                follower.start()
                _tell(listener, config, names)
                _serve(server)
        finally:
            stopped.set()
            if follower.ident is not None:
                follower.join()
            records.close()
    logger.info("stopped")


@contextmanager
def _standing_in(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _server_of(config: BoardConfig, names: List[str], listener: socket.socket) -> Any:
    """Return a WSGI server of VisualDL on the folders ``names``.

    VisualDL answers one request at a time; each connection has a thread, because browsers open unused ones.
    """
    from visualdl.server import app as visualdl_app
    from visualdl.server.args import ParseArgs
    from werkzeug.serving import make_server

    for name in ("werkzeug", "vdl_logger"):  # no line for each request
        logging.getLogger(name).setLevel(logging.CRITICAL)
    host, port = listener.getsockname()[:2]
    settings = ParseArgs(
        logdir=names,
        host=host,
        port=port,
        language=config.lang,
        telemetry=False,
        cache_timeout=config.refresh,
        component_tabs=list(TABS),
    )
    # The profiler has no tab here, but a thread that keeps the process from ending.
    with patch.object(visualdl_app, "create_profiler_api_call", return_value=None):
        app, turn = visualdl_app.create_app(settings), threading.Lock()

    def answer_in_turn(environ: Any, start_response: Any) -> Any:
        with turn:
            return app(environ, start_response)

    return make_server(host, port, answer_in_turn, threaded=True, fd=listener.fileno())


def _serve(server: Any) -> None:
    """Serve until a signal; the handlers are set after VisualDL has set its own, which kill."""

    def stop(number: int, frame: object) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()  # it waits for this thread

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.serve_forever()
    finally:
        server.server_close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(listener: socket.socket, config: BoardConfig, names: List[str]) -> None:
    address = address_of(listener)
    if config.host not in LOOPBACK:
        logger.warning("%s can be seen by anyone who reaches it: there is no password", address)
    logger.info("%s: %s", counted(len(names), "run"), ", ".join(names))
    logger.info("open %s%s; Ctrl-C ends it", address, FIRST_PAGE)


def _follow(records: BoardRecords, refresh: float, stopped: threading.Event) -> None:
    while not stopped.wait(refresh):
        try:
            records.follow()
        except OSError as error:
            logger.warning("the runs are no longer followed: %s", error)
            return
