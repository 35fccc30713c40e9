"""The exit code of a child process, read safely even when interrupted at any moment."""

import os
import subprocess
from typing import Optional


def exit_code_of(process: subprocess.Popen) -> Optional[int]:
    """Return the exit code of ``process``, minus the signal that killed it, or None while it runs.

    It stays to be waited for. `Popen.poll` takes a lock: an interrupt right behind it leaves the lock taken,
    after which the process never seems to end and `Popen.wait` waits for ever.
    """
    if process.returncode is not None:
        return process.returncode
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # others have waited for it: poll answers by what it can know, 0
        return process.poll()
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
