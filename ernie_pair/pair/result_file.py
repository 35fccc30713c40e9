"""A result file that is there whole or not at all."""

from pathlib import Path

from data_tools.errors import InputError
from data_tools.publish import published


def refuse_unusable(path: Path) -> None:
    """Before the work: raises InputError where a file cannot come to lie."""
    if path.is_dir():
        raise InputError(f"--output_file {path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"--output_file {path}: its folder {path.parent} does not exist; make it first")


def publish_file(path: Path, content: str) -> None:
    """Raises OSError, leaving what was there before."""
    with published(path) as (draft,):
        draft.write_text(content, encoding="utf-8")
