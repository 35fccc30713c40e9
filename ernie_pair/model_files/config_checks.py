"""Check a config.json: the type and the range of every value that this package reads."""

from typing import Any, Iterator, Mapping, Tuple

from data_tools.base.errors import InputError
from data_tools.files.json_file import is_number, is_utf8, is_whole_number, shown
from ernie_pair.model_files.hugging_face.counterparts import EPSILON

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
