"""A folder or link appears whole or not at all; .made.json in a folder records what made it.

    {"made_by": "ernie-pair", "name": "best-accuracy-0.8962", "files": ["config.json", ...], ...}

Only a folder with such a record is ever deleted, and only while it contains nothing but what was written into
it; a copy under another name is the user's.
"""

import ctypes
import json
import logging
import os
import re
import secrets
import shutil
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Set

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import (
    BAD,
    CONFIG_YAML,
    FILLING,
    TRASH,
    folder_made,
    locked_once,
    naming,
    own_entries,
    own_name,
    shortened,
    to_disk,
)
from ernie_pair.core.files.json_file import is_texts
from ernie_pair.core.files.results import MAKER, files_of, read_own_config, read_record

MADE, README = ".made.json", "README.md"
LOCK, LOCK_TOKEN = ".lock", "0" * 16  # ends the name of the lock of a folder; all processes give it the same

logger = logging.getLogger(__name__)


@contextmanager
def published_folder(
    folder: Path,
    about: Callable[[Path], Dict[str, object]] = lambda draft: {},
    may_be_lost: Callable[[Path], bool] = lambda folder: False,
) -> Iterator[Path]:
    """Yield a draft beside ``folder``, which replaces ``folder`` at the end of the context.

    What ``about`` returns for the filled draft is kept in the folder, see ``read_folder_record``. What was
    there before is deleted if it is empty, an unchanged folder of this package, or ``may_be_lost`` allows it;
    anything else is renamed, with a warning. A reader sees the old folder or the new one, never half of one;
    where the system cannot swap two folders, no folder for an instant. Raises MachineError while another
    process writes ``folder``, OSError if the disk fails; an error in the context leaves what was there.
    """
    with folder_made(folder.parent), only_writer(folder) as is_alone:
        if is_alone:
            clear_leftovers(folder.parent, lambda name: name == folder.name)
        draft, old = (folder.with_name(own_name(f"{kind}{folder.name}")) for kind in (FILLING, TRASH))
        draft.mkdir()
        try:
            with naming(folder, [draft]):
                yield draft
            files = sorted(_names_in(draft))
            note = {**about(draft), "made_by": MAKER, "name": folder.name, "files": files}
            if README in files:
                note[README] = sha256_of_file(draft / README)
            (draft / MADE).write_text(json.dumps(note, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            for path in draft.rglob("*"):
                to_disk(path)
            to_disk(draft)
            if is_as_made(folder) or (os.path.lexists(folder) and may_be_lost(folder)):
                if swap(draft, folder):
                    shutil.rmtree(draft, ignore_errors=True)
                    return
                folder.rename(old)
            elif os.path.lexists(folder):
                try:
                    folder.rmdir()  # which deletes nothing but an empty folder
                except OSError:
                    aside = set_aside(folder).name
                    logger.warning("%s was not made by this command; it is now %s", folder, aside)
            try:
                rename_for_good(draft, folder)
            except OSError:
                if old.exists():
                    old.rename(folder)
                raise
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)


def only_writer(folder: Path) -> AbstractContextManager[bool]:
    """Return a context in which no other process publishes ``folder``; False in it: there are no locks here.

    Raises MachineError if another one does; its draft is not touched.
    """
    lock = folder.with_name(own_name(f"{FILLING}{shortened(folder.name)}", LOCK_TOKEN) + LOCK)
    return locked_once(lock, f"{folder}: another run writes this folder; let it end, then run again")


def read_folder_record(folder: Path) -> Optional[Dict[str, Any]]:
    """Return what `published_folder` recorded in ``folder``; None if it did not make it under this name."""
    note = {} if folder.is_symlink() else read_record(folder / MADE)
    return note if note.get("name") == folder.name and is_texts(note.get("files")) else None


def list_content(given: str) -> List[Path]:
    """Return `files_of` without README.md and config.yaml, which only describe a folder, one with a time."""
    is_folder = Path(given).is_dir()
    return [path for path in files_of(given) if not (is_folder and path.name in (README, CONFIG_YAML))]


def is_as_made(folder: Path) -> bool:
    """Return whether ``folder`` was made by `published_folder` and nothing was added later.

    A README.md that was changed counts as added, and so does the user's own config.yaml.
    """
    note = read_folder_record(folder)
    return note is not None and _names_in(folder) <= {MADE, *note["files"]} and not _user_files(folder)


def check_replaceable(folder: Path, written: Collection[str]) -> None:
    """Raise InputError if ``folder`` is a file, or contains anything but the ``written`` files.

    The current folder, in which the user's shell would then be lost, and a mount point, which cannot be
    renamed, are refused too: what is published replaces the folder itself.
    ``written``: names in the folder, a/b for deeper ones, with each folder on the way.
    A README.md that the user wrote or changed is not one of them, nor is the user's own config.yaml.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output_dir {folder} is a file; give a folder")
    if os.path.ismount(folder):
        raise InputError(
            f"--output_dir {folder} is a mount point, which cannot be replaced; give a folder in it"
        )
    if folder.is_dir() and os.path.samefile(folder, os.curdir):
        raise InputError(
            f"--output_dir {folder} is the current folder, which would be replaced; give a folder in it, or "
            "start from another one"
        )
    found = _names_in(folder) if folder.is_dir() else set()
    others = (found - {*written, MADE}) | _user_files(folder)
    if others:
        raise InputError(
            f"--output_dir {folder} holds {min(others)}, which would be lost; give another folder"
        )


def _user_files(folder: Path) -> Set[str]:
    """Return files with our names that are the user's, as a README.md that is not, to the byte, the first."""
    note, readme = read_folder_record(folder), folder / README
    is_own = {
        README: note is not None and readme.is_file() and note.get(README) == sha256_of_file(readme),
        CONFIG_YAML: read_own_config(folder / CONFIG_YAML) is not None,
    }
    return {name for name, is_ours in is_own.items() if not is_ours and os.path.lexists(folder / name)}


def remove_made(folder: Path) -> None:
    """Delete a folder of `published_folder`; one to which something was added is renamed, with a warning."""
    if is_as_made(folder):
        trash = folder.rename(folder.with_name(own_name(f"{TRASH}{folder.name}")))
        remove_or_warn(trash)
    else:
        logger.warning("%s contains files that were added; it is now %s", folder, set_aside(folder).name)


def clear_leftovers(parent: Path, is_meant: Callable[[str], bool]) -> None:
    """Remove what killed runs left of making or deleting folders for whose names ``is_meant`` is true."""

    def is_leftover(stem: str) -> bool:
        return any(stem.startswith(kind) and is_meant(stem[len(kind) :]) for kind in (FILLING, TRASH))

    for leftover in own_entries(parent, is_leftover):
        remove_or_warn(leftover)


def rename_for_good(draft: Path, final: Path) -> None:
    """Rename a filled folder and flush its name to disk; if that fails, rename it back to ``draft``."""
    draft.rename(final)
    try:
        to_disk(final.parent)
    except OSError:
        final.rename(draft)
        raise


def swap(draft: Path, final: Path) -> bool:
    """Swap two folders in one step and flush that to disk; if the flush fails, swap them back.

    Returns False where the system or the file system cannot. Raises OSError.
    """
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    names = here, os.fsencode(draft), here, os.fsencode(final), exchange
    if rename is None or final.is_symlink() or rename(*names):
        return False
    try:
        to_disk(final.parent)
    except OSError:
        rename(*names)
        raise
    return True


def set_aside(path: Path) -> Path:
    """Rename ``path``, which the user may need, to .bad-NAME-xxxxxxxx beside it, and return that."""
    return path.rename(path.with_name(f"{BAD}{path.name}-{secrets.token_hex(4)}"))


def remove_or_warn(folder: Path) -> None:
    """Delete ``folder`` with all that is in it; if that fails, warn and go on."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        logger.warning("%s cannot be deleted (%s)", folder, error.strerror)


def point_link(link: Path, target: Path, own_target: str) -> bool:
    """Make ``link`` point to ``target``; False if it did already. Readers see the old link or the new.

    A path that is not a link, or a link whose target the pattern ``own_target`` does not match, is set aside
    with a warning. Raises OSError.
    """
    there = os.readlink(link) if link.is_symlink() else None
    if there == str(target):
        return False
    if os.path.lexists(link) and not (there is not None and re.fullmatch(own_target, there)):
        logger.warning("%s pointed elsewhere or was not a link; it is now %s", link, set_aside(link).name)
    for leftover in own_entries(link.parent, lambda stem: stem == f".{link.name}"):
        leftover.unlink()
    draft = link.with_name(own_name(f".{link.name}"))
    draft.symlink_to(target)
    draft.rename(link)
    to_disk(link.parent)
    return True


def _names_in(folder: Path) -> Set[str]:
    """Return the names of all that is in a folder, and in the folders within it: hugging_face/vocab.txt."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
