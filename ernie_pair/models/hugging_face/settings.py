"""config.json of transformers and of PaddleNLP: settings that affect the output are converted or refused.

theirs  {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "layer_norm_eps": 1e-12,
         "position_embedding_type": "absolute", "id2label": {"0": "different", "1": "same"}, ...}
ours    {"model_type": "bert", "layer_norm_eps": 1e-12, "num_labels": 2, "id2label": {...}, ...}
"""

import re
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Tuple

from data_tools.files.errors import InputError
from data_tools.files.json_file import is_number, read_json_object, shown
from data_tools.text.folder_tokenizer import OWN_FAMILY
from ernie_pair.models.hugging_face.counterparts import (
    COUNTERPARTS,
    EPSILON,
    SPECIFIC,
    Counterpart,
    find_family,
    unsupported_type,
)
from ernie_pair.weights.weight_files import Arrays

PROBLEM, REGRESSION = "problem_type", "regression"  # what transformers calls a model with one output
OF_SCORES = ("num_labels", PROBLEM, "label_range", "pair_target")  # the keys of such a model; see `labels`
ACTIVATION = "score_activation"  # the same
# Where sentence-transformers keeps what its CrossEncoder makes of the outputs: from version 4 on, and before.
ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "identity"}
CROSS_ENCODER, ACTIVATION_FN = "sentence_transformers", "activation_fn"
CROSS_ENCODER_CONFIG = "config_sentence_transformers.json"
OLD_ACTIVATION_FN = "sbert_ce_default_activation_function"
ACTIVATION_PATHS = {  # of torch, by our names of activations
    "tanh": "torch.nn.modules.activation.Tanh",
    "identity": "torch.nn.modules.linear.Identity",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "silu": "torch.nn.modules.activation.SiLU",
}
CARRIED = (  # under one name and with one meaning in both
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings",
    "type_vocab_size", "initializer_range", "pad_token_id", "classifier_dropout",
)  # fmt: skip
# What transformers calls otherwise.
SAME_ACTIVATIONS = {"gelu_python": "gelu", "gelu_fast": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}
THEIR_DEFAULTS = {"type_vocab_size": 2, "max_position_embeddings": 512, "hidden_act": "gelu"}
HARMLESS = {  # of what would change the answer, the values that do not
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "problem_type": (None, "single_label_classification", REGRESSION),
}
MOST_EPSILON = 0.001  # of Paddle's layer norm
KINDS = ("ForSequenceClassification", "ForPreTraining", "ForMaskedLM", "Model")
_UNNAMED = re.compile(r"LABEL_\d+")


def with_cross_encoder(config: Dict[str, Any], folder: Path) -> Dict[str, Any]:
    """Return the config.json of transformers with what a CrossEncoder in ``folder`` wrote beside it.

    config_sentence_transformers.json, since version 5: {"model_type": "CrossEncoder", "activation_fn": ...}.
    Raises InputError for a prompt, which would stand before every pair.
    """
    path = folder / CROSS_ENCODER_CONFIG
    stated = read_json_object(path, "copy the model again") if path.is_file() else {}
    if stated.get("model_type") != "CrossEncoder":
        return config
    if stated.get("default_prompt_name"):
        raise InputError(
            f"{path}: default_prompt_name is {shown(stated['default_prompt_name'])}, and pairs are scored "
            "without a prompt; remove it, or take another model"
        )
    path_of_class = stated.get(ACTIVATION_FN)
    return {**config, CROSS_ENCODER: {ACTIVATION_FN: path_of_class}} if path_of_class else config


def from_their_config(config: Mapping[str, Any], where: str, wanted: str = "") -> Dict[str, Any]:
    """Return the config.json of PaddleNLP for one of transformers.

    ``wanted``: the family that is asked for; bert is an ERNIE without task embedding as well. Raises
    InputError naming ``where``, the key and the value that PaddleNLP's class cannot take.
    """
    family = _family_in(config, where, wanted)
    peer = COUNTERPARTS[family]
    for key, value, reason in _problems_of(config, peer):
        raise InputError(f"{where}: {key} is {shown(value)}, and {reason}")
    keys = _keys_of(peer).items()
    carried = {ours: config[theirs] for ours, theirs in keys if config.get(theirs) is not None}
    missing = {k: v for k, v in {**THEIR_DEFAULTS, **peer.defaults}.items() if k not in carried}
    if family == "distilbert":
        missing.pop("type_vocab_size", None)
    if "hidden_act" in carried:
        carried["hidden_act"] = SAME_ACTIVATIONS.get(carried["hidden_act"], carried["hidden_act"])
    eps = _eps_in(config)
    named = str((config.get("architectures") or [""])[0])
    kind = next((kind for kind in KINDS if named.endswith(kind)), KINDS[-1])
    if family == "ernie_gram" and kind != KINDS[0]:  # PaddleNLP has no class for its heads
        kind = KINDS[-1]
    # What PaddleNLP's class asks for, and would otherwise take from a published model.
    own: Dict[str, object] = {"use_relative_position": True} if family == "nezha" else {}
    if family == "ernie_gram":
        own["embedding_size"] = carried.get("hidden_size", 768)
    return {
        "model_type": family,
        "architectures": [peer.own_class_start + kind.replace("PreTraining", "Pretraining")],
        **missing,
        **carried,
        **own,
        "layer_norm_eps": eps,
        **({} if peer.layer_norm_eps in (None, eps) else {EPSILON: eps}),
        **_labels_in(config),
    }


def to_their_config(
    config: Mapping[str, Any], family: str, arrays: Arrays, where: str, kind: str
) -> Dict[str, Any]:
    """Return the config.json of transformers for a model of ``family``.

    ``config``: that of PaddleNLP; ``arrays``: its weights under PaddleNLP's names, which say the sizes that
    ``config`` leaves out; ``kind``: one of KINDS. Raises InputError for what no class of transformers does.
    """
    if family not in COUNTERPARTS:
        raise InputError(
            f"{where}: transformers has no model that computes what {family or 'this'} does; take one of "
            f"{', '.join(COUNTERPARTS)}"
        )
    peer = COUNTERPARTS[family]
    tables = {
        "vocab_size": "word_embeddings",
        "max_position_embeddings": "position_embeddings",
        "type_vocab_size": "token_type_embeddings",
    }
    config = dict(config)
    for key, table in tables.items():
        rows = [len(array) for name, array in arrays.items() if name.endswith(f"embeddings.{table}.weight")]
        if rows and rows[0]:
            config.setdefault(key, rows[0])
    _refuse_other_than_theirs(config, peer, where)
    carried = {theirs: config[ours] for ours, theirs in _keys_of(peer).items() if ours in config}
    if "pad_token_id" in peer.defaults:  # which is not 0, PaddleNLP's
        carried.setdefault("pad_token_id", 0)
    eps = config.get(EPSILON, peer.layer_norm_eps or config.get("layer_norm_eps", SPECIFIC))
    described = {key: config[key] for key in ("id2label", "label2id") if config.get(key)}
    if config.get(PROBLEM) == REGRESSION and config.get("num_labels") == 1:
        described = {key: config[key] for key in OF_SCORES if config.get(key) is not None}
        # CrossEncoder would take the sigmoid of the output.
        path = ACTIVATION_PATHS[config.get(ACTIVATION, "identity")]
        described[CROSS_ENCODER] = {ACTIVATION_FN: path}
    elif not described and config.get("num_labels", 2) != 2:
        described = {"num_labels": config["num_labels"]}
    return {
        "architectures": [peer.class_start + kind],
        "model_type": peer.model_type,
        OWN_FAMILY: family,
        **carried,
        **({} if family == "distilbert" else {"layer_norm_eps": eps, "position_embedding_type": "absolute"}),
        **described,
        "torch_dtype": "float32",
    }


def kind_of(arrays: Mapping[str, object]) -> str:
    """Return which of KINDS the weights of PaddleNLP's names make."""
    heads = ("classifier.", "cls.seq_relationship.", "cls.predictions.", "")
    return next(kind for kind, head in zip(KINDS, heads) if any(name.startswith(head) for name in arrays))


def _family_in(config: Mapping[str, Any], where: str, wanted: str) -> str:
    their_type, own = config.get("model_type"), config.get(OWN_FAMILY)
    if own in COUNTERPARTS and COUNTERPARTS[own].model_type == their_type:
        return own
    family = find_family(their_type) if isinstance(their_type, str) else ""
    if not family:
        raise unsupported_type(their_type, where, {peer.model_type for peer in COUNTERPARTS.values()})
    if family == "ernie" and wanted == "bert" and not config.get("use_task_id"):
        return wanted  # the same arithmetic
    return family


def _problems_of(config: Mapping[str, Any], peer: Counterpart) -> Iterator[Tuple[str, object, str]]:
    """Yield (key, value, what to do) of what PaddleNLP's class cannot take."""
    count = _count_in(config)
    if config.get(PROBLEM) == REGRESSION and count > 1:
        yield PROBLEM, REGRESSION, f"it is not possible with {count} outputs; take another model"
    for key, harmless in HARMLESS.items():
        if key in config and config[key] not in harmless:
            yield key, config[key], "PaddleNLP's models do not support it; take another model"
    stated = _activation_stated(config) if count == 1 else ""
    if stated and not (stated.startswith("torch.nn.") and stated.rpartition(".")[2] in ACTIVATIONS):
        paths = (ACTIVATION_PATHS[name] for name in ACTIVATIONS.values())
        made_by = f"scores are made by {' or '.join(paths)}; write one of these"
        yield ACTIVATION_FN, stated, made_by
    key = peer.keys.get("hidden_act", "hidden_act")
    named = config.get(key, "gelu")
    if not isinstance(named, str) or SAME_ACTIVATIONS.get(named, named) not in peer.activations:
        yield key, named, f"shown to be equal are {' and '.join(peer.activations)}; take another model"
    eps = _eps_in(config)
    if not is_number(eps, 0, MOST_EPSILON):
        yield "layer_norm_eps", eps, f"Paddle computes with 0 to {MOST_EPSILON}; correct it"


def _eps_in(config: Mapping[str, Any]):
    has_key = config.get("model_type") != "distilbert"
    return config.get("layer_norm_eps", SPECIFIC) if has_key else SPECIFIC


def _keys_of(peer: Counterpart) -> Dict[str, str]:
    """Return {key of config.json here: there} of all that is carried over."""
    return {key: peer.keys.get(key, key) for key in (*CARRIED, *peer.also)}


def _labels_in(config: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the keys that count and name the classes, 2 by default; LABEL_0 and its like are no names.

    One label of a classifier is a score, of CrossEncoder unless transformers or this package say regression.
    """
    if _count_in(config) == 1:
        named = config.get("architectures") or [KINDS[0]]
        if not str(named[0]).endswith(KINDS[0]):  # an encoder: the label is that of no head
            return {"num_labels": 2}
        kept = {key: config[key] for key in OF_SCORES if config.get(key) is not None}
        made_by = ACTIVATIONS.get(_activation_stated(config).rpartition(".")[2], "")
        if OWN_FAMILY in config:
            made_by = made_by if made_by == "sigmoid" else ""
        elif not made_by and config.get(PROBLEM) != REGRESSION:
            made_by = "sigmoid"
        if made_by == "sigmoid":
            kept["label_range"] = [0.0, 1.0]
        kept.update({ACTIVATION: made_by} if made_by else {})
        return {**kept, "num_labels": 1, PROBLEM: REGRESSION}
    names = config.get("id2label")
    if not isinstance(names, dict) or not names:
        return {"num_labels": config.get("num_labels", 2)}
    if all(_UNNAMED.fullmatch(str(name)) for name in names.values()):
        return {"num_labels": len(names)}
    more = {"label2id": config["label2id"]} if config.get("label2id") else {}
    return {"num_labels": len(names), "id2label": names, **more}


def _activation_stated(config: Mapping[str, Any]) -> str:
    """Return the class, as torch.nn.modules.activation.Sigmoid, that CrossEncoder is to use; empty: none."""
    newer = config.get(CROSS_ENCODER)
    stated = newer.get(ACTIVATION_FN) if isinstance(newer, dict) else None
    return str(stated or config.get(OLD_ACTIVATION_FN) or "")


def _count_in(config: Mapping[str, Any]) -> int:
    names = config.get("id2label")
    return len(names) if isinstance(names, dict) and names else config.get("num_labels", 2)


def _refuse_other_than_theirs(config: Mapping[str, Any], peer: Counterpart, where: str) -> None:
    if config.get("model_class"):
        raise InputError(
            f"{where}: a model of the class {shown(config['model_class'])}, which transformers has not; keep "
            "--save_format paddle"
        )
    equal = f"shown to be equal in transformers are {' and '.join(peer.activations)}"
    takes = [  # what it takes, the first value where it is left out
        ("pooling", ("cls",), "no class of transformers classifies that; train with --pooling cls"),
        *((key, (only,), f"transformers supports only {shown(only)}") for key, only in peer.fixed.items()),
        ("hidden_act", peer.activations, equal),
    ]
    for key, values, reason in takes:
        value = config.get(key, values[0])
        if value not in values:
            raise InputError(f"{where}: {key} is {shown(value)}, and {reason}")
