"""The table that predict writes: its answers, and beside them the columns of the input.

    index  prediction  probability_0  probability_1  id  question  answer

A column of the input that is called as an answer is gets the name input_NAME, or input_input_NAME
where the input has that one too.
"""

from pathlib import Path
from typing import (
    Any,
    Container,
    Deque,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from data_tools.text.table_writer import check_cell
from ernie_pair.core.errors import InputError
from ernie_pair.inference.scores import Prediction, are_names
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.report.page import ESCAPES

ANSWERS, INPUT = "answers", "input"  # words of --columns for all of them
INDEX, PREDICTION, NAME, PROBABILITY = "index", "prediction", "predicted_label", "probability_"
_LARGEST = 1 << 63


class AnswerTable(NamedTuple):
    """A table: the ``names`` of its columns, their ``kinds`` for `table_writer`, and the rows as made."""

    names: List[str]
    kinds: Mapping[str, type]
    rows: Iterator[List[Any]]


def answer_kinds(class_names: Sequence[str], scores: bool, has_classes: bool) -> Dict[str, type]:
    """Return {column of answers: its kind}; of a model without classes the prediction is a score."""
    has_names = are_names(class_names) and len(class_names) > 1
    shown = {f"{PROBABILITY}{number}": float for number in range(len(class_names) if scores else 0)}
    named = {NAME: str} if has_names else {}
    return {INDEX: int, PREDICTION: int if has_classes else float, **named, **shown}


def answer_rows(
    parts: Iterable[Prediction], names: Sequence[str], scores: bool, left_out: Deque[int]
) -> Iterator[List[Any]]:
    """Yield the answers to each row of the file, as `answer_kinds` names them.

    ``parts`` are the predictions of its good rows, in their order. The row at a place in ``left_out`` gets
    None; taking the next part may add places to it, up to the last row of that part.
    """
    labels = [str(name).translate(ESCAPES) for name in names] if are_names(names) and len(names) > 1 else []
    shown, place = len(names) if scores else 0, 0
    empty = [None] * (1 + bool(labels) + shown)
    for part in parts:
        for cells in _cells(part, labels, shown):
            while left_out and left_out[0] == place:
                yield [left_out.popleft(), *empty]
                place += 1
            yield [place, *cells]
            place += 1
    yield from ([rest, *empty] for rest in left_out)


def _cells(part: Prediction, labels: List[str], num_shown: int) -> Iterator[List[Any]]:
    if part.classes is None or part.probabilities is None:
        assert part.scores is not None
        yield from ([_digits(score)] for score in part.scores.tolist())
        return
    for number, row in zip(part.classes.tolist(), part.probabilities.tolist()):
        yield [number, *labels[number : number + 1], *map(_digits, row[:num_shown])]


def _digits(value: float) -> float:
    """Return a number with six digits."""
    return float(f"{value:.6g}")


class InputColumns:
    """The columns of the rows of ``source``, as they are called beside ``answers``.

    ``faults``: {column: the error of its first cell that the format of ``final`` cannot hold}; None: of rows
    that are not written.
    """

    def __init__(self, source: PairSource, answers: Container[str], final: Optional[Path]):
        self._source = source
        self.faults: Dict[str, InputError] = {}
        found: Dict[str, Set[type]] = {}
        for place, (number, row) in enumerate(source.given()):
            for name, value in row.items():
                is_large = isinstance(value, int) and abs(value) >= _LARGEST
                found.setdefault(name, set()).add(str if is_large else type(value))
                try:
                    if final is not None:
                        check_cell(f"{source.name}:{number}", final, value, place)
                except InputError as error:
                    self.faults.setdefault(name, error)
        self.names = {_free_name(name, answers, found): name for name in found}
        self.kinds = {shown: _kind_of(found[name]) for shown, name in self.names.items()}

    def rows(self, chosen: Sequence[str]) -> Iterator[List[Any]]:
        """Yield the cells of the columns ``chosen``, by their names in the output, of each row."""
        names = [self.names[name] for name in chosen]
        return ([row.get(name) for name in names] for _, row in self._source.given())


def _free_name(name: str, answers: Container[str], given: Container[str]) -> str:
    """Return ``name``, with INPUT before it until it is neither an answer nor another column."""
    free = name
    while free in answers or (free != name and free in given):
        free = f"{INPUT}_{free}"
    return free


def _kind_of(types: Set[type]) -> type:
    kinds = types - {type(None)}
    if kinds and kinds <= {int, float}:
        return float if float in kinds else int
    return bool if kinds == {bool} else str


def chosen_columns(
    columns: str, answers: Mapping[str, type], given: InputColumns
) -> Tuple[List[str], List[str]]:
    """Return the columns that --columns names, and those of the input among them.

    Raises InputError for an unknown one, or one that the output cannot hold.
    """
    words, found = {ANSWERS: list(answers), INPUT: list(given.names)}, []
    for word in filter(None, map(str.strip, columns.split(","))):
        if word not in words and word not in answers and word not in given.names:
            there = ", ".join([*words, *answers, *given.names])
            raise InputError(f"--columns {columns}: {word} is no column of the output; name some of {there}")
        found += words.get(word, [word])
    names = list(dict.fromkeys(found))
    of_input = [name for name in names if name not in answers]
    for name in of_input:
        fault = given.faults.get(given.names[name])
        if fault is not None:
            raise InputError(f"{fault.message}, or leave the column {name} out with --columns {ANSWERS}")
    return names, of_input
