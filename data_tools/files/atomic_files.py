"""Files appear whole or not at all."""

import os
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Iterator, List, Tuple

from data_tools.base.errors import MachineError
from data_tools.files.file_lock import try_lock
from data_tools.files.own_names import DRAFT, own_name, shortened, stem_of

_LEFT_BEHIND = re.compile(r"(?P<name>.+-[0-9a-f]{24})\.draft(\..+)?", re.DOTALL)


@contextmanager
def published(*finals: Path, forced: bool = True) -> Iterator[List[Path]]:
    """Yield draft paths to fill, one per final path; on exit they are renamed to these, in this order.

    An exception removes the drafts and touches no final path. A reader that has the old file open or
    mapped keeps it: nothing is written in place. A draft has a unique name, so that writers do not
    collide and no planted link is followed. Without ``forced`` there is no fsync, and a crash of the
    machine may damage a file: only for files whose reader detects it.
    Raises MachineError if a folder cannot be made, OSError if the disk fails.
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
    """Make an empty file beside ``final``, locked for as long as this process uses it."""
    draft, descriptor = _lock_new(final)
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)
        os.close(descriptor)


def _lock_new(final: Path) -> Tuple[Path, int]:
    """Make and lock an empty file beside ``final``, again if `_clear_drafts` took it for a left one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        draft = final.with_name(own_name(_stem_of(final)) + DRAFT)
        descriptor = os.open(draft, flags, 0o666)
        try:
            is_ours = try_lock(descriptor) and draft.exists()
        except OSError:  # a file system without locks: then its drafts are never cleared
            is_ours = True
        if is_ours:
            return draft, descriptor
        os.close(descriptor)


def _clear_drafts(final: Path) -> None:
    """Remove the drafts of ``final``, and what was spooled beside them, that killed runs left behind."""
    stem = _stem_of(final)
    for entry in os.listdir(final.parent):
        found = _LEFT_BEHIND.fullmatch(entry)
        if found is None or stem_of(found["name"]) != stem:
            continue
        with _claimed(final.with_name(found["name"] + DRAFT)) as is_left:
            if is_left:
                final.with_name(entry).unlink(missing_ok=True)


def _stem_of(final: Path) -> str:
    return f".{shortened(final.name)}"


@contextmanager
def _claimed(draft: Path) -> Iterator[bool]:
    """Yield whether no process that still runs is to publish ``draft``, which is then locked against one."""
    try:
        descriptor = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        yield isinstance(error, FileNotFoundError)
        return
    try:
        yield _can_lock(descriptor)
    finally:
        os.close(descriptor)


def _can_lock(descriptor: int) -> bool:
    try:
        return try_lock(descriptor)
    except OSError:
        return False


@contextmanager
def scratch(*paths: Path) -> Iterator[List[Path]]:
    """Yield ``paths`` for working files; whatever is there is removed before and after."""
    _remove(paths)
    try:
        yield list(paths)
    finally:
        _remove(paths)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and the folders above it. Raises MachineError if a file is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise MachineError(f"{folder}: not a folder; choose another output path") from None


def _remove(paths) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk (fsync). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
