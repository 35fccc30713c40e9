"""Actions in a forked child that dies, by kill -9, just before its n-th change of a file."""

import os
import signal
import sys
import traceback

# What Python reports of changes of files; writing and fsync it does not, so fsync is wrapped below.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.truncate"}


def in_child(action, prepare=lambda: None):
    """Run ``action`` in a fork of this process: its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            prepare()
            code = action() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_before(change):
    """In a child: kill this process before the ``change``-th change, counted from 1."""
    done = 0

    def count():
        nonlocal done
        done += 1
        if done == change:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, arguments):
        if event in CHANGES or (event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)):
            count()

    fsync = os.fsync

    def counted_fsync(descriptor):
        count()
        fsync(descriptor)

    os.fsync = counted_fsync
    sys.addaudithook(hook)


def killed_everywhere(action, before, after):
    """Kill ``action`` before each of its changes in turn: ``before()`` and ``after(change)`` frame each.

    Returns how many changes there were.
    """
    change = 0
    while True:
        change += 1
        before()
        code = in_child(action, lambda: kill_before(change))  # noqa: B023 - run at once
        assert code in (0, -signal.SIGKILL), f"change {change}: exit code {code}"
        after(change)
        if code == 0:
            return change - 1
