"""Evaluate int8 and bf16 against float32: on labelled pairs, otherwise by how often both agree."""

import logging
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.files.errors import CheckpointError
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.inference.exported_model import FILES_OF
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.inference.scores import decide, scores_of
from ernie_pair.models.labels import Labels
from ernie_pair.pair.data.pair_file import has_labels
from ernie_pair.pair.data.pair_records import Columns, RowRules
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.targets.regression_metrics import measure_scores
from ernie_pair.score.export.export_config import ExportFlags
from ernie_pair.score.export.formats import random_texts

CHUNK = 512  # pairs that each model answers in turn
NUM_MADE_UP, MOST_ALONE = 512, 64

logger = logging.getLogger(__name__)


class Lower(NamedTuple):
    """A way to ask an exported model with less precision, and the float32 one that it is judged beside.

    ``name`` is its section of export.json, in which ``full`` and ``lower`` name the two.
    """

    name: str
    full: str
    lower: str
    cure: str  # what to pass to export without it


AGREEMENT = {False: "the same class for", True: "Spearman between the two"}
FLOAT, INT8, BF16 = "onnx", "onnx-int8", "paddle-bf16"
INT8_BESIDE_FLOAT = Lower("int8", FLOAT, INT8, "--quantize none")
BF16_BESIDE_FLOAT = Lower("bf16", "paddle", BF16, "--precision fp32")


class JudgingPairs(NamedTuple):
    """The pairs that both models answer; ``labels`` int64 [N] or None, ``name`` and ``sha256`` of a file."""

    pairs: List[TextPair]
    labels: Optional[np.ndarray]
    name: str
    sha256: Optional[str]


def judging_pairs(config: ExportFlags, labels: Labels, tokenizer: AnyTokenizer, longest: int) -> JudgingPairs:
    """Return the pairs of --quantize_file, with their labels if it has any, or without it made-up ones.

    Those have up to ``longest`` tokens in each text.

    Raises InputError for a file or set that cannot be read.
    """
    name = config.quantize_file
    if not name:
        logger.warning(
            "without --quantize_file %s is judged by made-up pairs, which say little about your data; give "
            "real pairs, labelled if possible",
            config.lower_precisions,
        )
        texts = random_texts(np.random.default_rng(1), tokenizer, longest, NUM_MADE_UP)
        return JudgingPairs(list(zip(*texts)), None, "made-up pairs", None)
    columns, rules = Columns(config.text_a, config.text_b, config.label), RowRules(config.encoding)
    source = PairSource("quantize_file", name, "dev", labels, columns, rules)
    if source.is_file and not has_labels(Path(name), columns, rules):
        source = PairSource("quantize_file", name, "dev", None, columns, rules)
        logger.warning(
            "%s has no labels: %s is judged by how often it answers as float32 does",
            name,
            config.lower_precisions,
        )
    pairs = source.read()
    return JudgingPairs(list(zip(pairs.left, pairs.right)), pairs.labels, Path(name).name, pairs.sha256)


def judge(folder: Path, judging: JudgingPairs, threads: int, way: Lower) -> Dict[str, Any]:
    """Return what export.json says of the model in ``folder`` asked the lower ``way``, beside float32.

    accuracy (of labelled pairs), agreement (the share of pairs that both give the same class), without
    classes spearman and, for agreement, Spearman between the two; pairs_per_second and bytes of both;
    largest_difference of a logit between them; alone: how far a logit of either moves when a pair is asked
    on its own. Raises an ErniePairError if one does not answer.
    """
    predictors = {name: _open(folder, name, threads) for name in (way.full, way.lower)}
    logits, seconds = answer_in_turn(predictors, judging.pairs)
    facts: Dict[str, Any] = {"judged_on": judging.name, "sha256": judging.sha256, "rows": len(judging.pairs)}
    answers = {name: _answers(predictor, logits[name]) for name, predictor in predictors.items()}
    metric, agreement = ("accuracy", _accuracy) if predictors[way.full].exported.has_classes else SPEARMAN
    if judging.labels is not None:
        facts[metric] = {name: agreement(given, judging.labels) for name, given in answers.items()}
    facts["agreement"] = agreement(answers[way.lower], answers[way.full])
    facts["largest_difference"] = float(np.abs(logits[way.full] - logits[way.lower]).max())
    facts["alone"] = {name: _moves_alone(predictors[name], judging.pairs, logits[name]) for name in logits}
    facts["pairs_per_second"] = {
        name: round(len(judging.pairs) / spent, 1) for name, spent in seconds.items()
    }
    facts["bytes"] = {
        name: sum((folder / file).stat().st_size for file in FILES_OF[predictor.backend])
        for name, predictor in predictors.items()
    }
    return {**facts, "threads": threads}


def _open(folder: Path, name: str, threads: int) -> PairPredictor:
    if name == BF16:
        return PairPredictor(folder, "paddle", threads, precision="bf16")
    return PairPredictor(folder, name, threads)


def answer_in_turn(
    predictors: Dict[str, PairPredictor],
    pairs: List[TextPair],
    asked: Callable[[int], None] = lambda pairs: None,
) -> Tuple[Dict[str, np.ndarray], Dict[str, float]]:
    """Return the logits float32 [N, C] of each predictor, and its seconds.

    The models take turns, so that the load of the machine falls on all. ``asked`` is told the pairs that one
    has answered.
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
            asked(len(answers[name][-1]))
    return {name: np.concatenate(parts) for name, parts in answers.items()}, seconds


def _answers(predictor: PairPredictor, logits: np.ndarray) -> np.ndarray:
    """Return the classes int64 [N], or of a model without classes the scores float64 [N]."""
    if not predictor.exported.has_classes:
        return scores_of(logits, predictor.exported.label_range)
    return decide(logits, predictor.exported.temperature, predictor.threshold).classes


def _accuracy(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean(found == wanted))


def _spearman(found: np.ndarray, wanted: np.ndarray) -> float:
    return measure_scores(found[:, None], wanted)["spearman"]


SPEARMAN = ("spearman", _spearman)


def _moves_alone(predictor: PairPredictor, pairs: List[TextPair], logits: np.ndarray) -> float:
    alone = np.concatenate([predictor.logits([pair]) for pair in pairs[:MOST_ALONE]])
    return float(np.abs(alone - logits[:MOST_ALONE]).max())


def refuse_loss_of_accuracy(
    facts: Dict[str, Any], most: float, way: Lower, is_of_scores: bool = False
) -> None:
    """Log the figures; raise CheckpointError when the lower ``way`` loses more than ``most`` of the accuracy.

    Without labels the share of pairs that change class counts: no accuracy can drop by more.
    ``is_of_scores``: the model has no classes, and Spearman's correlation counts in place of both.
    """
    speed, size = facts["pairs_per_second"], facts["bytes"]
    logger.info(
        "%s: %.1f pairs/s against %.1f, %.1f MB against %.1f",
        way.name,
        *(speed[way.lower], speed[way.full], size[way.lower] / 1e6, size[way.full] / 1e6),
    )
    logger.info(
        "a logit of %s differs by %.3g at most, and by %.3g when a pair is asked alone (float32: %.3g)",
        way.name,
        *(facts["largest_difference"], facts["alone"][way.lower], facts["alone"][way.full]),
    )
    said, drop = _drop_in_words(facts, way, is_of_scores)
    logger.info("%s", said)
    if not drop <= most:
        raise CheckpointError(
            f"{way.name} loses too much ({said}), {drop:.4f} with --max_accuracy_drop {most}: nothing is "
            f"exported; raise the limit or pass {way.cure}"
        )


def _drop_in_words(facts: Dict[str, Any], way: Lower, is_of_scores: bool) -> Tuple[str, float]:
    on = f"of {facts['rows']} pairs of {facts['judged_on']}"
    agreement = f"{AGREEMENT[is_of_scores]} {facts['agreement']:.4f}"
    metric = SPEARMAN[0] if is_of_scores else "accuracy"
    if metric not in facts:
        return f"{agreement} {on}", 1 - facts["agreement"]
    before, after = facts[metric][way.full], facts[metric][way.lower]
    return f"{metric} {before:.4f} in float32, {after:.4f} in {way.name}, {agreement} {on}", before - after
