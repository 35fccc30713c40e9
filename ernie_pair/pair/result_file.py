"""A result file that is there whole or not at all."""

import os
from pathlib import Path

from data_tools.errors import InputError
from ernie_pair.checkpoint import sync_folder, write_synced


def refuse_unusable(path: Path) -> None:
    """Before the work: raises InputError where a file cannot come to lie."""
    if path.is_dir():
        raise InputError(f"--output_file {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"--output_file {path}: its folder {path.parent} does not exist; make it first")


def publish_file(path: Path, content: str) -> None:
    """Write beside ``path``, force it to disk, then rename. Raises OSError, leaving nothing behind."""
    draft = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        write_synced(draft, content.encode("utf-8"))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)
