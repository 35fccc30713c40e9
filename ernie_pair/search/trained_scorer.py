"""Score pairs with a trained pair classifier on Paddle."""

from pathlib import Path
from typing import Callable, Sequence, Tuple

import numpy as np

from ernie_pair.inference.scores import ScoreUnit, probabilities, refuse_unrankable, scores_of, unit_of
from ernie_pair.inference.token_rows import encode_texts, open_tokenizer
from ernie_pair.kernels.choice import KernelFlags
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.networks.kernel_path import casting, choose_path, logits_of, take_threads
from ernie_pair.models.source import model_folder_of
from ernie_pair.models.temperature import read_calibration, score_pairs
from ernie_pair.runtime.device import start_device
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.process_group import SingleProcess

BATCH_SIZE = 64


def open_trained_scorer(
    folder: str, device: str, threads: int = 0
) -> Tuple[Callable[[Sequence[Tuple[str, str]]], np.ndarray], ScoreUnit]:
    """Open the classifier in ``folder``, or the best one of the run there, as a scorer.

    It scores according to its calibration. ``threads``: of one forward pass on a CPU, 0: those of this
    process. Raises InputError for a folder without one, or one with more than two classes, CheckpointError.
    """
    start_device(device, World())
    path = model_folder_of(Path(folder))
    model, vocab_file = load_classifier(str(path))
    refuse_unrankable(model.num_classes, str(path))
    kernels = choose_path(model, KernelFlags(), device, casts=True)
    take_threads(model, threads)
    length = model.spec.inference_length
    tokenizer = open_tokenizer(vocab_file, model.spec, length)
    saved = read_calibration(path, model.num_classes)

    def logits(left: Sequence[str], right: Sequence[str]) -> np.ndarray:
        rows = encode_texts(left, right, None, tokenizer, length)
        with casting(kernels):
            return logits_of(model, rows, BATCH_SIZE, SingleProcess(), lambda rows: None)

    def scores(pairs: Sequence[Tuple[str, str]]) -> np.ndarray:
        left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        found = score_pairs(logits, left, right, saved.symmetric)
        if not model.spec.labels.has_classes:
            return scores_of(found, model.spec.labels.label_range)
        return probabilities(found, saved.temperature)[:, 1]

    labels = model.spec.labels
    return scores, unit_of(labels.has_classes, labels.label_range)
