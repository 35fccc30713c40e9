"""Predict the class or the score of every pair of a file, written beside the columns of the input."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from data_tools.text.table_writer import check_table_suffix, table_writer, text_of
from ernie_pair.core.cli.standard_streams import as_called, with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.progress import CountProgress
from ernie_pair.evaluation.answer_table import (
    ANSWERS,
    INDEX,
    PREDICTION,
    PROBABILITY,
    AnswerTable,
    InputColumns,
    answer_kinds,
    answer_rows,
    chosen_columns,
)
from ernie_pair.evaluation.scorer import check_pairs, results_of, scorer_of
from ernie_pair.inference.predictor import PairPredictor, PairScorer
from ernie_pair.inference.ray_flags import RayModel
from ernie_pair.inference.scores import predict_from
from ernie_pair.models.labels import Labels
from ernie_pair.models.model_folder import resolve_model_folder
from ernie_pair.models.temperature import Calibration, score_pairs
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.config.pair_config import refuse_class_flags
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import CheckedPairs, PairSource

logger = logging.getLogger(__name__)


@with_standard_streams
def predict_pair(config: PredictConfig) -> None:
    """Write the prediction of every input row, in their order, as a table. Raises an ErniePairError."""
    config = replace(config, model_path=str(resolve_model_folder(Path(config.model_path))))
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
def predicted_rows(config: PredictConfig) -> List[Dict[str, Any]]:
    """Return the rows that `predict_pair` would write, and write nothing. Raises an ErniePairError."""
    config = replace(config, model_path=str(resolve_model_folder(Path(config.model_path))))
    scorer, _, table = _predict(config, None)
    found = [dict(zip(table.names, row)) for row in table.rows]
    scorer.wait()
    return found


def read_predictions(path: Path) -> List[Dict[str, Any]]:
    """Return the rows of a file of predictions, its answers as the numbers that they are."""
    source = PairSource("input_file", str(path), "test", None)
    rows: List[Dict[str, Any]] = [dict(row) for _, row in source.given()]
    for row in rows:
        for name in row.keys() & {INDEX, PREDICTION, *(n for n in row if n.startswith(PROBABILITY))}:
            row[name] = _number_in(row[name])
    return rows


def _number_in(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    return None if not cell else int(cell) if cell.isdecimal() else float(cell)


def _predict(config: PredictConfig, final: Optional[Path]) -> Tuple[PairScorer, CheckedPairs, AnswerTable]:
    """Return the model, its pairs, and the table of their predictions, which are made one after the other.

    ``final``: where it is written; None: nowhere.
    """
    config.check_ray()
    scorer = scorer_of(config)
    refuse_class_flags(config, scorer.labels, scorer.where)
    scorer.decide_by(config.threshold, config.symmetric)
    pairs = check_pairs(config, scorer.world.is_first)
    answers = answer_kinds(scorer.class_names, config.scores, scorer.labels.has_classes)
    given = InputColumns(pairs.source, answers, final)
    is_typed = as_called(str(config.input_file)) == "--pair"
    names, of_input = chosen_columns(ANSWERS if is_typed else config.columns, answers, given)
    if config.engine == "local":
        logits = logits_by_window(scorer, pairs)
    else:
        folder = str(Path(config.model_path).absolute())
        in_tasks = replace(config, model_path=folder, output_file=os.devnull, device="cpu")
        if isinstance(scorer, PairPredictor):
            in_tasks = replace(in_tasks, backend=scorer.backend)
        model = RayModel(_open_in_task, (in_tasks,), folder, scorer.identity, logits_of_window)
        logits = logits_by_ray(config, scorer, model, pairs)
    found = answer_rows(map(scorer.prediction_of, logits), scorer.class_names, config.scores, pairs.left_out)
    places = [[*answers, *of_input].index(name) for name in names]
    rows = ([[*row, *cells][n] for n in places] for row, cells in zip(found, given.rows(of_input)))
    return scorer, pairs, AnswerTable(names, {**answers, **given.kinds}, rows)


def logits_by_window(scorer: PairScorer, pairs: CheckedPairs) -> Iterator[np.ndarray]:
    """Yield the logits of all pairs, float32 [at most a window, C], in their order."""
    orders = 1 if scorer.symmetric == "none" else 2
    with CountProgress(pairs.count, "pair", shown=scorer.world.is_first) as progress:

        def score(left: Sequence[str], right: Sequence[str]) -> np.ndarray:
            return scorer.logits_of_texts(left, right, lambda rows: progress.advance(rows / orders))

        for window in pairs.windows(scorer.window):
            yield score_pairs(score, window.left, window.right, scorer.symmetric)


def logits_by_ray(config, scorer: PairScorer, model: RayModel, pairs: CheckedPairs) -> Iterator[np.ndarray]:
    """Yield the logits of all pairs as `logits_by_window` does, computed by the tasks of Ray.

    A task gets a whole window: within it pairs of similar length stand together, here as there.
    """
    if scorer.world.size > 1:
        raise InputError("--engine ray starts its own tasks; run it in one process, not by a launcher")
    with CountProgress(pairs.count, "pair") as progress:
        for logits in config.mapped(model, pairs.windows(scorer.window)):
            progress.advance(len(logits))
            yield logits


def logits_of_window(scorer: PairScorer, window: Pairs) -> np.ndarray:
    """Return the logits of a window of pairs, float32 [N, C]."""
    return score_pairs(scorer.logits_of_texts, window.left, window.right, scorer.symmetric)


def _open_in_task(config: PredictConfig) -> PairScorer:
    scorer = scorer_of(config)
    scorer.decide_by(config.threshold, config.symmetric)
    return scorer


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
