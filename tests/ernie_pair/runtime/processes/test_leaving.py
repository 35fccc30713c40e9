import subprocess
import sys

import pytest

# Stands in for a C++ destructor that aborts. What C prints stays buffered until the process exits.
END = """
import ctypes, sys
from ernie_pair.runtime.processes.stop_signals import skip_destructors

library = ctypes.CDLL(None)
if {skips}:
    skip_destructors()
    skip_destructors()
library.on_exit(library.abort, None)
library.printf(b"by C, ")
print("by Python")
sys.exit({code})
"""


def end(skips: bool, code: int) -> subprocess.CompletedProcess:
    text = END.format(skips=skips, code=code)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("code", [0, 3])
def test_a_process_that_would_abort_at_exit_keeps_its_code(code):
    done = end(True, code)
    assert done.returncode == code
    assert "by C" in done.stdout and "by Python" in done.stdout


def test_without_skip_destructors_the_process_aborts():
    assert end(False, 0).returncode == -6
