"""Load the weights of a file as the parameters of the program, and report on them."""

import logging
import math
from typing import Iterable, Mapping, NamedTuple, Tuple

from ernie_pair.model_files.source import ModelSource
from ernie_pair.pretrain.convert.order_head import starts_with_order
from ernie_pair.pretrain.graph.vocab_padding import cut_vocabulary, pad_vocabulary
from ernie_pair.weights.ngram_names import NGRAM_HEAD, without_ngram_head
from ernie_pair.weights.parameter_matching import match_parameters
from ernie_pair.weights.parameter_names import HEADS, structured_names
from ernie_pair.weights.static_names import ORDER_HEAD, Parameter
from ernie_pair.weights.weight_files import Arrays, as_float32

PRETRAINING_HEADS, LM_HEAD = "cls.", "cls.predictions."
NEAR_RANDOM = 0.9  # times ln(vocabulary), the loss of a uniform prediction

logger = logging.getLogger(__name__)


class WarmStart(NamedTuple):
    """The weights that a run starts from.

    ``arrays``: {parameter.name: float32 array}, including the rows that the program adds; ``lacks``: what the
    names begin with that only the sentence order needs, and that the model has not.
    """

    arrays: Arrays
    has_lm_head: bool
    lacks: Tuple[str, ...] = ()


def read_start(
    parameters: Mapping[str, Parameter], source: ModelSource, keeps_ngrams: bool = False
) -> WarmStart:
    """Read the weights of ``source`` for the ``parameters`` of the program, {structured name: parameter}.

    ``keeps_ngrams``: whether its n-gram head, if any, belongs to the lexicon of this run.

    The encoder must match name by name, otherwise CheckpointError is raised. Missing pretraining heads start
    random and other heads are ignored; both are logged.
    """
    where, vocab_size = str(source.weights), source.spec.vocab_size
    read = source.read_weights()
    found = structured_names(read, parameters, where)
    if not keeps_ngrams and any(name.startswith(NGRAM_HEAD) for name in found):
        logger.info("%s* of %s belong to another n-gram lexicon: ignored", NGRAM_HEAD, where)
        found = without_ngram_head(found)
    ours = as_float32(cut_vocabulary(found, vocab_size), where)
    if any(ours[name].shape != found[name].shape for name in found):
        logger.info("%s has more than %d vocabulary rows: the others are cut off", where, vocab_size)
    arrays = match_parameters(
        parameters,
        pad_vocabulary(ours, vocab_size),
        where,
        may_miss=(PRETRAINING_HEADS, *order_parts_not_in(ours, parameters)),
        may_have=(*HEADS, *idle_parts(source)),
    )
    new = [name for name, parameter in parameters.items() if parameter.name not in arrays]
    _tell("not in the file and start random", new)
    _tell("not used here and ignored", [name for name in found if name not in parameters])
    has_lm_head = not any(name.startswith(LM_HEAD) for name in new)
    if not has_lm_head:
        logger.info("%s has no head for masked tokens: a new one starts random", where)
    lacks = order_parts_not_in(ours, parameters)
    return WarmStart(
        arrays,
        has_lm_head,
        lacks if starts_with_order(source.spec, read) else tuple(dict.fromkeys((ORDER_HEAD, *lacks))),
    )


def idle_parts(source: ModelSource) -> Tuple[str, ...]:
    """Return what the names of weights begin with that a model of transformers holds and does not use."""
    has_idle = source.is_hugging_face and not source.spec.config.get("use_task_id")
    return ("ernie.embeddings.task_type_embeddings.",) if has_idle else ()


def order_parts_not_in(found: Iterable[str], parameters: Iterable[str]) -> Tuple[str, ...]:
    """Return what the names begin with that only sentence order needs, and that are not in ``found``.

    ``found`` and ``parameters``, those of a whole model, are structured names.
    """
    family, names = next(iter(parameters)).split(".")[0], list(found)
    parts = (ORDER_HEAD, f"{family}.pooler.")
    return tuple(part for part in parts if not any(name.startswith(part) for name in names))


def _tell(what: str, names: list) -> None:
    if names:
        logger.info("%d weights are %s: %s", len(names), what, ", ".join(sorted(names)))


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
