"""The files of the folds: their training data, written once, and the predictions of the runs.

OUT/plan.json                       what all runs share; a folder with another plan is refused
OUT/folds.tsv                       index, fold and group of every good row of the input
OUT/folds/fold-1-train.jsonl        what fold 1 learns from; -dev: what chooses its model, -test: its own
OUT/folds/dev.jsonl                 with --dev_file: its pairs, which choose the model of every fold
OUT/fold-1/                         the output_dir of its run, and its predictions.tsv: then it is done
"""

import json
from collections import deque
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence

import numpy as np

from data_tools.base.errors import CheckpointError, InputError, counted
from data_tools.files.atomic_files import published
from ernie_pair.inference.softmax import decide
from ernie_pair.pair.cross_validation.folds import Folds, pick_groups
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.evaluation.prediction_file import prediction_lines, read_log_probabilities
from ernie_pair.pair.series.plan import PREDICTIONS

FOLDS = "folds.tsv"


class FoldRows(NamedTuple):
    """The rows of a fold, int64 each: those it learns from, those that choose its model, its own."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def rows_of_fold(folds: Folds, labels: np.ndarray, number: int, dev_share: float, seed: int) -> FoldRows:
    """Return the rows of fold ``number``, from 0; ``dev_share`` 0: none of them chooses the model.

    The rows that do are whole groups of the others, drawn with ``seed``. Raises InputError if no group is
    small enough for them, or none is left to learn from.
    """
    test, others = np.flatnonzero(folds.fold == number), np.flatnonzero(folds.fold != number)
    if not dev_share:
        return FoldRows(others, others[:0], test)
    _, group = np.unique(folds.group[others], return_inverse=True)
    is_dev = pick_groups(group, labels[others], dev_share, seed + number)
    if is_dev.all() or not is_dev.any():
        sizes = np.bincount(group)
        raise InputError(
            f"fold {number + 1}: its {counted(len(others), 'training row')} are in "
            f"{counted(len(sizes), 'group')}, the smallest of {counted(sizes.min(), 'row')}, which leaves "
            f"none for --dev_share {dev_share}; give --dev_file, another share, or take --group_by pair"
        )
    return FoldRows(others[~is_dev], others[is_dev], test)


class FoldFiles:
    """The places of the files of the folds in ``output_dir``."""

    def __init__(self, output_dir: Path, count: int):
        self.output_dir, self.count = output_dir, count

    def run(self, number: int) -> Path:
        """Return the output_dir of the run of fold ``number``, from 0."""
        return self.output_dir / f"fold-{number + 1}"

    def part(self, number: int, name: str) -> Path:
        """Return the file of the rows of a fold: train, dev or test."""
        return self.output_dir / "folds" / f"fold-{number + 1}-{name}.jsonl"

    @property
    def dev(self) -> Path:
        """Return the file of the pairs of --dev_file, as the parts of the folds are written."""
        return self.output_dir / "folds" / "dev.jsonl"

    def predictions(self, number: int) -> Path:
        """Return the file of what fold ``number`` predicts for its own rows."""
        return self.run(number) / PREDICTIONS

    def write_rows(self, number: int, rows: FoldRows, pairs: Pairs, names: Sequence[str]) -> None:
        """Write the parts of a fold that are not there yet; ``names`` are those of the classes."""
        for name, picked in rows._asdict().items():
            if len(picked):
                _write_missing(self.part(number, name), pairs, picked.tolist(), names)

    def write_dev(self, pairs: Pairs, names: Sequence[str]) -> None:
        """Write the pairs of --dev_file if they are not there yet."""
        _write_missing(self.dev, pairs, range(len(pairs)), names)

    def write_predictions(self, number: int, logits: np.ndarray, names: Sequence[str]) -> None:
        """Write the predictions of a fold; from then on it is done."""
        with published(self.predictions(number)) as (draft,):
            write_lines(draft, lines_of(logits, names, ()))

    def read_logits(self, number: int, num_rows: int, num_classes: int) -> np.ndarray:
        """Return log p of the rows of a fold, float64 [rows, C], which serve as logits.

        Raises CheckpointError when its predictions are damaged.
        """
        path = self.predictions(number)
        try:
            logits = read_log_probabilities(path, num_classes)
        except ValueError:
            logits = np.empty((0, num_classes))
        if len(logits) != num_rows:
            raise CheckpointError(f"{path} is damaged; remove it and start the same command again")
        return logits


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines that end with a line feed each. Raises OSError."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(lines)


def lines_of(logits: np.ndarray, names: Sequence[str], left_out: Iterable[int]) -> Iterator[str]:
    """Yield the lines of a file of predictions for logits [N, C] at temperature 1.

    ``left_out``: the places of rows of the input that are no pairs.
    """
    return prediction_lines([decide(logits)], names, True, deque(left_out))


def fold_lines(folds: Folds, places: Sequence[int]) -> Iterator[str]:
    """Yield a header, then place in the input, fold from 1 and group of each row."""
    yield "index\tfold\tgroup\n"
    for place, fold, group in zip(places, folds.fold.tolist(), folds.group.tolist()):
        yield f"{place}\t{fold + 1}\t{group}\n"


def places_in_input(pairs: Pairs) -> List[int]:
    """Return the place of each good row among all rows of its file, from 0."""
    bad = {row.place for row in pairs.bad}
    return [place for place in range(len(pairs) + len(bad)) if place not in bad]


def _write_missing(path: Path, pairs: Pairs, rows: Sequence[int], names: Sequence[str]) -> None:
    if not path.is_file():
        with published(path) as (draft,):
            write_lines(draft, _json_lines(pairs, rows, names))


def _json_lines(pairs: Pairs, rows: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    labels = pairs.known_labels
    for row in rows:
        said: Dict[str, object] = {"sentence1": pairs.left[row], "sentence2": pairs.right[row]}
        yield json.dumps({**said, "label": names[labels[row]]}, ensure_ascii=False) + "\n"
