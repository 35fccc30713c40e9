"""Predict the class of every pair of a file with an exported model, in the format of `predict`."""

import logging
import socket
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Iterator, List, Optional

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.errors import InputError, MachineError, counted
from data_tools.files.progress import CountProgress
from data_tools.options.options import option
from data_tools.options.standard_streams import with_standard_streams
from ernie_pair.inference.exported_model import EXPORT_MANIFEST
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.ray_flags import RayFlags, refuse_unseen
from ernie_pair.inference.scores import Decisions
from ernie_pair.models.temperature import describe_decision
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_records import PAIR_HELP, Columns, RowRules
from ernie_pair.pair.data.pair_source import CheckedPairs, FileSource
from ernie_pair.pair.data.rejected import rejected_beside
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World
from ernie_pair.score.evaluation.inference_model import results_of
from ernie_pair.score.evaluation.predict_pair import prediction_lines, score_lines
from ernie_pair.score.export.exported_flags import ExportedFlags

CHUNK = 4096  # pairs asked at a time

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunConfig(RayFlags, ExportedFlags):
    """Predict the class of every pair of a file with an exported model."""

    EXAMPLE = "--model exported --input_file pairs.tsv --output_file predictions.tsv"

    input_file: str = option(
        help="pairs, labelled or not: .tsv, .csv, .json or .jsonl",
        group="data",
        stdin=(".tsv", ".jsonl"),
        unless="pair",
    )
    output_file: str = option(
        help="file to write: index TAB prediction, one row per input row",
        group="data",
        stdout=True,
        unless="pair",
    )
    pair: Optional[List[str]] = option(None, help=PAIR_HELP, group="data", values=2)
    scores: bool = option(
        False, help="add the probability of every class, calibrated if the model is", group="evaluation"
    )
    threshold: Optional[float] = option(
        None,
        help="for two classes: predict 1 at this probability or above; none: as exported",
        group="evaluation",
        at_least=0,
        at_most=1,
    )


@with_standard_streams
def predict_exported(config: RunConfig) -> None:
    """Write a header, then the prediction of every input row, in their order, as they come.

    Raises an ErniePairError.
    """
    start_console(World())
    results = results_of("run", config)
    if results.are_done():
        return
    config.refuse_no_ray()
    predictor = _open(config)
    _refuse_class_scores(config, predictor)
    columns = Columns(config.text_a, config.text_b)
    source = FileSource("input_file", config.input_file, "test", None, columns, RowRules.of(config))
    pairs = CheckedPairs(source, rejected_beside(config.output_file))
    with results.published() as (draft,), open(draft, "w", encoding="utf-8") as file:
        file.writelines(_lines(config, predictor, pairs))
    if predictor.exported.has_classes:
        is_saved = config.threshold is None
        logger.info("%s", describe_decision(predictor.threshold, is_saved, predictor.symmetric))
    made = f"{counted(pairs.count, 'prediction')} by {predictor.describe()}"
    logger.info("%s: %s", made, config.output_file)


def _lines(config: RunConfig, predictor: PairPredictor, pairs: CheckedPairs) -> Iterator[str]:
    answers = _ask(config, predictor, pairs)
    if predictor.exported.has_classes:
        return prediction_lines(answers, predictor.class_names, config.scores, pairs.left_out)
    return score_lines(answers, pairs.left_out)


def _refuse_class_scores(config: RunConfig, predictor: PairPredictor) -> None:
    """Raise InputError for probabilities of the classes of a model that has none."""
    if config.scores and not predictor.exported.has_classes:
        raise InputError(
            f"--scores true adds the probability of each class, and {config.model} is a model for "
            f"{predictor.exported.target}; leave it out"
        )


def _open(config: RunConfig) -> PairPredictor:
    return PairPredictor(
        config.model,
        config.backend,
        config.threads,
        threshold=config.threshold,
        symmetric=config.symmetric,
        precision=config.precision,
        device=config.device,
    )


_opened_in_task = lru_cache(maxsize=1)(_open)  # not for longer: the folder may then hold another model


@dataclass(frozen=True)
class RayAsker:
    """The answers to windows of pairs in the tasks of Ray, each of which opens the model once."""

    config: RunConfig
    sha256: str  # of export.json: another machine must have this very model

    @classmethod
    def of(cls, config: RunConfig, predictor: PairPredictor) -> "RayAsker":
        """Return what computes as ``predictor`` does, elsewhere."""
        folder = Path(config.model).absolute()
        settled = replace(config, model=str(folder), backend=predictor.backend)
        return cls(settled, sha256_of_file(folder / EXPORT_MANIFEST))

    def __call__(self, window: Pairs) -> Any:
        """Return the answers to a window. Raises MachineError on a machine without this model."""
        manifest = Path(self.config.model, EXPORT_MANIFEST)
        refuse_unseen(str(manifest))
        if sha256_of_file(manifest) != self.sha256:
            raise MachineError(
                f"{self.config.model} on {socket.gethostname()} is another model; give all machines the same"
            )
        return _answers_to(_opened_in_task(self.config), window)


def _answers_to(predictor: PairPredictor, window: Pairs) -> Any:
    """Return Decisions on the pairs, of a model without classes their scores float64 [N]."""
    asked = list(zip(window.left, window.right))
    if not predictor.exported.has_classes:
        return predictor.score(asked)
    answer = predictor.predict(asked)
    return Decisions(answer.classes, answer.probabilities)


def _ask(config: RunConfig, predictor: PairPredictor, pairs: CheckedPairs) -> Iterator[Any]:
    """Yield the answers to the pairs, up to CHUNK at a time."""
    here = partial(_answers_to, predictor)
    with CountProgress(pairs.count, "pair") as progress:
        ask = here if config.engine == "local" else RayAsker.of(config, predictor)
        for answers in config.mapped(ask, pairs.windows(CHUNK)):
            progress.advance(len(answers if isinstance(answers, np.ndarray) else answers.classes))
            yield answers
