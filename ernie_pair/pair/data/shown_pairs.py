"""The first pairs of a file as a model reads them, for `ernie-pair inspect-data pairs.tsv`."""

from itertools import islice
from pathlib import Path
from typing import Iterator

from data_tools.files.errors import InputError
from data_tools.text.folder_tokenizer import AnyTokenizer, open_vocabulary
from ernie_pair.inference.pair_tokenizer import PairTokenizer, show_pair
from ernie_pair.models.spec import CONFIG
from ernie_pair.pair.data.pair_file import read_cells, row_of
from ernie_pair.pair.data.pair_records import BadRecord, Columns, RowRules


def shown_pairs(
    path: Path, tokenizer: AnyTokenizer, columns: Columns, rules: RowRules, count: int, max_seq_len: int
) -> Iterator[str]:
    """Yield lines about each of the first ``count`` pairs: its label, tokens, ids, segments, what is cut.

    Raises InputError naming file:line for a row that is no pair.
    """
    for number, cells in islice(read_cells(path, columns, rules), count):
        if isinstance(cells, BadRecord):
            raise InputError(cells.reason)
        pair = row_of(f"{path}:{number}", number, cells, None)
        label = "no label" if cells[2] is None else f"label {cells[2]}"
        yield f"line {number}, {label}: {show_pair(tokenizer, pair.left, pair.right, max_seq_len)}\n"


def open_pair_tokenizer(given: str, max_seq_len: int) -> AnyTokenizer:
    """Open the tokenizer of a model folder as training does, or a file of it as it is for a corpus.

    Raises InputError when it is damaged, or the model has fewer positions than ``max_seq_len``.
    """
    if (Path(given) / CONFIG).is_file():
        return PairTokenizer(given, max_seq_len).tokenizer
    return open_vocabulary(given)
