"""The environment of a command and how it was called: the facts besides the flags in config.yaml."""

import os
import platform
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Dict, List

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.device.control_groups import text_of
from ernie_pair.device.cpu_cores import usable_cores
from ernie_pair.device.cpu_level import processor_name
from ernie_pair.run_config.git_state import git_state
from ernie_pair.version import __version__

GPUS = Path("/proc/driver/nvidia/gpus")


def facts_now() -> Dict[str, object]:
    """Return the date, the command line, its folder, its Git state, the versions and the machine."""
    folder = Path.cwd()
    git = git_state(folder)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command_line": command_line(),
        "folder": str(folder),
        **({"git": git} if git else {}),
        "versions": versions(),
        "machine": machine(),
    }


def versions() -> Dict[str, str]:
    """Return the versions of Python, of this package and of what it computes with."""
    return {"python": platform.python_version(), **installed_versions(), "ernie-pair": __version__}


def machine() -> Dict[str, object]:
    """Return the processor, the number of cores that this process may use, and the GPUs."""
    cards = gpu_names()
    return {
        "processor": processor_name() or platform.machine(),
        "cores": len(usable_cores()),
        **({"gpus": cards} if cards else {}),
    }


def gpu_names() -> List[str]:
    """Return the names of the GPUs that the driver tells of; asks no library, so that no GPU is opened."""
    found = [
        re.search(r"^Model:\s*(.+)$", text_of(file), re.M) for file in sorted(GPUS.glob("*/information"))
    ]
    return [match[1].strip() for match in found if match is not None]


def command_line() -> str:
    """Return the words of this process as they would be typed."""
    first, *words = sys.argv or [""]
    if Path(first).parts[-2:] == ("ernie_pair", "__main__.py"):
        first = "ernie-pair"
    return shlex.join([os.path.basename(first) if os.path.isabs(first) else first, *words])
