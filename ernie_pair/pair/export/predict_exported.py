"""The class of every pair of a file, by an exported model: the rows of `predict`, without its code."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Literal, Optional

import numpy as np
from tqdm import tqdm

from data_tools.base.options import Options, option, refuse_empty
from data_tools.text.lines import ENCODINGS
from ernie_pair.engine.run_log import start_console
from ernie_pair.inference.backends import BACKEND_HELP
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.inference.softmax import Decisions
from ernie_pair.model_files.temperature import describe_decision
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import read_file
from ernie_pair.pair.data.pair_records import BAD_ROW_HELP, ENCODING_HELP, RowRules
from ernie_pair.pair.data.rejected import ENDING, tell_rejected
from ernie_pair.pair.evaluation.prediction_file import prediction_lines, with_bad_rows
from ernie_pair.pair.evaluation.result_file import results_of
from ernie_pair.processes.world import World

CHUNK = 4096  # pairs asked at a time

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
    """Write a header, then the prediction of every input row, in their order. Raises an ErniePairError."""
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
    )
    rules = RowRules.of(config)
    pairs = read_file(Path(config.input_file), None, Columns(config.text_a, config.text_b), rules)
    tell_rejected(config.input_file, pairs.bad, len(pairs), Path(config.output_file + ENDING))
    decisions = ask(predictor, list(zip(pairs.left, pairs.right)))
    lines = prediction_lines(decisions, predictor.class_names, config.scores)
    with results.published() as (draft,):
        draft.write_text("".join(with_bad_rows(lines, pairs.bad)), encoding="utf-8")
    logger.info("%s", describe_decision(predictor.threshold, config.threshold is None, predictor.symmetric))
    logger.info("%d predictions by %s: %s", len(pairs), predictor.backend, config.output_file)


def ask(predictor: PairPredictor, pairs: List[TextPair]) -> Decisions:
    """Return classes int64 [N] and probabilities float32 [N, C] of the pairs, with a bar on a terminal."""
    chunks = [pairs[first : first + CHUNK] for first in range(0, len(pairs), CHUNK)]
    shown = tqdm(chunks, unit="chunk", disable=not sys.stderr.isatty(), leave=False)
    answers = [predictor.predict(chunk) for chunk in shown]
    return Decisions(
        np.concatenate([answer.classes for answer in answers]),
        np.concatenate([answer.probabilities for answer in answers]),
    )
