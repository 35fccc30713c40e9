"""Each family of this package and the model of transformers that computes the same.

Checked on PaddleNLP 2.8.1 and transformers 4.49. Absent are the families whose classifiers differ (RoFormer:
transformers has another head) and those that transformers has not (PP-MiniLM, SKEP).

PaddleNLP's modeling.py gives its layer norms the epsilon of config.json in some families, and a number of its
own in others: `layer_norm_eps` says which. In ELECTRA it is config.json's or 1e-12, by the class that holds
the encoder. This package gives them what transformers would, under the key EPSILON.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, Mapping, Optional, Tuple

import numpy as np

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.json_file import shown
from ernie_pair.weights.weight_files import Arrays

SPECIFIC = 1e-12  # transformers' own default of all these families
# The key of the epsilon of all layer norms, where it is not the one that PaddleNLP's class computes with.
EPSILON = "computed_layer_norm_eps"
NUMBER = "#"  # in the place of a layer's number
_QKV = ("query", "key", "value")
_ATTENTION = [f"attention.{part}" for part in _QKV]
_IN_ALBERT = "encoder.albert_layer_groups.#.albert_layers.#."
WORDS = "embeddings.word_embeddings.weight"
TABLES = ("_embeddings", "decoder")  # how the modules end whose weights are tables, not to be transposed
OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}  # of norms, in files of TensorFlow's time
# Tables of positions that every model computes, which older versions wrote down.
COMPUTED = ("embeddings.position_ids", "embeddings.token_type_ids")
BIAS, DECODER, DECODER_BIAS = (f"cls.predictions.{name}" for name in ("bias", "decoder", "decoder_bias"))
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")


def _renaming(here: str, there: str, names: Mapping[str, str]) -> Dict[str, str]:
    return {here + ours: there + theirs for ours, theirs in names.items()}


def _alike(*names: str, inside: str = "") -> Dict[str, str]:
    return {inside + name: inside + name for name in names}


_TABLES = _alike("word_embeddings", "token_type_embeddings", inside="embeddings.")
_EMBEDDINGS = {**_TABLES, "embeddings.layer_norm": "embeddings.LayerNorm"}
_POSITIONS, _TASKS = _alike("embeddings.position_embeddings"), _alike("embeddings.task_type_embeddings")
_POOLER, _CLASSIFIER = _alike("pooler.dense"), _alike("classifier")
_DENSE_CLASSIFIER = _alike("dense", "out_proj", inside="classifier.")
_LAYER = _renaming("encoder.layers.#.", "encoder.layer.#.", {
    "self_attn.q_proj": "attention.self.query", "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value", "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm", "linear1": "intermediate.dense",
    "linear2": "output.dense", "norm2": "output.LayerNorm",
})  # fmt: skip
_BERT = {**_EMBEDDINGS, **_POSITIONS, **_LAYER}
_WITH_POOLER = {**_BERT, **_POOLER}
_PRETRAINING = {
    "cls.predictions.transform": "cls.predictions.transform.dense",
    "cls.predictions.layer_norm": "cls.predictions.transform.LayerNorm",
    **_alike("cls.predictions.decoder", "cls.seq_relationship"),
}
_NEZHA_LAYER = _renaming("encoder.layer.#.", "encoder.layer.#.", {
    **{f"attention.{part}": f"attention.self.{part}" for part in _QKV},
    "attention.dense": "attention.output.dense", "attention.layer_norm": "attention.output.LayerNorm",
    "ffn": "intermediate.dense", "ffn_output": "output.dense", "layer_norm": "output.LayerNorm",
})  # fmt: skip
_ALBERT_LAYER = {
    **_alike("full_layer_layer_norm", "ffn", "ffn_output", "attention.dense", inside=_IN_ALBERT),
    f"{_IN_ALBERT}attention.layer_norm": f"{_IN_ALBERT}attention.LayerNorm",
    **_alike(*_ATTENTION, inside=_IN_ALBERT),
}
_DISTIL_LAYER = _renaming("encoder.layers.#.", "transformer.layer.#.", {
    **{f"self_attn.{part}_proj": f"attention.{part}_lin" for part in ("q", "k", "v", "out")},
    "norm1": "sa_layer_norm", "linear1": "ffn.lin1", "linear2": "ffn.lin2", "norm2": "output_layer_norm",
})  # fmt: skip
_MEGATRON_LAYER = _renaming("encoder.layer.#.", "encoder.layer.#.", {
    **_alike(*_QKV, inside="attention.self."),
    **_alike("attention.output.dense", "intermediate.dense", "output.dense"),
    "attention.layer_norm": "attention.ln", "layer_norm": "ln",
})  # fmt: skip


@dataclass(frozen=True)
class Counterpart:
    """A family of this package, and the model of transformers that computes the same.

    ``model_type`` and ``class_start``: what transformers calls it, bert and Bert of BertForMaskedLM;
    ``own_class_start``: what PaddleNLP does. ``own_prefix``, ``prefix``: what names inside the encoder begin
    with, here and there. ``modules``, ``heads``: {module here: there}, # for the number of a layer; inside
    the encoder and outside of it. ``optional``: modules that some configurations do not make.
    ``layer_norm_eps``: the one that PaddleNLP's class computes with; None: that of config.json.
    ``defaults``: {key of config.json here: value of transformers' class where its config.json has none}.
    ``keys``: {key of config.json here: there}, of those that differ; ``also``: keys of this family alone.
    ``fixed``: {key of config.json here: the one value that both classes can take}. ``unused``: modules that
    no output depends on, which transformers has not; they are left out. ``keeps_positions``: PaddleNLP's
    files hold the numbers of the positions as well.
    """

    model_type: str
    class_start: str
    own_class_start: str
    own_prefix: str
    prefix: str
    modules: Mapping[str, str]
    heads: Mapping[str, str]
    layer_norm_eps: Optional[float] = SPECIFIC
    activations: Tuple[str, ...] = ("gelu", "relu", "gelu_new")
    defaults: Mapping[str, object] = field(default_factory=dict)
    optional: Tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    also: Tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    unused: Tuple[str, ...] = ()
    keeps_positions: bool = False


_ROBERTA = Counterpart(
    "roberta", "Roberta", "Roberta", "roberta.", "roberta.", _WITH_POOLER, _DENSE_CLASSIFIER,
    layer_norm_eps=None, optional=("pooler.dense",), defaults={"pad_token_id": 1},
)  # fmt: skip
COUNTERPARTS: Dict[str, Counterpart] = {
    "ernie": Counterpart(
        "ernie", "Ernie", "Ernie", "ernie.", "ernie.",
        {**_WITH_POOLER, **_TASKS}, {**_CLASSIFIER, **_PRETRAINING}, optional=tuple(_TASKS),
        also=("use_task_id", "task_type_vocab_size"), fixed={"task_id": 0},
    ),
    "ernie_gram": Counterpart(
        "bert", "Bert", "ErnieGram", "ernie_gram.", "bert.", _WITH_POOLER, {**_CLASSIFIER, **_PRETRAINING},
        layer_norm_eps=1e-5, unused=("embeddings.rel_pos_embeddings",),
    ),
    "bert": Counterpart(
        "bert", "Bert", "Bert", "bert.", "bert.", _WITH_POOLER, {**_CLASSIFIER, **_PRETRAINING},
        layer_norm_eps=None, fixed={"pool_act": "tanh"},
    ),
    "roberta": _ROBERTA,
    "xlm_roberta": replace(_ROBERTA, model_type="xlm-roberta", class_start="XLMRoberta"),
    "electra": Counterpart(
        "electra", "Electra", "Electra", "electra.", "electra.",
        {**_BERT, **_alike("embeddings_project")}, _DENSE_CLASSIFIER, optional=("embeddings_project",),
        activations=("gelu",),  # transformers' head computes with it, whatever config.json says
        defaults={
            "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
        },
        also=("embedding_size",),
    ),
    "nezha": Counterpart(
        "nezha", "Nezha", "NeZha", "nezha.", "nezha.", {**_EMBEDDINGS, **_NEZHA_LAYER, **_POOLER},
        _CLASSIFIER, also=("max_relative_position",), fixed={"use_relative_position": True},
    ),
    "albert": Counterpart(
        "albert", "Albert", "Albert", "transformer.", "albert.",
        {
            **_EMBEDDINGS, **_POSITIONS, **_ALBERT_LAYER,
            **_alike("encoder.embedding_hidden_mapping_in", "pooler"),
        },
        _CLASSIFIER,
        layer_norm_eps=None,
        defaults={
            "embedding_size": 128, "hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384,
            "hidden_act": "gelu_new",
        },
        also=("embedding_size", "num_hidden_groups", "inner_group_num", "classifier_dropout_prob"),
        keeps_positions=True,
    ),
    "distilbert": Counterpart(
        "distilbert", "DistilBert", "DistilBert", "distilbert.", "distilbert.",
        {
            **_alike("embeddings.word_embeddings"), "embeddings.layer_norm": "embeddings.LayerNorm",
            **_POSITIONS, **_DISTIL_LAYER,
        },
        {**_CLASSIFIER, **_alike("pre_classifier")},
        activations=("gelu", "relu"),
        defaults={"num_hidden_layers": 6},
        keys={
            "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout", "classifier_dropout": "seq_classif_dropout",
        },
    ),
    "megatronbert": Counterpart(
        "megatron-bert", "MegatronBert", "MegatronBert", "megatronbert.", "bert.",
        {**_TABLES, **_POSITIONS, **_MEGATRON_LAYER, "encoder.layer_norm": "encoder.ln", **_POOLER},
        _CLASSIFIER,
        defaults={
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
        keeps_positions=True,
    ),
}  # fmt: skip


def unsupported_type(named: object, where: str, supported: Iterable[str]) -> InputError:
    """Return the error for a model whose type this package does not compute."""
    return InputError(
        f"{where}: model_type is {shown(named)}, which is not supported; give a model of one of these: "
        f"{', '.join(sorted(supported))}"
    )


def find_family(model_type: str) -> str:
    """Return the family that reads a model_type of transformers; empty: none."""
    found = [family for family, peer in COUNTERPARTS.items() if peer.model_type == model_type]
    return next((family for family in found if family == model_type), found[0] if found else "")


def from_their_names(found: Arrays, family: str) -> Arrays:
    """Return the arrays of a file of transformers as PaddleNLP names and turns them.

    What has no place in this family keeps its name. Both names of a tied decoder are given.
    """
    peer = COUNTERPARTS[family]
    modules = {theirs: ours for ours, theirs in {**peer.modules, **peer.heads}.items()}
    # What the names inside the encoder begin with: 'bert.', or '' of an encoder on its own.
    prefix = next((name[: -len(WORDS)] for name in found if name.endswith(WORDS)), "")
    renamed: Arrays = {}
    for name, array in found.items():
        if name.endswith(COMPUTED):
            continue
        module, _, ending = name.rpartition(".")
        name = f"{module}.{OLD_ENDINGS[ending]}" if ending in OLD_ENDINGS else name
        name, is_inside = _without_prefix(name, prefix, peer.modules.values())
        ours = _renamed(name, modules)
        own_name = (peer.own_prefix if is_inside else "") + (ours or name)
        renamed[own_name] = _turned(ours, array) if ours else array
    bias, words = renamed.pop(BIAS, renamed.get(f"{DECODER}.bias")), f"{peer.own_prefix}{WORDS}"
    if bias is None or DECODER not in peer.heads or words not in renamed:
        return renamed
    return {f"{DECODER}.weight": renamed[words], f"{DECODER}.bias": bias, DECODER_BIAS: bias, **renamed}


def to_their_names(arrays: Arrays, family: str, where: str) -> Arrays:
    """Return arrays as transformers names and turns them. Raises CheckpointError for one that it lacks."""
    peer = COUNTERPARTS[family]
    modules = {**peer.modules, **peer.heads}
    is_whole = any(name.startswith(peer.own_prefix) for name in arrays)
    renamed: Arrays = {}
    for name, array in arrays.items():
        if name.endswith(COMPUTED):
            continue
        if name.startswith(DECODER) and DECODER in modules:
            if array.ndim == 1:
                renamed[BIAS] = array
            continue
        inside, is_inside = _without_prefix(name, peer.own_prefix if is_whole else "", peer.modules)
        theirs = _renamed(inside, modules)
        if is_inside and inside.startswith(peer.unused):
            continue
        if theirs is None:
            raise CheckpointError(
                f"{where}: {name} has no place in {peer.class_start}Model of transformers; only whole models "
                f"of {family} are written for it"
            )
        renamed[(peer.prefix if is_inside else "") + theirs] = _turned(inside, array)
    return renamed


def split_heads(arrays: Arrays, family: str, num_layers: int, where: str) -> Tuple[Arrays, Tuple[str, ...]]:
    """Return the weights that PaddleNLP's classes of ``family`` have, and the names of the other heads.

    Raises CheckpointError when the encoder is not whole, or holds what PaddleNLP's has not.
    """
    peer, num_layers = COUNTERPARTS[family], 1 if family == "albert" else num_layers  # which shares them
    modules = [module for module in peer.modules if module not in peer.optional and "pooler" not in module]
    numbered = [module.replace(NUMBER, str(number)) for number in range(num_layers) for module in modules]
    names = [f"{peer.own_prefix}{module}.weight" for module in dict.fromkeys(numbered)]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise CheckpointError(
            f"{where}: {len(missing)} weights of the encoder are missing, {missing[0]} for example; give a "
            "whole model"
        )
    begins = (peer.own_prefix, *(f"{module}." for module in peer.heads))
    begins += (DECODER_BIAS,) if DECODER in peer.heads else ()
    kept = {name: array for name, array in arrays.items() if name.startswith(begins)}
    return kept, tuple(sorted(arrays.keys() - kept.keys()))


def _without_prefix(name: str, prefix: str, modules) -> Tuple[str, bool]:
    """Return a name without what names inside the encoder begin with, and whether it is inside.

    Of an encoder on its own, ``prefix`` '', all that begins like one of its ``modules`` is inside.
    """
    if prefix:
        return (name[len(prefix) :], True) if name.startswith(prefix) else (name, False)
    begins = {module.split(".")[0] for module in modules}
    return name, name.split(".")[0] in begins


def _renamed(name: str, modules: Dict[str, str]):
    """Return the other name of a parameter by {module: other module}; None: it has none."""
    module, _, ending = name.rpartition(".")
    numbers = iter(_INDEX.findall(f"{module}."))
    other = modules.get(_INDEX.sub(NUMBER, f"{module}.")[:-1])
    if other is None or ending not in ("weight", "bias"):
        return None
    return f"{re.sub(NUMBER, lambda _: next(numbers), other)}.{ending}"


def _turned(own_name: str, array: np.ndarray) -> np.ndarray:
    is_linear = array.ndim == 2 and not own_name.rpartition(".")[0].endswith(TABLES)
    return np.ascontiguousarray(array.T) if is_linear else array
