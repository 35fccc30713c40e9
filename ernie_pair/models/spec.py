"""The description of a model, read once from its config.json (or an older name of it) and its tokenizer's.

Every other module asks a ModelSpec; none reads the dictionary of a config.json.
"""

import hashlib
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, Collection, Iterator, Mapping, NamedTuple, Optional, Sequence

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import (
    is_number,
    is_texts,
    is_utf8,
    is_whole_number,
    read_json_object,
    shown,
)
from ernie_pair.models.families import (
    EPSILON,
    FAMILIES,
    OF_MATCH,
    find_family,
    get_family,
    unsupported_type,
    with_counterpart,
)
from ernie_pair.models.labels import (
    CLASSIFICATION,
    Labels,
    labels_in,
    num_labels_in,
    target_in,
    without_labels,
)

CONFIG, VOCAB = "config.json", "vocab.txt"
EMBEDDING = "embedding.json"  # what makes a model folder an embedding model; see `embedding_json`
MODULES = "modules.json"  # the same, of sentence-transformers
TRAINED_PAIRS = "trained_pairs.npy"  # hashes of the pairs that a model has learned; see `trained_pairs`
LAYER_CLASS = "layer_class"  # module:Class of a layer of the user's own; see networks.custom_model
OTHER_CONFIGS = ("model_config.json", "ernie_config.json")  # PaddleNLP before 2.5, ERNIE's own releases
MIN_PAIR_LENGTH = 5  # tokens: [CLS] a [SEP] b [SEP]
SIZES = {  # whole numbers: the least, the most
    "vocab_size": (1, 10**7), "hidden_size": (1, 10**5), "embedding_size": (1, 10**5),
    "num_hidden_layers": (1, 1000), "num_attention_heads": (1, 1000), "intermediate_size": (1, 10**6),
    "max_position_embeddings": (MIN_PAIR_LENGTH, 10**6), "type_vocab_size": (0, 1000),
    "task_type_vocab_size": (0, 1000), "pad_token_id": (0, 10**7 - 1),
    "num_labels": (1, 10**5), "num_classes": (1, 10**5),
}  # fmt: skip
TASKS = 3  # PaddleNLP's task_type_vocab_size where a config.json has none
DROPOUTS = (  # from 0 to below 1; null leaves the choice to another of them
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "classifier_dropout_prob",
    "dropout", "attention_dropout",
)  # fmt: skip
SMALL_NUMBERS = ("initializer_range", "layer_norm_eps", EPSILON)  # from 0 to 1
TEXTS = ("model_type", "hidden_act", "pool_act", "pooling", "model_class", "problem_type")
MAX_PARAMETERS = 10**10  # the largest encoder of PaddleNLP has 4e9
MAX_CLASS_DIGITS = 9  # digits
# What PaddleNLP and Paddle raise for a configuration that they can make nothing of.
NO_MODEL = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
TOKENIZER = "tokenizer_config.json"
# Settings of PaddleNLP's tokenizers under which words are cut in a way that is not ours.
OTHER_WAYS = {
    "use_jieba": True, "use_bpe_encoder": True, "do_basic_tokenize": False,
    "tokenize_chinese_chars": False, "tokenizer_class": "ErnieTinyTokenizer",
}  # fmt: skip
POOLINGS = ("cls", "mean", "cosine")  # of a classifier
DEFAULT_LENGTH = 128  # tokens per pair, of a model that does not say on what it was trained
# PaddleNLP's own defaults, for what a config.json leaves out.
DEFAULTS = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "pad_token_id": 0}
INNER_SIZE, POSITIONS = 3072, 512
# What a checkpoint of pretraining is known by; other keys of config.json may change on resume.
SHAPE_KEYS = (
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "intermediate_size", "hidden_act", "max_position_embeddings", "type_vocab_size", "pad_token_id",
    "use_task_id", "task_id", "task_type_vocab_size",
)  # fmt: skip


def json_bytes(value: object) -> bytes:
    """Return the content of a JSON file in a model's folder: indented, UTF-8, with a line end."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def family_in(config: Mapping[str, Any]) -> str:
    """Return which of FAMILIES a config.json names, by model_type or by architectures; empty: none."""
    if LAYER_CLASS in config:  # whatever its class is called
        return ""
    if config.get("model_type") in list(FAMILIES):  # which may be anything in a file
        return config["model_type"]
    named = architecture_in(config)  # ErnieForPretraining is Ernie's, ErnieMModel is not
    begins = {name: (f"{one.class_start}Model", f"{one.class_start}For") for name, one in FAMILIES.items()}
    return next((name for name in FAMILIES if named.startswith(begins[name])), "")


def check_supported(config_file: Path) -> None:
    """Raise InputError for a config.json of a model that is not here, or of a layer of the user's own."""
    config = read_json_object(config_file, "correct it, or give the config.json of a model")
    if LAYER_CLASS in config:
        name, folder = layer_class_in(config), str(config_file.parent)
        raise InputError(
            f"{folder} was made from the class {name}, a layer of your own, which no command can make; load "
            f"it in Python: PairTrainer({name}(...), config, weights={folder!r})"
        )
    named = config.get("model_type")
    if named is not None and not family_in(config) and not find_family(str(named)):
        peers = with_counterpart()
        types = {peer.model_type for peer in peers.values()} | (FAMILIES.keys() - peers.keys())
        raise unsupported_type(named, str(config_file), types)


def layer_class_in(config: Mapping[str, Any]) -> str:
    """Return the name of the user's own class that a config.json is of; empty: of none."""
    return str(config.get(LAYER_CLASS, "")).rpartition(":")[2]


def architecture_in(config: Mapping[str, Any]) -> str:
    """Return the class that a config.json names first; empty: none."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def find_config(folder: Path) -> Optional[Path]:
    """Return the file in ``folder`` that describes its model; None: there is none."""
    return next((folder / name for name in (CONFIG, *OTHER_CONFIGS) if (folder / name).is_file()), None)


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration of a model, and bring it under the keys of today.

    PaddleNLP once wrote {"init_args": [{..., "init_class"}], "init_class"}, ERNIE sent_type_vocab_size.
    Raises InputError when it is not one JSON object, or names no vocab_size.
    """
    config = read_json_object(path, "correct it, or give the config.json of a model")
    made_as, inner = config.get("init_class"), config.get("init_args")
    if isinstance(inner, list) and inner and isinstance(inner[0], dict):
        config = inner[0]
    config = {key: value for key, value in config.items() if key not in ("init_class", "init_args")}
    if isinstance(made_as, str):
        config.setdefault("architectures", [made_as])
    if "sent_type_vocab_size" in config:
        config["type_vocab_size"] = config.pop("sent_type_vocab_size")
    if "vocab_size" not in config:
        raise InputError(
            f"{path}:1: no model configuration with a vocab_size; give the config.json of a model"
        )
    return config


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Raise InputError naming ``where``, the first wrong key, its value and what it takes.

    ``config``: the content of a config.json; it has a vocab_size. Absent keys are passed over.
    """
    if not is_utf8(config):
        raise InputError(f"{where}: it holds half of a character (a lone surrogate); correct it")
    for key, takes in _find_problems(config):
        raise InputError(f"{where}: {key} is {shown(config[key])}, and takes {takes}; correct it")
    if config.get(OF_MATCH[0]) and config.get(OF_MATCH[1]) is None:
        raise InputError(f"{where}: {OF_MATCH[0]} is true, and {OF_MATCH[1]} is missing; correct it")
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
    # About how many numbers the model has, with PaddleNLP's sizes in place of what is left out.
    width, layers = ({**DEFAULTS, **config}[key] for key in ("hidden_size", "num_hidden_layers"))
    tables = config["vocab_size"] + config.get("max_position_embeddings", POSITIONS)
    of_layer = 4 * width**2 + 2 * width * config.get("intermediate_size", INNER_SIZE)
    count = tables * width + layers * of_layer
    if count > MAX_PARAMETERS:
        raise InputError(
            f"{where}: a model of about {float(count):.0e} parameters, above {MAX_PARAMETERS:.0e}; correct "
            "its sizes"
        )


def _find_problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, what it takes) for each value that no model has."""
    for key, (least, most) in SIZES.items():
        if key in config and not is_whole_number(config[key], least, most):
            yield key, f"a whole number from {least} to {most}"
    takes: list[tuple[Collection[str], Callable[[Any], bool], str]] = [
        (DROPOUTS, lambda value: is_number(value, 0) and value < 1, "a number from 0 to below 1"),
        (SMALL_NUMBERS, lambda value: is_number(value, 0, 1), "a number from 0 to 1"),
        (TEXTS, lambda value: isinstance(value, str), "a text"),
        (["architectures"], is_texts, "a list of texts"),
        (OF_MATCH[:1], lambda value: isinstance(value, bool), "true or false"),
        (OF_MATCH[1:], partial(_are_ids, config), "a list of one or more token ids"),
        (["label_range"], is_range, "the lowest and the highest label, like [0, 5]"),
        (["score_activation"], ("sigmoid", "identity").__contains__, "sigmoid or identity"),
        (
            ["id2label"],
            lambda value: isinstance(value, dict)
            and all(len(k) <= MAX_CLASS_DIGITS and isinstance(name, (str, int)) for k, name in value.items()),
            'class numbers and names, like {"0": "different", "1": "same"}',
        ),
        (
            ["label2id"],
            lambda value: isinstance(value, dict) and all(map(is_whole_number, value.values())),
            'names and class numbers, like {"different": 0, "same": 1}',
        ),
    ]
    for keys, is_sound, words in takes:
        yield from ((key, words) for key in keys if config.get(key) is not None and not is_sound(config[key]))


def _are_ids(config: Mapping[str, Any], value: object) -> bool:
    most = config["vocab_size"] - 1
    return isinstance(value, list) and bool(value) and all(is_whole_number(one, 0, most) for one in value)


def is_range(value: Any) -> bool:
    """Return whether ``value`` is a list of a lower and a higher number."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]


class TokenizerSettings(NamedTuple):
    """The settings of tokenizer_config.json.

    ``uses_hf_tokenizer``: the tokenizer is what its folder says (`data_tools.text.folder_tokenizer`), and not
    `WordPiece`, which cuts a vocab.txt by ERNIE's rule.
    """

    lower_case: bool
    trained_length: int  # tokens per pair; 0: it does not say
    uses_hf_tokenizer: bool = False


def read_tokenizer_settings(
    folder: Path, config: Mapping[str, Any], uses_hf_tokenizer: bool = False
) -> TokenizerSettings:
    """Check tokenizer_config.json in ``folder``, or without it ``config``, as `parse_tokenizer` does."""
    path = folder / TOKENIZER
    if not path.exists():
        return parse_tokenizer(config, str(folder), uses_hf_tokenizer)
    return parse_tokenizer(read_json_object(path, "correct it"), str(path), uses_hf_tokenizer)


def parse_tokenizer(
    settings: Mapping[str, Any], where: str, uses_hf_tokenizer: bool = False
) -> TokenizerSettings:
    """Check the settings of a tokenizer, and return those that matter here.

    Raises InputError naming ``where`` for a wrong value, and for another way of cutting text than ERNIE's.
    """
    lower_case = flag_in(settings, "do_lower_case", True, where)
    others = [key for key, value in OTHER_WAYS.items() if key in settings and settings[key] == value]
    if settings.get("strip_accents") not in (None, lower_case):
        others.append("strip_accents")
    if others and not uses_hf_tokenizer:
        raise InputError(
            f"{where}: {others[0]} is {shown(settings[others[0]])}, and texts are cut into word pieces as "
            "BertTokenizer cuts them, in no other way; take a model of that kind"
        )
    length = settings.get("model_max_length", settings.get("max_len"))  # its name until transformers 2
    if length is not None and not is_number(length, MIN_PAIR_LENGTH):
        raise InputError(
            f"{where}: model_max_length is {shown(length)}, and a pair has {MIN_PAIR_LENGTH} tokens or more; "
            "correct it, or remove it"
        )
    # PaddleNLP writes 1e30 for none.
    known = length if type(length) is int and length < 1 << 31 else 0
    return TokenizerSettings(lower_case, known, uses_hf_tokenizer)


def flag_in(found: Mapping[str, Any], key: str, usual: bool, where: object) -> bool:
    """Return the boolean under ``key`` of a JSON file, ``usual`` where it is left out. Raises InputError."""
    value = found.get(key, usual)
    if not isinstance(value, bool):
        raise InputError(f"{where}: {key} is {shown(value)}; write true or false")
    return value


def tokenizer_json(family: str, lower_case: bool, max_seq_len: int) -> dict[str, Any]:
    """Return the content of tokenizer_config.json; ``max_seq_len`` 0 is left out."""
    settings = {"tokenizer_class": tokenizer_class_name(family), "do_lower_case": lower_case}
    return {**settings, "model_max_length": max_seq_len} if max_seq_len else settings


def tokenizer_class_name(family: str) -> str:
    """Return PaddleNLP's tokenizer of word pieces; without a family ERNIE's, whose rule is ours."""
    return get_family(family).class_start + get_family(family).tokenizer


@dataclass(frozen=True)
class ModelSpec:
    """The model of a folder. Immutable; ``replace`` makes another one, checked again.

    ``family``: one of FAMILIES, or empty where config.json names none; ``unknown_family``: what it names
    instead. ``max_positions``: the most tokens that the model reads at once. ``token_types`` 0 is a model
    without that embedding. Sizes that are None are left out of config.json. ``config`` is its whole content,
    for writing it back and for PaddleNLP.
    """

    family: str
    unknown_family: str
    vocab_size: int
    hidden_size: int
    embedding_size: Optional[int]
    num_layers: int
    num_heads: int
    max_positions: int
    token_types: int
    pad_id: int
    pooling: str
    hidden_dropout: Optional[float]
    classifier_dropout: Optional[float]
    tokenizer: TokenizerSettings
    config: Mapping[str, Any] = field(repr=False)

    @property
    def lower_case(self) -> bool:
        """Return whether the tokenizer lowers the case of texts."""
        return self.tokenizer.lower_case

    @property
    def trained_length(self) -> int:
        """Return the tokens per pair in training, 0 where it is not said."""
        return self.tokenizer.trained_length

    @property
    def num_labels(self) -> int:
        """Return the classes, 2 by default; 1 of a model for regression. Raises InputError for fewer."""
        return num_labels_in(self.config)

    @property
    def intermediate_size(self) -> int:
        """Return the inner width of the feed-forward blocks."""
        return self.config.get("intermediate_size", INNER_SIZE)

    @property
    def target(self) -> str:
        """Return what the model is for, one of TARGETS of `labels`."""
        return target_in(self.config)

    @property
    def labels(self) -> Labels:
        """Return the names of the classes, or the scores. Raises InputError if their number differs."""
        return labels_in(self.config)

    @property
    def own_epsilon(self) -> Optional[float]:
        """Return the epsilon of all layer norms; None: the one that PaddleNLP's class gives them."""
        return self.config.get(EPSILON)

    @property
    def model_class(self) -> str:
        """Return the class of a person's own that the model is of, package.module:Class; empty: none."""
        return self.config.get("model_class") or ""

    @property
    def inference_length(self) -> int:
        """Return the tokens per pair that a trained model is asked with where nobody says otherwise."""
        length = self.trained_length
        return length if 0 < length <= self.max_positions else min(DEFAULT_LENGTH, self.max_positions)

    @property
    def shape(self) -> dict[str, Any]:
        """Return {key of config.json: value or None}, of what a checkpoint of pretraining depends on."""
        shape = {key: self.config.get(key) for key in SHAPE_KEYS}
        return shape if self.own_epsilon is None else {**shape, EPSILON: self.own_epsilon}

    @property
    def has_match(self) -> bool:
        """Return whether it is told which tokens stand in the other text too, see `match_embeddings`."""
        return bool(self.config.get(OF_MATCH[0]))

    @property
    def unmatched_ids(self) -> Sequence[int]:
        """Return the ids of special tokens, which match nothing."""
        return self.config[OF_MATCH[1]]

    @property
    def sha256(self) -> str:
        """Return the hash of config.json, whatever the order of its keys."""
        return hashlib.sha256(json.dumps(dict(self.config), sort_keys=True).encode()).hexdigest()

    def to_config(self, **changes: object) -> dict[str, Any]:
        """Return the content of config.json, with ``changes``."""
        return {**self.config, **changes}

    def replace(self, **changes: object) -> "ModelSpec":
        """Return the spec with ``changes`` of config.json. Raises InputError for values that no model has."""
        return self.with_config(self.to_config(**changes))

    def with_config(self, config: dict[str, Any]) -> "ModelSpec":
        """Return the spec of another config.json, same tokenizer. Raises InputError if no model has it."""
        return _build_spec(config, self.tokenizer, CONFIG)

    def with_labels(self, labels: Labels) -> "ModelSpec":
        """Return the spec of a model whose classes, or scores, are ``labels``."""
        if labels.target == self.target == CLASSIFICATION:
            return self.replace(**labels.to_config())
        return self.with_config({**without_labels(self.config), **labels.to_config()})


def read_spec(
    config_file: Path,
    vocab_file: Path,
    translate: Optional[Callable[[dict], dict[str, Any]]] = None,
    uses_hf_tokenizer: bool = False,
) -> ModelSpec:
    """Read a config.json and the tokenizer_config.json beside the file of the tokenizer.

    ``translate``: brings the content of a config.json of another library into PaddleNLP's words.
    ``uses_hf_tokenizer``: a vocab.txt is not cut by ERNIE's rule; other files never are. Raises InputError
    naming the file, the key and its value when either holds what no model has.
    """
    config = read_config(config_file)
    config = translate(config) if translate else config
    uses_hf_tokenizer = uses_hf_tokenizer or vocab_file.name != VOCAB
    return _build_spec(
        config, read_tokenizer_settings(vocab_file.parent, config, uses_hf_tokenizer), str(config_file)
    )


def parse_spec(config: Mapping[str, object], tokenizer: Optional[Mapping[str, object]] = None) -> ModelSpec:
    """Return the spec of the contents of config.json and tokenizer_config.json.

    Without ``tokenizer`` its keys may stand in ``config``. Raises InputError for values that no model has.
    """
    settings = config if tokenizer is None else tokenizer
    return _build_spec(dict(config), parse_tokenizer(settings, CONFIG), CONFIG)


def _build_spec(config: dict[str, Any], tokenizer: TokenizerSettings, where: str) -> ModelSpec:
    check_config(config, where)
    family = family_in(config)
    of_family = get_family(family)
    sizes = {key: config.get(key, default) for key, default in DEFAULTS.items()}
    positions, pad_id = config.get("max_position_embeddings", POSITIONS), sizes["pad_token_id"]
    positions = min(positions, of_family.max_positions)
    if of_family.counts_from_padding:
        positions -= pad_id + 1
    pooling = config.get("pooling", POOLINGS[0])
    if pooling not in POOLINGS:
        raise InputError(f"{where}: pooling is {shown(pooling)}; write one of {', '.join(POOLINGS)}")
    return ModelSpec(
        family=family, vocab_size=config["vocab_size"], hidden_size=sizes["hidden_size"],
        unknown_family="" if family else str(config.get("model_type") or architecture_in(config)),
        embedding_size=config.get("embedding_size"), num_layers=sizes["num_hidden_layers"],
        num_heads=sizes["num_attention_heads"], max_positions=positions, pad_id=pad_id, pooling=pooling,
        token_types=config.get("type_vocab_size", of_family.token_types),
        hidden_dropout=config.get("hidden_dropout_prob"),
        classifier_dropout=config.get("classifier_dropout"), tokenizer=tokenizer, config=config,
    )  # fmt: skip
