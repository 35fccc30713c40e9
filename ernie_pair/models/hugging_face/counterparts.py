"""Each family of this package and the model of transformers that computes the same.

Checked on PaddleNLP 2.8.1 and transformers 4.49. Absent are the families whose classifiers differ (RoFormer:
transformers has another head) and those that transformers has not (RoFormerV2, PP-MiniLM, TinyBERT, SKEP).

PaddleNLP's modeling.py gives its layer norms the epsilon of config.json in some families, and a number of its
own in others: `layer_norm_eps` says which. In ELECTRA it is config.json's or 1e-12, by the class that holds
the encoder. This package gives them what transformers would, under the key EPSILON.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import numpy as np

from data_tools.files.errors import CheckpointError, InputError
from data_tools.files.json_file import shown
from ernie_pair.weights.weight_files import Arrays

SPECIFIC = 1e-12  # transformers' own default of all these families
# The key of the epsilon of all layer norms, where it is not the one that PaddleNLP's class computes with.
EPSILON = "computed_layer_norm_eps"
NUMBER = "#"  # in the place of a layer's number

_EMBEDDINGS = {
    **{f"embeddings.{kind}_embeddings": f"embeddings.{kind}_embeddings" for kind in ("word", "token_type")},
    "embeddings.layer_norm": "embeddings.LayerNorm",
}
_POSITIONS = {"embeddings.position_embeddings": "embeddings.position_embeddings"}
_POOLER = {"pooler.dense": "pooler.dense"}
_LAYER = {
    f"encoder.layers.#.{ours}": f"encoder.layer.#.{theirs}"
    for ours, theirs in {
        "self_attn.q_proj": "attention.self.query",
        "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value",
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }.items()
}
_BERT = {**_EMBEDDINGS, **_POSITIONS, **_LAYER}
_CLASSIFIER = {"classifier": "classifier"}
_DENSE_CLASSIFIER = {f"classifier.{part}": f"classifier.{part}" for part in ("dense", "out_proj")}
_PRETRAINING = {
    "cls.predictions.transform": "cls.predictions.transform.dense",
    "cls.predictions.layer_norm": "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder": "cls.predictions.decoder",
    "cls.seq_relationship": "cls.seq_relationship",
}
_NEZHA_LAYER = {
    f"encoder.layer.#.{ours}": f"encoder.layer.#.{theirs}"
    for ours, theirs in {
        **{f"attention.{part}": f"attention.self.{part}" for part in ("query", "key", "value")},
        "attention.dense": "attention.output.dense",
        "attention.layer_norm": "attention.output.LayerNorm",
        "ffn": "intermediate.dense",
        "ffn_output": "output.dense",
        "layer_norm": "output.LayerNorm",
    }.items()
}
_ALBERT_LAYER = {
    f"encoder.albert_layer_groups.#.albert_layers.#.{ours}": (
        f"encoder.albert_layer_groups.#.albert_layers.#.{theirs}"
    )
    for ours, theirs in {
        **{
            part: part
            for part in ("full_layer_layer_norm", "ffn", "ffn_output", "attention.query", "attention.key")
        },
        **{"attention.value": "attention.value", "attention.dense": "attention.dense"},
        "attention.layer_norm": "attention.LayerNorm",
    }.items()
}
_SQUEEZE_LAYER = {
    f"encoder.layers.#.{part}": f"encoder.layers.#.{part}"
    for part in (
        *("attention.query", "attention.key", "attention.value", "intermediate.conv1d"),
        *("post_attention.conv1d", "post_attention.layernorm", "output.conv1d", "output.layernorm"),
    )
}
_DISTIL_LAYER = {
    f"encoder.layers.#.{ours}": f"transformer.layer.#.{theirs}"
    for ours, theirs in {
        **{f"self_attn.{part}_proj": f"attention.{part}_lin" for part in ("q", "k", "v", "out")},
        **{"norm1": "sa_layer_norm", "linear1": "ffn.lin1", "linear2": "ffn.lin2"},
        "norm2": "output_layer_norm",
    }.items()
}
_MEGATRON_LAYER = {
    f"encoder.layer.#.{ours}": f"encoder.layer.#.{theirs}"
    for ours, theirs in {
        **{f"attention.self.{part}": f"attention.self.{part}" for part in ("query", "key", "value")},
        **{f"{part}.dense": f"{part}.dense" for part in ("attention.output", "intermediate", "output")},
        **{"attention.layer_norm": "attention.ln", "layer_norm": "ln"},
    }.items()
}
_ROBERTA: Dict[str, Any] = {
    "modules": {**_BERT, **_POOLER},
    "heads": _DENSE_CLASSIFIER,
    "layer_norm_eps": None,
    "optional": ("pooler.dense",),
    "defaults": {"pad_token_id": 1},
}


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


COUNTERPARTS: Dict[str, Counterpart] = {
    "ernie": Counterpart(
        *("ernie", "Ernie", "Ernie", "ernie.", "ernie."),
        {**_BERT, **_POOLER, "embeddings.task_type_embeddings": "embeddings.task_type_embeddings"},
        {**_CLASSIFIER, **_PRETRAINING},
        optional=("embeddings.task_type_embeddings",),
        also=("use_task_id", "task_type_vocab_size"),
        fixed={"task_id": 0},
    ),
    "ernie_gram": Counterpart(
        *("bert", "Bert", "ErnieGram", "ernie_gram.", "bert."),
        {**_BERT, **_POOLER},
        {**_CLASSIFIER, **_PRETRAINING},
        layer_norm_eps=1e-5,
        unused=("embeddings.rel_pos_embeddings",),
    ),
    "bert": Counterpart(
        *("bert", "Bert", "Bert", "bert.", "bert."),
        {**_BERT, **_POOLER},
        {**_CLASSIFIER, **_PRETRAINING},
        layer_norm_eps=None,
        fixed={"pool_act": "tanh"},
    ),
    "roberta": Counterpart("roberta", "Roberta", "Roberta", "roberta.", "roberta.", **_ROBERTA),
    "xlm_roberta": Counterpart("xlm-roberta", "XLMRoberta", "Roberta", "roberta.", "roberta.", **_ROBERTA),
    "electra": Counterpart(
        *("electra", "Electra", "Electra", "electra.", "electra."),
        {**_BERT, "embeddings_project": "embeddings_project"},
        _DENSE_CLASSIFIER,
        activations=("gelu",),  # transformers' head computes with it, whatever config.json says
        optional=("embeddings_project",),
        defaults={
            "embedding_size": 128,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
        also=("embedding_size",),
    ),
    "nezha": Counterpart(
        *("nezha", "Nezha", "NeZha", "nezha.", "nezha."),
        {**_EMBEDDINGS, **_NEZHA_LAYER, **_POOLER},
        _CLASSIFIER,
        also=("max_relative_position",),
        fixed={"use_relative_position": True},
    ),
    "albert": Counterpart(
        *("albert", "Albert", "Albert", "transformer.", "albert."),
        {
            **_EMBEDDINGS,
            **_POSITIONS,
            **_ALBERT_LAYER,
            "encoder.embedding_hidden_mapping_in": "encoder.embedding_hidden_mapping_in",
            "pooler": "pooler",
        },
        _CLASSIFIER,
        layer_norm_eps=None,
        defaults={
            "embedding_size": 128,
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
            "hidden_act": "gelu_new",
        },
        also=("embedding_size", "num_hidden_groups", "inner_group_num", "classifier_dropout_prob"),
        keeps_positions=True,
    ),
    "squeezebert": Counterpart(
        *("squeezebert", "SqueezeBert", "SqueezeBert", "squeezebert.", "transformer."),
        {
            **{ours: ours for ours in (*_EMBEDDINGS, *_POSITIONS) if "norm" not in ours},
            "embeddings.LayerNorm": "embeddings.LayerNorm",
            **_SQUEEZE_LAYER,
            **_POOLER,
        },
        _CLASSIFIER,
        activations=("gelu", "relu"),
        also=(
            *("embedding_size", "q_groups", "k_groups", "v_groups", "post_attention_groups"),
            *("intermediate_groups", "output_groups"),
        ),
        keeps_positions=True,
    ),
    "distilbert": Counterpart(
        *("distilbert", "DistilBert", "DistilBert", "distilbert.", "distilbert."),
        {
            **{ours: theirs for ours, theirs in _EMBEDDINGS.items() if "type" not in ours},
            **_POSITIONS,
            **_DISTIL_LAYER,
        },
        {**_CLASSIFIER, "pre_classifier": "pre_classifier"},
        activations=("gelu", "relu"),
        defaults={"num_hidden_layers": 6},
        keys={
            **{"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
            **{
                "intermediate_size": "hidden_dim",
                "hidden_act": "activation",
                "hidden_dropout_prob": "dropout",
            },
            "attention_probs_dropout_prob": "attention_dropout",
            "classifier_dropout": "seq_classif_dropout",
        },
    ),
    "megatronbert": Counterpart(
        *("megatron-bert", "MegatronBert", "MegatronBert", "megatronbert.", "bert."),
        {
            **{ours: ours for ours in (*_EMBEDDINGS, *_POSITIONS) if "norm" not in ours},
            **_MEGATRON_LAYER,
            "encoder.layer_norm": "encoder.ln",
            **_POOLER,
        },
        _CLASSIFIER,
        defaults={
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
        keeps_positions=True,
    ),
}


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


WORDS = "embeddings.word_embeddings.weight"
TABLES = ("_embeddings", "decoder")  # how the modules end whose weights are tables, not to be transposed
WRAPPERS = ("module.", "_orig_mod.")  # before all names of a model that was wrapped: DataParallel, compile
OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}  # of norms, in files of TensorFlow's time
# Tables of positions that every model computes, which older versions wrote down.
COMPUTED = ("embeddings.position_ids", "embeddings.token_type_ids")
DECODER, DECODER_BIAS, BIAS = (
    "cls.predictions.decoder",
    "cls.predictions.decoder_bias",
    "cls.predictions.bias",
)
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")


def from_their_names(found: Arrays, family: str) -> Arrays:
    """Return the arrays of a file of transformers as PaddleNLP names and turns them.

    What has no place in this family keeps its name. Both names of the tied decoder are given, where there is
    one.
    """
    peer = COUNTERPARTS[family]
    modules = {theirs: ours for ours, theirs in {**peer.modules, **peer.heads}.items()}
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in found):
            found = {name[len(wrapper) :]: array for name, array in found.items()}
    prefix = prefix_in(found)
    renamed: Arrays = {}
    for name, array in found.items():
        if name.endswith(COMPUTED):
            continue
        name, is_inside = _without_prefix(_with_new_ending(name), prefix, peer.modules.values())
        ours = _renamed(name, modules)
        if ours is None:
            renamed[(peer.own_prefix if is_inside else "") + name] = array
        else:
            renamed[(peer.own_prefix if is_inside else "") + ours] = _turned(ours, array)
    return _with_tied_decoder(renamed, peer)


def to_their_names(arrays: Arrays, family: str, where: str) -> Arrays:
    """Return the arrays of a model of PaddleNLP as transformers names and turns them.

    Raises CheckpointError for a name that has no place there.
    """
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


def prefix_in(found: Mapping[str, object]) -> str:
    """Return what the names inside the encoder begin with: 'bert.', or '' of an encoder on its own."""
    return next((name[: -len(WORDS)] for name in found if name.endswith(WORDS)), "")


def missing_names(arrays: Mapping[str, object], family: str, num_layers: int) -> List[str]:
    """Return which parameters of an encoder of PaddleNLP's names ``arrays`` lack, in order."""
    peer = COUNTERPARTS[family]
    modules = [module for module in peer.modules if module not in peer.optional]
    layers = 1 if family == "albert" else num_layers  # its layers share their weights
    numbered = [module.replace(NUMBER, str(number)) for number in range(layers) for module in modules]
    names = [f"{peer.own_prefix}{module}.weight" for module in dict.fromkeys(numbered)]
    return [name for name in names if name not in arrays]


def own_heads(family: str) -> Tuple[str, ...]:
    """Return what PaddleNLP's names of the heads begin with that transformers has as well."""
    heads = COUNTERPARTS[family].heads
    return tuple(f"{module}." for module in heads) + ((DECODER_BIAS,) if DECODER in heads else ())


def _with_new_ending(name: str) -> str:
    module, _, ending = name.rpartition(".")
    return f"{module}.{OLD_ENDINGS[ending]}" if ending in OLD_ENDINGS else name


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
    """Return the array of the other framework: a linear weight transposed, all else as it is."""
    is_linear = array.ndim == 2 and not own_name.rpartition(".")[0].endswith(TABLES)
    return np.ascontiguousarray(array.T) if is_linear else array


def _with_tied_decoder(arrays: Arrays, peer: Counterpart) -> Arrays:
    """Return the arrays with the decoder of the masked tokens under all names that PaddleNLP has for it."""
    bias = arrays.pop(BIAS, arrays.get(f"{DECODER}.bias"))
    words = f"{peer.own_prefix}{WORDS}"
    if bias is None or DECODER not in peer.heads or words not in arrays:
        return arrays
    decoder = {f"{DECODER}.weight": arrays[words], **{f"{DECODER}.bias": bias, DECODER_BIAS: bias}}
    return {**decoder, **arrays}
