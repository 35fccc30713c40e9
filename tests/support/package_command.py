"""A command of the package, run in a process of its own."""

import subprocess
import sys
from types import SimpleNamespace

from places import ROOT


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
