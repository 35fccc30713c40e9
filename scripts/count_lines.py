"""Count the lines of Python, blanks and comments included, beside the limits: python scripts/count_lines.py

Exit code 1: a limit is passed.
"""

import subprocess
import sys
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {  # what is counted: at most, aim
    "lines of data_tools and ernie_pair": (48_000, 42_000),
    "lines of scripts": (4_000, 3_000),
    "lines of tests": (40_000, 32_000),
    "Python files of the package": (330, 250),
    "commands": (32, 28),
}


def files_in(*folders: str) -> List[Path]:
    """Return the Python files in ``folders`` that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *folders]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name.endswith(".py") and (ROOT / name).is_file()]


def counts() -> Dict[str, int]:
    from ernie_pair.__main__ import COMMANDS

    parts = [files_in("data_tools", "ernie_pair"), files_in("scripts"), files_in("tests")]
    lines = [sum(path.read_bytes().count(b"\n") for path in files) for files in parts]
    return dict(zip(LIMITS, [*lines, len(parts[0]), len({name.split()[0] for name in COMMANDS})]))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    now = counts()
    print(f"{'what':<36}{'now':>8}{'at most':>10}{'aim':>8}")
    for name, (most, aim) in LIMITS.items():
        print(f"{name:<36}{now[name]:>8,}{most:>10,}{aim:>8,}{'   too many' if now[name] > most else ''}")
    sys.exit(any(now[name] > most for name, (most, _) in LIMITS.items()))
