"""The environment of a command and how it was called: the facts besides the flags in config.yaml."""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional

from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.runtime.cpu import processor_name, text_of, usable_cores
from ernie_pair.version import __version__

SECONDS = 10.0  # a repository on a slow disk is not waited for
# Git itself writes nothing, asks nobody, and starts no hook and no monitor of the file system.
QUIET = (
    *("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "core.untrackedCache=false"),
)
ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def git_state(folder: Path) -> Dict[str, object]:
    """Return {"commit", "dirty"} of the repository around ``folder``; {} without one, or without Git.

    dirty: do tracked files differ from the commit? It is left out where Git does not answer in time.
    """
    commit = _ask(folder, "rev-parse", "--verify", "HEAD^{commit}")
    if not commit:
        return {}
    changed = _ask(folder, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return {"commit": commit} if changed is None else {"commit": commit, "dirty": bool(changed)}


def _ask(folder: Path, *words: str) -> Optional[str]:
    """Return what Git prints; None where it cannot be asked, or refuses."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run(
            [git, *QUIET, *words],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


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
