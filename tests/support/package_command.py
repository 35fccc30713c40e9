"""A command of the package, run in a process of its own."""

import atexit
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

from places import ROOT
from warm_commands import warm_environment


def command(name, *words):
    """Run ``ernie-pair NAME WORDS``: its exit ``code``, what it ``said``, ``told`` on the error stream."""
    done = subprocess.run(
        ["ernie-pair", name, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "PATH": warm_path()},
    )
    return SimpleNamespace(code=done.returncode, said=done.stdout, told=done.stderr)


@lru_cache
def warm_path():
    """The PATH with a warm `ernie-pair`, whose parent lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm"))
    stack = ExitStack()
    environment = stack.enter_context(warm_environment(folder, dict(os.environ)))
    atexit.register(shutil.rmtree, folder)
    atexit.register(stack.close)
    return environment["PATH"]
