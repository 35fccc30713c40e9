"""Names for files and folders that are being made or deleted, with a token at the end.

.NAME-3f9c....draft      a file that is being written, or a link that is being made (without .draft)
.tmp-NAME-3f9c...        a folder that is being filled
.trash-NAME-3f9c...      a folder that is being deleted
.bad-NAME-3f9c           what was in the way or damaged: the user's from then on, so without a token

A token is a random half and a digest of it with the rest of the name. It distinguishes what a killed run left
behind from a user's file of any name: only files with a name that this package generated are ever removed.
"""

import hashlib
import re
import secrets
from pathlib import Path
from typing import Callable, Iterator

_TOKEN = re.compile(r"(?P<stem>.+)-(?P<drawn>[0-9a-f]{16})(?P<digest>[0-9a-f]{8})", re.DOTALL)
_KEY = "ernie-pair"
LONGEST_NAME = 200  # bytes of a name that are part of one made from it; file systems allow 255
DRAFT = ".draft"  # ends the name of a file
FILLING, TRASH, BAD = ".tmp-", ".trash-", ".bad-"  # begin the name of a folder


def shortened(name: str) -> str:
    """Return the beginning of the name of a file, so short that a name made from it is one that can exist."""
    return name.encode("utf-8", "surrogateescape")[:LONGEST_NAME].decode("utf-8", "surrogateescape")


def own_name(stem: str, drawn: str = "") -> str:
    """Return ``stem`` with a new token at its end, or with the one whose random half is ``drawn``.

    ``drawn``: 16 hexadecimal digits that several processes share, to get the same name.
    """
    drawn = drawn or secrets.token_hex(8)
    return f"{stem}-{drawn}{_digest(stem, drawn)}"


def stem_of(name: str) -> str:
    """Return the stem that ``own_name`` made ``name`` from; '' for any other name."""
    match = _TOKEN.fullmatch(name)
    return match["stem"] if match and match["digest"] == _digest(match["stem"], match["drawn"]) else ""


def own_entries(folder: Path, is_meant: Callable[[str], bool]) -> Iterator[Path]:
    """Yield what is in ``folder`` with a name of ``own_name``, if ``is_meant`` is true for its stem."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        stem = stem_of(path.name)
        if stem and is_meant(stem):
            yield path


def _digest(stem: str, drawn: str) -> str:
    words = "\0".join((_KEY, stem, drawn)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(words).hexdigest()[:8]
