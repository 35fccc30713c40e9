"""The memory that new processes may use: limits of the machine and of the container."""

import re
from pathlib import Path
from typing import Iterator

from ernie_pair.device.control_groups import group_folders, text_of

ROOT = Path("/")
# (the limit, its usage, the part of that which is cache and can be dropped at once: its name in memory.stat)
FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
)


def free_memory() -> float:
    """Return the bytes that new processes may use; infinity if Linux does not report them."""
    found = re.search(r"MemAvailable:\s*(\d+) kB", text_of(ROOT / "proc/meminfo"))
    of_machine = int(found[1]) * 1024.0 if found else float("inf")
    return min([of_machine, *(free for folder in group_folders("memory", ROOT) for free in _free_in(folder))])


def _free_in(folder: Path) -> Iterator[float]:
    for names in FILES:
        limit, taken = (text_of(folder / name).strip() for name in names[:2])
        if limit.isdecimal() and taken.isdecimal():
            cached = re.search(rf"^{names[2]} (\d+)$", text_of(folder / "memory.stat"), re.M)
            yield max(0.0, float(limit) - float(taken) + float(cached[1] if cached else 0))
