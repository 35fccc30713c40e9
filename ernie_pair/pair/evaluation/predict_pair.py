"""The class of every pair of a file, written in the recipe's two columns."""

import logging
from dataclasses import replace
from pathlib import Path

from ernie_pair.inference.scores import scores_of
from ernie_pair.inference.softmax import decide, refuse_threshold
from ernie_pair.model_files.source import model_folder_of
from ernie_pair.model_files.temperature import describe_decision
from ernie_pair.pair.config.ask_config import PredictConfig
from ernie_pair.pair.config.target_flags import refuse_class_flags
from ernie_pair.pair.evaluation.inference_model import InferenceModel
from ernie_pair.pair.evaluation.prediction_file import prediction_lines, score_lines
from ernie_pair.pair.evaluation.result_file import results_of

logger = logging.getLogger(__name__)


def predict_pair(config: PredictConfig) -> None:
    """Write a header, then the prediction of every input row, in their order. Raises InputError."""
    config = replace(config, model_path=str(model_folder_of(Path(config.model_path))))
    results = results_of("predict", config)
    if results.are_done():
        return
    trained = InferenceModel(config)
    refuse_class_flags(config, trained.labels, config.model_path)
    refuse_threshold(config.threshold, trained.num_classes, config.model_path)
    saved = trained.calibration
    symmetric = saved.chosen_symmetry(config.symmetric, config.model_path)
    threshold = saved.threshold if config.threshold is None else config.threshold
    pairs = trained.check(config.input_file)
    parts = trained.logits_by_window(pairs, symmetric)
    if trained.labels.has_classes:
        decisions = (decide(logits, saved.temperature, threshold) for logits in parts)
        lines = prediction_lines(decisions, trained.labels.names, config.scores, pairs.left_out)
    else:
        lines = score_lines((scores_of(part, trained.labels.label_range) for part in parts), pairs.left_out)
    if trained.world.is_first:
        with results.published() as (draft,), open(draft, "w", encoding="utf-8") as file:
            file.writelines(lines)
    else:
        for _ in lines:  # its share of each window
            pass
    trained.process_group.barrier()
    if trained.labels.has_classes:
        logger.info("%s", describe_decision(threshold, config.threshold is None, symmetric))
    logger.info("%d predictions: %s", pairs.count, config.output_file)
