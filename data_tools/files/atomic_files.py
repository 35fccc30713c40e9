"""Files appear whole or not at all."""

import contextlib
import os
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator, List

from data_tools.base.errors import MachineError
from data_tools.files.file_lock import try_lock
from data_tools.files.own_names import DRAFT, is_own_name, own_name

_LEFT_BEHIND = re.compile(r"(?P<name>.+-[0-9a-f]{24})\.draft(\..+)?", re.DOTALL)
LONGEST_NAME = 200  # bytes of a final name that its draft's repeats; a file system takes 255


@contextmanager
def published(*finals: Path, forced: bool = True) -> Iterator[List[Path]]:
    """Yield draft paths to fill, one per final path; leaving takes them to the final names in this order.

    Leaving by an exception removes the drafts and touches no final path. A reader that holds the
    old file open or mapped keeps it: nothing is written in place. A draft has a name of its own, so
    writers may meet and no link that waits there is followed. Not ``forced`` to the disk, a file may be
    damaged when the machine stops: for those whose reader notices it.
    Raises MachineError when a folder cannot be made, OSError when the disk refuses.
    """
    for final in finals:
        make_folder(final.parent)
        if forced:
            _clear_drafts(final)
    with ExitStack() as stack:
        drafts = [stack.enter_context(_draft_of(final)) for final in finals]
        yield drafts
        for draft in drafts if forced else ():
            to_disk(draft)
        for draft, final in zip(drafts, finals):
            os.replace(draft, final)
        for folder in {final.parent for final in finals if forced}:
            to_disk(folder)


@contextmanager
def _draft_of(final: Path) -> Iterator[Path]:
    """Make an empty file beside ``final``, locked for as long as this process has to do with it."""
    draft = final.with_name(own_name(_stem_of(final)) + DRAFT)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then its drafts are never cleared
            try_lock(descriptor)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
        os.close(descriptor)


def _clear_drafts(final: Path) -> None:
    """Remove the drafts of ``final``, and what was spooled beside them, that killed runs left behind."""
    stem = _stem_of(final)
    for entry in os.listdir(final.parent):
        found = _LEFT_BEHIND.fullmatch(entry)
        if found is None or not is_own_name(found["name"], f"{stem}-"):
            continue
        if not _is_held(final.with_name(found["name"] + DRAFT)):
            final.with_name(entry).unlink(missing_ok=True)


def _stem_of(final: Path) -> str:
    shortened = final.name.encode("utf-8", "surrogateescape")[:LONGEST_NAME]
    return f".{shortened.decode('utf-8', 'surrogateescape')}"


def _is_held(draft: Path) -> bool:
    """Tell whether a process is about to publish ``draft``; one that is killed is not any more."""
    try:
        descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        return not try_lock(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)


@contextmanager
def scratch(*paths: Path) -> Iterator[List[Path]]:
    """Yield ``paths`` for working files; whatever lies there is removed before and after."""
    _remove(paths)
    try:
        yield list(paths)
    finally:
        _remove(paths)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and the folders above it. Raises MachineError when a file stands in the way."""
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
