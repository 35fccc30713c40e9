"""A model with the pretraining heads in the dynamic graph, from a folder or any kind of checkpoint."""

from typing import Any

from data_tools.base.errors import CheckpointError
from ernie_pair.model_files.source import ModelSource
from ernie_pair.pretrain.convert.warm_start import LM_HEAD, idle_parts
from ernie_pair.pretrain.graph.vocab_padding import cut_vocabulary
from ernie_pair.weights.ngram_names import without_ngram_head
from ernie_pair.weights.parameter_matching import match_parameters
from ernie_pair.weights.parameter_names import structured_names
from ernie_pair.weights.weight_files import as_float32

ORDER_HEAD, CLASSIFIER = "cls.seq_relationship.", "classifier."


def load_pretrained(source: ModelSource) -> Any:
    """Build the dynamic model of ``source``, without dropout, in float32, and load its weights.

    The file must hold the head for masked tokens; a missing sentence-order head or pooler is random. Raises
    CheckpointError when the weights do not fit or lack that head, InputError for a family that is not
    pretrained here.
    """
    from ernie_pair.pretrain.graph.model import build_ernie, ernie_config

    config = ernie_config(source.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = build_ernie(config)
    parameters, where = model.state_dict(), str(source.weights)
    found = without_ngram_head(structured_names(source.read_weights(), parameters, where))
    if not any(name.startswith(LM_HEAD) for name in found):
        raise CheckpointError(
            f"{where} holds no {LM_HEAD}*, the head that predicts masked tokens; give a pretrained model, "
            "not one that was fine-tuned on pairs or converted without its heads"
        )
    arrays = match_parameters(
        parameters,
        as_float32(cut_vocabulary(found, source.spec.vocab_size), where),
        where,
        may_miss=(ORDER_HEAD, f"{model.base_model_prefix}.pooler."),
        may_have=(CLASSIFIER, *idle_parts(source)),
    )
    for parameter in parameters.values():
        if parameter.name in arrays:
            parameter.set_value(arrays[parameter.name])
    model.eval()
    return model


def has_order_head(source: ModelSource, model: Any) -> bool:
    """Return whether the weights of ``source``, of which ``model`` is built, hold the sentence-order head.

    If they do not, that of ``model`` is random.
    """
    found = structured_names(source.read_weights(), model.state_dict(), str(source.weights))
    return any(name.startswith(ORDER_HEAD) for name in found)
