"""The table of lines beside their limits."""

import subprocess
import sys

import count_lines
from places import ROOT

from ernie_pair.__main__ import COMMANDS


def test_lines_are_counted_beside_their_limits():
    found = count_lines.counts()
    assert list(found) == list(count_lines.LIMITS) and 0 < found["commands"] < len(COMMANDS)
    lines = sum(len(path.read_bytes().splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    assert 0.9 * lines < found["lines of tests"] <= lines
    done = subprocess.run([sys.executable, count_lines.__file__], capture_output=True, text=True)
    is_over = any(found[name] > most for name, (most, _) in count_lines.LIMITS.items())
    assert done.returncode == is_over and ("too many" in done.stdout) == is_over
