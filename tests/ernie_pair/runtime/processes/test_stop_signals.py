import ctypes
import os
import signal
import threading
import time

import pytest

from data_tools.files.errors import Stopped
from data_tools.options.cli import exit_code_of
from ernie_pair.runtime.processes.stop_signals import SIGNAL_WEIGHTS, StopSignals


@pytest.fixture(autouse=True)
def handlers_as_before():
    before = {number: signal.getsignal(number) for number in SIGNAL_WEIGHTS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


def test_except_exception_does_not_swallow_a_stop():
    with pytest.raises(Stopped), StopSignals():
        try:
            kill(signal.SIGTERM)
        except Exception:
            pytest.fail("swallowed")


@pytest.mark.parametrize("number", SIGNAL_WEIGHTS)
def test_repeated_signals_in_the_loop_are_only_recorded(number):
    with StopSignals() as signals:
        signals.finish_the_step()
        assert signals.local() == 0
        for _ in range(6):
            kill(number)
        assert signals.local() == SIGNAL_WEIGHTS[number]


def test_the_first_signal_is_the_one_that_counts():
    with StopSignals() as signals:
        signals.finish_the_step()
        kill(signal.SIGINT)
        kill(signal.SIGTERM)
        assert signals.local() == SIGNAL_WEIGHTS[signal.SIGINT]


def test_the_previous_handlers_are_restored():
    before = {number: signal.getsignal(number) for number in SIGNAL_WEIGHTS}
    with StopSignals():
        assert all(signal.getsignal(number) != handler for number, handler in before.items())
    assert {number: signal.getsignal(number) for number in SIGNAL_WEIGHTS} == before


def test_a_signal_does_not_interrupt_a_blocking_system_call():
    ours, theirs = os.pipe()

    def signal_then_answer():
        for _ in range(3):  # as Paddle's launcher does
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
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
