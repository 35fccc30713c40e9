"""The class of every pair of a file, by an exported model: the rows of `predict`, without its code."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, List, Literal, Optional, TypeVar

from data_tools.base.errors import InputError
from data_tools.base.options import Options, option, refuse_empty
from data_tools.base.progress import CountProgress
from data_tools.text.lines import ENCODINGS
from ernie_pair.engine.run_log import start_console
from ernie_pair.inference.backends import BACKEND_HELP, PRECISION_HELP
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.inference.softmax import Decisions
from ernie_pair.model_files.temperature import describe_decision
from ernie_pair.pair.data.checked_pairs import CheckedPairs
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_records import BAD_ROW_HELP, ENCODING_HELP, RowRules
from ernie_pair.pair.data.pair_source import FileSource
from ernie_pair.pair.data.rejected import ENDING
from ernie_pair.pair.evaluation.prediction_file import prediction_lines, score_lines
from ernie_pair.pair.evaluation.result_file import results_of
from ernie_pair.processes.world import World

CHUNK = 4096  # pairs asked at a time

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunConfig(Options):
    """Predict the class of every pair of a file with an exported model."""

    EXAMPLE = "--model exported --input_file pairs.tsv --output_file predictions.tsv"

    model: str = option(help="the folder that ernie-pair export made", group="model")
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
    symmetric: Literal["auto", "none", "average"] = option(
        "auto",
        help="average: score (a, b) and (b, a) and take the mean of the logits; auto: as exported",
        group="evaluation",
    )
    backend: Literal["auto", "paddle", "onnx", "onnx-int8"] = option(
        "auto", help=BACKEND_HELP, group="devices"
    )
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", help=PRECISION_HELP, group="precision")
    device: Literal["cpu", "gpu"] = option("cpu", help="where to run", group="devices")
    threads: int = option(
        0,
        help="of one forward pass; 0: the cores of this process",
        group="devices",
        unit="threads",
        at_least=0,
    )
    text_a: str = option(
        "", help="the column of the first text; empty: found by its name or place", group="data"
    )
    text_b: str = option(
        "", help="the column of the second text; empty: found by its name or place", group="data"
    )
    overwrite: bool = option(False, help="replace another result that is there", group="data")
    encoding: str = option("utf-8", help=ENCODING_HELP, group="data", choices=ENCODINGS)
    on_bad_row: Literal["stop", "skip"] = option("stop", help=BAD_ROW_HELP, group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_file")


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
    exported = predictor.exported
    if config.scores and not exported.has_classes:
        raise InputError(
            f"--scores true adds the probability of each class, and {config.model} is a model for "
            f"{exported.target}; leave it out"
        )
    columns = Columns(config.text_a, config.text_b)
    source = FileSource("input_file", config.input_file, "test", None, columns, RowRules.of(config))
    pairs = CheckedPairs(source, Path(config.output_file + ENDING))
    if exported.has_classes:
        parts = _ask(predictor.predict, pairs)
        decided = (Decisions(part.classes, part.probabilities) for part in parts)
        lines = prediction_lines(decided, predictor.class_names, config.scores, pairs.left_out)
    else:
        lines = score_lines(_ask(predictor.score, pairs), pairs.left_out)
    with results.published() as (draft,), open(draft, "w", encoding="utf-8") as file:
        file.writelines(lines)
    if exported.has_classes:
        is_saved = config.threshold is None
        logger.info("%s", describe_decision(predictor.threshold, is_saved, predictor.symmetric))
    logger.info("%d predictions by %s: %s", pairs.count, predictor.describe(), config.output_file)


def _ask(answer: Callable[[List[TextPair]], Answer], pairs: CheckedPairs) -> Iterator[Answer]:
    """Yield what ``answer`` says of the pairs, up to CHUNK at a time."""
    with CountProgress(pairs.count, "pair") as progress:
        for window in pairs.windows(CHUNK):
            found = answer(list(zip(window.left, window.right)))
            progress.advance(len(window))
            yield found
