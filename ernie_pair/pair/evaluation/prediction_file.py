"""The file of predictions: the recipe's two columns, and more if requested.

index<TAB>prediction<TAB>label<TAB>probability_0<TAB>probability_1
0<TAB>1<TAB>same<TAB>0.0312842<TAB>0.968716
1<TAB><TAB><TAB><TAB>                             a row that is no pair, with --on_bad_row skip

``prediction`` is the number of the class; ``label``, its name, is there where the classes have names. Of a
model without classes it is the score:

index<TAB>prediction
0<TAB>3.82146
"""

from typing import Deque, Iterable, Iterator, Sequence

import numpy as np

from ernie_pair.inference.softmax import Decisions, are_names
from ernie_pair.report.table import ESCAPES


def prediction_lines(
    parts: Iterable[Decisions], names: Sequence[str], scores: bool, left_out: Deque[int]
) -> Iterator[str]:
    """Yield a header, then a line per row of the file; ``scores`` adds the probability of each class.

    ``parts`` are the decisions on its good rows, in their order. The row at a place in ``left_out`` gets
    empty cells; taking the next part may add places to it, up to the last row of that part.
    """
    labels = [str(name).translate(ESCAPES) for name in names] if are_names(names) else []
    shown = [f"probability_{number}" for number in range(len(names))] if scores else []
    header = ["index", "prediction", *["label"] * bool(labels), *shown]
    yield "\t".join(header) + "\n"
    empty = "\t" * (len(header) - 1) + "\n"
    place = 0
    for part in parts:
        for number, row in zip(part.classes.tolist(), part.probabilities.tolist()):
            while left_out and left_out[0] == place:
                yield f"{left_out.popleft()}{empty}"
                place += 1
            cells = [str(place), str(number), *labels[number : number + 1]]
            yield "\t".join([*cells, *(f"{value:.6g}" for value in row[: len(shown)])]) + "\n"
            place += 1
    yield from (f"{rest}{empty}" for rest in left_out)


def score_lines(parts: Iterable[np.ndarray], left_out: Deque[int]) -> Iterator[str]:
    """Yield a header, then a line per row of the file with its score.

    ``parts`` are the scores float64 [N] of its good rows, in their order; see ``prediction_lines``.
    """
    yield "index\tprediction\n"
    place = 0
    for part in parts:
        for score in part.tolist():
            while left_out and left_out[0] == place:
                yield f"{left_out.popleft()}\t\n"
                place += 1
            yield f"{place}\t{score:.6g}\n"
            place += 1
    yield from (f"{rest}\t\n" for rest in left_out)


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
