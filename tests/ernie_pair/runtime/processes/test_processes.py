"""How processes end, meet, are stopped and read ahead."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from children import python
from waiting import until

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import Stopped
from ernie_pair.core.process_pool import ReadAhead
from ernie_pair.runtime.processes import child_command
from ernie_pair.runtime.processes.stop_signals import SIGNAL_WEIGHTS, StopSignals
from ernie_pair.training.process_group import StoreBarrier

# --- exit codes, read without taking Popen's lock


@pytest.mark.parametrize(
    "last, code",
    [("", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 15)", -15)],
)
def test_the_exit_code_equals_that_of_wait(last, code):
    process = subprocess.Popen([sys.executable, "-c", f"import os, sys; {last}"])
    until(lambda: child_command.exit_code_of(process) is not None)
    assert child_command.exit_code_of(process) == code and process.returncode is None
    assert process.wait() == code and child_command.exit_code_of(process) == code


# Stands in for a C++ destructor that aborts. What C prints stays buffered until the process exits.
END = """
import ctypes, sys
from ernie_pair.runtime.processes.stop_signals import skip_destructors

library = ctypes.CDLL(None)
if {skips}:
    skip_destructors()
    skip_destructors()
library.on_exit(library.abort, None)
library.printf(b"by C, ")
print("by Python")
sys.exit({code})
"""


@pytest.mark.parametrize("skips, code, ended", [(True, 0, 0), (True, 3, 3), (False, 0, -6)])
def test_a_process_that_would_abort_at_exit_keeps_its_code(skips, code, ended):
    done = python("-c", END.format(skips=skips, code=code))
    assert done.returncode == ended
    assert not skips or ("by C" in done.stdout and "by Python" in done.stdout)


# --- meetings through a store, and the sockets of a manager


class Store:
    """Like Paddle's store: ``add`` returns the sum so far."""

    def __init__(self):
        self.sums, self.lock = Counter(), threading.Lock()

    def add(self, key, number):
        with self.lock:
            self.sums[key] += number
            return self.sums[key]


def test_no_process_continues_before_the_last_one_arrives():
    store, went_on = Store(), []

    def meet(rank):
        place = StoreBarrier(store, 3, "test")
        for meeting in range(4):
            time.sleep(0.03 * (rank == meeting % 3))
            store.add(f"came to {meeting}", 1)
            place.wait_for_all()
            went_on.append(store.add(f"came to {meeting}", 0))

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert went_on == [3] * 12


MANAGER = """
import sys, tempfile
from multiprocessing import Manager
from ernie_pair.runtime.processes.sockets import shorten_socket_names
if sys.argv[1] == "short":
    shorten_socket_names()
with Manager() as manager:
    print(dict(manager.dict(told=1)), tempfile.mkdtemp())
"""


@pytest.mark.parametrize("word, length", [("short", 1), ("short", 100), ("long", 100)])
def test_a_manager_starts_and_tempfile_keeps_its_folder(tmp_path, word, length):
    """However long the path of the temporary folder is, where without shortening it would fail."""
    folder = tmp_path / ("x" * length)
    folder.mkdir()
    done = python("-c", MANAGER, word, TMPDIR=str(folder))
    if word == "long":
        assert done.returncode == 1 and done.stderr.strip().endswith("EOFError")
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{{'told': 1}} {folder}/")
    assert [path.name for path in folder.iterdir()] == [done.stdout.strip().rpartition("/")[2]]


# --- signals


def kill(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_a_signal_before_the_first_step_ends_the_run_at_once(number, code, capsys):
    def run():
        try:
            with StopSignals():
                kill(number)
        finally:
            kill(number)  # once more on the way out

    assert exit_code_of(run) == code
    assert capsys.readouterr().err == (
        f"stopped by {number.name} before the first step; run the same command to continue\n"
    )


def test_a_signal_that_a_library_renamed_stops_the_run():
    with pytest.raises(Stopped) as stopped, StopSignals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except Stopped:
            raise ImportError("initialization failed") from None
    assert stopped.value.exit_code == 143


@pytest.mark.parametrize("number", SIGNAL_WEIGHTS)
def test_signals_in_the_loop_are_recorded_and_the_first_counts(number):
    before = {number: signal.getsignal(number) for number in SIGNAL_WEIGHTS}
    with StopSignals() as signals:
        assert all(signal.getsignal(number) != handler for number, handler in before.items())
        signals.finish_the_step()
        assert signals.local() == 0
        for each in [number] * 6 + list(SIGNAL_WEIGHTS):
            kill(each)
        assert signals.local() == SIGNAL_WEIGHTS[number]
    assert {number: signal.getsignal(number) for number in SIGNAL_WEIGHTS} == before


LOADING = """
import os, signal, sys
from ernie_pair.__main__ import main

module, *sys.argv[1:] = sys.argv[1:]

def hook(event, arguments):
    if event == "import" and arguments[0] == module:
        os.kill(os.getpid(), signal.SIGTERM)

sys.addaudithook(hook)
main()
"""


@pytest.mark.parametrize("module", ["numpy.linalg", "paddle.nn"])
def test_a_signal_while_paddle_loads_is_one_line_and_143(module):
    """Paddle, once it is loaded, would answer with a trace, on whichever thread takes the signal."""
    words = "train --model_name_or_path m --train_file t --dev_file d --output_dir o".split()
    done = subprocess.run([sys.executable, "-c", LOADING, module, *words], capture_output=True, text=True)
    assert done.returncode == 143
    assert done.stderr == "stopped by SIGTERM while it was loading; run the same command to continue\n"


def test_a_signal_in_the_last_step_stops_what_comes_next():
    """A series, or the program that has called; a command has done all it was asked for, and ends with 0."""

    def last_step(**settings):
        with StopSignals(**settings) as signals:
            signals.finish_the_step()
            kill(signal.SIGTERM)

    line = "^stopped by SIGTERM between two runs; run the same"
    with pytest.raises(Stopped, match=line) as stopped, StopSignals(when="between two runs"):
        last_step()
        pytest.fail("the next run begins")
    assert stopped.value.exit_code == 143
    with pytest.raises(Stopped, match="after the last step, saved"):
        last_step(goes_on=True)
    assert exit_code_of(last_step) == 0


def test_a_signal_does_not_interrupt_a_blocking_system_call():
    ours, theirs = os.pipe()

    def signal_then_answer():
        for _ in range(3):  # as Paddle's launcher does
            time.sleep(0.05)
            kill(signal.SIGTERM)
        time.sleep(0.05)
        os.write(theirs, b"x")

    received = ctypes.create_string_buffer(1)
    with StopSignals() as signals:
        signals.finish_the_step()
        threading.Thread(target=signal_then_answer).start()
        # Not os.read, which retries after a signal where C++ code does not.
        assert ctypes.CDLL(None).read(ours, received, 1) == 1 and received.raw == b"x"
        assert signals.local() == SIGNAL_WEIGHTS[signal.SIGTERM]
    os.close(ours)
    os.close(theirs)


# --- a thread that makes the next step's batches


class Source:
    """Yields [0], [1], ...; records which thread asked for what, and whether it was closed."""

    def __init__(self, count, error_at=None):
        self.count, self.error_at, self.asked, self.is_closed = count, error_at, [], False

    def __iter__(self):
        try:
            for number in range(self.count):
                self.asked.append((number, threading.current_thread().name))
                if number == self.error_at:
                    raise OSError(f"item {number}")
                yield [number]
        finally:
            self.is_closed = True


def doubled(item):
    return [2 * number for number in item]


def is_reading():
    return any(thread.name == "read ahead" for thread in threading.enumerate())


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_item_arrives_once_in_order_and_placed(count):
    with ReadAhead(Source(count), doubled) as items:
        assert list(items) == [[2 * number] for number in range(count)]
    assert not is_reading()


def test_the_first_item_is_made_here_and_the_next_in_a_thread():
    source = Source(100)
    with ReadAhead(source, doubled) as items:
        assert next(items) == [0] and source.asked[0] == (0, threading.current_thread().name)
        until(lambda: len(source.asked) == 3)  # one that is waiting, and the one after it
        assert {name for _, name in source.asked[1:]} == {"read ahead"}
        assert next(items) == [2]
        until(lambda: [number for number, _ in source.asked] == [0, 1, 2, 3])
    assert not is_reading() and source.is_closed and len(source.asked) == 4  # left early


@pytest.mark.parametrize("error_at", [0, 1, 4])
def test_an_error_is_raised_in_place_of_its_item(error_at):
    seen = []
    with pytest.raises(OSError, match=f"item {error_at}"), ReadAhead(Source(9, error_at), doubled) as items:
        for item in items:
            seen.append(item)
    assert seen == [[2 * number] for number in range(error_at)] and not is_reading()


def test_an_error_while_placing_is_raised_for_that_item():
    with pytest.raises(ZeroDivisionError), ReadAhead(Source(5), lambda item: [1 // (item[0] - 2)]) as items:
        assert list(zip(range(2), items))
        next(items)
