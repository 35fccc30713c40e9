"""Predict the class of every pair of a file, written in the recipe's two columns."""

import hashlib
import logging
import os
import socket
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Deque, Iterable, Iterator, Sequence

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.atomic_folder import content_of
from data_tools.files.errors import InputError, MachineError, counted
from data_tools.files.progress import CountProgress
from data_tools.options.standard_streams import with_standard_streams
from ernie_pair.inference.ray_flags import refuse_unseen
from ernie_pair.inference.scores import Decisions, are_names, decide, refuse_threshold, scores_of
from ernie_pair.inference.token_rows import WINDOW
from ernie_pair.models.source import model_folder_of
from ernie_pair.models.temperature import describe_decision
from ernie_pair.pair.config.ask_config import PredictConfig
from ernie_pair.pair.config.target_flags import refuse_class_flags
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_source import CheckedPairs
from ernie_pair.report.page import ESCAPES
from ernie_pair.score.evaluation.inference_model import InferenceModel, results_of


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


logger = logging.getLogger(__name__)


@with_standard_streams
def predict_pair(config: PredictConfig) -> None:
    """Write a header, then the prediction of every input row, in their order. Raises InputError."""
    config = replace(config, model_path=str(model_folder_of(Path(config.model_path))))
    results = results_of("predict", config)
    if results.are_done():
        return
    config.refuse_no_ray()
    trained = InferenceModel(config)
    refuse_class_flags(config, trained.labels, config.model_path)
    refuse_threshold(config.threshold, trained.num_classes, config.model_path)
    saved = trained.calibration
    symmetric = saved.chosen_symmetry(config.symmetric, config.model_path)
    threshold = saved.threshold if config.threshold is None else config.threshold
    pairs = trained.check("input_file")
    parts = (
        trained.logits_by_window(pairs, symmetric)
        if config.engine == "local"
        else _logits_by_ray(config, trained, pairs, symmetric)
    )
    if trained.labels.has_classes:
        decisions = (decide(logits, saved.temperature, threshold) for logits in parts)
        lines = prediction_lines(decisions, trained.labels.names, config.scores, pairs.left_out)
    else:
        lines = score_lines((scores_of(part, trained.labels.label_range) for part in parts), pairs.left_out)
    if trained.world.is_first:
        with results.published() as (draft,), open(draft, "w", encoding="utf-8") as file:
            file.writelines(lines)
    else:
        for _ in lines:  # its share of each window
            pass
    trained.process_group.barrier()
    if trained.labels.has_classes:
        logger.info("%s", describe_decision(threshold, config.threshold is None, symmetric))
    logger.info("%s: %s", counted(pairs.count, "prediction"), config.output_file)


@dataclass(frozen=True)
class RayAsker:
    """The logits of windows of pairs in the tasks of Ray, each of which opens the model once."""

    config: PredictConfig
    symmetric: str
    kernels: str  # in words: another machine must compute as this one
    sha256: str  # of the weights and the vocabulary

    @classmethod
    def of(cls, config: PredictConfig, trained: InferenceModel, symmetric: str) -> "RayAsker":
        """Return what computes as ``trained`` does, elsewhere; what it would write goes nowhere."""
        folder = Path(config.model_path).absolute()
        settled = replace(config, model_path=str(folder), output_file=os.devnull)
        return cls(settled, symmetric, trained.kernels.name, _hash_of(folder))

    def __call__(self, window: Pairs) -> np.ndarray:
        """Return the logits float32 [N, C]. Raises MachineError on a machine that would find others."""
        refuse_unseen(self.config.model_path)
        trained = _opened(self.config)
        if (trained.kernels.name, _hash_of(Path(self.config.model_path))) != (self.kernels, self.sha256):
            raise MachineError(
                f"{self.config.model_path} on {socket.gethostname()} is another model, or computed by "
                f"{trained.kernels.name} and not {self.kernels}; give all machines the same, or pass "
                "--kernels plain"
            )
        return trained.logits(window, self.symmetric)


@lru_cache(maxsize=1)
def _opened(config: PredictConfig) -> InferenceModel:
    return InferenceModel(config)


def _hash_of(folder: Path) -> str:
    """Return a hash of all files of a model but those that only tell of it."""
    return hashlib.sha256("".join(map(sha256_of_file, content_of(str(folder)))).encode()).hexdigest()


def _logits_by_ray(
    config: PredictConfig, trained: InferenceModel, pairs: CheckedPairs, symmetric: str
) -> Iterator[np.ndarray]:
    """Yield the logits of all pairs, float32 [at most WINDOW, C], in their order.

    A task gets a whole window: within it pairs of similar length stand together, here as there.
    """
    if trained.world.size > 1:
        raise InputError("--engine ray starts its own tasks; run it in one process, not by a launcher")
    asker = RayAsker.of(config, trained, symmetric)
    with CountProgress(pairs.count, "pair") as progress:
        for logits in config.mapped(asker, pairs.windows(WINDOW)):
            progress.advance(len(logits))
            yield logits
