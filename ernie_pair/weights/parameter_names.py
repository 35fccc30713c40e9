"""Map other names of the parameters of an ERNIE to those of this package.

Ours are PaddleNLP's structured names (ernie.encoder.layers.0.linear1.weight, cls.predictions.*). Files
also use:

    an encoder without heads the same, without the family in front
    older PaddleNLP          cls.predictions.decoder_weight
    ERNIE's own programs     word_embedding, encoder_layer_0_multi_head_att_query_fc.w_0, ...
    Paddle's static graph    linear_12.w_0, numbered in the order of creation (`static_names`)
"""

import re
from typing import Mapping, Tuple

from ernie_pair.weights.static_names import Parameter, is_numbered, names_by_order
from ernie_pair.weights.weight_files import Arrays, is_state

HEADS = ("cls.", "classifier.")
DECODER_BIAS = "cls.predictions.decoder.bias"
RENAMED = {"cls.predictions.decoder_weight": "cls.predictions.decoder.weight"}
EMBEDDINGS = {
    "word_embedding": "word_embeddings",
    "pos_embedding": "position_embeddings",
    "sent_embedding": "token_type_embeddings",
    "task_embedding": "task_type_embeddings",
}
OUTSIDE_LAYERS = {
    "pre_encoder_layer_norm": "{family}.embeddings.layer_norm",
    "pooled_fc": "{family}.pooler.dense",
    "mask_lm_trans_fc": "cls.predictions.transform",
    "mask_lm_trans_layer_norm": "cls.predictions.layer_norm",
    "mask_lm_out_fc": "cls.predictions.decoder",
    "next_sent_fc": "cls.seq_relationship",
}
IN_LAYERS = {
    "multi_head_att_query_fc": "self_attn.q_proj",
    "multi_head_att_key_fc": "self_attn.k_proj",
    "multi_head_att_value_fc": "self_attn.v_proj",
    "multi_head_att_output_fc": "self_attn.out_proj",
    "post_att_layer_norm": "norm1",
    "ffn_fc_0": "linear1",
    "ffn_fc_1": "linear2",
    "post_ffn_layer_norm": "norm2",
}
_PARTED = re.compile(r"(?:encoder_layer_(\d+)_)?(\w+?)(?:\.([wb])_0|_(scale|bias))")
_ENDINGS = {"w": "weight", "b": "bias", "scale": "weight", "bias": "bias"}


def structured_names(found: Arrays, parameters: Mapping[str, Parameter], where: str) -> Arrays:
    """Rename ``found`` to the names of ``parameters``, {structured name: parameter}, as far as known.

    An unknown name stays as it is. Raises CheckpointError when numbered names do not fit the order
    in which this model is built.
    """
    family = next(iter(parameters)).split(".")[0]
    if "embeddings.word_embeddings.weight" in found:
        return {name if name.startswith(HEADS) else f"{family}.{name}": a for name, a in found.items()}
    if "word_embedding" in found:
        return {_of_ernies_program(name, family): a for name, a in found.items() if not is_state(name)}
    if any(map(is_numbered, found)):
        return names_by_order(found, parameters, DECODER_BIAS, where)
    return {RENAMED.get(name, name): array for name, array in found.items()}


def _of_ernies_program(name: str, family: str) -> str:
    if name in EMBEDDINGS:
        return f"{family}.embeddings.{EMBEDDINGS[name]}.weight"
    layer, module, ending = _parts_of(name)
    if layer and module in IN_LAYERS:
        return f"{family}.encoder.layers.{layer}.{IN_LAYERS[module]}.{ending}"
    if not layer and module in OUTSIDE_LAYERS:
        return f"{OUTSIDE_LAYERS[module].format(family=family)}.{ending}"
    return name


def _parts_of(name: str) -> Tuple[str, str, str]:
    """Split 'encoder_layer_3_ffn_fc_0.w_0' into '3', 'ffn_fc_0', 'weight'; missing parts are ''."""
    parts = _PARTED.fullmatch(name)
    if not parts:
        return "", "", ""
    layer, module, letter, word = parts.groups("")
    return layer, module, _ENDINGS[letter or word]
