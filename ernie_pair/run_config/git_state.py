"""The state of the Git repository that a folder lies in: which commit, and whether files differ from it."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict, Optional

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
