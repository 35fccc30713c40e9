"""ernie-pair pseudo-label: labels for pairs that have none, where a trained classifier is sure enough.

ernie-pair pseudo-label --model_path output/best --input_file a.tsv --dev_file dev.tsv --output_file b.tsv

For each class the least probability is chosen on labelled pairs so that a lower bound of the precision is
what was asked for; see `precise_thresholds`. Pairs below it, and those of the files that measure, stay out.
Any number of pairs takes the same memory. A run that is killed continues where it stopped, to the same bytes.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

import numpy as np

from data_tools.base.errors import InputError
from data_tools.base.progress import CountProgress
from data_tools.files.standard_streams import with_standard_streams
from ernie_pair.inference.softmax import probabilities
from ernie_pair.model_files.labels import refuse_no_classes
from ernie_pair.model_files.source import model_folder_of
from ernie_pair.pair.data.checked_pairs import CheckedPairs
from ernie_pair.pair.data.pair_file import Pairs
from ernie_pair.pair.evaluation.inference_model import InferenceModel
from ernie_pair.pair.evaluation.result_file import results_of
from ernie_pair.pair.mining.kept_blocks import KeptBlocks
from ernie_pair.pair.mining.precise_thresholds import PreciseThreshold, precise_thresholds
from ernie_pair.pair.mining.pseudo_config import PseudoLabelConfig
from ernie_pair.pair.new_pairs.known_pairs import KnownPairs
from ernie_pair.pair.new_pairs.pair_writer import NewPair, refuse_ending, write_new_pairs

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
    trained = InferenceModel(config)
    refuse_no_classes(trained.labels, config.model_path, "pseudo-label")
    symmetric = trained.calibration.chosen_symmetry(config.symmetric, config.model_path)
    files = {"dev": trained.read("dev_file")}
    thresholds = _thresholds(trained, files["dev"], symmetric, config)
    if config.test_file:
        files["test"] = trained.read_texts("test_file")
    pairs, known = trained.check("input_file"), KnownPairs(files)
    kept = KeptBlocks(results.outputs[0], results.about({}))
    rows = _rows(trained, pairs, thresholds, known, _windows(trained, pairs, symmetric, kept))
    if trained.world.is_first:
        with results.published() as (draft,):
            count = write_new_pairs(draft, results.outputs[0], rows)
        kept.remove()
        for line in known.lines():
            logger.info("%s", line)
        logger.info("%d of %d pairs are labelled: %s", count, pairs.count, config.output_file)
    else:
        for _ in rows:  # its share of each window
            pass
    trained.process_group.barrier()


def _thresholds(
    trained: InferenceModel, dev: Pairs, symmetric: str, config: PseudoLabelConfig
) -> List[PreciseThreshold]:
    """Choose the thresholds on ``dev``, and log them.

    Raises InputError when no class has one, or ``dev`` lacks a class.
    """
    _refuse_absent_class(trained.labels.names, dev)
    shown = probabilities(trained.logits(dev, symmetric), trained.calibration.temperature)
    found = precise_thresholds(shown, dev.known_labels, config.at_precision, config.confidence)
    for name, one in zip(trained.labels.names, found):
        said = (
            "no threshold reaches --at_precision, the best"
            if one.threshold is None
            else f"probability {one.threshold:.4f} or more"
        )
        logger.info(
            "class %s, %s: precision %.4f, at least %.4f with confidence %g, on %d of %d pairs of %s",
            *(name, said, one.precision, one.bound, config.confidence, one.rows, one.predicted, dev.path),
        )
    if all(one.threshold is None for one in found):
        best = max(one.bound for one in found)
        raise InputError(
            f"no class reaches precision {config.at_precision} on {dev.path}: the best lower bound is "
            f"{best:.4f}; ask for less with --at_precision, or give more labelled pairs"
        )
    return found


def _refuse_absent_class(names: Sequence[str], dev: Pairs) -> None:
    """Raise InputError for a class without a row: nothing tells then how often it is mistaken for another."""
    rows = np.bincount(dev.known_labels, minlength=len(names))
    if not rows.all():
        raise InputError(
            f"--dev_file {dev.path} has no pair of class {names[int(rows.argmin())]}, so precision "
            "cannot be measured on it; give labelled pairs of all classes"
        )


def _windows(
    trained: InferenceModel, pairs: CheckedPairs, symmetric: str, kept: KeptBlocks
) -> Iterator[Tuple[Pairs, np.ndarray]]:
    """Yield the pairs, a block at a time, with their logits float32 [N, C]."""
    with CountProgress(pairs.count, "pair", shown=trained.world.is_first) as progress:
        for number, block in enumerate(pairs.windows(BLOCK)):
            yield block, _logits(trained, block, symmetric, str(number), kept)
            progress.advance(len(block))


def _logits(trained: InferenceModel, block: Pairs, symmetric: str, name: str, kept: KeptBlocks) -> np.ndarray:
    """Return the logits of a block on every process: those that a killed run has left, or computed now."""
    group, is_first = trained.process_group, trained.world.is_first
    found = kept.read(name) if is_first else None
    if group.all_reduce(np.array([float(found is not None)]))[0]:
        share = np.zeros((len(block), trained.num_classes), dtype=np.float32) if found is None else found
        return group.all_reduce_now(np.array(share))
    logits = trained.logits(block, symmetric)
    return kept.get(name, lambda: logits) if is_first else logits


def _rows(
    trained: InferenceModel,
    pairs: CheckedPairs,
    thresholds: List[PreciseThreshold],
    known: KnownPairs,
    windows: Iterator[Tuple[Pairs, np.ndarray]],
) -> Iterator[NewPair]:
    least = np.array([np.inf if one.threshold is None else one.threshold for one in thresholds])
    names = trained.labels.names
    for window, logits in windows:
        shown = probabilities(logits, trained.calibration.temperature)
        classes = shown.argmax(axis=1)
        highest = shown[np.arange(len(classes)), classes]
        sure = np.flatnonzero(highest >= least[classes])
        texts = [window.left[row] for row in sure], [window.right[row] for row in sure]
        for row in sure[known.unknown(*texts)].tolist():
            origin = f"pseudo-label {highest[row]:.4f} line {window.number(row)}"
            yield NewPair(window.left[row], window.right[row], names[classes[row]], origin)
