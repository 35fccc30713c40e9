"""Evaluate int8 and bf16 against float32: on labelled pairs, otherwise by how often both agree."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.errors import CheckpointError
from ernie_pair.deployment.export_config import ExportFlags
from ernie_pair.deployment.formats import random_texts
from ernie_pair.inference.backends import OnnxBackend
from ernie_pair.inference.exported_model import GPU
from ernie_pair.inference.predictor import PairPredictor, TextPair
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.targets.metrics import measure_scores

CHUNK = 512  # pairs that each model answers in turn
NUM_MADE_UP, MAX_ALONE = 512, 64
AGREEMENT = {False: "the same class for", True: "Spearman between the two"}
FLOAT, INT8, BF16 = "onnx", "onnx-int8", "paddle-bf16"

logger = logging.getLogger(__name__)


class Lower(NamedTuple):
    """A way to ask an exported model with less precision, and the float32 one that it is judged beside.

    ``name`` is its section of export.json, in which ``full`` and ``lower`` name the two.
    """

    name: str
    full: str
    lower: str
    cure: str  # what to pass to export without it


INT8_BESIDE_FLOAT = Lower("int8", FLOAT, INT8, "--quantize none")
ON_CPU = (Lower("bf16", "paddle", BF16, "--precision fp32"),)
ON_GPU = tuple(Lower(name, FLOAT, GPU, "--precision fp32") for name in ("fp16", "bf16"))


class JudgingPairs(NamedTuple):
    """The pairs that both models answer; ``labels`` int64 [N] or None, ``name`` and ``sha256`` of a file."""

    pairs: List[TextPair]
    labels: Optional[np.ndarray]
    name: str
    sha256: Optional[str]


def judging_pairs(config: ExportFlags, labels: Labels, tokenizer: AnyTokenizer, longest: int) -> JudgingPairs:
    """Return the pairs of --quantize_file, with their labels if it has any, or without it made-up ones.

    Those have up to ``longest`` tokens in each text. Raises InputError for what cannot be read.
    """
    name = config.quantize_file
    if not name:
        message = "without --quantize_file %s is judged by made-up pairs, which say little about your data; "
        logger.warning(message + "give real pairs, labelled if possible", config.lower_precisions)
        texts = random_texts(np.random.default_rng(1), tokenizer, longest, NUM_MADE_UP)
        return JudgingPairs(list(zip(*texts)), None, "made-up pairs", None)
    source = PairSource.of(config, "quantize_file", labels)
    if source.is_file and not source.has_labels():
        source = replace(source, labels=None)
        message = "%s has no labels: %s is judged by how often it answers as float32 does"
        logger.warning(message, name, config.lower_precisions)
    pairs = source.read()
    return JudgingPairs(list(zip(pairs.left, pairs.right)), pairs.labels, Path(name).name, pairs.sha256)


def judge(
    folder: Path, judging: JudgingPairs, threads: int, way: Lower, twin: Optional[OnnxBackend] = None
) -> Dict[str, Any]:
    """Return what export.json says of the model in ``folder`` asked the lower ``way``, beside float32.

    accuracy (of labelled pairs), agreement (the share of pairs that both give the same class), without
    classes spearman and, for agreement, Spearman between the two; pairs_per_second and bytes of both;
    largest_difference of a logit between them; alone: how far a logit of either moves when a pair is asked
    on its own. ``twin``: what computes here in place of a file for a card, so that its speed is none.
    Raises an ErniePairError if one does not answer.
    """
    pairs, predictors = judging.pairs, {}
    for name in (way.full, way.lower):
        backend, precision = ("paddle", "bf16") if name == BF16 else (name, "fp32")
        opened = twin if twin is not None and name == way.lower else backend
        predictors[name] = PairPredictor(folder, opened, threads, precision=precision)
    logits, seconds = answer_in_turn(predictors, pairs)
    has_classes = predictors[way.full].labels.has_classes
    answers: Dict[str, Any] = {}
    for name, predictor in predictors.items():
        found = predictor.prediction_of(logits[name])
        answers[name] = found.classes if has_classes else found.scores

    def agreement(found: np.ndarray, wanted: np.ndarray) -> float:
        if has_classes:
            return float(np.mean(found == wanted))
        return measure_scores(found[:, None], wanted)["spearman"]

    facts: Dict[str, Any] = {"judged_on": judging.name, "sha256": judging.sha256, "rows": len(pairs)}
    if judging.labels is not None:
        metric = "accuracy" if has_classes else "spearman"
        facts[metric] = {name: agreement(given, judging.labels) for name, given in answers.items()}
    facts["agreement"] = agreement(answers[way.lower], answers[way.full])
    facts["largest_difference"] = float(np.abs(logits[way.full] - logits[way.lower]).max())
    facts.update(alone={}, pairs_per_second={}, bytes={})
    for name, predictor in predictors.items():
        alone = np.concatenate([predictor.logits([pair]) for pair in pairs[:MAX_ALONE]])
        facts["alone"][name] = float(np.abs(alone - logits[name][:MAX_ALONE]).max())
        if twin is None:
            facts["pairs_per_second"][name] = round(len(pairs) / seconds[name], 1)
        facts["bytes"][name] = sum(
            (folder / file).stat().st_size for file in predictor.exported.files_of(predictor.backend)
        )
    return {**facts, "threads": threads}


def answer_in_turn(
    predictors: Dict[str, PairPredictor],
    pairs: List[TextPair],
    asked: Callable[[int], None] = lambda pairs: None,
) -> Tuple[Dict[str, np.ndarray], Dict[str, float]]:
    """Return the logits float32 [N, C] of each predictor, and its seconds.

    They take turns, so that the load of the machine falls on all. ``asked`` is told the pairs of each answer.
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


def check_accuracy(facts: Dict[str, Any], most: float, way: Lower, is_of_scores: bool = False) -> None:
    """Log the figures; raise CheckpointError when the lower ``way`` loses more than ``most`` of the accuracy.

    Without labels the share of pairs that change class counts: no accuracy can drop by more.
    ``is_of_scores``: the model has no classes, and Spearman's correlation counts in place of both.
    """
    full, lower = way.full, way.lower
    speed, size, alone = facts["pairs_per_second"], facts["bytes"], facts["alone"]
    sizes = f"{size[lower] / 1e6:.1f} MB against {size[full] / 1e6:.1f}"
    if speed:
        logger.info("%s: %.1f pairs/s against %.1f, %s", way.name, speed[lower], speed[full], sizes)
    else:
        logger.info("%s: judged by its rounding on this CPU, %s", way.name, sizes)
    message = "a logit of %s differs by %.3g at most, and by %.3g when a pair is asked alone (float32: %.3g)"
    logger.info(message, way.name, facts["largest_difference"], alone[lower], alone[full])
    metric, drop = "spearman" if is_of_scores else "accuracy", 1 - facts["agreement"]
    line = f"{AGREEMENT[is_of_scores]} {facts['agreement']:.4f}"
    if metric in facts:
        before, after = facts[metric][full], facts[metric][lower]
        line, drop = f"{metric} {before:.4f} in float32, {after:.4f} in {way.name}, {line}", before - after
    line += f" of {facts['rows']} pairs of {facts['judged_on']}"
    logger.info("%s", line)
    if not drop <= most:
        raise CheckpointError(
            f"{way.name} loses too much ({line}), {drop:.4f} with --max_accuracy_drop {most}: nothing is "
            f"exported; raise the limit or pass {way.cure}"
        )
