"""The file of predictions: the recipe's two columns, and more when they are asked for.

index<TAB>prediction<TAB>label<TAB>probability_0<TAB>probability_1
0<TAB>1<TAB>same<TAB>0.0312842<TAB>0.968716
1<TAB><TAB><TAB><TAB>                             a row that is no pair, with --on_bad_row skip

``prediction`` is the number of the class; ``label``, its name, is there where the classes have names.
"""

from typing import Iterator, Sequence

import numpy as np

from ernie_pair.inference.softmax import Decisions, are_names
from ernie_pair.pair.data.pair_file import BadRow

ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def prediction_lines(decisions: Decisions, names: Sequence[str], scores: bool) -> Iterator[str]:
    """Yield a header and a line per row; ``scores`` adds the probability of each class."""
    labels = [str(name).translate(ESCAPES) for name in names] if are_names(names) else []
    shown = [f"probability_{number}" for number in range(len(names))] if scores else []
    yield "\t".join(["index", "prediction", *["label"] * bool(labels), *shown]) + "\n"
    rows = zip(decisions.classes.tolist(), decisions.probabilities.tolist())
    for index, (number, row) in enumerate(rows):
        cells = [str(index), str(number), *labels[number : number + 1]]
        yield "\t".join([*cells, *(f"{value:.6g}" for value in row[: len(shown)])]) + "\n"


def with_bad_rows(lines: Iterator[str], bad: Sequence[BadRow]) -> Iterator[str]:
    """Yield the ``lines`` of a file of predictions, with a line of empty cells for each row left out."""
    header = next(lines)
    yield header
    places = {row.place for row in bad}
    empty = "\t" * header.count("\t") + "\n"
    place = 0
    for line in lines:
        while place in places:
            yield f"{place}{empty}"
            place += 1
        yield f"{place}\t{line.partition(chr(9))[2]}"
        place += 1
    yield from (f"{rest}{empty}" for rest in sorted(places) if rest >= place)


def read_log_probabilities(path, num_classes: int) -> np.ndarray:
    """Return log p, float64 [N, C], of a file of predictions written with scores.

    Raises ValueError when a column is absent, a row too short or a cell no number, and OSError.
    """
    names = [f"probability_{number}" for number in range(num_classes)]
    with open(path, encoding="utf-8") as file:
        header = file.readline().rstrip("\n").split("\t")
        columns = [header.index(name) for name in names]
        rows = [line.rstrip("\n").split("\t") for line in file]
    try:
        values = np.array([[float(row[column]) for column in columns] for row in rows])
    except IndexError:
        raise ValueError("a row is too short") from None
    return np.log(np.maximum(values.reshape(-1, num_classes), 1e-300))
