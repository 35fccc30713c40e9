"""Full or read-only disks, disks out of inodes, and file size limits.

python test_disk.py MOUNT KIND saves on a small disk at MOUNT, in a mount space of its own.
"""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked import in_child
from launched import PATH

from ernie_pair.__main__ import _run
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError, MachineError, describe_os_error
from ernie_pair.core.files.atomic_files import naming, published
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


COMMANDS = {
    "make-sample": "--output_dir {out} --documents 40 --pairs 90",
    "prepare": "--input_path {text} --output_prefix {out}/c --vocab_file {vocab}",
    "build vocab": "--input_path {text} --output_file {out}/vocab.txt --vocab_size 500",
    "build text": "--train_file {pairs} --output_file {out}/text.txt",
    "audit pairs": "--train_file {pairs} --output_dir {out}",
    "mine": "--train_file {pairs} --output_file {out}/new.tsv",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_reported_with_its_path(tmp_path, command, capfd):
    rows = [f"问题{number}怎么办\t如何处理问题{number}\t1\n" for number in range(400)]
    text, pairs, vocab = (tmp_path / name for name in ("in.txt", "in.tsv", "vocab.txt"))
    text.write_text("".join(row.replace("\t", "\n") for row in rows), encoding="utf-8")
    pairs.write_text("".join(rows), encoding="utf-8")
    tokens = "[PAD] [CLS] [SEP] [MASK] [UNK] 问 题 怎 么 办 如 何 处 理 0 1 2 3 4 5 6 7 8 9".split()
    vocab.write_text("\n".join([*tokens, *map("##{}".format, range(10))]) + "\n", encoding="utf-8")
    words = COMMANDS[command].format(text=text, pairs=pairs, vocab=vocab, out=tmp_path / "out")
    code = in_child(
        lambda: exit_code_of(lambda: _run([*command.split(), *words.split()])),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)),
    )
    said = capfd.readouterr().err
    assert code == 5 and f"File too large at {tmp_path}/out" in said, said


def test_a_full_standard_output_is_named():
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ernie_pair", "--help"],
            env={**buffered, "PYTHONPATH": PATH},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 5
    assert done.stderr.startswith("error: No space left on device at standard output; check the free space")
    assert done.stderr.count("\n") == 1


def test_a_file_that_a_library_cut_short_is_a_full_disk(tmp_path, monkeypatch):
    """Paddle writes what fits, says nothing, and fails when it reads it."""
    path = tmp_path / "model" / "a"
    for free, error, seen in (
        (8192, RuntimeError("cannot read"), OSError),
        (8192, InputError("bad row"), InputError),
        (1 << 20, RuntimeError("cannot read"), RuntimeError),
    ):
        monkeypatch.setattr("shutil.disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        with pytest.raises(seen) as raised, published(path):
            raise error
        assert not path.parent.exists()
        if seen is OSError:
            said = f"No space left on device at {path}, where 8192 bytes are free; check"
            assert describe_os_error(raised.value).startswith(said)


def test_an_error_of_writing_names_the_file_that_was_written(tmp_path):
    with pytest.raises(OSError) as short, naming(tmp_path / "a"):
        raise OSError("1000 requested and 384 written")  # as numpy says it
    assert describe_os_error(short.value).startswith("not written whole (")
    assert f"at {tmp_path}/a, where " in describe_os_error(short.value)
    with pytest.raises(OSError) as copied, naming("b"):
        raise OSError(28, "No space left on device", "read", None, "written")
    assert copied.value.filename == "written"
    with pytest.raises(FileNotFoundError) as missing, naming("b"):
        raise FileNotFoundError(2, "No such file or directory")
    assert missing.value.filename is None


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
    assert "no inodes are free" in error_of_save(out)
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
