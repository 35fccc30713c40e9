"""A service as a process of its own."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

from places import ROOT

from ernie_pair.service.serve import API_KEY


@contextmanager
def service(*words, key=""):
    """The address of a service that is started for real, with a key or without."""
    command = [sys.executable, "-m", "ernie_pair", "serve", *map(str, words), "--port", "0"]
    environment = {**os.environ, **({API_KEY: key} if key else {})}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) as run:
        said = []
        try:
            for line in run.stderr:
                said.append(line)
                if "try it" in line:
                    break
            yield re.search(r"http://127\.0\.0\.1:\d+", "".join(said))[0]
        finally:
            run.send_signal(signal.SIGTERM)
            said.append(run.stderr.read())
            assert run.wait(60) == 0 and (not key or key not in "".join(said))
