"""Predict the class or the score of every pair of a file, written beside the columns of the input.

    index  prediction  probability_0  probability_1  id  question  answer

A column of the input that is called as an answer is gets the name input_NAME, or input_input_NAME where the
input has that one too.
"""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Container, Deque, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from data_tools.text.table_writer import (
    check_cell,
    check_table_suffix,
    ending_to_write,
    table_writer,
    text_of,
)
from ernie_pair.core.cli.standard_streams import as_called, with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.process_pool import ReadAhead
from ernie_pair.core.progress import CountProgress
from ernie_pair.evaluation.scorer import check_pairs, open_scorer, results_of
from ernie_pair.inference.predictor import PairPredictor, PairScorer
from ernie_pair.inference.scores import Prediction, are_names, predict_from
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.models.labels import Labels
from ernie_pair.models.model_folder import with_model_folder
from ernie_pair.models.temperature import Calibration, both_orders, mean_of_orders, score_pairs
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.pair_config import refuse_class_flags
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import CheckedPairs, PairSource
from ernie_pair.report.page import ESCAPES

ANSWERS, INPUT = "answers", "input"  # words of --columns for all of them
INDEX, PREDICTION, NAME, PROBABILITY = "index", "prediction", "predicted_label", "probability_"
_LARGEST = 1 << 63

logger = logging.getLogger(__name__)


class AnswerTable(NamedTuple):
    """A table: the ``names`` of its columns, their ``kinds`` for `table_writer`, and the rows as made."""

    names: list[str]
    kinds: Mapping[str, type]
    rows: Iterator[list[Any]]


@with_standard_streams
def predict_pair(config: PredictConfig) -> None:
    """Write the prediction of every input row, in their order, as a table. Raises an ErniePairError."""
    config = with_model_folder(config)
    results = results_of("predict", config)
    if results.are_done():
        return
    check_table_suffix("output_file", config.output_file)
    final = results.given[0]
    scorer, pairs, table = _predict(config, final)
    if scorer.world.is_first:
        with results.published() as (draft,), table_writer(draft, final, table.names, table.kinds) as write:
            for row in table.rows:
                write(row)
    else:
        for _ in table.rows:  # its share of each window
            pass
    scorer.wait()
    if scorer.labels.has_classes:
        logger.info("%s", scorer.describe_decision(config.threshold))
    made = counted(pairs.count, "prediction")
    by = f" by {scorer.describe()}" if isinstance(scorer, PairPredictor) else ""
    logger.info("%s%s: %s", made, by, config.output_file)


@with_standard_streams
def predicted_rows(config: PredictConfig) -> list[dict[str, Any]]:
    """Return the rows that `predict_pair` would write, and write nothing. Raises an ErniePairError."""
    config = with_model_folder(config)
    scorer, _, table = _predict(config, None)
    found = [dict(zip(table.names, row)) for row in table.rows]
    scorer.wait()
    return found


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of predictions, its answers as the numbers that they are."""
    source = PairSource("input_file", str(path), "test", None)
    rows: list[dict[str, Any]] = [dict(row) for _, row in source.given()]
    for row in rows:
        for name in row.keys() & {INDEX, PREDICTION, *(n for n in row if n.startswith(PROBABILITY))}:
            cell = row[name]
            if isinstance(cell, str):
                row[name] = None if not cell else int(cell) if cell.isdecimal() else float(cell)
    return rows


def _predict(config: PredictConfig, final: Optional[Path]) -> tuple[PairScorer, CheckedPairs, AnswerTable]:
    """Return the model, its pairs, and the table of their predictions, which are made one after the other.

    ``final``: where it is written; None: nowhere.
    """
    config.check_ray()
    if config.engine == "ray" and config.device == "auto":
        config = replace(config, device="cpu")  # as its tasks
    scorer = open_scorer(config)
    refuse_class_flags(config, scorer.labels, scorer.where)
    scorer.decide_by(config.threshold, config.symmetric)
    pairs = check_pairs(config, scorer.world.is_first)
    answers = answer_kinds(scorer.class_names, config.scores, scorer.labels.has_classes)
    given = InputColumns(pairs.source, answers, final)
    is_typed = as_called(str(config.input_file)) == "--pair"
    names, of_input = choose_columns(ANSWERS if is_typed else config.columns, answers, given)
    if config.engine == "local":
        logits = logits_by_window(scorer, pairs)
    else:
        logits = logits_by_ray(config, scorer, pairs)
    found = answer_rows(map(scorer.prediction_of, logits), scorer.class_names, config.scores, pairs.left_out)
    places = [[*answers, *of_input].index(name) for name in names]
    rows = ([[*row, *cells][n] for n in places] for row, cells in zip(found, given.rows(of_input)))
    return scorer, pairs, AnswerTable(names, {**answers, **given.kinds}, rows)


def logits_by_window(scorer: PairScorer, pairs: CheckedPairs) -> Iterator[np.ndarray]:
    """Yield the logits of all pairs, float32 [at most a window, C], in their order.

    A thread reads and encodes the next window while one is computed.
    """
    is_alone = scorer.symmetric == "none"

    def encode(window: Pairs) -> EncodedPairs:
        texts = (window.left, window.right)
        return scorer.encode(*(texts if is_alone else both_orders(*texts)))

    progress = CountProgress(pairs.count, "pair", shown=scorer.world.is_first)
    with progress, ReadAhead(pairs.windows(scorer.window), encode) as encoded:
        for rows in encoded:
            logits = scorer.logits_of_rows(rows, lambda count: progress.advance(count / (2 - is_alone)))
            yield logits if is_alone else mean_of_orders(logits)


def logits_by_ray(config, scorer: PairScorer, pairs: CheckedPairs) -> Iterator[np.ndarray]:
    """Yield the logits of all pairs as `logits_by_window` does, computed by the tasks of Ray.

    A task gets a whole window: within it pairs of similar length stand together, here as there.
    """
    with CountProgress(pairs.count, "pair") as progress:
        for logits in config.mapped(partial(logits_of_window, scorer), pairs.windows(scorer.window)):
            progress.advance(len(logits))
            yield logits


def logits_of_window(scorer: PairScorer, window: Pairs) -> np.ndarray:
    """Return the logits of a window of pairs, float32 [N, C]."""
    return score_pairs(scorer.logits_of_texts, window.left, window.right, scorer.symmetric)


def prediction_lines(logits: np.ndarray, names: Sequence[str], left_out: Deque[int]) -> Iterator[str]:
    """Yield a header, then the class and the probabilities of each of logits [N, C], as .tsv.

    ``names``: those of the classes; ``left_out``: see `answer_rows`.
    """
    labels = Labels.named({name: number for number, name in enumerate(names)})
    yield "\t".join(answer_kinds(names, True, True)) + "\n"
    for row in answer_rows([predict_from(logits, labels, Calibration())], names, True, left_out):
        yield "\t".join(map(text_of, row)) + "\n"


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


def answer_kinds(class_names: Sequence[str], scores: bool, has_classes: bool) -> dict[str, type]:
    """Return {column of answers: its kind}; of a model without classes the prediction is a score."""
    has_names = are_names(class_names) and len(class_names) > 1
    shown = {f"{PROBABILITY}{number}": float for number in range(len(class_names) if scores else 0)}
    named = {NAME: str} if has_names else {}
    return {INDEX: int, PREDICTION: int if has_classes else float, **named, **shown}


def answer_rows(
    parts: Iterable[Prediction], names: Sequence[str], scores: bool, left_out: Deque[int]
) -> Iterator[list[Any]]:
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


def _cells(part: Prediction, labels: list[str], num_shown: int) -> Iterator[list[Any]]:
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
        self._source, ending = source, "" if final is None else ending_to_write(final)
        self.faults: dict[str, InputError] = {}
        found: dict[str, set[type]] = {}
        for place, (where, row) in enumerate(source.given()):
            for name, value in row.items():
                is_large = isinstance(value, int) and abs(value) >= _LARGEST
                found.setdefault(name, set()).add(str if is_large else type(value))
                try:
                    check_cell(where, ending, value, place)
                except InputError as error:
                    self.faults.setdefault(name, error)
        self.names = {_free_name(name, answers, found): name for name in found}
        self.kinds: dict[str, type] = {}
        for shown, name in self.names.items():
            kinds = found[name] - {type(None)}
            self.kinds[shown] = bool if kinds == {bool} else str
            if kinds and kinds <= {int, float}:
                self.kinds[shown] = float if float in kinds else int

    def rows(self, chosen: Sequence[str]) -> Iterator[list[Any]]:
        """Yield the cells of the columns ``chosen``, by their names in the output, of each row."""
        names = [self.names[name] for name in chosen]
        return ([row.get(name) for name in names] for _, row in self._source.given())


def _free_name(name: str, answers: Container[str], given: Container[str]) -> str:
    """Return ``name``, with INPUT before it until it is neither an answer nor another column."""
    free = name
    while free in answers or (free != name and free in given):
        free = f"{INPUT}_{free}"
    return free


def choose_columns(
    columns: str, answers: Mapping[str, type], given: InputColumns
) -> tuple[list[str], list[str]]:
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
