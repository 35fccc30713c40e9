"""Models of transformers: their config.json and their weights, read and written without it.

In config.json the settings that affect the output are converted or refused:

theirs  {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "layer_norm_eps": 1e-12,
         "position_embedding_type": "absolute", "id2label": {"0": "different", "1": "same"}, ...}
ours    {"model_type": "bert", "layer_norm_eps": 1e-12, "num_labels": 2, "id2label": {...}, ...}
"""

import re
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from data_tools.text.folder_tokenizer import FAST_TOKENIZER, OWN_FAMILY, SPECIAL_TOKENS, VOCAB
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.json_file import is_number, parse_json_object, read_json_object, shown, write_json
from ernie_pair.models.families import (
    EPSILON,
    FAMILIES,
    NUMBER,
    OF_MATCH,
    SPECIFIC,
    Counterpart,
    encoder_name,
    find_family,
    get_counterpart,
    unsupported_type,
    with_counterpart,
)
from ernie_pair.weights.weight_files import (
    MODEL_STATE,
    Arrays,
    as_float32,
    unwrapped,
    write_for_torch,
    write_weights,
)

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer_config.json"
WRITTEN = (CONFIG, WEIGHTS, VOCAB, FAST_TOKENIZER, TOKENIZER, SPECIAL_TOKENS)
OWN_FILES = (CONFIG, TOKENIZER, VOCAB, FAST_TOKENIZER, MODEL_STATE)  # of a folder of PaddleNLP
PICKLE, INDEX = "pytorch_model.bin", ".index.json"
HF_FILES = (f"{WEIGHTS}{INDEX}", PICKLE, f"{PICKLE}{INDEX}")
MAX_HEADER = 100 << 20  # what safetensors itself allows
HINT = "copy the model again"
WORDS = "embeddings.word_embeddings.weight"
TABLES = ("_embeddings", "decoder")  # how the modules end whose weights are tables, not to be transposed
OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}  # of norms, in files of TensorFlow's time
# Tables of positions that every model computes, which older versions wrote down.
COMPUTED = ("embeddings.position_ids", "embeddings.token_type_ids")
BIAS, DECODER, DECODER_BIAS = (f"cls.predictions.{name}" for name in ("bias", "decoder", "decoder_bias"))
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")
PROBLEM, REGRESSION = "problem_type", "regression"  # what transformers calls a model with one output
SCORE_KEYS = ("num_labels", PROBLEM, "label_range", "pair_target")  # the keys of such a model; see `labels`
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
HF_DEFAULTS = {"type_vocab_size": 2, "max_position_embeddings": 512, "hidden_act": "gelu"}
HARMLESS = {  # of what would change the answer, the values that do not
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "problem_type": (None, "single_label_classification", REGRESSION),
}
MAX_EPSILON = 0.001  # of Paddle's layer norm
KINDS = ("ForSequenceClassification", "ForPreTraining", "ForMaskedLM", "Model")
_UNNAMED = re.compile(r"LABEL_\d+")


def arrays_from_hf(found: Arrays, family: str) -> Arrays:
    """Return the arrays of a file of transformers as PaddleNLP names and turns them.

    What has no place in this family keeps its name. Both names of a tied decoder are given.
    """
    peer, own_prefix = get_counterpart(family), f"{encoder_name(family)}."
    modules = {theirs: ours for ours, theirs in {**peer.modules, **peer.heads}.items()}
    # What the names inside the encoder begin with: 'bert.', or '' of an encoder on its own.
    prefix = next((name[: -len(WORDS)] for name in found if name.endswith(WORDS)), "")
    renamed: Arrays = {}
    for name, array in found.items():
        if name.endswith(COMPUTED):
            continue
        module, _, ending = name.rpartition(".")
        name = f"{module}.{OLD_ENDINGS[ending]}" if ending in OLD_ENDINGS else name
        name, is_inside = _split_prefix(name, prefix, peer.modules.values())
        ours = _rename(name, modules)
        renamed[(own_prefix if is_inside else "") + (ours or name)] = (
            _transpose(ours, array) if ours else array
        )
    bias, words = renamed.pop(BIAS, renamed.get(f"{DECODER}.bias")), f"{own_prefix}{WORDS}"
    if bias is None or DECODER not in peer.heads or words not in renamed:
        return renamed
    return {f"{DECODER}.weight": renamed[words], f"{DECODER}.bias": bias, DECODER_BIAS: bias, **renamed}


def arrays_to_hf(arrays: Arrays, family: str, where: str) -> Arrays:
    """Return arrays as transformers names and turns them. Raises CheckpointError for one that it lacks."""
    peer, own_prefix = get_counterpart(family), f"{encoder_name(family)}."
    modules = {**peer.modules, **peer.heads}
    is_whole = any(name.startswith(own_prefix) for name in arrays)
    renamed: Arrays = {}
    for name, array in arrays.items():
        if name.endswith(COMPUTED):
            continue
        if name.startswith(DECODER) and DECODER in modules:
            if array.ndim == 1:
                renamed[BIAS] = array
            continue
        inside, is_inside = _split_prefix(name, own_prefix if is_whole else "", peer.modules)
        if is_inside and inside.startswith(FAMILIES[family].unused):
            continue
        theirs = _rename(inside, modules)
        if theirs is None:
            raise CheckpointError(
                f"{where}: {name} has no place in {peer.class_start}Model of transformers; only whole models "
                f"of {family} are written for it"
            )
        renamed[(peer.prefix if is_inside else "") + theirs] = _transpose(inside, array)
    return renamed


def split_heads(arrays: Arrays, family: str, num_layers: int, where: str) -> Tuple[Arrays, Tuple[str, ...]]:
    """Return the weights that PaddleNLP's classes of ``family`` have, and the names of the other heads.

    Raises CheckpointError when the encoder is not whole, or holds what PaddleNLP's has not.
    """
    peer, own_prefix = get_counterpart(family), f"{encoder_name(family)}."
    num_layers = 1 if FAMILIES[family].shares_layers else num_layers
    modules = [module for module in peer.modules if module not in peer.optional and "pooler" not in module]
    numbered = [module.replace(NUMBER, str(number)) for number in range(num_layers) for module in modules]
    missing = [name for module in numbered if (name := f"{own_prefix}{module}.weight") not in arrays]
    if missing:
        raise CheckpointError(
            f"{where}: {len(dict.fromkeys(missing))} weights of the encoder are missing, {missing[0]} for "
            "example; give a whole model"
        )
    begins = (own_prefix, *(f"{module}." for module in peer.heads))
    begins += (DECODER_BIAS,) if DECODER in peer.heads else ()
    kept = {name: array for name, array in arrays.items() if name.startswith(begins)}
    return kept, tuple(sorted(arrays.keys() - kept.keys()))


def _split_prefix(name: str, prefix: str, modules: Iterable[str]) -> Tuple[str, bool]:
    """Return a name without what names inside the encoder begin with, and whether it is inside.

    Of an encoder on its own, ``prefix`` '', all that begins like one of its ``modules`` is inside.
    """
    if prefix:
        return name.removeprefix(prefix), name.startswith(prefix)
    return name, name.split(".")[0] in {module.split(".")[0] for module in modules}


def _rename(name: str, modules: Mapping[str, str]) -> Optional[str]:
    """Return the other name of a parameter by {module: other module}; None: it has none."""
    module, _, ending = name.rpartition(".")
    numbers = iter(_INDEX.findall(f"{module}."))
    other = modules.get(_INDEX.sub(NUMBER, f"{module}.")[:-1])
    if other is None or ending not in ("weight", "bias"):
        return None
    return f"{re.sub(NUMBER, lambda _: next(numbers), other)}.{ending}"


def _transpose(own_name: str, array: np.ndarray) -> np.ndarray:
    is_linear = array.ndim == 2 and not own_name.rpartition(".")[0].endswith(TABLES)
    return np.ascontiguousarray(array.T) if is_linear else array


# --- files of weights


def is_hf_file(path: Path, is_hf_config: bool) -> bool:
    """Return whether transformers wrote a file of weights: by its name or, of safetensors, by its metadata.

    ``is_hf_config`` decides where the metadata say nothing.
    """
    if path.name != WEIGHTS:
        return path.name in HF_FILES
    made_by = read_metadata(path).get("format")
    return made_by == "pt" or (made_by is None and is_hf_config)


def read_metadata(path: Path) -> Dict[str, object]:
    """Return what the header of a safetensors file says of itself; nothing of a damaged one."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= MAX_HEADER else b""
    try:
        metadata = parse_json_object(text).get("__metadata__")
    except ValueError:  # whoever reads the arrays says what is wrong
        return {}
    return metadata if isinstance(metadata, dict) else {}


def find_hf_weights(folder: Path) -> Optional[Path]:
    """Return the file of weights that only transformers has; None: there is none."""
    return next((folder / name for name in HF_FILES if (folder / name).is_file()), None)


def weight_files(path: Path) -> List[Path]:
    """Return the files of the weights: ``path``, or those of its index. Raises CheckpointError."""
    return [path, *sorted(set(_read_index(path).values()))]


def read_hf_weights(path: Path, family: str) -> Arrays:
    """Read weights of transformers under PaddleNLP's names. Raises CheckpointError if they are not whole."""
    from ernie_pair.weights.torch_files import read_torch_file  # for the weights of transformers alone

    found: Arrays = {}
    shards = _read_index(path)
    for file in sorted(set(shards.values())) or [path]:
        found.update(read_torch_file(file))
    missing = [name for name in shards if name not in found]
    if missing:
        raise CheckpointError(f"{path}: {missing[0]} is not in {shards[missing[0]].name}; {HINT}")
    return arrays_from_hf(unwrapped(found, str(path)), family)


def _read_index(index: Path) -> Dict[str, Path]:
    """Return {name of a weight: its file} of an index, nothing of another file."""
    if not index.name.endswith(INDEX):
        return {}
    places = read_json_object(index, HINT, CheckpointError).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index}: no weight_map in it; {HINT}")
    for file in places.values():
        if not isinstance(file, str) or Path(file).name != file or not (index.parent / file).is_file():
            raise CheckpointError(f"{index}: {str(file)[:100]} is no file beside it; {HINT}")
    return {name: index.parent / file for name, file in places.items()}


# --- config.json


def with_cross_encoder(config: Dict[str, Any], folder: Path) -> Dict[str, Any]:
    """Return the config.json of transformers with what a CrossEncoder in ``folder`` wrote beside it.

    config_sentence_transformers.json, since version 5: {"model_type": "CrossEncoder", "activation_fn": ...}.
    Raises InputError for a prompt, which would stand before every pair.
    """
    path = folder / CROSS_ENCODER_CONFIG
    stated = read_json_object(path, HINT) if path.is_file() else {}
    if stated.get("model_type") != "CrossEncoder":
        return config
    if stated.get("default_prompt_name"):
        raise InputError(
            f"{path}: default_prompt_name is {shown(stated['default_prompt_name'])}, and pairs are scored "
            "without a prompt; remove it, or take another model"
        )
    named = stated.get(ACTIVATION_FN)
    return {**config, CROSS_ENCODER: {ACTIVATION_FN: named}} if named else config


def config_from_hf(config: Mapping[str, Any], where: str, wanted: str = "") -> Dict[str, Any]:
    """Return the config.json of PaddleNLP for one of transformers.

    ``wanted``: the family that is asked for; bert is an ERNIE without task embedding as well. Raises
    InputError naming ``where``, the key and the value that PaddleNLP's class cannot take.
    """
    family = _read_family(config, where, wanted)
    here, peer = FAMILIES[family], get_counterpart(family)
    for key, value, reason in _find_problems(config, peer):
        raise InputError(f"{where}: {key} is {shown(value)}, and {reason}")
    keys = _carried_keys(peer).items()
    carried = {ours: config[theirs] for ours, theirs in keys if config.get(theirs) is not None}
    missing = {k: v for k, v in {**HF_DEFAULTS, **peer.defaults}.items() if k not in carried}
    if not here.takes_types:
        missing.pop("type_vocab_size", None)
    if "hidden_act" in carried:
        carried["hidden_act"] = SAME_ACTIVATIONS.get(carried["hidden_act"], carried["hidden_act"])
    eps = _read_epsilon(config, peer)
    named = str((config.get("architectures") or [""])[0])
    kind = next((kind for kind in KINDS if named.endswith(kind)), KINDS[-1])
    if kind != KINDS[0] and not here.names_heads:
        kind = KINDS[-1]
    # What PaddleNLP's class asks for, and would otherwise take from a published model.
    own = {"embedding_size": carried.get("hidden_size", 768)} if here.embeds_in_width else {}
    return {
        "model_type": family,
        "architectures": [here.class_start + kind.replace("PreTraining", "Pretraining")],
        **missing,
        **carried,
        **here.fixed,
        **own,
        "layer_norm_eps": eps,
        **({} if peer.layer_norm_eps in (None, eps) else {EPSILON: eps}),
        **_read_labels(config),
    }


def config_to_hf(
    config: Mapping[str, Any], family: str, arrays: Arrays, where: str, kind: str
) -> Dict[str, Any]:
    """Return the config.json of transformers for a model of ``family``.

    ``config``: that of PaddleNLP; ``arrays``: its weights under PaddleNLP's names, which say the sizes that
    ``config`` leaves out; ``kind``: one of KINDS. Raises InputError for what no class of transformers does.
    """
    peers = with_counterpart()
    if family not in peers:
        raise InputError(
            f"{where}: transformers has no model that computes what {family or 'this'} does; take one of "
            f"{', '.join(peers)}"
        )
    peer = peers[family]
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
    _check_equal_in_hf(config, peer, where)
    carried = {theirs: config[ours] for ours, theirs in _carried_keys(peer).items() if ours in config}
    if "pad_token_id" in peer.defaults:  # which is not 0, PaddleNLP's
        carried.setdefault("pad_token_id", 0)
    eps = config.get(EPSILON, peer.layer_norm_eps or config.get("layer_norm_eps", SPECIFIC))
    described = {key: config[key] for key in ("id2label", "label2id") if config.get(key)}
    if config.get(PROBLEM) == REGRESSION and config.get("num_labels") == 1:
        described = {key: config[key] for key in SCORE_KEYS if config.get(key) is not None}
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
        **({"layer_norm_eps": eps, "position_embedding_type": "absolute"} if peer.states_epsilon else {}),
        **described,
        "torch_dtype": "float32",
    }


def _read_family(config: Mapping[str, Any], where: str, wanted: str) -> str:
    hf_type, own = config.get("model_type"), config.get(OWN_FAMILY)
    peers = with_counterpart()
    if own in peers and peers[own].model_type == hf_type:
        return own
    family = find_family(hf_type)
    if not family:
        raise unsupported_type(hf_type, where, {peer.model_type for peer in peers.values()})
    if family == "ernie" and wanted == "bert" and not config.get("use_task_id"):
        return wanted  # the same arithmetic
    return family


def _find_problems(config: Mapping[str, Any], peer: Counterpart) -> Iterator[Tuple[str, object, str]]:
    """Yield (key, value, what to do) of what PaddleNLP's class cannot take."""
    count, stated = _count_labels(config), _read_activation(config)
    name = stated.rpartition(".")[2]
    if config.get(PROBLEM) == REGRESSION and count > 1:
        yield PROBLEM, REGRESSION, f"it is not possible with {count} outputs; take another model"
    for key, harmless in HARMLESS.items():
        if key in config and config[key] not in harmless:
            yield key, config[key], "PaddleNLP's models do not support it; take another model"
    if count > 1 and name == "Sigmoid":
        probabilities = f"probabilities that add to 1, not {count} of their own"
        yield ACTIVATION_FN, stated, f"classes are given {probabilities}; take another model"
    if count == 1 and stated and not (stated.startswith("torch.nn.") and name in ACTIVATIONS):
        paths = (ACTIVATION_PATHS[name] for name in ACTIVATIONS.values())
        yield ACTIVATION_FN, stated, f"scores are made by {' or '.join(paths)}; write one of these"
    key = peer.keys.get("hidden_act", "hidden_act")
    named = config.get(key, "gelu")
    if not isinstance(named, str) or SAME_ACTIVATIONS.get(named, named) not in peer.activations:
        yield key, named, f"shown to be equal are {' and '.join(peer.activations)}; take another model"
    eps = _read_epsilon(config, peer)
    if not is_number(eps, 0, MAX_EPSILON):
        yield "layer_norm_eps", eps, f"Paddle computes with 0 to {MAX_EPSILON}; correct it"


def _read_epsilon(config: Mapping[str, Any], peer: Counterpart):
    return config.get("layer_norm_eps", SPECIFIC) if peer.states_epsilon else SPECIFIC


def _carried_keys(peer: Counterpart) -> Dict[str, str]:
    """Return {key of config.json here: there} of all that is carried over."""
    return {key: peer.keys.get(key, key) for key in (*CARRIED, *peer.also)}


def _read_labels(config: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the keys that count and name the classes, 2 by default; LABEL_0 and its like are no names.

    One label of a classifier is a score, of CrossEncoder unless transformers or this package say regression.
    """
    count = _count_labels(config)
    if count == 1:
        named = config.get("architectures") or [KINDS[0]]
        if not str(named[0]).endswith(KINDS[0]):  # an encoder: the label is that of no head
            return {"num_labels": 2}
        kept = {key: config[key] for key in SCORE_KEYS if config.get(key) is not None}
        made_by = ACTIVATIONS.get(_read_activation(config).rpartition(".")[2], "")
        if OWN_FAMILY in config:
            made_by = made_by if made_by == "sigmoid" else ""
        elif not made_by and config.get(PROBLEM) != REGRESSION:
            made_by = "sigmoid"
        if made_by == "sigmoid":
            kept["label_range"] = [0.0, 1.0]
        kept.update({ACTIVATION: made_by} if made_by else {})
        return {**kept, "num_labels": 1, PROBLEM: REGRESSION}
    names = config.get("id2label")
    if not isinstance(names, dict) or all(_UNNAMED.fullmatch(str(name)) for name in names.values()):
        return {"num_labels": count}
    more = {"label2id": config["label2id"]} if config.get("label2id") else {}
    return {"num_labels": count, "id2label": names, **more}


def _read_activation(config: Mapping[str, Any]) -> str:
    """Return the class, as torch.nn.modules.activation.Sigmoid, that CrossEncoder is to use; empty: none."""
    newer = config.get(CROSS_ENCODER)
    stated = newer.get(ACTIVATION_FN) if isinstance(newer, dict) else None
    return str(stated or config.get(OLD_ACTIVATION_FN) or "")


def _count_labels(config: Mapping[str, Any]) -> int:
    names = config.get("id2label")
    return len(names) if isinstance(names, dict) and names else config.get("num_labels", 2)


def _check_equal_in_hf(config: Mapping[str, Any], peer: Counterpart, where: str) -> None:
    if config.get("model_class"):
        raise InputError(
            f"{where}: a model of the class {shown(config['model_class'])}, which transformers has not; keep "
            "--save_format paddle"
        )
    takes = [  # what it takes, the first value where it is left out
        ("pooling", ("cls",), "no class of transformers classifies that; train with --pooling cls"),
        (OF_MATCH[0], (False,), "no class of transformers has them; train with --match_embeddings false"),
        *((key, (only,), f"transformers supports only {shown(only)}") for key, only in peer.fixed.items()),
        ("hidden_act", peer.activations, f"shown to be equal are {' and '.join(peer.activations)}"),
    ]
    for key, values, reason in takes:
        value = config.get(key, values[0])
        if value not in values:
            raise InputError(f"{where}: {key} is {shown(value)}, and {reason}")


# --- folders


def write_hf_folder(
    folder: Path,
    family: str,
    config: Mapping[str, Any],
    tokenizer: Mapping[str, bytes],
    arrays: Arrays,
    where: str,
) -> None:
    """Fill ``folder`` with the files of transformers for a model of PaddleNLP; ``where``: its name in errors.

    ``config`` is the content of its config.json, ``arrays`` are its weights under its names. Raises
    InputError for a setting, and CheckpointError for a weight, that no class of transformers has.
    """
    heads = ("classifier.", "cls.seq_relationship.", "cls.predictions.", "")
    kind = next(kind for kind, head in zip(KINDS, heads) if any(name.startswith(head) for name in arrays))
    config = config_to_hf(config, family, arrays, where, kind)
    write_for_torch(folder / WEIGHTS, as_float32(arrays_to_hf(arrays, family, where), where))
    _write_beside(folder, config, tokenizer)


def write_own_folder(
    folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, bytes], arrays: Arrays
) -> None:
    """Fill ``folder`` with config.json, the files ``tokenizer`` {name: content} and model_state.pdparams."""
    _write_beside(folder, config, tokenizer)
    wide, family = as_float32(arrays, str(folder)), config["model_type"]
    if get_counterpart(family).keeps_positions:
        positions = np.arange(config["max_position_embeddings"], dtype=np.int64)
        wide[f"{encoder_name(family)}.{COMPUTED[0]}"] = positions[None]
    write_weights(folder, wide)


def _write_beside(folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, bytes]) -> None:
    write_json(folder / CONFIG, dict(config))
    for name, content in tokenizer.items():
        (folder / name).write_bytes(content)
