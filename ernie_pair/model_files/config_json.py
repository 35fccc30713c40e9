"""Read config.json, also under its older names, and find the family of the model."""

from pathlib import Path
from typing import Any, Dict, Mapping, Optional

from data_tools.base.errors import InputError
from data_tools.files.json_file import read_json_object
from ernie_pair.model_files.hugging_face.counterparts import COUNTERPARTS, find_family, unsupported_type

CONFIG, VOCAB = "config.json", "vocab.txt"
EMBEDDING = "embedding.json"  # what makes a model folder an embedding model; see model_files.embedding_json
LAYER_CLASS = "layer_class"  # module:Class of a layer of the user's own; see pair.model.plain_model
OTHER_CONFIGS = ("model_config.json", "ernie_config.json")  # PaddleNLP before 2.5, ERNIE's own releases
# The encoders of PaddleNLP that read word pieces, and what the names of their classes begin with.
FAMILIES = {
    **{"ernie": "Ernie", "ernie_gram": "ErnieGram", "bert": "Bert", "roberta": "Roberta"},
    "xlm_roberta": "Roberta",  # the same classes; its own names and defaults in transformers
    **{"electra": "Electra", "nezha": "NeZha", "roformer": "RoFormer", "roformerv2": "RoFormerv2"},
    **{"ppminilm": "PPMiniLM", "tinybert": "TinyBert", "albert": "Albert", "skep": "Skep"},
    **{"megatronbert": "MegatronBert", "mobilebert": "MobileBert", "squeezebert": "SqueezeBert"},
    **{"distilbert": "DistilBert"},
}


def family_in(config: Mapping[str, Any]) -> str:
    """Return which of FAMILIES a config.json names, by model_type or by architectures; empty: none."""
    if LAYER_CLASS in config:  # whatever its class is called
        return ""
    if config.get("model_type") in list(FAMILIES):  # which may be anything in a file
        return config["model_type"]
    named = architecture_in(config)
    return next((family for family, begins in FAMILIES.items() if _is_of(named, begins)), "")


def refuse_unsupported(config_file: Path) -> None:
    """Raise InputError for a config.json that no command opens, whatever else is in it.

    Its model_type is of no model here, or it is of a layer of the user's own.
    """
    config = read_json_object(config_file, "correct it, or give the config.json of a model")
    if LAYER_CLASS in config:
        name, folder = layer_class_in(config), str(config_file.parent)
        raise InputError(
            f"{folder} was made from the class {name}, a layer of your own, which no command can make; load "
            f"it in Python: PairTrainer({name}(...), config, weights={folder!r})"
        )
    named = config.get("model_type")
    if named is not None and not family_in(config) and not find_family(str(named)):
        types = {peer.model_type for peer in COUNTERPARTS.values()} | (FAMILIES.keys() - COUNTERPARTS.keys())
        raise unsupported_type(named, str(config_file), types)


def layer_class_in(config: Mapping[str, Any]) -> str:
    """Return the name of the user's own class that a config.json is of; empty: of none."""
    return str(config.get(LAYER_CLASS, "")).rpartition(":")[2]


def architecture_in(config: Mapping[str, Any]) -> str:
    """Return the class that a config.json names first; empty: none."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _is_of(architecture: str, begins: str) -> bool:
    """Return whether a class is of a family: ErnieForPretraining is Ernie's, ErnieMModel is not."""
    return architecture.startswith((f"{begins}Model", f"{begins}For"))


def find_config(folder: Path) -> Optional[Path]:
    """Return the file in ``folder`` that describes its model; None: there is none."""
    return next((folder / name for name in (CONFIG, *OTHER_CONFIGS) if (folder / name).is_file()), None)


def read_config(path: Path) -> Dict[str, Any]:
    """Read the configuration of a model, and bring it under the keys of today.

    Raises InputError when it is not one JSON object, or names no vocab_size.
    """
    config = _modernised(read_json_object(path, "correct it, or give the config.json of a model"))
    if "vocab_size" not in config:
        raise InputError(
            f"{path}:1: no model configuration with a vocab_size; give the config.json of a model"
        )
    return config


def _modernised(config: Dict[str, Any]) -> Dict[str, Any]:
    """Bring a configuration under the keys of today.

    PaddleNLP once wrote {"init_args": [{..., "init_class"}], "init_class"}, ERNIE sent_type_vocab_size.
    """
    made_as, inner = config.get("init_class"), config.get("init_args")
    if isinstance(inner, list) and inner and isinstance(inner[0], dict):
        config = inner[0]
    config = {key: value for key, value in config.items() if key not in ("init_class", "init_args")}
    if isinstance(made_as, str):
        config.setdefault("architectures", [made_as])
    if "sent_type_vocab_size" in config:
        config["type_vocab_size"] = config.pop("sent_type_vocab_size")
    return config
