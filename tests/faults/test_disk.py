"""Full or read-only disks, disks out of inodes, and file size limits.

python test_disk.py MOUNT KIND saves on a small disk at MOUNT, in a mount space of its own.
"""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forked import in_child
from launched import PATH

from data_tools.files.errors import MachineError
from data_tools.options.cli import exit_code_of
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.world import World


def save(folder, step, files):
    checkpoints = Checkpoints(folder, World(), lambda values: values)
    try:
        checkpoints.save(TrainState(step), {}, files.items(), {})
    finally:
        checkpoints.close()


def newest(folder):
    """The step of the newest checkpoint; no draft is left beside it."""
    checkpoints = Checkpoints(folder, World(), lambda values: values)
    step = checkpoints.newest().step
    checkpoints.close()
    assert not list(checkpoints.folder.glob(".tmp-*"))
    return step


@pytest.mark.parametrize("limit", range(500, 3500, 250))
def test_hitting_a_file_size_limit_keeps_the_last_checkpoint(tmp_path, limit, capfd):
    files = {"a": b"a" * 3000, "b": b"b" * 2000}
    save(tmp_path, 5, files)
    code = in_child(
        lambda: exit_code_of(lambda: save(tmp_path, 10, files)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert code == (5 if limit < 3000 else 0)
    assert ("File too large" in capfd.readouterr().err) == (code == 5)
    assert newest(tmp_path) == (5 if code else 10)


@pytest.mark.parametrize("kind", ["full", "inodes", "read-only"])
def test_a_failed_disk_write_keeps_the_previous_checkpoint(tmp_path, kind):
    inodes = 40 if kind == "inodes" else 1000
    mount = f"mount -t tmpfs -o size=2m,nr_inodes={inodes} none {tmp_path}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting a disk needs root")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && {sys.executable} {__file__} {tmp_path} {kind}"],
        env={"PYTHONPATH": PATH, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


LARGE = {"a": b"a" * 300_000, "b": b"b" * 200_000}


def error_of_save(out):
    """The error of saving step 10, as words; empty: it was saved."""
    try:
        save(out, 10, LARGE)
        return ""
    except MachineError as error:
        return str(error)


def fill(mount, out):
    saved = 0
    for budget in range(0, 600_000, 12_000):
        room = os.statvfs(mount)
        (mount / "filler").write_bytes(b"f" * max(0, room.f_bavail * room.f_frsize - budget))
        error = error_of_save(out)
        assert newest(out) == (5 if error else 10), (budget, error)
        assert not error or "make room" in error or "free space" in error, error
        saved += not error
        (mount / "filler").unlink()
        if not error:
            shutil.rmtree(out / "checkpoints" / "step_00000010")
    assert 0 < saved < 50, saved


def take_inodes(mount, out):
    while os.statvfs(mount).f_favail > 2:
        (mount / f"filler{os.statvfs(mount).f_favail}").touch()
    assert "no free inodes" in error_of_save(out)
    assert newest(out) == 5


def forbid_writing(mount, out):
    for option, reason in (("ro", "Read-only file system"), ("rw", None)):
        subprocess.run(["mount", "-o", f"remount,{option}", "none", str(mount)], check=True)
        assert reason is None or reason in error_of_save(out)
    assert newest(out) == 5


if __name__ == "__main__":
    mount = Path(sys.argv[1])
    save(mount / "out", 5, LARGE)
    {"full": fill, "inodes": take_inodes, "read-only": forbid_writing}[sys.argv[2]](mount, mount / "out")
