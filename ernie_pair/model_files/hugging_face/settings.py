"""config.json of transformers and of PaddleNLP: settings that affect the output are converted or refused.

theirs  {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "layer_norm_eps": 1e-12,
         "position_embedding_type": "absolute", "id2label": {"0": "different", "1": "same"}, ...}
ours    {"model_type": "bert", "layer_norm_eps": 1e-12, "num_labels": 2, "id2label": {...}, ...}
"""

import re
from typing import Any, Dict, Iterator, Mapping, Tuple

from data_tools.base.errors import InputError
from data_tools.files.json_file import is_number, shown
from data_tools.text.folder_tokenizer import OWN_FAMILY
from ernie_pair.model_files.hugging_face.counterparts import (
    COUNTERPARTS,
    SPECIFIC,
    Counterpart,
    find_family,
)
from ernie_pair.weights.weight_files import Arrays

PROBLEM, REGRESSION = "problem_type", "regression"  # what transformers calls a model with one output
OF_SCORES = ("num_labels", PROBLEM, "label_range", "pair_target")  # the keys of such a model; see `labels`
CARRIED = (  # under one name and with one meaning in both
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings"),
    *("type_vocab_size", "initializer_range", "pad_token_id", "classifier_dropout"),
)
THEIR_DEFAULTS = {"type_vocab_size": 2, "max_position_embeddings": 512, "hidden_act": "gelu"}
HARMLESS = {  # of what would change the answer, the values that do not
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "problem_type": (None, "single_label_classification", REGRESSION),
}
KINDS = ("ForSequenceClassification", "ForPreTraining", "ForMaskedLM", "Model")
_UNNAMED = re.compile(r"LABEL_\d+")


def from_their_config(config: Mapping[str, Any], where: str, wanted: str = "") -> Dict[str, Any]:
    """Return the config.json of PaddleNLP for one of transformers.

    ``wanted``: the family that is asked for; bert is an ERNIE without task embedding as well. Raises
    InputError naming ``where``, the key and the value that PaddleNLP's class cannot take.
    """
    family = _family_in(config, where, wanted)
    peer = COUNTERPARTS[family]
    for key, value, reason in _problems_of(config, peer):
        raise InputError(f"{where}: {key} is {shown(value)}, and {reason}")
    carried = {
        ours: config[theirs] for ours, theirs in _keys_of(peer).items() if config.get(theirs) is not None
    }
    missing = {key: value for key, value in THEIR_DEFAULTS.items() if key not in carried}
    if family == "distilbert":
        missing.pop("type_vocab_size", None)
    return {
        "model_type": family,
        "architectures": [_own_class(config, peer)],
        **missing,
        **carried,
        **_own_settings(family, carried),
        "layer_norm_eps": _eps_in(config),
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
    config = {**config, **_sizes_of(arrays, config)}
    _refuse_other_than_theirs(config, peer, where)
    carried = {theirs: config[ours] for ours, theirs in _keys_of(peer).items() if ours in config}
    eps = peer.layer_norm_eps or config.get("layer_norm_eps", SPECIFIC)
    described = {key: config[key] for key in ("id2label", "label2id") if config.get(key)}
    if config.get(PROBLEM) == REGRESSION and config.get("num_labels") == 1:
        described = {key: config[key] for key in OF_SCORES if config.get(key) is not None}
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


def refuse_other_model(config: Mapping[str, Any], family: str, where: str) -> None:
    """Raise InputError when no class of transformers computes what this model of PaddleNLP does."""
    to_their_config(config, family, {}, where, KINDS[0])


def kind_of(arrays: Mapping[str, object]) -> str:
    """Return which of KINDS the weights of PaddleNLP's names make."""
    if any(name.startswith("classifier.") for name in arrays):
        return KINDS[0]
    if any(name.startswith("cls.seq_relationship.") for name in arrays):
        return KINDS[1]
    return KINDS[2] if any(name.startswith("cls.predictions.") for name in arrays) else KINDS[3]


def _family_in(config: Mapping[str, Any], where: str, wanted: str) -> str:
    their_type = config.get("model_type")
    own = config.get(OWN_FAMILY)
    if own in COUNTERPARTS and COUNTERPARTS[own].model_type == their_type:
        return own
    family = find_family(their_type) if isinstance(their_type, str) else ""
    if not family:
        raise InputError(
            f"{where}: a {shown(their_type)} of transformers, and no encoder here is its like; give one "
            f"of {', '.join(sorted({peer.model_type for peer in COUNTERPARTS.values()}))}"
        )
    if family == "ernie" and wanted == "bert" and not config.get("use_task_id"):
        return wanted  # the same arithmetic, with the epsilon of config.json
    return family


def _problems_of(config: Mapping[str, Any], peer: Counterpart) -> Iterator[Tuple[str, object, str]]:
    """Yield (key, value, what to do) of what PaddleNLP's class cannot take."""
    if config.get(PROBLEM) == REGRESSION and _count_in(config) > 1:
        yield (
            PROBLEM,
            REGRESSION,
            f"it is not possible with {_count_in(config)} outputs; take another model",
        )
    for key, harmless in HARMLESS.items():
        if key in config and config[key] not in harmless:
            yield key, config[key], "PaddleNLP's models do not support it; take another model"
    key = peer.keys.get("hidden_act", "hidden_act")
    if config.get(key, "gelu") not in peer.activations:
        yield key, config[key], f"shown to be equal are {' and '.join(peer.activations)}; take another model"
    eps = _eps_in(config)
    if not is_number(eps, 0, 1):
        yield "layer_norm_eps", eps, "it is a number from 0 to 1; correct it"
    if peer.layer_norm_eps not in (None, eps):
        way_out = "pass --model_type bert, which" if peer.model_type == "ernie" else "take a BERT, which"
        yield (
            "layer_norm_eps",
            eps,
            f"PaddleNLP's {peer.own_class_start} computes with {peer.layer_norm_eps}, whatever config.json "
            f"says; {way_out} computes with any",
        )


def _eps_in(config: Mapping[str, Any]):
    return config.get("layer_norm_eps", SPECIFIC)


def _keys_of(peer: Counterpart) -> Dict[str, str]:
    """Return {key of config.json here: there} of all that is carried over."""
    return {key: peer.keys.get(key, key) for key in (*CARRIED, *peer.also)}


def _own_class(config: Mapping[str, Any], peer: Counterpart) -> str:
    named = config.get("architectures") or [""]
    kind = next((kind for kind in KINDS if str(named[0]).endswith(kind)), KINDS[-1])
    if peer.own_class_start == "ErnieGram" and kind != KINDS[0]:  # PaddleNLP has no class for its heads
        kind = KINDS[-1]
    return peer.own_class_start + kind.replace("PreTraining", "Pretraining")


def _own_settings(family: str, carried: Mapping[str, Any]) -> Dict[str, Any]:
    """Return what PaddleNLP's class asks for, and would otherwise take from a published model."""
    if family == "nezha":
        return {"use_relative_position": True}
    return {"embedding_size": carried["hidden_size"]} if family == "ernie_gram" else {}


def _labels_in(config: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the keys that count and name the classes, 2 by default; LABEL_0 and its like are no names.

    One label is regression, as transformers takes it.
    """
    if _count_in(config) == 1:
        kept = {key: config[key] for key in OF_SCORES if config.get(key) is not None}
        return {**kept, "num_labels": 1, PROBLEM: REGRESSION}
    names = config.get("id2label")
    if not isinstance(names, dict) or not names:
        return {"num_labels": config.get("num_labels", 2)}
    if all(_UNNAMED.fullmatch(str(name)) for name in names.values()):
        return {"num_labels": len(names)}
    more = {"label2id": config["label2id"]} if config.get("label2id") else {}
    return {"num_labels": len(names), "id2label": names, **more}


def _count_in(config: Mapping[str, Any]) -> int:
    """Return the outputs of a classifier, 2 by default."""
    names = config.get("id2label")
    return len(names) if isinstance(names, dict) and names else config.get("num_labels", 2)


def _sizes_of(arrays: Arrays, config: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the sizes that ``config`` leaves out, of the tables of the embeddings."""
    tables = {
        "vocab_size": "word_embeddings",
        "max_position_embeddings": "position_embeddings",
        "type_vocab_size": "token_type_embeddings",
    }
    found = {key: _rows_of(arrays, f"embeddings.{table}.weight") for key, table in tables.items()}
    return {key: rows for key, rows in found.items() if rows and key not in config}


def _rows_of(arrays: Arrays, ending: str) -> int:
    return next((array.shape[0] for name, array in arrays.items() if name.endswith(ending)), 0)


def _refuse_other_than_theirs(config: Mapping[str, Any], peer: Counterpart, where: str) -> None:
    """Raise InputError for a setting that the class of transformers has not."""
    if config.get("model_class"):
        raise InputError(
            f"{where}: a model of the class {shown(config['model_class'])}, which transformers has not; keep "
            "--save_format paddle"
        )
    if config.get("pooling", "cls") != "cls":
        raise InputError(
            f"{where}: pooling is {shown(config['pooling'])}, and no class of transformers classifies that; "
            "train with --pooling cls"
        )
    for key, only in peer.fixed.items():
        if config.get(key, only) != only:
            raise InputError(
                f"{where}: {key} is {shown(config[key])}, and transformers supports only {shown(only)}"
            )
    activation = config.get("hidden_act", "gelu")
    if activation not in peer.activations:
        raise InputError(
            f"{where}: hidden_act is {shown(activation)}, and shown to be equal in transformers are "
            f"{' and '.join(peer.activations)}"
        )
