"""Results on disk that are built once: checked whenever they are read, built again if anything is wrong.

FOLDER/KINDNAME.json    the key they were built for, and their sha256; written last, to mark them complete
FOLDER/KINDNAME.ENDING  the result, unless it is part of the note
FOLDER/KINDNAME.lock    held by the process that builds

NAME is a hash of the key, which is all that the result depends on: another key has other files.
"""

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Generic, List, Optional, TypeVar

from data_tools.base.errors import MachineError
from data_tools.files.atomic_files import make_folder, published
from data_tools.files.file_lock import locked
from data_tools.files.json_file import as_read, read_note
from data_tools.files.nothing_kept import keeps
from data_tools.files.npy_stream import sha256_of_file

Value = TypeVar("Value")

logger = logging.getLogger(__name__)


def user_cache() -> Path:
    """Return the user's cache folder, for what can be made again.

    Raises MachineError for a user without a home folder, such as a container's numeric user.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = given if os.path.isabs(given) else os.path.expanduser("~/.cache")
    if not os.path.isabs(folder):
        raise MachineError("this user has no home folder to keep a cache in; set HOME or XDG_CACHE_HOME")
    return Path(folder, "ernie-pair")


def build_once(
    lock: Path, seconds: float, read: Callable[[], Optional[Value]], build: Callable[[], Value]
) -> Value:
    """Return ``read()``, or ``build()`` if that is None.

    Any number of processes may call it at once: one builds while it holds ``lock``, the others wait, and if
    it dies the next one builds. In a dry run each builds for itself, without a lock. Raises MachineError if
    another process holds the lock for ``seconds``.
    """
    found = read()
    if found is not None:
        return found
    if not keeps():
        return build()
    make_folder(lock.parent)
    with locked(lock, seconds):
        found = read()
        return build() if found is None else found


def name_of_key(key: Dict[str, object]) -> str:
    """Return a hash of the key, 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class KeyedCache(Generic[Value]):
    """The files in ``folder`` of the result for ``key``, and how the result is written and read.

    ``key``: as JSON. ``write(result, draft)`` fills the file with ``ending`` and returns what the note has
    besides the key, including the "sha256" of the file. ``load(note, path)`` returns the result, None if it
    is damaged; if it raises ValueError, KeyError, TypeError, EOFError or OSError, that means the same.
    Without an ending there is no such file, and neither function is given a path.
    """

    folder: Path
    key: Dict[str, object]
    write: Callable[..., Dict[str, object]]
    load: Callable[..., Optional[Value]]
    kind: str = ""
    ending: str = ""

    def read(self) -> Optional[Value]:
        """Return the result; None if it is missing, of another key, or not as it was written."""
        note = read_note(self._named(".json"))
        if note is None or note.get("key") != as_read(self.key):
            return None
        try:
            if any(note.get("sha256") != sha256_of_file(path) for path in self._files()):
                return None
            return self.load(note, *self._files())
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None

    @property
    def note(self) -> Path:
        """Return the path of the note, without which the result is built again."""
        return self._named(".json")

    def get(self, build: Callable[[], Value], seconds: float) -> Value:
        """Return the result, built and written by this process or by another one that it waits for.

        Raises MachineError if the lock is held for ``seconds``, or if the result cannot be read back.
        """
        return build_once(self._named(".lock"), seconds, self.read, lambda: self._built(build))

    def _built(self, build: Callable[[], Value]) -> Value:
        for path in filter(Path.exists, self._files()):
            logger.warning("%s is damaged or unfinished and is built again", path)
        result = build()
        if not keeps():
            return result
        with published(*self._files(), self._named(".json")) as (*drafts, note_draft):
            note = {**self.write(result, *drafts), "key": self.key}
            note_draft.write_text(json.dumps(note, ensure_ascii=False), encoding="utf-8")
        kept = self.read()
        if kept is None:
            name = self._named(self.ending or ".json")
            raise MachineError(f"{name}: cannot be read back as written; check the disk, run again")
        return kept

    def _files(self) -> List[Path]:
        return [self._named(self.ending)] if self.ending else []

    def _named(self, ending: str) -> Path:
        return self.folder / f"{self.kind}{name_of_key(self.key)}{ending}"
