"""Predict the class or the score of every pair of a file, written in the recipe's two columns."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Deque, Iterable, Iterator, List, Sequence, Tuple

import numpy as np

from data_tools.files.errors import InputError, counted
from data_tools.files.progress import CountProgress
from data_tools.options.standard_streams import with_standard_streams
from ernie_pair.inference.predictor import PairPredictor, PairScorer
from ernie_pair.inference.ray_flags import RayModel
from ernie_pair.inference.scores import Decisions, are_names
from ernie_pair.models.source import model_folder_of
from ernie_pair.models.temperature import score_pairs
from ernie_pair.pair.config.ask_config import PredictConfig
from ernie_pair.pair.config.pair_config import refuse_class_flags
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_source import CheckedPairs
from ernie_pair.report.page import ESCAPES
from ernie_pair.score.evaluation.scorer import check_pairs, results_of, scorer_of

logger = logging.getLogger(__name__)


@with_standard_streams
def predict_pair(config: PredictConfig) -> None:
    """Write a header, then the prediction of every input row, in their order. Raises an ErniePairError."""
    config = replace(config, model_path=str(model_folder_of(Path(config.model_path))))
    results = results_of("predict", config)
    if results.are_done():
        return
    scorer, pairs, lines = _predict(config)
    if scorer.world.is_first:
        with results.published() as (draft,), open(draft, "w", encoding="utf-8") as file:
            file.writelines(lines)
    else:
        for _ in lines:  # its share of each window
            pass
    scorer.wait()
    if scorer.labels.has_classes:
        logger.info("%s", scorer.describe_decision(config.threshold))
    made = counted(pairs.count, "prediction")
    by = f" by {scorer.describe()}" if isinstance(scorer, PairPredictor) else ""
    logger.info("%s%s: %s", made, by, config.output_file)


@with_standard_streams
def predicted_lines(config: PredictConfig) -> List[str]:
    """Return the lines that `predict_pair` would write, and write nothing. Raises an ErniePairError."""
    config = replace(config, model_path=str(model_folder_of(Path(config.model_path))))
    scorer, _, lines = _predict(config)
    found = list(lines)
    scorer.wait()
    return found


def _predict(config: PredictConfig) -> Tuple[PairScorer, CheckedPairs, Iterator[str]]:
    """Return the model, its pairs, and the lines of their predictions, which are made one after the other."""
    config.refuse_no_ray()
    scorer = scorer_of(config)
    refuse_class_flags(config, scorer.labels, scorer.where)
    scorer.decide_by(config.threshold, config.symmetric)
    pairs = check_pairs(config, scorer.world.is_first)
    if config.engine == "local":
        logits = logits_by_window(scorer, pairs)
    else:
        folder = str(Path(config.model_path).absolute())
        in_tasks = replace(config, model_path=folder, output_file=os.devnull, device="cpu")
        if isinstance(scorer, PairPredictor):
            in_tasks = replace(in_tasks, backend=scorer.backend)
        model = RayModel(_open_in_task, (in_tasks,), folder, scorer.identity, logits_of_window)
        logits = logits_by_ray(config, scorer, model, pairs)
    parts = map(scorer.answers, logits)
    return scorer, pairs, prediction_lines(parts, scorer.class_names, config.scores, pairs.left_out)


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


def prediction_lines(
    parts: Iterable, names: Sequence[str], scores: bool, left_out: Deque[int]
) -> Iterator[str]:
    """Yield a header, then a line per row of the file; ``scores`` adds the probability of each class.

    ``parts`` are the decisions on its good rows, in their order, or of a model without classes their scores
    float64 [N]. The row at a place in ``left_out`` gets empty cells; taking the next part may add places to
    it, up to the last row of that part.
    """
    labels = [str(name).translate(ESCAPES) for name in names] if are_names(names) and len(names) > 1 else []
    shown = [f"probability_{number}" for number in range(len(names))] if scores else []
    header = ["index", "prediction", *["label"] * bool(labels), *shown]
    yield "\t".join(header) + "\n"
    empty = "\t" * (len(header) - 1) + "\n"
    place = 0
    for part in parts:
        for cells in _cells(part, labels, len(shown)):
            while left_out and left_out[0] == place:
                yield f"{left_out.popleft()}{empty}"
                place += 1
            yield "\t".join([str(place), *cells]) + "\n"
            place += 1
    yield from (f"{rest}{empty}" for rest in left_out)


def _cells(part, labels: List[str], num_shown: int) -> Iterator[List[str]]:
    if not isinstance(part, Decisions):
        yield from ([f"{score:.6g}"] for score in part.tolist())
        return
    for number, row in zip(part.classes.tolist(), part.probabilities.tolist()):
        yield [str(number), *labels[number : number + 1], *(f"{value:.6g}" for value in row[:num_shown])]


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
