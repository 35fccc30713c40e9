"""Plant one fault at a time in a copy of the project, and print those that no test of their room finds.

python scripts/plant_faults.py --room ernie_pair/pair/targets data_tools/samples --count 20 --seed 0

A fault changes one operator, comparison, constant, axis, bound or call, or removes one statement. It is shown
to the tests in the room's folder of tests: first those that reach its line, then the rest of the files that
reach its file or start processes. Faults that change no result are in equal_faults.yaml. Own code: mutmut
changes bodies of functions alone, behind wrappers that hide signatures; cosmic-ray imports Paddle for each
fault anew; neither removes statements or draws a sample. Exit code 1: some fault was not found.
"""

import argparse
import ast
import copy
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
EQUAL = Path(__file__).with_name("equal_faults.yaml")
BASELINES = Path(tempfile.gettempdir()) / f"plant_faults_{os.getuid()}"
NOT_COPIED = (".git", ".venv*", "output", ".*_cache", ".hypothesis", "build", "dist")
PRELOADED = ("ernie_pair", "paddle", "sklearn.metrics", "scipy.stats", "scipy.optimize")
OPERATORS = """Add Sub,Sub Add,Mult Div,Div Mult,FloorDiv Div,Mod FloorDiv,Pow Mult,BitAnd BitOr,BitOr BitAnd,And Or,
Or And,LShift RShift,RShift LShift,Lt LtE,LtE Lt,Gt GtE,GtE Gt,Eq NotEq,NotEq Eq,Is IsNot,IsNot Is,In NotIn,NotIn In"""
OTHER = {getattr(ast, one): getattr(ast, new)() for one, new in map(str.split, OPERATORS.split(","))}
NAMES = "min max,argmin argmax,minimum maximum,sum mean,any all,ceil floor,zeros ones,round int".split(",")
OTHER_NAME = {one: new for pair in map(str.split, NAMES) for one, new in (pair, pair[::-1])}
OF_WORDS = ("say", "warn", "warning", "info", "Error", "option")  # calls whose arguments are read by people
COUNTED = ("planted", "found", "equal", "survived")


class Fault(NamedTuple):
    """A changed file; ``lines``: first and last of the statement; ``name``: the line before and after."""

    file: str
    source: bytes
    lines: Tuple[int, int]
    name: str


def faults_in(file: str, source: bytes) -> List[Fault]:
    """Return every fault that can be planted in a file of Python."""
    starts, found = [0], {}
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, new, statement in _changes(ast.parse(source), None):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        changed = source[:begin] + new.encode() + source[end:]
        first, last = source.rfind(b"\n", 0, begin) + 1, source.find(b"\n", end)
        lines = source[first:last], changed[first : last + len(changed) - len(source)]
        name = " -> ".join(" ".join(text.decode().split()) for text in lines)
        body = getattr(statement, "body", None)
        stop = max(statement.lineno, body[0].lineno - 1) if body else statement.end_lineno
        found[changed] = Fault(file, changed, (statement.lineno, stop), name)
    return list(found.values())


def _changes(node: Any, statement: Any) -> Iterator[Tuple[Any, str, Any]]:
    """Yield a node, the text that takes its place, and the statement of which it is a part."""
    if isinstance(node, ast.stmt):
        statement = node
        targets = getattr(node, "targets", [node])
        is_call = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _is_of_words(node.value)
        )
        is_stored = all(isinstance(target, (ast.Subscript, ast.Attribute)) for target in targets)
        if is_call or is_stored or isinstance(node, (ast.AugAssign, ast.Raise, ast.Break, ast.Continue)):
            yield node, "pass", node
    if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)) or _is_of_words(
        node
    ):
        return
    for new in _replacements(node):
        yield node, new, statement
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name in ("annotation", "returns", "decorator_list") or not isinstance(child, ast.AST):
                continue
            if name == "test" and isinstance(child, (ast.Name, ast.Attribute, ast.Call)):
                yield child, f"not {ast.unparse(child)}", statement
            if getattr(child, "arg", None) == "axis" and isinstance(child, ast.keyword):
                yield child.value, f"1 - abs({ast.unparse(child.value)})", statement
            else:
                yield from _changes(child, statement)


def _is_of_words(node: Any) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", ""))).endswith(OF_WORDS)


def _replacements(node: Any) -> Iterator[str]:
    """Yield what may stand in the place of an expression, or of an assignment like ``a += b``."""
    other, value, kind = copy.copy(node), getattr(node, "value", None), type(getattr(node, "op", None))
    if isinstance(node, ast.UnaryOp):
        yield f"({ast.unparse(node.operand)})"
    elif kind in OTHER:
        other.op = OTHER[kind]
        parts = map(ast.unparse, filter(None, [getattr(node, "left", value), getattr(node, "right", None)]))
        if not any(part.startswith(("'", '"', "f'", 'f"')) for part in parts):  # a text is not added up
            yield ast.unparse(other) if isinstance(node, ast.AugAssign) else f"({ast.unparse(other)})"
    elif isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            other.ops = [*node.ops[:place], OTHER[type(op)], *node.ops[place + 1 :]]
            yield ast.unparse(other)
    elif isinstance(node, ast.Constant) and isinstance(value, bool):
        yield str(not value)
    elif isinstance(node, ast.Constant) and isinstance(value, (int, float)):
        yield repr(value + 1 if isinstance(value, int) else value * 0.9 or 0.1)
    elif (
        isinstance(node, ast.Slice) and node.upper and not isinstance(node.upper, (ast.Constant, ast.UnaryOp))
    ):
        other.upper = ast.BinOp(node.upper, ast.Add(), ast.Constant(1))
        yield ast.unparse(other)
    elif isinstance(node, ast.Attribute) and node.attr in OTHER_NAME:
        yield f"{ast.unparse(value)}.{OTHER_NAME[node.attr]}"
    elif isinstance(node, ast.Name) and node.id in ("min", "max", "any", "all", "round"):
        yield OTHER_NAME[node.id]


class Tests:
    """A plugin of pytest: it runs the tests in ``order``, or all, of which it notes what they reach.

    That is {test: [seconds, whether it starts processes, {file: lines}]} for the files of ``files``.
    """

    def __init__(self, files: List[str], order: Optional[Dict[str, int]] = None):
        self.files, self.order = {os.path.abspath(file): file for file in files}, order
        self.reached: Dict[str, Any] = {}
        self.failed: List[str] = []
        self.now: List[Any] = [0.0, False, {}]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: List[Any]) -> None:
        order = {item.nodeid: at for at, item in enumerate(items)} if self.order is None else self.order
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda item: order[item.nodeid])
        sys.addaudithook(self._note_process)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        begin, self.reached[item.nodeid] = time.monotonic(), [0.0, False, {}]
        self.now = self.reached[item.nodeid]
        if self.order is None:
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
        file = self.files.get(frame.f_code.co_filename)
        if file is None:
            return None
        self.now[2].setdefault(file, set()).add(frame.f_lineno)
        return self._trace


class Room:
    """A folder of the package in ``copy``, a copy of the project, and what its tests reach of it."""

    def __init__(self, copy: Path, room: str):
        self.copy, self.writes, folder = copy, 0, copy / "tests" / room
        while not list(folder.glob("test_*.py")):
            folder = folder.parent
        listed = (copy / room).glob("*.py"), folder.glob("test_*.py")
        self.files, tests = (sorted(str(path.relative_to(copy)) for path in paths) for paths in listed)
        self.faults = [one for file in self.files for one in faults_in(file, (copy / file).read_bytes())]
        contents = b"".join((copy / file).read_bytes() for file in [*self.files, *tests])
        kept = BASELINES / f"{hashlib.sha256(contents).hexdigest()}.json"
        if not kept.exists():
            code, failed, reached = self._run(tests, None, 3600)
            print(*(f"left out, fails without a fault: {test}" for test in failed), sep="\n")
            if not reached:
                sys.exit(f"the tests of {room} end with {code}:\n{(copy / 'log.txt').read_text()[-2000:]}")
            BASELINES.mkdir(exist_ok=True)
            kept.write_text(json.dumps({test: seen for test, seen in reached.items() if test not in failed}))
        self.reached: Dict[str, Any] = json.loads(kept.read_text())

    def _run(
        self, tests: List[str], order: Optional[Dict[str, int]], seconds: float
    ) -> Tuple[Any, List[str], Any]:
        """Return pytest's exit code of a fork, None past the time, the tests that failed, and what all reach."""
        seen = self.copy / "seen.json"
        seen.write_text("[[], {}]")
        pid = os.fork()
        if pid == 0:
            try:
                self._be_a_test_run()
                plugin = Tests(self.files, order)
                code = int(pytest.main([*tests, "-p", "no:cacheprovider", *["-x"] * bool(order)], [plugin]))
                seen.write_text(json.dumps([plugin.failed, plugin.reached], default=sorted))
                os._exit(code)
            finally:
                os._exit(70)
        until, waited = time.monotonic() + seconds, (0, 0)
        while waited[0] == 0 and time.monotonic() < until:
            time.sleep(0.05)
            waited = os.waitpid(pid, os.WNOHANG)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(waited[1]) if waited[0] else (os.waitpid(pid, 0), None)[1]
        return code, *json.loads(seen.read_text())

    def _be_a_test_run(self) -> None:
        os.setsid()
        os.chdir(self.copy)
        shutil.rmtree("tmp", ignore_errors=True)
        os.mkdir("tmp")
        os.environ.update(PYTHONPATH=str(self.copy), TMPDIR=str(self.copy / "tmp"))
        tempfile.tempdir = None
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        resource.setrlimit(resource.RLIMIT_DATA, (half, half))
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)

    def order_for(self, fault: Fault) -> Dict[str, int]:
        """Return the places of the tests that a fault is shown to."""
        first, last = fault.lines
        exact, files, seconds = set(), set(), defaultdict(float)  # type: ignore[var-annotated]
        for test, (took, starts, lines) in self.reached.items():
            file, reached = test.split("::")[0], lines.get(fault.file, ())
            seconds[file] += took
            exact |= {test} if any(first <= line <= last for line in reached) else set()
            files |= {file} if reached or starts else set()
        shown = [test for test in self.reached if not exact or test.split("::")[0] in files]
        rank = {
            test: (
                test not in exact,
                fault.file not in seen[2],
                seconds[test.split("::")[0]],
                test.split("::")[0],
            )
            for test, seen in self.reached.items()
        }
        return {test: number for number, test in enumerate(sorted(shown, key=rank.__getitem__))}

    def find(self, fault: Fault) -> str:
        """Return the test that finds a fault, or ''."""
        order, path = self.order_for(fault), self.copy / fault.file
        seconds, source = 60 + 3 * sum(self.reached[test][0] for test in order), path.read_bytes()
        for contents in (fault.source, source):
            path.write_bytes(contents)
            self.writes += 1
            os.utime(path, (self.writes, self.writes))  # no bytecode of another version is taken for this one
            if contents is fault.source:
                files = list(dict.fromkeys(test.split("::")[0] for test in order))
                code, failed, _ = self._run(files, order, seconds)
        return "" if code == 0 else next(iter(failed), f"exit code {code}, none: {seconds:.0f} s have passed")


def preload(copy: Path) -> None:
    """Import large libraries, which forks then have; the project is imported anew by each of them."""
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path).resolve() != ROOT)]
    for name in PRELOADED:
        with suppress(ImportError):
            import_module(name)
    for name in [name for name in sys.modules if name.split(".")[0] in ("ernie_pair", "data_tools")]:
        del sys.modules[name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Plant faults, and print those that no test of their room finds."
    )
    parser.add_argument("--room", nargs="+", required=True, help="folders of the package")
    parser.add_argument("--count", type=int, default=20, help="faults of each room")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--minutes", type=float, default=30, help="no fault of a room begins later")
    parser.add_argument("--only", default="", help="only faults whose line, before or after, has this text")
    asked = parser.parse_args()
    table, equal = {}, yaml.safe_load(EQUAL.read_text(encoding="utf-8")) or {}
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        copy = Path(folder) / "c"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        preload(copy)
        for name in asked.room:
            room, counts = Room(copy, name.rstrip("/")), dict.fromkeys(COUNTED, 0)
            faults, until = (
                [one for one in room.faults if asked.only in one.name],
                time.monotonic() + 60 * asked.minutes,
            )
            for fault in random.Random(asked.seed).sample(faults, min(asked.count, len(faults))):
                if time.monotonic() > until:
                    break
                found = "" if fault.name in equal.get(fault.file, ()) else room.find(fault)
                outcome = (
                    "found" if found else "equal" if fault.name in equal.get(fault.file, ()) else "survived"
                )
                counts["planted"] += 1
                counts[outcome] += 1
                print(f"{outcome:<9}{fault.file}:{fault.lines[0]}: {fault.name}  {found}", flush=True)
            table[name] = counts
    print(f"{'room':<36}", *(f"{column:>9}" for column in COUNTED))
    for name, counts in table.items():
        print(f"{name:<36}", *(f"{number:>9}" for number in counts.values()))
    sys.exit(any(counts["survived"] for counts in table.values()))


if __name__ == "__main__":
    main()
