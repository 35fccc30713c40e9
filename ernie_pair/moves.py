"""Renaming and removing what stands in the way, without losing anything that a person may want."""

import logging
import os
import secrets
import shutil
from pathlib import Path

from data_tools.publish import to_disk

logger = logging.getLogger(__name__)


def set_aside(path: Path) -> Path:
    """Give it a hidden name of its own, .bad-NAME-xxxxxxxx."""
    return path.rename(path.with_name(f".bad-{path.name}-{secrets.token_hex(4)}"))


def remove_or_warn(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        logger.warning("%s cannot be deleted (%s)", folder, error.strerror)


def point_link(link: Path, target: Path) -> bool:
    """Make ``link`` lead to ``target``; False when it did so before. Readers see the old link or the new.

    What is no link is set aside with a warning.
    """
    if link.is_symlink() and os.readlink(link) == str(target):
        return False
    if link.exists() and not link.is_symlink():
        logger.warning("%s was no link; it is now %s", link, set_aside(link).name)
    draft = link.with_name(f".{link.name}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.rename(link)
    to_disk(link.parent)
    return True
