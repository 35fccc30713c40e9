"""Renaming and removing what stands in the way, without losing anything that a person may want."""

import logging
import os
import re
import secrets
import shutil
from pathlib import Path

from data_tools.files.atomic_files import to_disk
from data_tools.files.own_names import own_entries, own_name

logger = logging.getLogger(__name__)


def set_aside(path: Path) -> Path:
    """Give it a hidden name of its own, .bad-NAME-xxxxxxxx."""
    return path.rename(path.with_name(f".bad-{path.name}-{secrets.token_hex(4)}"))


def remove_or_warn(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        logger.warning("%s cannot be deleted (%s)", folder, error.strerror)


def point_link(link: Path, target: Path, own_target: str) -> bool:
    """Make ``link`` lead to ``target``; False when it did so before. Readers see the old link or the new.

    What is no link, or one to something that ``own_target``, a pattern, does not match, is set aside with a
    warning. Raises OSError.
    """
    there = os.readlink(link) if link.is_symlink() else None
    if there == str(target):
        return False
    if os.path.lexists(link) and not (there is not None and re.fullmatch(own_target, there)):
        logger.warning("%s led elsewhere or was no link; it is now %s", link, set_aside(link).name)
    for leftover in own_entries(link.parent, f".{link.name}-"):
        leftover.unlink()
    draft = link.with_name(own_name(f".{link.name}"))
    draft.symlink_to(target)
    draft.rename(link)
    to_disk(link.parent)
    return True
