"""One process at a time holds a lock file, and a second process gets an error."""

import errno
import os
import signal

import pytest
from filelock import FileLock, Timeout

from ernie_pair.core.errors import MachineError
from ernie_pair.core.files.atomic_files import locked, open_lock, try_lock


def test_a_second_holder_is_refused_with_the_given_message(tmp_path):
    path = tmp_path / "lock"
    with locked(path, seconds=0) as alone:
        assert alone
        with pytest.raises(MachineError, match="another process holds it"), locked(path, seconds=0):
            pytest.fail("it is held twice")
        with pytest.raises(MachineError, match="^busy$"), locked(path, seconds=0, refusal="busy"):
            pytest.fail("it is held twice")
    with locked(path, seconds=0) as alone:
        assert alone


def test_a_killed_process_releases_its_lock(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with locked(tmp_path / "lock", seconds=0):
            os.write(writer, b"x")
            signal.pause()
    os.read(reader, 1)
    with pytest.raises(MachineError), locked(tmp_path / "lock", seconds=0):
        pytest.fail("it is held twice")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(tmp_path / "lock", seconds=0) as alone:
        assert alone


def test_locking_keeps_the_content_and_follows_no_symlink(tmp_path):
    (tmp_path / "lock").write_text("pid 7\n")
    descriptor = open_lock(tmp_path / "lock")
    assert try_lock(descriptor) and os.read(descriptor, 9) == b"pid 7\n"
    os.close(descriptor)
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    with pytest.raises(OSError) as caught:
        open_lock(tmp_path / "link")
    assert caught.value.errno == errno.ELOOP


def test_our_lock_and_the_filelock_library_exclude_each_other(tmp_path):
    with locked(tmp_path / "lock", seconds=0), pytest.raises(Timeout):
        FileLock(tmp_path / "lock", timeout=0).acquire()
    with FileLock(tmp_path / "lock"), pytest.raises(MachineError), locked(tmp_path / "lock", seconds=0):
        pytest.fail("it is held twice")
