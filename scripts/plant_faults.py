"""Plant one fault at a time in a copy of the project, and print those that no test of their room finds.

python scripts/plant_faults.py --room ernie_pair/pairs/targets data_tools/samples --count 20 --seed 0

A fault changes one operator, constant or call, or removes one statement: see fault_kinds.py. It is shown to
the tests in the room's folder of tests: first those that reach its line, then the rest of the files that
reach its module or start processes. Those that change no result are in equal_faults.yaml. Exit code 1: some
fault survived.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
import yaml
from fault_kinds import Fault, faults_in

ROOT = Path(__file__).resolve().parents[1]
EQUAL = Path(__file__).with_name("equal_faults.yaml")
BASELINES = Path(tempfile.gettempdir()) / f"plant_faults_{os.getuid()}"
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "output", ".*_cache", ".hypothesis", "build", "dist")
PRELOADED = ("ernie_pair", "paddle", "sklearn.metrics", "scipy.stats", "scipy.optimize")
SOURCES = ("data_tools", "ernie_pair", "scripts", "tests")  # any of their files may break a test
COUNTED = ("planted", "found", "equal", "survived")


class Tests:
    """A plugin of pytest: it runs the tests in ``order``; or, without one, all, and notes what they reach.

    ``reached``: {test: [seconds, whether it starts processes, {file: lines}]} for the files of ``files``.
    """

    def __init__(self, files: List[str], order: Any):
        self.files, self.order = {os.path.abspath(file): file for file in files}, order
        self.failed: List[str] = []
        self.reached: Dict[str, Any] = {}
        self.now: List[Any] = [0.0, False, {}]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: List[Any]) -> None:
        sys.addaudithook(self._note_process)
        if self.order is not None:
            items[:] = sorted(
                (i for i in items if i.nodeid in self.order), key=lambda i: self.order[i.nodeid]
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        begin, self.now = time.monotonic(), [0.0, False, {}]
        if self.order is None:
            self.reached[item.nodeid] = self.now
            threading.settrace(self._trace)
            sys.settrace(self._trace)
        yield
        sys.settrace(None)
        self.now[0] = time.monotonic() - begin

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed += [report.nodeid] * report.failed

    pytest_collectreport = pytest_runtest_logreport

    def _note_process(self, event: str, _: Any) -> None:
        self.now[1] |= event in ("subprocess.Popen", "os.fork", "os.posix_spawn")

    def _trace(self, frame: Any, event: str, arg: Any) -> Any:
        if (file := self.files.get(frame.f_code.co_filename)) is None:
            return None
        self.now[2].setdefault(file, set()).add(frame.f_lineno)
        return self._trace


class Room:
    """A folder of the package in ``project``, a copy, and what its tests reach of it."""

    def __init__(self, project: Path, room: str):
        self.project, self.writes, folder = project, 0, project / "tests" / room
        while not list(folder.glob("test_*.py")):
            folder = folder.parent
        paths = sorted((project / room).glob("*.py")), sorted(folder.glob("test_*.py"))
        self.files, tests = ([str(path.relative_to(project)) for path in some] for some in paths)
        self.faults = [one for file in self.files for one in faults_in(file, (project / file).read_bytes())]
        whole = sorted(file for top in SOURCES for file in (project / top).rglob("*.py"))
        contents = room.encode() + b"".join(path.read_bytes() for path in whole)
        kept = BASELINES / f"{hashlib.sha256(contents).hexdigest()}.json"
        if not kept.exists():
            code, failed, reached = self._run(tests, None, 3600)
            if not reached:
                sys.exit(f"the tests of {room} end with {code}:\n{(project / 'log.txt').read_text()[-2000:]}")
            BASELINES.mkdir(exist_ok=True)
            good = {test: seen for test, seen in reached.items() if test not in failed}
            kept.write_text(json.dumps([failed, good]))
        failed, self.reached = json.loads(kept.read_text())
        print(*(f"left out, fails without a fault: {test}\n" for test in failed), sep="", end="")

    def _run(self, tests: List[str], order: Any, seconds: float) -> Any:
        """Return pytest's exit code, None where it did not end, what failed, and what was reached."""
        (self.project / "seen.json").write_text("[null, [], {}]")
        child = multiprocessing.get_context("fork").Process(target=self._test, args=(tests, order))
        child.start()
        assert child.pid is not None
        try:
            child.join(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.join()
        return json.loads((self.project / "seen.json").read_text())

    def _test(self, tests: List[str], order: Any) -> None:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(self.project)
        shutil.rmtree("tmp", ignore_errors=True)
        os.mkdir("tmp")
        os.environ.update(PYTHONPATH=str(self.project), TMPDIR=str(self.project / "tmp"))
        tempfile.tempdir = None
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        resource.setrlimit(resource.RLIMIT_DATA, (half, half))
        with open("log.txt", "wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        plugin = Tests(self.files, order)
        code = pytest.main([*tests, "-p", "no:cacheprovider", *["-x"] * (order is not None)], [plugin])
        seen = json.dumps([int(code), plugin.failed, plugin.reached], default=sorted)
        (self.project / "seen.json").write_text(seen)

    def order_for(self, fault: Fault) -> Dict[str, int]:
        """Return the places of the tests that a fault is shown to."""
        seconds: Counter = Counter()
        exact, files = set(), set()
        for test, (took, starts, lines) in self.reached.items():
            file, reached = test.split("::")[0], lines.get(fault.file, ())
            seconds[file] += took
            exact |= {test for line in reached if fault.lines[0] <= line <= fault.lines[1]}
            files |= {file} if reached or starts else set()
        rank = {}
        for test, seen in self.reached.items():
            file = test.split("::")[0]
            if file in files or not exact:  # a constant may be read by tests that run nothing of its module
                rank[test] = test not in exact, fault.file not in seen[2], seconds[file], file
        return {test: place for place, test in enumerate(sorted(rank, key=rank.__getitem__))}

    def find(self, fault: Fault) -> str:
        """Return the test that finds a fault, or ''."""
        order, path = self.order_for(fault), self.project / fault.file
        source, files = path.read_bytes(), list(dict.fromkeys(test.split("::")[0] for test in order))
        seconds = 60 + 3 * sum(self.reached[test][0] for test in order)
        self.writes += 1
        path.write_bytes(fault.source)
        os.utime(path, (self.writes, self.writes))  # no bytecode of another version is taken for this one
        code, failed, _ = self._run(files, order, seconds)
        path.write_bytes(source)
        return "" if code == 0 else next(iter(failed), f"the tests end with {code}")


def preload(project: Path) -> None:
    """Import large libraries, which forks then have; the project is imported anew by each of them."""
    sys.path[:] = [str(project), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    for name in [name for name in sys.modules if name.split(".")[0] in ("ernie_pair", "data_tools")]:
        del sys.modules[name]


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the faults that no test of their room finds.")
    parser.add_argument("--room", nargs="+", required=True, help="folders of the package")
    parser.add_argument("--count", type=int, default=20, help="faults of each room")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--minutes", type=float, default=30, help="no fault of a room begins later")
    parser.add_argument("--only", default="", help="only faults whose line, before or after, has this text")
    asked = parser.parse_args()
    equal = yaml.safe_load(EQUAL.read_text(encoding="utf-8")) or {}
    table: Dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        project = Path(shutil.copytree(ROOT, Path(folder) / "c", symlinks=True, ignore=NOT_COPIED))
        preload(project)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # not Paddle's, so that the copy is removed
        for name in asked.room:
            room, until = Room(project, name.rstrip("/")), time.monotonic() + 60 * asked.minutes
            faults = [fault for fault in room.faults if asked.only in fault.name]
            counts = table[name] = Counter()
            for fault in random.Random(asked.seed).sample(faults, min(asked.count, len(faults))):
                if time.monotonic() < until:
                    is_equal = fault.key in equal
                    test = "" if is_equal else room.find(fault)
                    outcome = "equal" if is_equal else "found" if test else "survived"
                    counts.update(["planted", outcome])
                    print(f"{outcome:<9}{fault.file}:{fault.lines[0]}: {fault.name}  {test}", flush=True)
    print(f"{'room':<36}", *(f"{column:>9}" for column in COUNTED))
    for name, counts in table.items():
        print(f"{name:<36}", *(f"{counts[column]:>9}" for column in COUNTED))
    sys.exit(any(counts["survived"] for counts in table.values()))


if __name__ == "__main__":
    main()
