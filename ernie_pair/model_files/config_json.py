"""config.json of a model, and what else it was called; which family a model is of."""

from pathlib import Path
from typing import Dict, NamedTuple, Optional

from data_tools.base.errors import InputError
from data_tools.files.json_file import is_whole_number, read_json_object, shown
from ernie_pair.model_files.config_values import SIZES, refuse_wrong_values

CONFIG, VOCAB = "config.json", "vocab.txt"
OTHER_CONFIGS = ("model_config.json", "ernie_config.json")  # PaddleNLP before 2.5, ERNIE's own releases
# The encoders of PaddleNLP that read word pieces, and what the names of their classes begin with.
FAMILIES = {
    **{"ernie": "Ernie", "ernie_gram": "ErnieGram", "bert": "Bert", "roberta": "Roberta"},
    **{"electra": "Electra", "nezha": "NeZha", "roformer": "RoFormer", "roformerv2": "RoFormerv2"},
    **{"ppminilm": "PPMiniLM", "tinybert": "TinyBert", "albert": "Albert", "skep": "Skep"},
    **{"megatronbert": "MegatronBert", "mobilebert": "MobileBert", "squeezebert": "SqueezeBert"},
    **{"distilbert": "DistilBert"},
}
PRETRAINED = ("ernie", "ernie_gram")  # those that ernie_pair.pretrain pretrains


def family_of(config: Dict[str, object]) -> Optional[str]:
    """One of FAMILIES, as far as a config.json tells."""
    if config.get("model_type") in FAMILIES:
        return config["model_type"]
    named = _architecture_of(config)
    return next((family for family, begins in FAMILIES.items() if _is_of(named, begins)), None)


def stranger_of(config: Dict[str, object]) -> str:
    """What a config.json calls its model, where that is none of FAMILIES; otherwise empty."""
    if family_of(config) is not None:
        return ""
    return str(config.get("model_type") or _architecture_of(config))


def _architecture_of(config: Dict[str, object]) -> str:
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _is_of(architecture: str, begins: str) -> bool:
    """ErnieModel and ErnieForPretraining are Ernie's, ErnieMModel is not."""
    return architecture.startswith((f"{begins}Model", f"{begins}For"))


def longest_of(config: Dict[str, object]) -> int:
    """How many tokens the model can read. Raises InputError."""
    positions = whole_number(config, "max_position_embeddings", 512)
    if family_of(config) == "roberta":  # its first token has the position pad_token_id + 1
        return positions - whole_number(config, "pad_token_id", 0) - 1
    return min(positions, 512) if family_of(config) == "nezha" else positions  # the size of its table


def whole_number(config: Dict[str, object], key: str, default: int) -> int:
    value = config.get(key, default)
    if not is_whole_number(value):
        raise InputError(f"config.json: {key} is {shown(value)}; write a whole number")
    return value


def find_config(folder: Path) -> Optional[Path]:
    return next((folder / name for name in (CONFIG, *OTHER_CONFIGS) if (folder / name).is_file()), None)


def read_config(path: Path) -> Dict[str, object]:
    """Read the configuration of a model, and bring it under the keys of today.

    Raises InputError when it is not one JSON object, names no vocab_size, or holds a value that no model has.
    """
    config = _modernised(read_json_object(path, "correct it, or give the config.json of a model"))
    if "vocab_size" not in config:
        raise InputError(
            f"{path}:1: no model configuration with a vocab_size; give the config.json of a model"
        )
    refuse_wrong_values(config, str(path))
    return config


class Limits(NamedTuple):
    """What a sample must keep to; ``token_types`` 0 is a model without that embedding."""

    vocab_size: int
    positions: int
    token_types: int
    pad_id: int


def limits_of(config: Dict[str, object]) -> Limits:
    """Of a config.json, PaddleNLP's own defaults in place of what it leaves out. Raises InputError."""
    values = {
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config.get("max_position_embeddings", 512),
        "type_vocab_size": config.get("type_vocab_size", 2 if family_of(config) == "ernie_gram" else 16),
        "pad_token_id": config.get("pad_token_id", 0),
    }
    for key, value in values.items():
        if not is_whole_number(value, *SIZES[key]):
            raise InputError(
                f"{CONFIG}: {key} is {shown(value)}, no number that a model can have; correct it"
            )
    return Limits(*values.values())


def _modernised(config: Dict[str, object]) -> Dict[str, object]:
    """PaddleNLP once wrote {"init_args": [{..., "init_class"}], "init_class"}, ERNIE sent_type_vocab_size."""
    made_as, inner = config.get("init_class"), config.get("init_args")
    if isinstance(inner, list) and inner and isinstance(inner[0], dict):
        config = inner[0]
    config = {key: value for key, value in config.items() if key not in ("init_class", "init_args")}
    if isinstance(made_as, str):
        config.setdefault("architectures", [made_as])
    if "sent_type_vocab_size" in config:
        config["type_vocab_size"] = config.pop("sent_type_vocab_size")
    return config
