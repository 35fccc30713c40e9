"""Full or read-only disks, disks out of inodes, and file size limits."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from children import in_child
from places import ROOT

from data_tools.options.cli import exit_code_of
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.world import World

FILES = {"a": b"a" * 3000, "b": b"b" * 2000}


def save(folder, step):
    checkpoints = Checkpoints(folder, World(), lambda values: values)
    try:
        checkpoints.save(TrainState(step), {}, FILES.items(), {})
    finally:
        checkpoints.close()


@pytest.mark.parametrize("limit", range(500, 3500, 250))
def test_hitting_a_file_size_limit_keeps_the_last_checkpoint(tmp_path, limit, capfd):
    save(tmp_path, 5)
    code = in_child(
        lambda: exit_code_of(lambda: save(tmp_path, 10)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    said = capfd.readouterr().err
    assert code == (5 if limit < 3000 else 0) and ("File too large" in said) == (code == 5)
    checkpoints = Checkpoints(tmp_path, World(), lambda values: values)
    assert checkpoints.newest().step == (5 if code else 10)
    assert not list(checkpoints.folder.glob(".tmp-*"))
    checkpoints.close()


@pytest.mark.parametrize("kind", ["full", "inodes", "read-only"])
def test_a_failed_disk_write_keeps_the_previous_checkpoint(tmp_path, kind):
    inodes = 40 if kind == "inodes" else 1000
    mount = f"mount -t tmpfs -o size=2m,nr_inodes={inodes} none {tmp_path}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting a disk needs root")
    program = f"{sys.executable} {Path(__file__).with_name('fill_a_disk.py')} {tmp_path} {kind}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && {program}"],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
