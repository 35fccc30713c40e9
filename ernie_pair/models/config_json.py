"""Read config.json, also under its older names, and find the family of the model."""

from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from data_tools.files.errors import InputError
from data_tools.files.json_file import is_number, is_utf8, is_whole_number, read_json_object, shown
from ernie_pair.models.hugging_face.counterparts import COUNTERPARTS, EPSILON, find_family, unsupported_type

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


SHORTEST_PAIR = 5  # tokens: [CLS] a [SEP] b [SEP]
SIZES = {  # whole numbers: the least, the most
    **{"vocab_size": (1, 10**7), "hidden_size": (1, 10**5), "embedding_size": (1, 10**5)},
    **{"num_hidden_layers": (1, 1000), "num_attention_heads": (1, 1000), "intermediate_size": (1, 10**6)},
    **{"max_position_embeddings": (SHORTEST_PAIR, 10**6), "type_vocab_size": (0, 1000)},
    **{"task_type_vocab_size": (0, 1000), "pad_token_id": (0, 10**7 - 1)},
    **{"num_labels": (1, 10**5), "num_classes": (1, 10**5)},
}
TASKS = 3  # PaddleNLP's task_type_vocab_size where a config.json has none
DROPOUTS = (  # from 0 to below 1; null leaves the choice to another of them
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "classifier_dropout_prob"),
    *("dropout", "attention_dropout"),
)
SMALL_NUMBERS = ("initializer_range", "layer_norm_eps", EPSILON)  # from 0 to 1
TEXTS = ("model_type", "hidden_act", "pool_act", "pooling", "model_class", "problem_type")
MOST_PARAMETERS = 10**10  # the largest encoder of PaddleNLP has 4e9
LONGEST_CLASS_NUMBER = 9  # digits
# What PaddleNLP and Paddle raise for a configuration that they can make nothing of.
NO_MODEL = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Raise InputError naming ``where``, the first wrong key, its value and what it takes.

    ``config``: the content of a config.json; it has a vocab_size. Absent keys are passed over.
    """
    if not is_utf8(config):
        raise InputError(f"{where}: it holds half of a character (a lone surrogate); correct it")
    for key, takes in _problems_of(config):
        raise InputError(f"{where}: {key} is {shown(config[key])}, and takes {takes}; correct it")
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if width and heads and width % heads:
        raise InputError(
            f"{where}: hidden_size {width} is not a multiple of num_attention_heads {heads}; correct one"
        )
    task, tasks = config.get("task_id", 0), config.get("task_type_vocab_size", TASKS)
    if config.get("use_task_id") and not is_whole_number(task, 0, tasks - 1):
        raise InputError(
            f"{where}: task_id is {shown(task)}, and with use_task_id it takes a whole number below "
            f"task_type_vocab_size {tasks}; correct one of them"
        )
    count = _num_parameters(config)
    if count > MOST_PARAMETERS:
        raise InputError(
            f"{where}: a model of about {float(count):.0e} parameters, above {MOST_PARAMETERS:.0e}; correct "
            "its sizes"
        )


def _problems_of(config: Mapping[str, Any]) -> Iterator[Tuple[str, str]]:
    """Yield (key, what it takes) for each value that no model has."""
    given = {key: value for key, value in config.items() if value is not None}
    for key, (least, most) in SIZES.items():
        if key in config and not is_whole_number(config[key], least, most):
            yield key, f"a whole number from {least} to {most}"
    for key in given.keys() & DROPOUTS:
        if not (is_number(given[key], 0) and given[key] < 1):
            yield key, "a number from 0 to below 1"
    for key in given.keys() & SMALL_NUMBERS:
        if not is_number(given[key], 0, 1):
            yield key, "a number from 0 to 1"
    for key in given.keys() & TEXTS:
        if not isinstance(given[key], str):
            yield key, "a text"
    if not _are_texts(given.get("architectures", [])):
        yield "architectures", "a list of texts"
    if not is_range(given.get("label_range", [0, 1])):
        yield "label_range", "the lowest and the highest label, like [0, 5]"
    if given.get("score_activation", "sigmoid") not in ("sigmoid", "identity"):
        yield "score_activation", "sigmoid or identity"
    if not _are_names(given.get("id2label", {})):
        yield "id2label", 'class numbers and names, like {"0": "different", "1": "same"}'
    if not _are_numbers(given.get("label2id", {})):
        yield "label2id", 'names and class numbers, like {"different": 0, "same": 1}'


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def is_range(value: Any) -> bool:
    """Return whether ``value`` is a list of a lower and a higher number."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]


def _are_names(value: object) -> bool:
    return isinstance(value, dict) and all(
        len(key) <= LONGEST_CLASS_NUMBER and isinstance(name, (str, int)) for key, name in value.items()
    )


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_whole_number, value.values()))


def _num_parameters(config: Mapping[str, Any]) -> int:
    """Return about how many numbers the model has, PaddleNLP's sizes in place of what is left out."""
    width, layers = config.get("hidden_size", 768), config.get("num_hidden_layers", 12)
    tables = config["vocab_size"] + config.get("max_position_embeddings", 512)
    return tables * width + layers * (4 * width**2 + 2 * width * config.get("intermediate_size", 3072))
