"""The exit code of a process, read without taking Popen's lock."""

import os
import subprocess
import sys
import time

import pytest

from ernie_pair.runtime.processes.child_command import exit_code_of


class InterruptedLock:
    """A Popen lock with Ctrl-C at the worst moment: acquired, but the caller does not know it."""

    def __init__(self):
        self.is_taken = False

    def acquire(self, blocking=True):
        self.is_taken = True
        raise KeyboardInterrupt


def wait_for_code(process):
    for _ in range(600):
        if exit_code_of(process) is not None:
            return exit_code_of(process)
        time.sleep(0.05)
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    "last, code",
    [("", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 15)", -15)],
)
def test_the_exit_code_equals_that_of_wait(last, code):
    process = subprocess.Popen([sys.executable, "-c", f"import os, sys; {last}"])
    assert wait_for_code(process) == code
    assert process.returncode is None
    assert process.wait() == code and exit_code_of(process) == code


def test_a_process_reaped_elsewhere_counts_as_ended():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitpid(process.pid, 0)
    assert exit_code_of(process) == 0  # as Popen does when the code is unknown


def test_an_interrupt_leaves_no_lock_held():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lock, process._waitpid_lock = process._waitpid_lock, InterruptedLock()
    with pytest.raises(KeyboardInterrupt):
        process.poll()
    assert process._waitpid_lock.is_taken  # the problem that exit_code_of avoids
    process._waitpid_lock = InterruptedLock()
    assert exit_code_of(process) is None and not process._waitpid_lock.is_taken
    process._waitpid_lock = lock
    process.stdin.close()
    assert process.wait() != 0  # input() got end of file
