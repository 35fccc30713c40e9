"""The log folder of a launched dry run, which its launcher removes."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import Iterator


def dry_log_dir() -> str:
    """Return a folder that only this process and the launcher that it becomes have."""
    return os.path.join(tempfile.gettempdir(), f"ernie-pair-dry-run-{os.getpid()}")


@contextmanager
def dry_logs_removed() -> Iterator[None]:
    """Return a context at whose end the folder of this process is removed, if it was made."""
    try:
        yield
    finally:
        shutil.rmtree(dry_log_dir(), ignore_errors=True)
