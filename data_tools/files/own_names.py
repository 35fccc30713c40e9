"""Names for files and folders that are being made or deleted, with a token at the end.

.NAME-3f9c....draft      a file that is being written, or a link that is being made (without .draft)
.tmp-NAME-3f9c...        a folder that is being filled
.trash-NAME-3f9c...      a folder that is being deleted
.bad-NAME-3f9c           what stood in the way or was damaged: the user's from then on, so without a token

A token is a random half and a digest of it with the rest of the name. So what a killed run left behind is
told from a file of the user whatever that is called: only a name that this package drew is ever cleared away.
"""

import hashlib
import re
import secrets
from pathlib import Path
from typing import Iterator

_TOKEN = re.compile(r"(?P<stem>.+)-(?P<drawn>[0-9a-f]{16})(?P<digest>[0-9a-f]{8})", re.DOTALL)
_KEY = "ernie-pair"
DRAFT = ".draft"  # ends the name of a file
FILLING, TRASH, BAD = ".tmp-", ".trash-", ".bad-"  # begin the name of a folder


def own_name(stem: str, drawn: str = "") -> str:
    """Return ``stem`` with a new token at its end, or with the one that follows from ``drawn``.

    ``drawn``: 16 hexadecimal digits that several processes share and so arrive at the same name.
    """
    drawn = drawn or secrets.token_hex(8)
    return f"{stem}-{drawn}{_digest(stem, drawn)}"


def is_own_name(name: str, stem: str = "") -> bool:
    """Tell whether ``own_name`` gave ``name``, to a stem that begins with ``stem``."""
    match = _TOKEN.fullmatch(name)
    return bool(match and name.startswith(stem) and match["digest"] == _digest(match["stem"], match["drawn"]))


def own_entries(folder: Path, stem: str) -> Iterator[Path]:
    """Yield what ``folder`` holds under names that ``own_name`` gave to stems beginning with ``stem``."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if is_own_name(path.name, stem):
            yield path


def _digest(stem: str, drawn: str) -> str:
    words = "\0".join((_KEY, stem, drawn)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(words).hexdigest()[:8]
