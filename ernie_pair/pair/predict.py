"""The class of every pair of a file, in the recipe's two columns."""

import logging
from pathlib import Path
from typing import Iterator

import numpy as np

from data_tools.errors import InputError
from ernie_pair.pair.config import PredictConfig
from ernie_pair.pair.prediction_file import prediction_lines
from ernie_pair.pair.result_file import publish_file
from ernie_pair.pair.trained import Trained
from ernie_pair.pair_scores import probabilities
from ernie_pair.temperature import read_temperature

logger = logging.getLogger(__name__)


def predict_pair(config: PredictConfig) -> None:
    """Write the header, then one row per input row in its order. Raises InputError."""
    trained = Trained(config)
    if config.threshold is not None and trained.num_classes != 2:
        raise InputError(f"--threshold is for two classes, {config.model_path} has {trained.num_classes}")
    temperature = read_temperature(Path(config.model_path))
    logits = trained.logits(trained.read(config.input_file, labelled=False))
    if trained.world.is_first:
        publish_file(Path(config.output_file), "".join(_lines(config, logits, temperature)))
    trained.peers.barrier()
    logger.info("%d predictions: %s", len(logits), config.output_file)


def _lines(config: PredictConfig, logits: np.ndarray, temperature: float) -> Iterator[str]:
    shares = probabilities(logits, temperature)
    classes = logits.argmax(axis=1) if config.threshold is None else (shares[:, 1] >= config.threshold) * 1
    return prediction_lines(classes, shares if config.scores else shares[:, :0])
