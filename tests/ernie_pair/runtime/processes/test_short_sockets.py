"""A multiprocessing manager starts however long the path of the temporary folder is."""

import os
import subprocess
import sys
import tempfile

import pytest
from places import ROOT

from data_tools.files.errors import InputError
from ernie_pair.runtime.processes import sockets as short_sockets
from ernie_pair.runtime.processes.sockets import shorten_socket_names

MANAGER = """
import sys, tempfile
from multiprocessing import Manager
from ernie_pair.runtime.processes.sockets import shorten_socket_names
if sys.argv[1] == "short":
    shorten_socket_names()
with Manager() as manager:
    print(dict(manager.dict(told=1)), tempfile.mkdtemp())
"""


def start_manager(folder, word="short"):
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MANAGER, word]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("length", [1, 100])
def test_a_manager_starts_and_tempfile_keeps_its_folder(tmp_path, length):
    folder = tmp_path / ("x" * length)
    done = start_manager(folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{{'told': 1}} {folder}/")
    assert [path.name for path in folder.iterdir()] == [done.stdout.strip().rpartition("/")[2]]


def test_without_shortening_a_long_tmpdir_fails_the_manager(tmp_path):
    done = start_manager(tmp_path / ("x" * 100), "long")
    assert done.returncode == 1 and done.stderr.strip().endswith("EOFError")


def test_no_usable_short_folder_gives_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 76)
    monkeypatch.setattr(short_sockets, "SHORT_FOLDERS", (str(tmp_path / "absent"),))
    with pytest.raises(InputError, match="^TMPDIR /x+ is too long for the sockets of .* most 75 characters$"):
        shorten_socket_names()


def test_a_folder_name_that_just_fits_is_not_changed(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 74)
    monkeypatch.setattr(short_sockets.util, "get_temp_dir", lambda: pytest.fail("a folder was made"))
    shorten_socket_names()
