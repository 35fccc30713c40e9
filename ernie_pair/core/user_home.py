"""A private home for libraries that make folders in the user's as they are imported, where they cannot."""

import atexit
import os
import shutil
import tempfile
from contextlib import contextmanager
from functools import cache
from typing import Iterator

# What PaddleNLP and huggingface_hub have downloaded, by name.
MODELS = (".paddlenlp", "models"), (".cache", "huggingface")


def give_home() -> None:
    """Set HOME to a folder that goes with this process, unless the user's can be written.

    To be called once the paths of the user are read, in which ~ means the user's.
    """
    home = os.path.expanduser("~")  # itself where there is none, and then it is no path
    try:
        if os.path.isabs(home):
            return os.rmdir(tempfile.mkdtemp(dir=home))
    except OSError:
        pass
    os.environ["HOME"] = _private_home(home)


@contextmanager
def home_given() -> Iterator[None]:
    """Return a context with a HOME as by `give_home`, at the end of which it is as before."""
    before = os.environ.get("HOME")
    give_home()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("HOME", None)
        else:
            os.environ["HOME"] = before


@cache
def _private_home(home: str) -> str:
    """Return the folder in place of ``home``, whose models are seen in it."""
    folder = tempfile.mkdtemp(prefix="ernie-pair-home-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for place in MODELS:
        if os.path.isdir(os.path.join(home, *place)):
            os.mkdir(os.path.join(folder, place[0]))
            os.symlink(os.path.join(os.path.abspath(home), *place), os.path.join(folder, *place))
    return folder
