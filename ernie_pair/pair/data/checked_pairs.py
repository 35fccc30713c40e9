"""Pairs to predict, in any number: checked and counted first, then read window by window.

So a bad row at the end of a large file ends the command before a model has worked for it, and how much there
is to do is known. Memory does not follow the rows: each of the two readings holds a window of them at most.
"""

from collections import deque
from pathlib import Path
from typing import Deque, Iterator, Optional

from ernie_pair.pair.data.pair_file import Pairs, chunks_of, refuse_changed, stamp_of
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.data.rejected import Rejects


class CheckedPairs:
    """The ``count`` good pairs of ``source``; rows that are left out are logged, and written to ``told``.

    ``left_out`` holds the places, among all rows, of those that the last reading has left out. Raises
    InputError for a bad row that is not left out, and when no row is good.
    """

    def __init__(self, source: PairSource, told: Optional[Path]):
        self.source = source
        self.left_out: Deque[int] = deque()
        with Rejects(source.name, told) as rejects:
            rows = source.rows(rejects)
            self._file = source.file
            self._stamp = None if self._file is None else stamp_of(self._file)
            self.count = sum(1 for _ in rows)
            rejects.tell(self.count)

    def windows(self, size: int) -> Iterator[Pairs]:
        """Yield the good pairs in their order, ``size`` at a time.

        Raises InputError behind the last one when the file has changed since it was checked.
        """
        rows = self.source.rows(lambda row: self.left_out.append(row.place))
        yield from chunks_of(rows, size, self.source.name)
        if self._file is not None and self._stamp is not None:
            refuse_changed(self._file, self._stamp)
