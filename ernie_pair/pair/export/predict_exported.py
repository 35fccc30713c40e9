"""The class of every pair of a file, by an exported model: the rows of `predict`, without its code."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Optional

from data_tools.base.options import option
from data_tools.base.progress import CountProgress
from ernie_pair.engine.run_log import start_console
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.softmax import Decisions
from ernie_pair.model_files.temperature import describe_decision
from ernie_pair.pair.data.checked_pairs import CheckedPairs
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import FileSource
from ernie_pair.pair.data.rejected import ENDING
from ernie_pair.pair.evaluation.prediction_file import prediction_lines
from ernie_pair.pair.evaluation.result_file import results_of
from ernie_pair.pair.export.exported_flags import ExportedFlags
from ernie_pair.processes.world import World

CHUNK = 4096  # pairs asked at a time

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunConfig(ExportedFlags):
    """Predict the class of every pair of a file with an exported model."""

    EXAMPLE = "--model exported --input_file pairs.tsv --output_file predictions.tsv"

    input_file: str = option(help="pairs, labelled or not: .tsv, .csv, .json or .jsonl", group="data")
    output_file: str = option(help="index TAB prediction goes here, a row per input row", group="data")
    scores: bool = option(
        False, help="add the probability of every class, calibrated if the model is", group="evaluation"
    )
    threshold: Optional[float] = option(
        None,
        help="of two classes: predict 1 from this probability on; none: as exported",
        group="evaluation",
        at_least=0,
        at_most=1,
    )


def predict_exported(config: RunConfig) -> None:
    """Write a header, then the prediction of every input row, in their order, as they come.

    Raises an ErniePairError.
    """
    start_console(World())
    results = results_of("run", config)
    if results.are_done():
        return
    predictor = PairPredictor(
        config.model,
        config.backend,
        config.threads,
        threshold=config.threshold,
        symmetric=config.symmetric,
        precision=config.precision,
        device=config.device,
    )
    columns = Columns(config.text_a, config.text_b)
    source = FileSource("input_file", config.input_file, "test", None, columns, RowRules.of(config))
    pairs = CheckedPairs(source, Path(config.output_file + ENDING))
    lines = prediction_lines(_ask(predictor, pairs), predictor.class_names, config.scores, pairs.left_out)
    with results.published() as (draft,), open(draft, "w", encoding="utf-8") as file:
        file.writelines(lines)
    logger.info("%s", describe_decision(predictor.threshold, config.threshold is None, predictor.symmetric))
    logger.info("%d predictions by %s: %s", pairs.count, predictor.describe(), config.output_file)


def _ask(predictor: PairPredictor, pairs: CheckedPairs) -> Iterator[Decisions]:
    """Yield classes int64 [N] and probabilities float32 [N, C] of the pairs, up to CHUNK at a time."""
    with CountProgress(pairs.count, "pair") as progress:
        for window in pairs.windows(CHUNK):
            answer = predictor.predict(list(zip(window.left, window.right)))
            progress.advance(len(window))
            yield Decisions(answer.classes, answer.probabilities)
