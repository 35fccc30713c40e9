"""A home that cannot be written stops no command: libraries get a private one, paths of the user do not."""

import os
import tempfile
from pathlib import Path

import pytest

from ernie_pair.core.user_home import MODELS, give_home, home_given

# Of every kind: a permission would not bind root, for whom tests run as well.
HOMES = ["/proc/nonexistent", "/proc", "/dev/null", "~"]


@pytest.mark.parametrize("home", HOMES)
def test_a_private_home_is_given_for_a_while(home, monkeypatch):
    monkeypatch.setenv("HOME", home)
    with home_given():
        given = Path.home()
        (given / "folder").mkdir()
        with home_given():
            assert Path.home() == given
    assert os.environ["HOME"] == home
    assert given.stat().st_mode & 0o777 == 0o700
    (given / "folder").rmdir()


def test_a_home_that_can_be_written_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    give_home()
    assert Path.home() == tmp_path
    monkeypatch.delenv("HOME")
    with home_given():
        pass
    assert "HOME" not in os.environ


def test_models_are_found_in_a_home_that_cannot_be_written(monkeypatch, tmp_path):
    def refuse(**where):
        raise PermissionError(13, "Permission denied")

    downloaded = [Path(*place, "ernie") for place in MODELS]
    for path in downloaded:
        (tmp_path / path).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    private = tmp_path / "private"
    private.mkdir()
    places = iter([refuse, lambda **named: str(private)])
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **named: next(places)(**named))
    with home_given():
        assert all((private / path).is_dir() for path in downloaded) and Path.home() == private
