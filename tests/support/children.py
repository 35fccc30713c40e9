"""Python, and commands of the package, in processes of their own."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

from places import ROOT, SUPPORT


def python(*words, cwd=ROOT, timeout=300, given=None, without=(), **environment):
    """Run Python with ``words`` and without some variables; return the finished process and its texts."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**kept, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, SUPPORT))), **environment},
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def output_of(*words, **settings):
    """Return what `python` prints; it must end well."""
    done = python(*words, **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def json_of(*words, **settings):
    """Return the value that `python` prints in its last line."""
    return json.loads(output_of(*words, **settings).splitlines()[-1])


def command(name, *words):
    """Run ``ernie-pair NAME WORDS``: its exit ``code``, what it ``said``, ``told`` on the error stream."""
    done = subprocess.run(
        [sys.executable, "-m", "ernie_pair", name, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    return SimpleNamespace(code=done.returncode, said=done.stdout, told=done.stderr)


# As where only [predict] is installed: none of the libraries of training can be found.
WITHOUT_TRAINING = """
import importlib.util, sys
from ernie_pair.core.installation import OF_TRAINING

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {*OF_TRAINING, "paddle2onnx", "pandas", "ray", "torch"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.__main__ import _run
from ernie_pair.commands import COMMANDS
"""
