"""Rows that were left out: counted in the log, and written to a file.

{"file": "train.tsv", "line": 17, "reason": "2 column(s) instead of 3; write one tab ..."}
"""

import json
import logging
from pathlib import Path
from typing import Optional, Sequence

from data_tools.files.atomic_files import make_folder, published
from ernie_pair.pair.data.pair_file import BadRow

ENDING = ".rejected.jsonl"

logger = logging.getLogger(__name__)


def tell_rejected(name: str, bad: Sequence[BadRow], num_good: int, path: Optional[Path]) -> None:
    """Log how many rows of ``name`` were left out; write them to ``path``, where one is given."""
    if not bad:
        return
    where = "" if path is None else f"; all of them: {path}"
    logger.warning(
        "%s: %d of %d rows are no pairs and are left out%s; the first: %s",
        name,
        len(bad),
        len(bad) + num_good,
        where,
        bad[0].reason,
    )
    if path is not None:
        with published(path) as (draft,):
            draft.write_text("".join(_json_line(name, row) for row in bad), encoding="utf-8")


class StreamedRejects:
    """A log of the rows that a stream leaves out in its first epoch; each is written to ``path`` at once."""

    def __init__(self, name: str, path: Optional[Path]):
        self.name, self.path, self.count = name, path, 0

    def __call__(self, row: BadRow) -> None:
        """Count a row that is left out, log the first, and write each to the file."""
        if not self.count:
            logger.warning("%s: a row is no pair and is left out: %s", self.name, row.reason)
        if self.path is not None:
            make_folder(self.path.parent)
            with open(self.path, "a" if self.count else "w", encoding="utf-8") as file:
                file.write(_json_line(self.name, row))
        self.count += 1

    def tell(self) -> None:
        """Log how many rows the first epoch left out."""
        if self.count:
            where = "" if self.path is None else f"; all of them: {self.path}"
            logger.warning("%s: %d rows are no pairs and are left out%s", self.name, self.count, where)


def _json_line(name: str, row: BadRow) -> str:
    _, found, reason = row.reason.partition(f":{row.number}: ")
    note = {"file": name, "line": row.number, "reason": reason if found else row.reason}
    return json.dumps(note, ensure_ascii=False) + "\n"
