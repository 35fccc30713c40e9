"""Each family of this package and the model of transformers that computes the same.

Checked on PaddleNLP 2.8.1 and transformers 4.49. Absent are the families whose classifiers differ (RoFormer:
transformers has another head) and those that transformers has not (RoFormerV2, PP-MiniLM, TinyBERT, SKEP).

PaddleNLP's modeling.py gives its layer norms the epsilon of config.json in some families, and a number of its
own in others: `layer_norm_eps` says which. In ELECTRA it is config.json's or 1e-12, by the class that holds
the encoder. This package gives them what transformers would, under the key EPSILON.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple

from data_tools.base.errors import InputError
from data_tools.files.json_file import shown

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
