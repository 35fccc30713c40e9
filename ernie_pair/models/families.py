"""Every family of encoders in one table: its classes in PaddleNLP, how they are called, and its counterpart.

A family is one `Family` of FAMILIES. Everything else reads it there: flags and their help, the reader and
writer of config.json, tokenizers, networks, and the conversion from and to transformers.
`tests/ernie_pair/models/test_new_family.py` adds one.

A counterpart is the model of transformers that computes the same, checked on PaddleNLP 2.8.1 and transformers
4.49. Families whose classifiers differ (RoFormer: transformers has another head) and those that transformers
has not (PP-MiniLM, SKEP) have none.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import shown

# The key of the epsilon of all layer norms, where it is not the one that PaddleNLP's class computes with.
EPSILON = "computed_layer_norm_eps"
OF_MATCH = ("match_embeddings", "unmatched_ids")  # keys of `match_embeddings`
SPECIFIC = 1e-12  # transformers' own default of all these families
NUMBER = "#"  # in the place of a layer's number
_QKV = ("query", "key", "value")
_IN_ALBERT = "encoder.albert_layer_groups.#.albert_layers.#."


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
    **_alike(*_QKV, inside=f"{_IN_ALBERT}attention."),
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
    """The model of transformers that computes the same as a family here.

    ``model_type`` and ``class_start``: what transformers calls it, bert and Bert of BertForMaskedLM;
    ``prefix``: what names inside the encoder begin with there. ``modules``, ``heads``: {module here: there},
    # for the number of a layer; inside the encoder and outside of it. ``optional``: modules that some
    configurations do not make. ``layer_norm_eps``: the one that PaddleNLP's class computes with, whatever
    config.json says; None: that of config.json. ``defaults``: {key of config.json here: value of
    transformers' class where its config.json has none}. ``keys``: {key of config.json here: there}, of those
    that differ; ``also``: keys of this family alone. ``fixed``: {key of config.json here: the one value that
    both classes can take}. ``keeps_positions``: PaddleNLP's files hold the numbers of the positions as well.
    ``states_epsilon``: config.json has the epsilon, and the kind of positions.
    """

    model_type: str
    class_start: str
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
    keeps_positions: bool = False
    states_epsilon: bool = True


@dataclass(frozen=True)
class Family:
    """A family of encoders that read word pieces.

    ``class_start``: what the names of PaddleNLP's classes begin with; ``attribute``: what the encoder is
    called in the weights, empty: as the family; ``tokenizer``: the end of the name of PaddleNLP's tokenizer.
    ``head``: what PaddleNLP's XForSequenceClassification makes of the encoder's answer:

    pooled   dropout and a linear layer on the pooled output
    dense    the same on a linear layer and ReLU of the hidden state of the first token
    own      a class of its own on the hidden states, with dropout inside

    ``takes_added_mask``: [B, 1, 1, S], added to the scores; otherwise [B, S] of 0 and 1. ``gives_pooled``: a
    tuple of hidden states and pooled output; otherwise the states alone. ``layers``: where the encoder has
    them, which ``shares_layers`` if they are one; ``unused``, ``pretraining_heads``: beginnings of names of
    what no output depends on, and of heads; ``names_heads``: PaddleNLP has a class for those.
    ``has_paddle_layers``: they are Paddle's TransformerEncoderLayer, which has no gelu_new. ``hidden_act``:
    of a new model. ``keys_of_width``: keys of config.json that are its hidden_size in a new model;
    ``embeds_in_width``: they are that too where config.json leaves them out. ``fixed``: further keys of it,
    ``dropouts``: those of further rates. ``token_types``, ``max_positions``: the default, and a bound beside
    that of config.json. ``counts_from_padding``: the first token has the position pad_token_id + 1, and
    the tokenizer of two separators gives all tokens one type.
    """

    class_start: str
    attribute: str = ""
    tokenizer: str = "Tokenizer"
    head: str = "pooled"
    takes_types: bool = True
    takes_added_mask: bool = True
    gives_pooled: bool = True
    layers: str = "encoder.layers"
    shares_layers: bool = False
    unused: Tuple[str, ...] = ()
    pretraining_heads: Tuple[str, ...] = ("cls.",)
    names_heads: bool = True
    has_paddle_layers: bool = False
    hidden_act: str = "gelu"
    keys_of_width: Tuple[str, ...] = ()
    embeds_in_width: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    dropouts: Tuple[str, ...] = ()
    token_types: int = 16
    max_positions: int = 1 << 30
    counts_from_padding: bool = False
    counterpart: Optional[Counterpart] = None


_OF_ROBERTA = Counterpart(
    "roberta", "Roberta", "roberta.", _WITH_POOLER, _DENSE_CLASSIFIER,
    layer_norm_eps=None, optional=("pooler.dense",), defaults={"pad_token_id": 1},
)  # fmt: skip
_ROBERTA = Family(
    "Roberta", attribute="roberta", tokenizer="ChineseTokenizer", head="own", pretraining_heads=("lm_head.",),
    has_paddle_layers=True, counts_from_padding=True, counterpart=_OF_ROBERTA,
)  # fmt: skip
_EMBEDDING_SIZE = ("embedding_size",)
FAMILIES: Dict[str, Family] = {
    "ernie": Family(
        "Ernie", hidden_act="relu", has_paddle_layers=True,
        counterpart=Counterpart(
            "ernie", "Ernie", "ernie.", {**_WITH_POOLER, **_TASKS}, {**_CLASSIFIER, **_PRETRAINING},
            optional=tuple(_TASKS), also=("use_task_id", "task_type_vocab_size"), fixed={"task_id": 0},
        ),
    ),
    "ernie_gram": Family(
        "ErnieGram", has_paddle_layers=True, names_heads=False, unused=("embeddings.rel_pos_embeddings.",),
        token_types=2, keys_of_width=_EMBEDDING_SIZE, embeds_in_width=True,  # PaddleNLP's default is 768
        counterpart=Counterpart(
            "bert", "Bert", "bert.", _WITH_POOLER, {**_CLASSIFIER, **_PRETRAINING}, layer_norm_eps=1e-5,
        ),
    ),
    "bert": Family(
        "Bert", has_paddle_layers=True,
        counterpart=Counterpart(
            "bert", "Bert", "bert.", _WITH_POOLER, {**_CLASSIFIER, **_PRETRAINING},
            layer_norm_eps=None, fixed={"pool_act": "tanh"},
        ),
    ),
    "roberta": _ROBERTA,
    "xlm_roberta": replace(  # PaddleNLP's same classes; its own names and defaults in transformers
        _ROBERTA,
        counterpart=replace(_OF_ROBERTA, model_type="xlm-roberta", class_start="XLMRoberta"),
    ),
    "electra": Family(
        "Electra", head="own", gives_pooled=False, keys_of_width=_EMBEDDING_SIZE,
        pretraining_heads=("discriminator_", "generator_", "bias_mts."),
        counterpart=Counterpart(
            # In ELECTRA the epsilon of PaddleNLP is config.json's or 1e-12, by the class that holds it.
            "electra", "Electra", "electra.", {**_BERT, **_alike("embeddings_project")}, _DENSE_CLASSIFIER,
            optional=("embeddings_project",),
            activations=("gelu",),  # transformers' head computes with it, whatever config.json says
            defaults={
                "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4,
                "intermediate_size": 1024,
            },
            also=_EMBEDDING_SIZE,
        ),
    ),
    "nezha": Family(
        "NeZha", takes_added_mask=False, layers="encoder.layer", fixed={"use_relative_position": True},
        max_positions=512,  # the size of its table
        counterpart=Counterpart(
            "nezha", "Nezha", "nezha.", {**_EMBEDDINGS, **_NEZHA_LAYER, **_POOLER}, _CLASSIFIER,
            also=("max_relative_position",), fixed={"use_relative_position": True},
        ),
    ),
    "roformer": Family("RoFormer", keys_of_width=_EMBEDDING_SIZE),
    "ppminilm": Family("PPMiniLM"),
    "albert": Family(
        "Albert", attribute="transformer", tokenizer="ChineseTokenizer", takes_added_mask=False,
        layers="encoder.albert_layer_groups", shares_layers=True,
        pretraining_heads=("predictions.", "sop_classifier."),
        keys_of_width=_EMBEDDING_SIZE, dropouts=("classifier_dropout_prob",),
        counterpart=Counterpart(
            "albert", "Albert", "albert.",
            {
                **_EMBEDDINGS, **_POSITIONS, **_ALBERT_LAYER,
                **_alike("encoder.embedding_hidden_mapping_in", "pooler"),
            },
            _CLASSIFIER,
            layer_norm_eps=None,
            defaults={
                "embedding_size": 128, "hidden_size": 4096, "num_attention_heads": 64,
                "intermediate_size": 16384, "hidden_act": "gelu_new",
            },
            also=("embedding_size", "num_hidden_groups", "inner_group_num", "classifier_dropout_prob"),
            keeps_positions=True,
        ),
    ),
    "skep": Family("Skep", hidden_act="relu"),
    "megatronbert": Family(
        "MegatronBert", layers="encoder.layer",
        counterpart=Counterpart(
            "megatron-bert", "MegatronBert", "bert.",
            {**_TABLES, **_POSITIONS, **_MEGATRON_LAYER, "encoder.layer_norm": "encoder.ln", **_POOLER},
            _CLASSIFIER,
            defaults={
                "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                "intermediate_size": 4096,
            },
            keeps_positions=True,
        ),
    ),
    "distilbert": Family(
        "DistilBert", head="dense", takes_types=False, gives_pooled=False, pretraining_heads=("vocab_",),
        counterpart=Counterpart(
            "distilbert", "DistilBert", "distilbert.",
            {
                **_alike("embeddings.word_embeddings"), "embeddings.layer_norm": "embeddings.LayerNorm",
                **_POSITIONS, **_DISTIL_LAYER,
            },
            {**_CLASSIFIER, **_alike("pre_classifier")},
            activations=("gelu", "relu"), states_epsilon=False,
            defaults={"num_hidden_layers": 6},
            keys={
                "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                "intermediate_size": "hidden_dim", "hidden_act": "activation",
                "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
                "classifier_dropout": "seq_classif_dropout",
            },
        ),
    ),
}  # fmt: skip


def get_family(name: str) -> Family:
    """Return the family of this name; for '', a config.json that names none, ERNIE."""
    return FAMILIES[name or "ernie"]


def encoder_name(name: str) -> str:
    """Return what the encoder of a family is called in the names of weights."""
    return get_family(name).attribute or name or "ernie"


def get_counterpart(name: str) -> Counterpart:
    """Return the counterpart of the family of this name, which has one: nothing else calls it."""
    found = FAMILIES[name].counterpart
    assert found is not None
    return found


def with_counterpart() -> Dict[str, Counterpart]:
    """Return {family: its counterpart} of those that have one."""
    return {name: one.counterpart for name, one in FAMILIES.items() if one.counterpart is not None}


def find_family(model_type: object) -> str:
    """Return the family that reads a model_type of transformers; empty: none."""
    found = [name for name, peer in with_counterpart().items() if peer.model_type == model_type]
    return next((name for name in found if name == model_type), found[0] if found else "")


def unsupported_type(named: object, where: str, supported: Iterable[str]) -> InputError:
    """Return the error for a model whose type this package does not compute."""
    return InputError(
        f"{where}: model_type is {shown(named)}, which is not supported; give a model of one of these: "
        f"{', '.join(sorted(supported))}"
    )
