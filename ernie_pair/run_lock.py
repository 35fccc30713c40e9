"""One run at a time in an output folder, and the name by which its checkpoints know it."""

import fcntl
import json
import os
import secrets
import socket
import time
from pathlib import Path

from data_tools.errors import InputError
from data_tools.json_file import read_note
from data_tools.publish import published


class RunLock:
    """Holds ``path`` until it is released or the process ends, however it ends.

    The file names the holder. Raises InputError when another process has it.
    """

    def __init__(self, path: Path):
        # Opened without following a link, and without touching what the holder wrote.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 200).decode("utf-8", "replace").strip()
            os.close(self._descriptor)
            raise InputError(
                f"{path.parent} is locked by another run ({holder or 'it has not said which'}); wait for it, "
                "or use another --output_dir"
            ) from None
        os.ftruncate(self._descriptor, 0)
        said = f"pid {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        os.pwrite(self._descriptor, said.encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)


def run_id_of(path: Path) -> str:
    """What ``path`` calls the run; written at its first start."""
    known = (read_note(path) or {}).get("run_id")
    if isinstance(known, str):
        return known
    about = {"run_id": secrets.token_hex(8), "started": time.strftime("%Y-%m-%dT%H:%M:%S")}
    with published(path) as (draft,):
        draft.write_text(json.dumps(about))
    return about["run_id"]
