"""Decide whether a run learns the order of sentences where --binary_head leaves it open."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Optional

from data_tools.base.errors import CheckpointError
from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.used_folder import CHECKPOINTS
from ernie_pair.model_files.config_json import architecture_in
from ernie_pair.model_files.source import ModelSource
from ernie_pair.model_files.spec import ModelSpec
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.weights.static_names import ORDER_HEAD, is_numbered
from ernie_pair.weights.weight_files import Arrays

OF_MASKED_TOKENS = "ForMaskedLM"  # how the classes end that have no head for the order
OF_ERNIES_PROGRAM = "next_sent_fc"

logger = logging.getLogger(__name__)


def with_order_head(config: PretrainConfig, source: ModelSource) -> PretrainConfig:
    """Return ``config`` with --binary_head true or false, and log why if it is neither.

    A run that is resumed keeps its value. One from random weights learns the order, one from given weights if
    they have a head for it. Labels are 0 for segments in order and 1 for swapped ones, as of ERNIE's and
    MacBERT's heads; BERT's head saw segments of two documents as 1.
    """
    learns = config.binary_head
    reason = "--binary_head"
    if learns is None:
        learns, reason = _saved_in(Path(config.output_dir), config.fresh_start), "as in the run so far"
    if learns is None and source.weights is None:
        learns, reason = True, "the start is random"
    if learns is None:
        learns = starts_with_order(source.spec, source.read_weights())
        named = architecture_in(source.spec.config) or "the start"
        reason = f"{source.name}: {named} has {'a' if learns else 'no'} head for it; see --binary_head"
    logger.info("sentence order: %s (%s)", "learned" if learns else "not learned", reason)
    return replace(config, binary_head=learns)


def _saved_in(output_dir: Path, is_fresh: bool) -> Optional[bool]:
    """Return the value that the newest readable checkpoint of a run was made with; None: there is none."""
    folders = [] if is_fresh else sorted((output_dir / CHECKPOINTS).glob("step_*"), reverse=True)
    for folder in folders:
        try:
            return Checkpoint(folder).manifest["fingerprint"].get("binary_head")
        except CheckpointError:
            continue  # whoever resumes says what is wrong with it
    return None


def starts_with_order(spec: ModelSpec, found: Arrays) -> bool:
    """Return whether the class that config.json names, and the weights ``found``, have a head for the order.

    Weights of a class for masked tokens often hold what is left of a head that was never trained.
    """
    if architecture_in(spec.config).endswith(OF_MASKED_TOKENS):
        return False
    return any(
        name.startswith((ORDER_HEAD, OF_ERNIES_PROGRAM))
        or (is_numbered(name) and array.shape == (spec.hidden_size, 2))
        for name, array in found.items()
    )
