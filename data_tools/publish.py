"""Files appear whole or not at all."""

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List

from data_tools.errors import InputError, MachineError


@contextmanager
def published(*finals: Path, mark: str = "", forced: bool = True) -> Iterator[List[Path]]:
    """Draft paths to fill, one per final path; leaving takes them to the final names in this order.

    Leaving by an exception removes the drafts and touches no final path. A reader that holds the
    old file open or mapped keeps it: nothing is written in place. Writers that may meet need a
    ``mark`` each, which makes their drafts their own. Not ``forced`` to the disk, a file may be damaged
    when the machine stops: for those whose reader notices it.
    """
    drafts = [final.with_name(f"{final.name}{mark}.draft") for final in finals]
    for final in finals:
        make_folder(final.parent)
    _remove(drafts)
    try:
        yield drafts
        for draft in drafts if forced else ():
            to_disk(draft)
        for draft, final in zip(drafts, finals):
            os.replace(draft, final)
        for folder in {final.parent for final in finals if forced}:
            to_disk(folder)
    finally:
        _remove(drafts)


@contextmanager
def scratch(*paths: Path) -> Iterator[List[Path]]:
    """Paths of working files that are gone afterwards."""
    _remove(paths)
    try:
        yield list(paths)
    finally:
        _remove(paths)


def refuse_existing(finals: List[Path], overwrite: bool) -> None:
    """Raises InputError when a file stands where one will be written, unless it may be replaced."""
    existing = [str(final) for final in finals if final.exists()]
    if existing and not overwrite:
        raise InputError(f"{existing[0]} exists; pass --overwrite to replace it, or choose another name")


def make_folder(folder: Path) -> None:
    """With the folders above it. Raises MachineError when a file stands in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise MachineError(f"{folder}: not a folder; choose another output path") from None


def _remove(paths) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Force a file, or the names in a folder, out of the system's memory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
