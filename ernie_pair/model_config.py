"""config.json of a model, and what else it was called; which family a model is of."""

import json
from pathlib import Path
from typing import Dict, NamedTuple, Optional

from data_tools.errors import InputError

CONFIG, VOCAB = "config.json", "vocab.txt"
OTHER_CONFIGS = ("model_config.json", "ernie_config.json")  # PaddleNLP before 2.5, ERNIE's own releases
# The family is also the name that the encoder goes by in the weights.
FAMILIES = {"ernie": "Ernie", "ernie_gram": "ErnieGram"}


def family_of(config: Dict[str, object]) -> Optional[str]:
    """ernie or ernie_gram, as far as a config.json tells."""
    if config.get("model_type") in FAMILIES:
        return config["model_type"]
    named = str((config.get("architectures") or [""])[0])
    return next((family for family in ("ernie_gram", "ernie") if named.startswith(FAMILIES[family])), None)


def find_config(folder: Path) -> Optional[Path]:
    return next((folder / name for name in (CONFIG, *OTHER_CONFIGS) if (folder / name).is_file()), None)


def read_config(path: Path) -> Dict[str, object]:
    """The model configuration, under the keys of today. Raises InputError when it is not one JSON object."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line}: not a JSON object ({error.__class__.__name__}); mend it") from None
    config = _modernised(config) if isinstance(config, dict) else {}
    if not _is_size(config.get("vocab_size")):
        raise InputError(
            f"{path}:1: no model configuration with a vocab_size; give the config.json of a model"
        )
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
        if not _is_size(value) and not (value == 0 and key in ("type_vocab_size", "pad_token_id")):
            raise InputError(f"{CONFIG}: {key} is {value!r}, no number that a model can have; mend it")
    return Limits(*values.values())


def _is_size(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


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
