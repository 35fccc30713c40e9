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
import re
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Generic, List, NamedTuple, Optional, Tuple, TypeVar

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from ernie_pair.core.errors import MachineError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import keeps, locked, make_folder, published
from ernie_pair.core.files.json_file import as_read, read_note

Value = TypeVar("Value")

logger = logging.getLogger(__name__)


def user_cache() -> Path:
    """Return the user's cache folder, for what can be made again. Raises MachineError without a home."""
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


def hash_key(key: Dict[str, object]) -> str:
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

    @property
    def note(self) -> Path:
        """Return the path of the note, without which the result is built again."""
        return self._path_with(".json")

    def read(self) -> Optional[Value]:
        """Return the result; None if it is missing, of another key, or not as it was written."""
        note = read_note(self.note)
        if note is None or note.get("key") != as_read(self.key):
            return None
        try:
            if any(note.get("sha256") != sha256_of_file(path) for path in self._files()):
                return None
            return self.load(note, *self._files())
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None

    def get(self, build: Callable[[], Value], seconds: float) -> Value:
        """Return the result, built and written by this process or by another one that it waits for.

        Raises MachineError if the lock is held for ``seconds``, or if the result cannot be read back.
        """
        return build_once(self._path_with(".lock"), seconds, self.read, lambda: self._build_and_write(build))

    def _build_and_write(self, build: Callable[[], Value]) -> Value:
        for path in filter(Path.exists, self._files()):
            logger.warning("%s is damaged or unfinished and is built again", path)
        result = build()
        if not keeps():
            return result
        with published(*self._files(), self.note) as (*drafts, note_draft):
            note = {**self.write(result, *drafts), "key": self.key}
            note_draft.write_text(json.dumps(note, ensure_ascii=False), encoding="utf-8")
        kept = self.read()
        if kept is None:
            name = self._path_with(self.ending or ".json")
            raise MachineError(f"{name}: cannot be read back as written; check the disk, run again")
        return kept

    def _files(self) -> List[Path]:
        return [self._path_with(self.ending)] if self.ending else []

    def _path_with(self, ending: str) -> Path:
        return self.folder / f"{self.kind}{hash_key(self.key)}{ending}"


MASK = 0xFFFFFFFFFFFFFFFF
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(value: Any) -> Any:
    """Map one 64-bit integer, or each of uint64 [N], to another; neighbours become unrelated."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * FIRST) & MASK
    value = ((value ^ (value >> 27)) * SECOND) & MASK
    return value ^ (value >> 31)


def mix_all(*parts: int) -> int:
    """Fold several integers into one 64-bit integer; the order of the parts matters."""
    return reduce(lambda state, part: mix((state + part) & MASK), parts, 0)


def mix_range(start: int, count: int) -> np.ndarray:
    """Return `mix` of start, start + 1, ...: uint64 [count]."""
    return mix(np.arange(count, dtype=np.uint64) + start)


def keyed_rng(*key: int) -> np.random.Generator:
    """Return a generator that depends on ``key`` only; cheaper than numpy's default_rng([...])."""
    state = mix_all(*key)
    words = _SeedWords([mix(state ^ number) for number in range(1, 5)])
    return np.random.Generator(np.random.PCG64(words))  # type: ignore[arg-type]  # an ISeedSequence


class _SeedWords(ISeedSequence):
    """The four 64-bit words that start a PCG64, as they are: splitmix64 has mixed them."""

    def __init__(self, words):
        self.words = np.array(words, np.uint64)

    def generate_state(self, n_words, dtype=np.uint32):
        assert n_words == len(self.words) and dtype == np.uint64
        return self.words


ENDING = ".npy"


class ArrayKind(NamedTuple):
    """What an array that was read must be to be used."""

    dtype: np.dtype
    shape: Tuple[int, ...]

    def fits(self, array: np.ndarray) -> bool:
        """Return whether ``array`` is of this kind."""
        return self == (array.dtype, array.shape)


def array_cache(
    folder: Path,
    key: Dict[str, object],
    kind: str = "",
    fits: Callable[[np.ndarray], bool] = lambda array: True,
) -> "KeyedCache[np.ndarray]":
    """Return the cache in ``folder`` of the array for ``key``, which is read memory mapped.

    ``kind``: prefix of the file names. An array for which ``fits`` is false is computed again.
    """

    def load(note: Dict[str, Any], path: Path) -> Optional[np.ndarray]:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array if fits(array) else None

    return KeyedCache(folder, key, _write, load, kind=kind, ending=ENDING)


def remove_arrays(folder: Path, kind: str) -> None:
    """Remove the arrays of a kind, for any key, and what killed runs have left of them."""
    own = re.compile(rf"\.?{re.escape(kind)}[0-9a-f]{{32}}(?:\.\w+)?\.(?:npy|json|lock)")
    for path in folder.iterdir() if folder.is_dir() else ():
        if own.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _write(array: np.ndarray, draft: Path) -> Dict[str, object]:
    with open(draft, "wb") as file:
        hashed = _HashingFile(file)
        np.save(hashed, array, allow_pickle=False)
    return {"sha256": hashed.digest.hexdigest()}


class _HashingFile:
    """A file that hashes what it is given, not what the disk makes of it."""

    def __init__(self, file: BinaryIO):
        self.file, self.digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return self.file.write(content)
