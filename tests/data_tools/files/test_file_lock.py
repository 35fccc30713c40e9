"""One process at a time: who holds a file, and what is said to those who come second."""

import errno
import os
import signal

import pytest
from filelock import FileLock, Timeout

from data_tools.base.errors import MachineError
from data_tools.files.file_lock import locked, open_lock, try_lock


def test_a_second_one_is_refused_in_the_words_that_were_given(tmp_path):
    path = tmp_path / "lock"
    with locked(path, seconds=0) as alone:
        assert alone
        with pytest.raises(MachineError, match="another process holds it"), locked(path, seconds=0):
            pytest.fail("it is held twice")
        with pytest.raises(MachineError, match="^busy$"), locked(path, seconds=0, refusal="busy"):
            pytest.fail("it is held twice")
    with locked(path, seconds=0) as alone:
        assert alone


def test_a_holder_that_is_killed_holds_nothing(tmp_path):
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


def test_what_the_holder_wrote_stays_and_no_link_is_followed(tmp_path):
    (tmp_path / "lock").write_text("pid 7\n")
    descriptor = open_lock(tmp_path / "lock")
    assert try_lock(descriptor) and os.read(descriptor, 9) == b"pid 7\n"
    os.close(descriptor)
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    with pytest.raises(OSError) as caught:
        open_lock(tmp_path / "link")
    assert caught.value.errno == errno.ELOOP


def test_the_library_of_that_name_is_excluded_too(tmp_path):
    with locked(tmp_path / "lock", seconds=0), pytest.raises(Timeout):
        FileLock(tmp_path / "lock", timeout=0).acquire()
    with FileLock(tmp_path / "lock"), pytest.raises(MachineError), locked(tmp_path / "lock", seconds=0):
        pytest.fail("it is held twice")
