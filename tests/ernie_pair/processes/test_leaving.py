import subprocess
import sys

import pytest

# What C++ would do wrongly in a destructor: abort. What is printed by C is kept until the end.
END = """
import ctypes, sys
from ernie_pair.processes.leaving import skip_destructors

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
def test_a_process_that_would_abort_at_its_end_keeps_its_code(code):
    done = end(True, code)
    assert done.returncode == code
    assert "by C" in done.stdout and "by Python" in done.stdout


def test_without_it_the_destructors_have_the_last_word():
    assert end(False, 0).returncode == -6
