"""Load the weights of a file as the parameters of the program, and report on them."""

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Iterable, Mapping, NamedTuple

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.run_folder import CHECKPOINTS
from ernie_pair.core.errors import CheckpointError
from ernie_pair.models.source import ModelSource
from ernie_pair.models.spec import ModelSpec, architecture_in
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.weights.parameter_names import (
    HEADS,
    NGRAM_HEAD,
    ORDER_HEAD,
    TOKEN_HEAD,
    Parameter,
    cut_vocabulary,
    is_numbered,
    match_parameters,
    pad_vocabulary,
    structured_names,
    without_training_heads,
)
from ernie_pair.weights.weight_files import Arrays, as_float32

OF_MASKED_TOKENS = "ForMaskedLM"  # how the classes end that have no head for the order
OF_ERNIES_PROGRAM = "next_sent_fc"

logger = logging.getLogger(__name__)


def with_order_head(config: PretrainConfig, source: ModelSource) -> PretrainConfig:
    """Return ``config`` with --binary_head true or false, and log why if it is neither.

    A run that is resumed keeps its value. One from random weights learns the order, one from given weights if
    they have a head for it. Labels are 0 for segments in order and 1 for swapped ones, as of ERNIE's and
    MacBERT's heads; BERT's head saw segments of two documents as 1.
    """
    learns, reason = config.binary_head, "--binary_head"
    if config.decoder_masked_prob:
        learns, reason = False, "--decoder_masked_prob"
    checkpoints = sorted((Path(config.output_dir) / CHECKPOINTS).glob("step_*"), reverse=True)
    for folder in checkpoints if learns is None and not config.fresh_start else []:
        try:
            learns = Checkpoint(folder).manifest["fingerprint"].get("binary_head")
            reason = "as in the run so far"
            break
        except CheckpointError:
            continue  # whoever resumes says what is wrong with it
    if learns is None and source.weights is None:
        learns, reason = True, "the start is random"
    if learns is None:
        learns = starts_with_order(source.spec, source.read_weights())
        named = architecture_in(source.spec.config) or "the start"
        reason = f"{source.name}: {named} has {'a' if learns else 'no'} head for it; see --binary_head"
    logger.info("sentence order: %s (%s)", "learned" if learns else "not learned", reason)
    return replace(config, binary_head=learns)


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


NEAR_RANDOM = 0.9  # times ln(vocabulary), the loss of a uniform prediction


class WarmStart(NamedTuple):
    """The weights that a run starts from.

    ``arrays``: {parameter.name: float32 array}, including the rows that the program adds; ``lacks``: what the
    names begin with that only the sentence order needs, and that the model has not.
    """

    arrays: Arrays
    has_lm_head: bool
    lacks: tuple[str, ...] = ()


def read_start(
    parameters: Mapping[str, Parameter], source: ModelSource, keeps_ngrams: bool = False
) -> WarmStart:
    """Read the weights of ``source`` for the ``parameters`` of the program, {structured name: parameter}.

    ``keeps_ngrams``: whether its n-gram head, if any, belongs to the lexicon of this run. The encoder must
    match name by name, otherwise CheckpointError is raised. Missing pretraining heads start random and other
    heads are ignored; both are logged.
    """
    where, vocab_size = str(source.weights), source.spec.vocab_size
    read = source.read_weights()
    found = structured_names(read, parameters, where)
    if not keeps_ngrams and any(name.startswith(NGRAM_HEAD) for name in found):
        logger.info("%s* of %s belong to another n-gram lexicon: ignored", NGRAM_HEAD, where)
        found = without_training_heads(found)
    ours = as_float32(cut_vocabulary(found, vocab_size), where)
    if any(ours[name].shape != found[name].shape for name in found):
        logger.info("%s has more than %d vocabulary rows: the others are cut off", where, vocab_size)
    arrays = match_parameters(
        parameters,
        pad_vocabulary(ours, vocab_size),
        where,
        may_miss=(HEADS[0], *order_parts_not_in(ours, parameters)),
        may_have=(*HEADS, *idle_parts(source)),
    )
    new = [name for name, parameter in parameters.items() if parameter.name not in arrays]
    ignored = [name for name in found if name not in parameters]
    for what, names in (("not in the file and start random", new), ("not used here and ignored", ignored)):
        if names:
            logger.info("%d weights are %s: %s", len(names), what, ", ".join(sorted(names)))
    has_lm_head = not any(name.startswith(TOKEN_HEAD) for name in new)
    if not has_lm_head:
        logger.info("%s has no head for masked tokens: a new one starts random", where)
    lacks = order_parts_not_in(ours, parameters)
    if not starts_with_order(source.spec, read):
        lacks = tuple(dict.fromkeys((ORDER_HEAD, *lacks)))
    return WarmStart(arrays, has_lm_head, lacks)


def idle_parts(source: ModelSource) -> tuple[str, ...]:
    """Return what the names of weights begin with that a model of transformers holds and does not use."""
    has_idle = source.is_hugging_face and not source.spec.config.get("use_task_id")
    return ("ernie.embeddings.task_type_embeddings.",) if has_idle else ()


def order_parts_not_in(found: Iterable[str], parameters: Iterable[str]) -> tuple[str, ...]:
    """Return what the names begin with that only sentence order needs, and that are not in ``found``.

    ``found`` and ``parameters``, those of a whole model, are structured names.
    """
    family, names = next(iter(parameters)).split(".")[0], list(found)
    parts = (ORDER_HEAD, f"{family}.pooler.")
    return tuple(part for part in parts if not any(name.startswith(part) for name in names))


def warn_of_random_weights(lm_loss: float, source: ModelSource) -> None:
    """Warn if the first validation of given weights looks like that of random ones."""
    chance = math.log(source.spec.vocab_size)
    if lm_loss > NEAR_RANDOM * chance:
        logger.warning(
            "the first lm_loss %.2f is that of random weights (ln %d = %.2f): check whether %s belongs to "
            "this config.json and vocab.txt",
            lm_loss,
            source.spec.vocab_size,
            chance,
            source.weights,
        )
