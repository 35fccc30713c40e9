"""Python in processes of its own, with this checkout and the helpers of tests in its path."""

import json
import os
import subprocess
import sys

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
