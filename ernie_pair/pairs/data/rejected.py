"""Rows that were left out: counted in the log, and written to a file.

{"file": "train.tsv", "line": 17, "reason": "2 columns instead of 3; write one tab ..."}
"""

import json
import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Optional, Sequence

from ernie_pair.core.cli.standard_streams import as_called
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import keeps, make_folder, naming, published
from ernie_pair.core.files.json_file import parse_json_object
from ernie_pair.core.files.results import followed, is_stream
from ernie_pair.pairs.data.pair_file import BadRow

ENDING = ".rejected.jsonl"
NOTE = ["file", "line", "reason"]  # the keys of a line
MAX_NOTE_LENGTH = 1 << 20  # characters

logger = logging.getLogger(__name__)


def rejected_beside(output_file: str, more: str = "") -> Optional[Path]:
    """Return where rows that are left out are written; None without an output that is a file on a disk."""
    if not output_file or is_stream(followed(Path(output_file))):
        return None
    return Path(f"{output_file}{more}{ENDING}")


class Rejects:
    """Rows of ``name`` that are left out, used with ``with``; none is held in memory.

    Each is written to ``path``, where one is given, as it comes; the file appears when the context is left.
    One that an earlier run has left there is removed when no row is left out. Raises InputError at the first
    row if another file stands there.
    """

    def __init__(self, name: str, path: Optional[Path]):
        self.name, self.path, self.count = as_called(name), path, 0
        self._first, self._stack = "", ExitStack()
        self._file: Optional[IO[str]] = None

    def __enter__(self) -> "Rejects":
        return self

    def __exit__(self, *exception) -> None:
        self._stack.__exit__(*exception)
        if not self.count and exception[:1] == (None,):
            _remove_stale(self.path)

    def __call__(self, row: BadRow) -> None:
        """Count a row that is left out, and write it down."""
        if not self.count:
            self._first = as_called(row.reason)
            if self.path is not None and keeps():
                _check_own_file(self.path)
                (draft,) = self._stack.enter_context(published(self.path))
                self._file = self._stack.enter_context(draft.open("w", encoding="utf-8"))
        if self._file is not None:
            self._file.write(_json_line(self.name, row))
        self.count += 1

    def log(self, num_good: int) -> None:
        """Log how many rows were left out beside the good ones; nothing when there were none."""
        if self.count:
            logger.warning(
                "%s: %d of %d rows are not pairs and are left out%s; the first: %s",
                self.name,
                self.count,
                self.count + num_good,
                "" if self.path is None else f"; all of them: {self.path}",
                self._first,
            )


def log_rejected(name: str, bad: Sequence[BadRow], num_good: int, path: Optional[Path]) -> None:
    """Log how many rows of ``name`` were left out; write them to ``path``, where one is given."""
    with Rejects(name, path) as rejects:
        for row in bad:
            rejects(row)
        rejects.log(num_good)


class StreamedRejects(Rejects):
    """A log of the rows that a stream leaves out in its first epoch; each is written to ``path`` at once."""

    def __call__(self, row: BadRow) -> None:
        """Count a row that is left out, log the first, and write each to the file."""
        if not self.count:
            logger.warning("%s: a row is not a pair and is left out: %s", self.name, row.reason)
        if self.path is not None and keeps():
            if not self.count:
                _check_own_file(self.path)
            make_folder(self.path.parent)
            with naming(self.path), open(self.path, "a" if self.count else "w", encoding="utf-8") as file:
                file.write(_json_line(self.name, row))
        self.count += 1

    def log(self, num_good: int = 0) -> None:
        """Log how many rows the first epoch left out; remove the file of an earlier run if none."""
        if not self.count:
            _remove_stale(self.path)
        else:
            where = "" if self.path is None else f"; all of them: {self.path}"
            logger.warning("%s: %d rows are not pairs and are left out%s", self.name, self.count, where)


def _remove_stale(path: Optional[Path]) -> None:
    """Remove a file of rows that an earlier run left out; one that anybody else wrote or changed stays."""
    if path is not None and keeps() and _is_own(path):
        path.unlink()
        logger.info("%s is removed: no row is left out any more", path)


def _check_own_file(path: Path) -> None:
    """Raise InputError if something stands at ``path`` that is neither empty nor a file of rejected rows."""
    is_empty = path.is_file() and not path.is_symlink() and path.stat().st_size == 0
    if (path.exists() or path.is_symlink()) and not is_empty and not _is_own(path):
        raise InputError(
            f"{path}: the rows that are left out belong here, and it is not such a file; move it elsewhere"
        )


def _is_own(path: Path) -> bool:
    """Return whether a file has only lines as `_json_line` writes them, and at least one."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with open(path, encoding="utf-8") as file:
            notes = iter(partial(file.readline, MAX_NOTE_LENGTH), "")
            return all([*parse_json_object(note)] == NOTE for note in notes) and file.tell() > 0
    except (OSError, ValueError):
        return False


def _json_line(name: str, row: BadRow) -> str:
    reason = row.reason.removeprefix(f"{row.file}:{row.number}: ")
    note = dict(zip(NOTE, (as_called(row.file) or name, row.number, reason)))
    return json.dumps(note, ensure_ascii=False) + "\n"
