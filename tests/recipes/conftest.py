"""The helpers of the flat tests are importable from here as well."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
