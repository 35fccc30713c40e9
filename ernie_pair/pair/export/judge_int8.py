"""Judge the int8 model beside the float one: by labelled pairs, otherwise by how often both answer alike."""

import logging
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.base.errors import CheckpointError
from data_tools.text.wordpiece import WordPiece
from ernie_pair.inference.exported_model import FILES_OF
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.inference.softmax import decide
from ernie_pair.model_files.labels import Labels
from ernie_pair.pair.data.pair_columns import Columns
from ernie_pair.pair.data.pair_file import has_labels
from ernie_pair.pair.data.pair_records import RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.export.export_config import ExportConfig
from ernie_pair.pair.export.export_parity import random_texts

FLOAT, INT8 = "onnx", "onnx-int8"
CHUNK = 512  # pairs that each model answers in turn
NUM_MADE_UP, MOST_ALONE = 512, 64

logger = logging.getLogger(__name__)


class JudgingPairs(NamedTuple):
    """The pairs that both models answer; ``labels`` int64 [N] or None, ``name`` and ``sha256`` of a file."""

    pairs: List[TextPair]
    labels: Optional[np.ndarray]
    name: str
    sha256: Optional[str]


def judging_pairs(config: ExportConfig, labels: Labels, tokenizer: WordPiece, longest: int) -> JudgingPairs:
    """Return the pairs of --quantize_file, with their labels if it has any, or without it made-up ones.

    Those have up to ``longest`` tokens in each text.

    Raises InputError for a file or set that cannot be read.
    """
    name = config.quantize_file
    if not name:
        logger.warning(
            "without --quantize_file int8 is judged by made-up pairs: that says little of yours; give some, "
            "labelled ones best"
        )
        texts = random_texts(np.random.default_rng(1), tokenizer, longest, NUM_MADE_UP)
        return JudgingPairs(list(zip(*texts)), None, "made-up pairs", None)
    columns, rules = Columns(config.text_a, config.text_b, config.label), RowRules(config.encoding)
    source = PairSource("quantize_file", name, "dev", labels, columns, rules)
    if source.is_file and not has_labels(Path(name), columns, rules):
        source = PairSource("quantize_file", name, "dev", None, columns, rules)
        logger.warning("%s has no labels: int8 is judged by how often it answers as float32 does", name)
    pairs = source.read()
    return JudgingPairs(list(zip(pairs.left, pairs.right)), pairs.labels, Path(name).name, pairs.sha256)


def judge_int8(folder: Path, judging: JudgingPairs, threads: int) -> Dict[str, Any]:
    """Return what export.json says of the int8 model in ``folder``, beside the float one of ONNX.

    accuracy (of labelled pairs), agreement (the share of pairs that both give the same class),
    pairs_per_second and bytes of both; largest_difference of a logit between them; alone: how far a logit
    of either moves when a pair is asked by itself. Raises an ErniePairError where one does not answer.
    """
    predictors = {name: PairPredictor(folder, name, threads) for name in (FLOAT, INT8)}
    logits, seconds = _answer_in_turn(predictors, judging.pairs)
    classes = {name: _classes(predictor, logits[name]) for name, predictor in predictors.items()}
    facts: Dict[str, Any] = {"judged_on": judging.name, "sha256": judging.sha256, "rows": len(judging.pairs)}
    if judging.labels is not None:
        facts["accuracy"] = {name: float(np.mean(given == judging.labels)) for name, given in classes.items()}
    facts["agreement"] = float(np.mean(classes[FLOAT] == classes[INT8]))
    facts["largest_difference"] = float(np.abs(logits[FLOAT] - logits[INT8]).max())
    facts["alone"] = {name: _moves_alone(predictors[name], judging.pairs, logits[name]) for name in logits}
    facts["pairs_per_second"] = {
        name: round(len(judging.pairs) / spent, 1) for name, spent in seconds.items()
    }
    facts["bytes"] = {name: sum((folder / file).stat().st_size for file in FILES_OF[name]) for name in logits}
    return {**facts, "threads": threads}


def _answer_in_turn(
    predictors: Dict[str, PairPredictor], pairs: List[TextPair]
) -> Tuple[Dict[str, np.ndarray], Dict[str, float]]:
    """Return the logits float32 [N, C] of each predictor, and its seconds.

    The models take turns, so that the load of the machine falls on both.
    """
    answers: Dict[str, List[np.ndarray]] = {name: [] for name in predictors}
    seconds = dict.fromkeys(predictors, 0.0)
    for predictor in predictors.values():
        predictor.logits(pairs[:CHUNK])  # the first pass of each shape is slow
    for first in range(0, len(pairs), CHUNK):
        for name, predictor in predictors.items():
            started = time.perf_counter()
            answers[name].append(predictor.logits(pairs[first : first + CHUNK]))
            seconds[name] += time.perf_counter() - started
    return {name: np.concatenate(parts) for name, parts in answers.items()}, seconds


def _classes(predictor: PairPredictor, logits: np.ndarray) -> np.ndarray:
    return decide(logits, predictor.exported.temperature, predictor.threshold).classes


def _moves_alone(predictor: PairPredictor, pairs: List[TextPair], logits: np.ndarray) -> float:
    alone = np.concatenate([predictor.logits([pair]) for pair in pairs[:MOST_ALONE]])
    return float(np.abs(alone - logits[:MOST_ALONE]).max())


def refuse_loss_of_accuracy(facts: Dict[str, Any], most: float) -> None:
    """Log the figures; raise CheckpointError when int8 loses more than ``most`` of the accuracy.

    Without labels the share of pairs that change class counts: no accuracy can drop by more.
    """
    speed, size = facts["pairs_per_second"], facts["bytes"]
    logger.info(
        "int8: %.1f pairs/s against %.1f, %.1f MB against %.1f",
        *(speed[INT8], speed[FLOAT], size[INT8] / 1e6, size[FLOAT] / 1e6),
    )
    logger.info(
        "a logit of int8 differs by %.3g at most, and by %.3g when a pair is asked alone (float32: %.3g)",
        *(facts["largest_difference"], facts["alone"][INT8], facts["alone"][FLOAT]),
    )
    said, drop = _drop_in_words(facts)
    logger.info("%s", said)
    if not drop <= most:
        raise CheckpointError(
            f"int8 loses too much ({said}), {drop:.4f} with --max_accuracy_drop {most}: nothing is exported; "
            "raise the limit or pass --quantize none"
        )


def _drop_in_words(facts: Dict[str, Any]) -> Tuple[str, float]:
    on = f"of {facts['rows']} pairs of {facts['judged_on']}"
    agreement = f"the same class for {facts['agreement']:.4f}"
    if "accuracy" not in facts:
        return f"{agreement} {on}", 1 - facts["agreement"]
    before, after = facts["accuracy"][FLOAT], facts["accuracy"][INT8]
    return f"accuracy {before:.4f} in float32, {after:.4f} in int8, {agreement} {on}", before - after
