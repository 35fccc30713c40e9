"""Notice that another rank is lost or that this one is stuck, and then end this process.

output_dir/ranks/00001.json, written by rank 1 every few seconds:

    {"pid": 4711, "born": 123, "place": "...", "host": "node-1", "counter": 17, "error": ""}

A collective waits for a lost rank for half a minute or for ever; a thread that looks at these files
need not. A rank that has finished removes its file, one that fails leaves the reason in it.
"""

import contextlib
import faulthandler
import itertools
import json
import logging
import os
import re
import socket
import statistics
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from ernie_pair.core.errors import CollectiveError, ErniePairError, LostProcessError, Stopped, message_of
from ernie_pair.core.files.atomic_files import read_regular
from ernie_pair.core.files.atomic_folder import set_aside
from ernie_pair.core.files.json_file import parse_json_object
from ernie_pair.runtime.processes.world import World

HEARTBEATS, HEARTBEAT = "ranks", re.compile(r"\d{5}\.json")
POLL_SECONDS, POLLS_PER_BEAT = 1.0, 4
SILENT_SECONDS = 40.0  # of looking in vain for a new beat, and a rank is lost
# Time for the error of this rank itself to come up: it tells more than that another one is gone.
GRACE_SECONDS, FAST_POLL_SECONDS = 1.5, 0.1
# An update may take ten times the usual, and two minutes in any case; all else hours. The first one has
# nothing to be compared with: on a GPU, where NCCL may hang in it, it is given half an hour.
SLOWEST_UPDATE, MIN_LIMIT, MAX_PAUSE = 10, 120.0, 6 * 3600.0
FIRST_ON_GPU = 1800.0
LATE_BEATS = 3  # of a rank that has been silent for so long it is to be seen whether it is lost
RECORD_BYTES = 1024
RECORD_TYPES = {"pid": int, "born": int, "place": str, "host": str, "counter": int, "error": str}
NOTICE_SECONDS, START_SECONDS = 30, 900

logger = logging.getLogger(__name__)


class Watchdog:
    """A thread that watches this rank and the others from entering to leaving.

    On leaving by an error it gives itself time to find a lost rank. Ends the process with
    LostProcessError's exit code and one line; with the stacks of all threads where something hangs.
    """

    def __init__(self, output_dir: Path, world: World, device: str = "cpu"):
        self.folder, self.world = Path(output_dir) / HEARTBEATS, world
        self._first_limit = FIRST_ON_GPU if device == "gpu" else MAX_PAUSE
        self._record: Dict[str, Any] = {"pid": os.getpid(), "host": socket.gethostname()}
        self._record.update(counter=0, error="", place=_process_namespace(), born=_start_time(os.getpid()))
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._peers: Dict[int, _Peer] = {}
        self._seconds: deque = deque(maxlen=101)  # of the latest updates
        self._started, self._is_paused, self._idle = time.monotonic(), True, 0.0

    def __enter__(self) -> "Watchdog":
        if self.world.size > 1:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_heartbeat()
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._left.set()
        self._thread.join()
        if self.world.size > 1:
            if _may_be_caused_by_peer(error):
                self._find_lost_rank()
            self._leave(error)

    def steps_begin(self) -> None:
        """Note that the first step of this start is under way."""
        self._restart()

    def step_done(self, step: int) -> None:
        """Note that a step has ended."""
        if not self._is_paused:
            self._seconds.append(time.monotonic() - self._started)
        self._restart()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context within which something may take far longer than a step."""
        self._is_paused = True
        try:
            yield
        finally:
            self._restart()

    def _find_lost_rank(self) -> None:
        """End the process by the name of a lost rank; when there is none, the error goes on."""
        # A dead process on this machine shows at once, one elsewhere by its silence alone; so does one that
        # is stopped, and a collective may give up on that before it counts as lost.
        places = {peer.record["place"] for peer in self._peers.values() if peer.record}
        is_elsewhere = not places <= {self._record["place"]}
        seconds, looked = GRACE_SECONDS + is_elsewhere * SILENT_SECONDS, 0.0
        beat_seconds = POLL_SECONDS * POLLS_PER_BEAT
        while looked < seconds or any(peer.is_late for peer in self._peers.values()):
            lost = self._lost(FAST_POLL_SECONDS)
            if lost:
                _end(*lost)
            if looked % beat_seconds < FAST_POLL_SECONDS:
                self._write_heartbeat()
            time.sleep(FAST_POLL_SECONDS)
            looked += FAST_POLL_SECONDS

    def _restart(self) -> None:
        self._started, self._is_paused, self._idle = time.monotonic(), False, 0.0

    def _watch(self) -> None:
        looks = 0
        while not self._left.wait(POLL_SECONDS):
            looks += 1
            self._idle += POLL_SECONDS  # counted, not measured: a machine that sleeps is not stuck
            if self.world.size > 1:
                if looks % POLLS_PER_BEAT == 0:
                    self._write_heartbeat()
                lost = self._lost(POLL_SECONDS)
                if lost and not self._left.wait(GRACE_SECONDS):
                    _end(*lost)
            if self._idle > self._limit():
                _end(f"no step has ended for {self._idle:.0f} s; start the same command again", hangs=True)

    def _limit(self) -> float:
        if self._is_paused:
            return MAX_PAUSE
        if not self._seconds:
            return self._first_limit
        return max(SLOWEST_UPDATE * statistics.median(list(self._seconds)), MIN_LIMIT)

    def _write_heartbeat(self) -> None:
        """Write this rank's record, in place and of one size: a full disk does not stop it."""
        self._record["counter"] += 1
        text = _encode_record(self._record)
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path(self.world.rank), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                os.pwrite(descriptor, text, 0)
            finally:
                os.close(descriptor)

    def _lost(self, seconds: float) -> Optional[Tuple[str, bool]]:
        """Return what is to be said of a rank that is lost, and whether it only hangs.

        ``seconds`` have passed since the last look. They are counted by looks, not measured: a machine or a
        file system that stood still has not been silent.
        """
        for rank in range(self.world.size):
            peer = self._peers.setdefault(rank, _Peer())
            fate = peer.look(self._path(rank), seconds) if rank != self.world.rank else ""
            # One that has ended because this rank told it to: this one is about to say why itself.
            cause = f"rank {self.world.rank}: "  # see `gather_results`
            if fate and not (peer.record and peer.record["error"].startswith(cause)):
                advice = "start the same command again to continue from the newest checkpoint"
                return f"rank {rank} {fate}; {advice}", peer.hangs
        return None

    def _leave(self, error: Optional[BaseException]) -> None:
        if error is None or isinstance(error, Stopped):
            self._path(self.world.rank).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.folder.rmdir()  # by the last one
        else:
            self._record["error"] = " ".join(message_of(error).split())[:400] or type(error).__name__
            self._write_heartbeat()

    def _path(self, rank: int) -> Path:
        return self.folder / f"{rank:05d}.json"


def clear_heartbeats(output_dir: Path) -> None:
    """Remove what the processes of an earlier start left; what else is in the way of theirs is renamed."""
    folder = output_dir / HEARTBEATS
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:  # is it a file as `Watchdog` writes one?
            content = read_regular(path, RECORD_BYTES, follow=False)
            record = parse_json_object(content)
        except (OSError, ValueError):
            content, record = b"", {}
        if len(content) == RECORD_BYTES and {"pid", "born", "place", "counter"} <= record.keys():
            path.unlink()
        elif HEARTBEAT.fullmatch(path.name):
            logger.warning("%s is not of a run; it is now %s", path, set_aside(path).name)
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def all_start(world: World) -> Iterator[None]:
    """Return a context around what returns once every rank has come; it says that it waits, not for ever."""
    here = threading.Event()

    def wait():
        for seconds in itertools.count(NOTICE_SECONDS, NOTICE_SECONDS):
            if here.wait(NOTICE_SECONDS):
                return
            if seconds >= START_SECONDS:
                _end(f"not all {world.size} processes have started within {seconds} s; see their logs", False)
            logger.warning("waiting for all %d processes to start (%d s)", world.size, seconds)

    if world.size > 1:
        threading.Thread(target=wait, name="all_start", daemon=True).start()
    try:
        yield
    finally:
        here.set()


class _Peer:
    """All that has been seen of another rank."""

    def __init__(self):
        self.record: Optional[Dict] = None
        self._silent_for = 0.0

    def look(self, path: Path, seconds: float) -> str:
        """Return why it is lost; empty: it is not, or has never been seen here, or has finished."""
        try:
            record: Any = parse_json_object(read_regular(path, RECORD_BYTES, follow=False))
            if not all(type(record.get(name)) is kind for name, kind in RECORD_TYPES.items()):
                raise ValueError
        except (OSError, ValueError):  # finished; else just being written, or no record
            record = self.record if os.path.lexists(path) else None
        if record is None:
            self.record, self._silent_for = None, 0.0
            return ""
        news = self.record is None or record["counter"] != self.record["counter"]
        self._silent_for = 0.0 if news else self._silent_for + seconds
        self.record = record
        name = f"(pid {record['pid']}) on {record['host']}"
        if record["error"]:
            return f"{name} has ended: {record['error']}"
        if record["place"] == _process_namespace() and _start_time(record["pid"]) != record["born"]:
            return f"{name} is gone"
        if self.hangs:
            return f"{name} has given no sign of life for {self._silent_for:.0f} s"
        return ""

    @property
    def is_late(self) -> bool:
        """Return whether it has been silent for longer than it should be, but is not yet lost."""
        return LATE_BEATS * POLLS_PER_BEAT * POLL_SECONDS <= self._silent_for < SILENT_SECONDS

    @property
    def hangs(self) -> bool:
        return self._silent_for >= SILENT_SECONDS


def _encode_record(record: Dict[str, Any]) -> bytes:
    """Return a record as RECORD_BYTES of JSON, with as much of its error as fits."""
    error = record["error"]
    while True:
        # What no UTF-8 encodes, of a file name, becomes an escape that JSON knows.
        text = json.dumps({**record, "error": error}, ensure_ascii=False).encode("utf-8", "backslashreplace")
        if len(text) <= RECORD_BYTES or not error:
            return text.ljust(RECORD_BYTES)
        error = error[:-1]


def _may_be_caused_by_peer(error: Optional[BaseException]) -> bool:
    """Return whether ``error`` may be due to another rank: a collective raises whatever it likes."""
    if isinstance(error, CollectiveError):
        return True
    if not isinstance(error, Exception) or isinstance(error, ErniePairError):
        return False
    return not (isinstance(error, OSError) and error.errno)


def _end(line: str, hangs: bool) -> None:
    """End the process with one line, and where something hangs the stacks of all threads."""
    shown = "".join(letter if letter.isprintable() else " " for letter in line)
    with contextlib.suppress(OSError):
        os.write(2, f"error: {shown}\n".encode("utf-8", "replace"))
        if hangs:
            faulthandler.dump_traceback(2, all_threads=True)
    os._exit(LostProcessError.exit_code)


def _process_namespace() -> str:
    """Return a text that is equal for processes that see each other's process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> int:
    """Return when the process began, in the kernel's ticks; 0 when it is dead, waited for or not."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if words[0] in "ZX" else int(words[19])
