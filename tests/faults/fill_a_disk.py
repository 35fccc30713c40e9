"""Saves on a small disk at MOUNT with less and less room; to be run in a mount space of its own."""

import os
import subprocess
import sys
from pathlib import Path

from data_tools.files.errors import MachineError
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.world import World

FILES = {"a": b"a" * 300_000, "b": b"b" * 200_000}
mount, kind = Path(sys.argv[1]), sys.argv[2]
out = mount / "out"


def opened():
    return Checkpoints(out, World(), lambda values: values)


def save(step):
    """The error of saving ``step``, as words; empty: it was saved."""
    try:
        checkpoints = opened()
    except MachineError as error:
        return str(error)
    try:
        checkpoints.save(TrainState(step), {}, FILES.items(), {})
        return ""
    except MachineError as error:
        return str(error)
    finally:
        checkpoints.close()


def newest():
    checkpoints = opened()
    step = checkpoints.newest().step
    checkpoints.close()
    drafts = [path.name for path in (out / "checkpoints").glob(".tmp-*")]
    assert not drafts, drafts
    return step


def leave(free):
    room = os.statvfs(mount)
    (mount / "filler").write_bytes(b"f" * max(0, room.f_bavail * room.f_frsize - free))


assert not save(5)
if kind == "full":
    saved = 0
    for budget in range(0, 600_000, 12_000):
        leave(budget)
        error = save(10)
        assert newest() == (5 if error else 10), (budget, error)
        assert not error or "make room" in error or "free space" in error, error
        saved += not error
        (mount / "filler").unlink()
        if not error:
            subprocess.run(["rm", "-rf", str(out / "checkpoints" / "step_00000010")], check=True)
    assert 0 < saved < 50, saved
    print("budgets at which it was saved:", saved)
elif kind == "inodes":
    while os.statvfs(mount).f_favail > 2:
        (mount / f"filler{os.statvfs(mount).f_favail}").touch()
    error = save(10)
    assert "no free inodes" in error, error
    assert newest() == 5
else:
    subprocess.run(["mount", "-o", "remount,ro", "none", str(mount)], check=True)
    error = save(10)
    assert "Read-only file system" in error, error
    subprocess.run(["mount", "-o", "remount,rw", "none", str(mount)], check=True)
    assert newest() == 5
