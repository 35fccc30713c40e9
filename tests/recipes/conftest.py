"""The helpers of the flat tests are importable from here as well, and the launched files of scripts/."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "scripts")]
