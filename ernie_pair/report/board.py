"""ernie-pair board OUT...: VisualDL on the curves of runs, including unfinished ones."""

import logging
import os
import signal
import socket
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Literal, Sequence, Tuple
from unittest.mock import patch

from ernie_pair.checkpoint.run_folder import EVENTS
from ernie_pair.core.cli.options import Options, data_option, devices_option, evaluation_option
from ernie_pair.core.errors import counted
from ernie_pair.core.installation import import_optional
from ernie_pair.report.plot_runs import (
    LAST,
    RUNS_HELP,
    Run,
    compared_flags,
    curves_of,
    format_flag,
    metrics_of,
    open_runs,
)
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.sockets import LOOPBACK, address_of, listen
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.run_log import read_all_events
from ernie_pair.training.step_metrics import PROBABILITY_COUNTS, draw_counts, parse_counts

QUALITY, WORK = "metrics", "steps and machine"  # groups of charts
REFRESH_SECONDS = 5.0  # between checks of the runs for new points
HPARAM_METRICS = 6  # shown beside the flags
JUDGED = ("valid", "test", "train")  # splits to compare the runs by, the first one that exists


class BoardRecords:
    """The records of ``runs`` below ``folder``; `follow` adds what an unfinished run has logged since."""

    def __init__(self, folder: Path, runs: Sequence[Run]):
        self.folder, self.runs = folder, list(runs)
        self._writers: Dict[Tuple[int, str], Any] = {}
        self._drawn: Dict[Tuple[int, str, str], int] = {}  # the last step of a curve
        self._sizes = [_size_of(run) for run in runs]
        for number, run in enumerate(self.runs):
            self._show_flags(number, run)
        self._draw(metrics_of(self.runs))

    def follow(self) -> bool:
        """Draw what was logged since the last time, and return whether there was anything."""
        sizes = [_size_of(run) for run in self.runs]
        if sizes == self._sizes:
            return False
        self._sizes = sizes
        self.runs = [run._replace(events=read_all_events(run.folder / EVENTS)) for run in self.runs]
        self._draw(metrics_of(self.runs))
        return True

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()

    def _draw(self, metrics: Sequence[str]) -> None:
        """Draw the new points of the curves, and the counts of the probabilities of new evaluations."""
        for metric, curve in ((name, curve) for name in metrics for curve in curves_of(self.runs, name)):
            key = (curve.run, curve.split, metric)
            writer, last = self._writer(curve.run, curve.split), self._drawn.get(key, -1)
            for step, value in zip(curve.steps, curve.values):
                if step > last:
                    writer.add_scalar(tag_of(metric), value, step)
                    self._drawn[key] = step
        for number, event in ((number, e) for number, run in enumerate(self.runs) for e in run.events):
            split, step = event["split"], event["step"]
            counts = parse_counts(event.get(PROBABILITY_COUNTS))
            key = (number, split, PROBABILITY_COUNTS)
            if counts is not None and step > self._drawn.get(key, -1):
                draw_counts(self._writer(number, split), QUALITY, counts, step)
                self._drawn[key] = step
        for writer in self._writers.values():
            writer.flush()

    def _show_flags(self, number: int, run: Run) -> None:
        """Write the flags of a run, once: VisualDL shows them beside the metrics of one of its splits."""
        splits = {event["split"] for event in run.events}
        split = next((name for name in JUDGED if name in splits), sorted(splits)[0] if splits else "train")
        writer = self._writer(number, split)
        words = (f"{name} {format_flag(value)}" for name, value in run.flags.items())
        writer.add_text("flags", ";  ".join(words), step=run.step)
        judged = [name for name in metrics_of([run]) if any(c.split == split for c in curves_of([run], name))]
        flags = _parameters_of(run, self.runs)
        if flags:
            writer.add_hparams(flags, [tag_of(name) for name in judged[:HPARAM_METRICS]])

    def _writer(self, number: int, split: str) -> Any:
        if (number, split) not in self._writers:
            folder = self.folder / self.runs[number].name / split
            self._writers[number, split] = import_optional("visualdl").LogWriter(str(folder))
        return self._writers[number, split]


def tag_of(metric: str) -> str:
    """Return the name of a metric's chart, GROUP/METRIC."""
    return f"{WORK if metric in LAST else QUALITY}/{metric}".replace("%", "_")


def _parameters_of(run: Run, runs: Sequence[Run]) -> Dict[str, Any]:
    """Return the flags of ``run`` that differ, or all numbers of a single run, each of one type in all."""
    values = {name: [each.flags.get(name) for each in runs] for name in compared_flags(runs)}
    shown: Dict[str, Any] = {}
    for name, each in values.items():
        if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in each):
            shown[name] = run.flags[name]
        elif len(runs) > 1:
            shown[name] = format_flag(run.flags.get(name))
    return shown


def _size_of(run: Run) -> Tuple[int, int]:
    try:
        status = (run.folder / EVENTS).stat()
    except OSError:
        return (0, 0)
    return status.st_size, status.st_mtime_ns


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BoardConfig(Options):
    """Show runs in VisualDL until Ctrl-C: one chart per metric, with training and validation of all runs.

    It connects to no other machine. Runs are only read, and are followed while they are still going on.
    """

    EXAMPLE = "output/a output/b --lang zh"
    NEEDS = {"visualdl": ""}

    outs: List[str] = data_option(help=RUNS_HELP, positional=True, reads="FOLDER")
    lang: Literal["en", "zh"] = evaluation_option("en", help="the language of the page")
    host: str = devices_option(
        "127.0.0.1", help="address to listen on; 0.0.0.0: all interfaces, reachable from other machines"
    )
    port: int = devices_option(8040, help="port to listen on; 0: any free port", at_least=0, at_most=65535)


def board(config: BoardConfig) -> None:
    """Serve VisualDL on the runs until SIGTERM or SIGINT, then remove the records made for it.

    Raises InputError for a folder without a run or if visualdl is not installed, MachineError for a port
    that is not available.
    """
    start_console(World())
    import_optional("visualdl")
    runs = open_runs(config.outs)
    with listen(config.host, config.port) as listener, tempfile.TemporaryDirectory(prefix="board-") as folder:
        records, stopped = BoardRecords(Path(folder), runs), threading.Event()

        def follow() -> None:
            try:
                while not stopped.wait(REFRESH_SECONDS):
                    records.follow()
            except OSError as error:
                logger.warning("the runs are no longer followed: %s", error)

        follower = threading.Thread(target=follow, daemon=True)
        try:
            names = [run.name for run in runs]
            before = Path.cwd()
            os.chdir(folder)  # VisualDL shows the paths of its records: these are the names
            try:
                server = _server_of(config, names, listener)
                follower.start()
                address = address_of(listener)
                if config.host not in LOOPBACK:
                    logger.warning("%s can be seen by anyone who reaches it: there is no password", address)
                logger.info("%s: %s", counted(len(names), "run"), ", ".join(names))
                _serve(server, f"open {address}/app/scalar; Ctrl-C ends it")
            finally:
                os.chdir(before)
        finally:
            stopped.set()
            if follower.ident is not None:
                follower.join()
            records.close()
    logger.info("stopped")


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
    tabs = ["scalar", "histogram", "pr_curve", "text", "hyper_parameters"]
    shown = {"language": config.lang, "telemetry": False, "component_tabs": tabs}
    settings = ParseArgs(logdir=names, host=host, port=port, cache_timeout=REFRESH_SECONDS, **shown)
    # The profiler has no tab here, but a thread that keeps the process from ending.
    with patch.object(visualdl_app, "create_profiler_api_call", return_value=None):
        app, turn = visualdl_app.create_app(settings), threading.Lock()

    def answer_in_turn(environ: Any, start_response: Any) -> Any:
        with turn:
            return app(environ, start_response)

    return make_server(host, port, answer_in_turn, threaded=True, fd=listener.fileno())


def _serve(server: Any, announced: str) -> None:
    """Serve until a signal; the handlers are set after VisualDL has set its own, which kill.

    ``announced``: a line for the log, written when a signal would end it in order.
    """

    def stop(number: int, frame: object) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()  # it waits for this thread

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        logger.info("%s", announced)
        server.serve_forever()
    finally:
        server.server_close()
        for number, handler in before.items():
            signal.signal(number, handler)
