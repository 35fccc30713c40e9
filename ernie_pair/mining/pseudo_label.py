"""ernie-pair pseudo-label: labels for pairs that have none, where a trained classifier is sure enough.

ernie-pair pseudo-label --model_path output/best --input_file a.tsv --dev_file dev.tsv --output_file b.tsv

For each class the least probability is chosen on labelled pairs so that a lower bound of the precision is
what was asked for; see `precise_thresholds`. Pairs below it, and those of the files that measure, stay out.
Any number of pairs takes the same memory. A run that is killed continues where it stopped, to the same bytes.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Iterator, List, NamedTuple, Optional

import numpy as np

from data_tools.files.errors import InputError
from data_tools.files.progress import CountProgress
from data_tools.options.standard_streams import with_standard_streams
from data_tools.text.table_writer import refuse_ending
from ernie_pair.inference.predictor import PairScorer
from ernie_pair.inference.scores import probabilities
from ernie_pair.mining.neighbours import KeptBlocks
from ernie_pair.models.labels import refuse_no_classes
from ernie_pair.models.source import model_folder_of
from ernie_pair.pair.audit.new_pairs import KnownPairs, NewPair, write_new_pairs
from ernie_pair.pair.config.ask_config import PseudoLabelConfig
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.data.pair_source import CheckedPairs
from ernie_pair.score.evaluation.scorer import check_pairs, read_pairs, results_of, scorer_of

STEPS = 20


class PreciseThreshold(NamedTuple):
    """A threshold for the predictions of a class, and what it reaches on the rows it was chosen on.

    ``threshold`` is None where none is precise enough; then the rest tells of the best bound. ``rows`` are at
    or above it, of ``predicted`` rows that are predicted so at all; ``bound`` lies below the true precision
    with the confidence that was asked for.
    """

    threshold: Optional[float]
    rows: int
    predicted: int
    precision: float
    bound: float


def precise_thresholds(
    probabilities: np.ndarray, labels: np.ndarray, precision: float, confidence: float
) -> List[PreciseThreshold]:
    """Return per class the lowest threshold whose bound is ``precision``; float64 [N, C], int64 [N]."""
    predictions = probabilities.argmax(axis=1)
    found = []
    for label in range(probabilities.shape[1]):
        rows = predictions == label
        found.append(_threshold(probabilities[rows, label], labels[rows] == label, precision, confidence))
    return found


def _threshold(scores: np.ndarray, hits: np.ndarray, precision: float, confidence: float) -> PreciseThreshold:
    """Return the threshold of a class: ``scores`` float64 [N] of its predictions, ``hits`` bool [N]."""
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], np.cumsum(hits[order])
    best = PreciseThreshold(None, 0, len(scores), 0.0, 0.0)
    for step in range(STEPS, 0, -1):
        count = round(len(scores) * step / STEPS)
        if not count:
            break
        # Rows of one score go together.
        count = int(np.searchsorted(-scores, -scores[count - 1], side="right"))
        bound = lower_bound(int(right[count - 1]), count, 1 - (1 - confidence) / STEPS)
        reached = PreciseThreshold(None, count, len(scores), float(right[count - 1] / count), bound)
        if bound >= precision:
            return reached._replace(threshold=float(scores[count - 1]))
        best = max(best, reached, key=lambda one: one.bound)
    return best


def lower_bound(hits: int, rows: int, confidence: float) -> float:
    """Return the one-sided lower bound (Clopper, Pearson) of the share that ``hits`` of ``rows`` show."""
    from scipy.stats import beta

    return float(beta.ppf(1 - confidence, hits, rows - hits + 1)) if hits else 0.0


BLOCK = 4096  # pairs that are asked together, and kept

logger = logging.getLogger(__name__)


@with_standard_streams
def pseudo_label(config: PseudoLabelConfig) -> None:
    """Write the pairs that the model is sure of, in their order, each with its label and its origin.

    The same bytes for any number of processes. Raises InputError, also when no class is precise enough.
    """
    refuse_ending("output_file", config.output_file)
    config = replace(config, model_path=str(model_folder_of(Path(config.model_path))))
    results = results_of("pseudo-label", config)
    if results.are_done():
        return
    scorer = scorer_of(config)
    is_first = scorer.world.is_first
    refuse_no_classes(scorer.labels, config.model_path, "pseudo-label")
    symmetric = scorer.calibration.chosen_symmetry(config.symmetric, config.model_path)
    files = {"dev": read_pairs(config, "dev_file", scorer.labels, is_first=is_first)}
    thresholds = _thresholds(scorer, files["dev"], symmetric, config)
    if config.test_file:
        files["test"] = read_pairs(config, "test_file", None, "test", is_first)
    pairs, known = check_pairs(config, is_first), KnownPairs(files)
    kept = KeptBlocks(results.outputs[0], results.about({}))
    rows = _rows(scorer, pairs, thresholds, known, symmetric, kept)
    if is_first:
        with results.published() as (draft,):
            count = write_new_pairs(draft, results.outputs[0], rows)
        kept.remove()
        for line in known.lines():
            logger.info("%s", line)
        logger.info("%d of %d pairs are labelled: %s", count, pairs.count, config.output_file)
    else:
        for _ in rows:  # its share of each window
            pass
    scorer.wait()


def _thresholds(
    scorer: PairScorer, dev: Pairs, symmetric: str, config: PseudoLabelConfig
) -> List[PreciseThreshold]:
    """Choose thresholds on ``dev``, and log them. Raises InputError without one, or where a class lacks."""
    names = scorer.labels.names
    rows = np.bincount(dev.known_labels, minlength=len(names))
    if not rows.all():  # nothing tells how often that class is mistaken for another
        raise InputError(
            f"--dev_file {dev.path} has no pair of class {names[int(rows.argmin())]}, so precision "
            "cannot be measured on it; give labelled pairs of all classes"
        )
    shown = probabilities(scorer.logits_in(dev.left, dev.right, symmetric), scorer.calibration.temperature)
    found = precise_thresholds(shown, dev.known_labels, config.at_precision, config.confidence)
    for name, one in zip(names, found):
        limit = "no threshold reaches --at_precision, the best"
        if one.threshold is not None:
            limit = f"probability {one.threshold:.4f} or more"
        logger.info(
            "class %s, %s: precision %.4f, at least %.4f with confidence %g, on %d of %d pairs of %s",
            name, limit, one.precision, one.bound, config.confidence, one.rows, one.predicted, dev.path,
        )  # fmt: skip
    if all(one.threshold is None for one in found):
        best = max(one.bound for one in found)
        raise InputError(
            f"no class reaches precision {config.at_precision} on {dev.path}: the best lower bound is "
            f"{best:.4f}; ask for less with --at_precision, or give more labelled pairs"
        )
    return found


def _logits(scorer: PairScorer, block: Pairs, symmetric: str, name: str, kept: KeptBlocks) -> np.ndarray:
    """Return the logits of a block on every process: those that a killed run has left, or computed now."""
    if scorer.world.size == 1:
        return kept.get(name, lambda: scorer.logits_in(block.left, block.right, symmetric))
    group, is_first = scorer.process_group, scorer.world.is_first
    found = kept.read(name) if is_first else None
    if group.all_reduce(np.array([float(found is not None)]))[0]:
        share = np.zeros((len(block), scorer.num_classes), dtype=np.float32) if found is None else found
        return group.all_reduce_now(np.array(share))
    logits = scorer.logits_in(block.left, block.right, symmetric)
    return kept.get(name, lambda: logits) if is_first else logits


def _rows(
    scorer: PairScorer,
    pairs: CheckedPairs,
    thresholds: List[PreciseThreshold],
    known: KnownPairs,
    symmetric: str,
    kept: KeptBlocks,
) -> Iterator[NewPair]:
    least = np.array([np.inf if one.threshold is None else one.threshold for one in thresholds])
    names = scorer.labels.names
    with CountProgress(pairs.count, "pair", shown=scorer.world.is_first) as progress:
        for number, block in enumerate(pairs.windows(BLOCK)):
            logits = _logits(scorer, block, symmetric, str(number), kept)
            shown = probabilities(logits, scorer.calibration.temperature)
            classes = shown.argmax(axis=1)
            highest = shown[np.arange(len(classes)), classes]
            sure = np.flatnonzero(highest >= least[classes])
            texts = [block.left[row] for row in sure], [block.right[row] for row in sure]
            for row in sure[known.unknown(*texts)].tolist():
                origin = f"pseudo-label {highest[row]:.4f} line {block.number(row)}"
                yield NewPair(block.left[row], block.right[row], names[classes[row]], origin)
            progress.advance(len(block))
