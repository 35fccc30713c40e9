"""Where a model comes from: a folder (config.json, tokenizer, weights), a run, or a name of PaddleNLP.

A path that is given and cannot be read is an error, never a fresh start. The files of a tokenizer are

vocab.txt, tokenizer_config.json                                   cut by ERNIE's rule, `WordPiece`
tokenizer.json, tokenizer_config.json, vocab.txt of word pieces    of a published folder: its own rule
"""

import logging
import os
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional

import numpy as np
import yaml

from data_tools.text.characters import category
from data_tools.text.folder_tokenizer import (
    FAST_TOKENIZER,
    KEPT,
    OWN_CLASS,
    SPECIAL_TOKENS,
    AnyTokenizer,
    cuts_by_own_rule,
    find_tokenizer,
    is_their_config,
    open_folder_tokenizer,
    read_settings,
)
from data_tools.text.wordpiece import CONTROL_TOKENS, WordPiece, read_tokens
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, Checkpoint
from ernie_pair.checkpoint.run_folder import CHECKPOINTS, LAST, best_of
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.atomic_files import read_regular
from ernie_pair.core.files.atomic_folder import content_of
from ernie_pair.core.files.json_file import read_json_object, shown, write_json
from ernie_pair.models.embedding_json import EmbeddingSettings
from ernie_pair.models.hugging_face.counterparts import DECODER, unsupported_type
from ernie_pair.models.hugging_face.folders import (
    UNUSED,
    build_fast_tokenizer,
    find_their_weights,
    from_their_config,
    is_their_file,
    read_their_weights,
    weight_files,
    with_cross_encoder,
    write_weights,
)
from ernie_pair.models.model_path import download_hint, hint_below, no_model_folder
from ernie_pair.models.sentence_transformers import (
    MODULES,
    encoder_folder_of,
    files_of_modules,
    read_sentence_folder,
    settings_of_folder,
)
from ernie_pair.models.spec import (
    CONFIG,
    EMBEDDING,
    FAMILIES,
    LAYER_CLASS,
    TOKENIZER,
    VOCAB,
    ModelSpec,
    architecture_in,
    find_config,
    json_bytes,
    layer_class_in,
    parse_spec,
    parse_tokenizer,
    read_config,
    read_spec,
    refuse_unsupported,
    tokenizer_class_of,
    tokenizer_json,
)
from ernie_pair.weights.parameter_names import ORDER_HEAD, TOKEN_HEAD
from ernie_pair.weights.weight_files import Arrays, read_weights, unwrapped

NO_LENGTH = int(1e30)  # what transformers writes where a tokenizer has no longest text
CURE = "copy the model's folder again"
NUM_STRINGS = 2000
WEIGHT_FILES = (
    "model_state.pdparams", "model.safetensors", "static_vars.safetensors",
    "static_vars.pdparams", "static_vars", "params",  # the recipe's, and ERNIE's own releases
)  # fmt: skip
OF_EXPORTED = ("export.json", "model.onnx")  # every exported model has one of them
ADAPTER = "adapter_config.json"
RECIPE_NOTE, MOST_NOTE_BYTES = "config.yml", 1 << 16
# The recipe's spelling of the name that PaddleNLP knows.
ALIASES = {"ERNIE 1.0": "ernie-1.0"}
SENTENCE_PIECE = ("ernie-tiny",)  # of a family that otherwise reads word pieces
NAME_FAMILY, WRITE_FAMILY = "pass --model_type, or write model_type there", "write model_type there"
GELU_NEW = "gelu_new"  # of transformers; PaddleNLP has it under no name

logger = logging.getLogger(__name__)


def read_tokenizer(vocab_file: Path, spec: ModelSpec) -> AnyTokenizer:
    """Open the tokenizer of ``spec`` in one of TOKENIZER_FILES. Raises InputError when it is damaged."""
    if spec.tokenizer.is_folders:
        return open_folder_tokenizer(vocab_file, spec.family)
    return WordPiece.from_file(vocab_file, spec.lower_case)


def tokenizer_files(vocab_file: Path, spec: ModelSpec, max_seq_len: int = 0) -> Dict[str, bytes]:
    """Return {name: content} of what a model folder holds of its tokenizer.

    ``max_seq_len``: tokens per pair in training, which tokenizer_config.json remembers; 0: it does not.
    """
    if not spec.tokenizer.is_folders:
        settings = tokenizer_json(spec.family, spec.lower_case, max_seq_len)
        return {VOCAB: own_vocabulary(vocab_file, spec), TOKENIZER: json_bytes(settings)}
    tokenizer = open_folder_tokenizer(vocab_file, spec.family)
    found = read_settings(vocab_file.parent, spec.family)
    settings = {key: found[key] for key in KEPT if key in found}
    settings.update({"model_max_length": max_seq_len} if max_seq_len else {})
    is_json = vocab_file.name == FAST_TOKENIZER and not tokenizer.is_extended
    rule = vocab_file.read_bytes() if is_json else tokenizer.to_json().encode()
    files = {FAST_TOKENIZER: rule, TOKENIZER: json_bytes(settings)}
    if tokenizer.is_word_piece:
        files[VOCAB] = "".join(f"{token}\n" for token in tokenizer.tokens).encode()
    return files


def their_tokenizer_files(vocab_file: Path, spec: ModelSpec, max_seq_len: int) -> Dict[str, bytes]:
    """Return {name: content} of what a folder of transformers holds of its tokenizer; see `tokenizer_files`.

    ERNIE's rule is a tokenizer.json, under the class that takes it as it is: BertTokenizer cuts symbols
    otherwise. Control tokens in a text are text.
    """
    if spec.tokenizer.is_folders:
        return tokenizer_files(vocab_file, spec, max_seq_len)
    tokenizer = WordPiece(read_tokens(vocab_file)[: spec.vocab_size], spec.lower_case)
    special = {f"{token.strip('[]').lower()}_token": token for token in CONTROL_TOKENS}
    settings = {
        "tokenizer_class": OWN_CLASS,
        "split_special_tokens": True,
        "do_lower_case": tokenizer.lower_case,
        "model_max_length": max_seq_len or NO_LENGTH,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **special,
    }
    return {
        VOCAB: own_vocabulary(vocab_file, spec),
        FAST_TOKENIZER: build_fast_tokenizer(tokenizer).to_str(pretty=True).encode(),
        TOKENIZER: json_bytes(settings),
        SPECIAL_TOKENS: json_bytes(special),
    }


def own_vocabulary(vocab_file: Path, spec: ModelSpec) -> bytes:
    """Return the lines of a vocab.txt that the model has rows for; twins beyond them mark corpus words."""
    return b"".join(vocab_file.read_bytes().splitlines(keepends=True)[: spec.vocab_size])


def copy_tokenizer(vocab_file: Path, spec: ModelSpec, folder: Path) -> None:
    """Write the files of a model's tokenizer into another folder, unchanged where ERNIE's rule holds."""
    if spec.tokenizer.is_folders:
        files = tokenizer_files(vocab_file, spec, spec.trained_length)
    else:
        sources = {VOCAB: vocab_file, TOKENIZER: vocab_file.parent / TOKENIZER}
        files = {name: path.read_bytes() for name, path in sources.items() if path.is_file()}
    for name, content in files.items():
        (folder / name).write_bytes(content)


def refuse_other_vocabulary(tokenizer_file: Path, vocab_file: Path, spec: ModelSpec) -> None:
    """Raise InputError when a vocab.txt beside a tokenizer.json has other tokens for its ids."""
    tokens, vocab = read_tokens(vocab_file), read_tokenizer(tokenizer_file, spec).vocab
    for token, index in vocab.items():
        if index < len(tokens) and tokens[index] != token and not token.startswith(UNUSED):
            raise InputError(
                f"{tokenizer_file}: token {index} is {shown(token)}, and not in {VOCAB}, which has "
                f"{shown(tokens[index])} there; {CURE}"
            )


def refuse_other_cutting(folder: Path, lower_case: bool) -> None:
    """Raise InputError when a tokenizer.json of this package makes other ids than the vocab.txt beside it.

    Compared are the ids of every assigned character between two letters, and of random strings.
    """
    path = folder / FAST_TOKENIZER
    if not path.is_file():
        return
    ours = WordPiece.from_file(folder / VOCAB, lower_case)
    theirs = open_folder_tokenizer(path).without_control_tokens()
    if theirs.to_json() == build_fast_tokenizer(ours).to_str(pretty=True):
        return
    points = (point for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    letters = [chr(point) for point in points if category(chr(point)) not in ("Cn", "Co")]
    rng, picked = np.random.default_rng(0), np.array(letters)
    texts = [f"a{letter}b" for letter in letters]
    texts += ["".join(rng.choice(picked, size)) for size in rng.integers(1, 20, NUM_STRINGS).tolist()]
    for text, mine, other in zip(texts, ours.encode_batch(texts), theirs.encode_batch(texts)):
        if mine != other:
            raise InputError(
                f"{path}: it cuts {shown(text)} into other tokens than {VOCAB} does by ERNIE's rule; {CURE}"
            )


@dataclass(frozen=True)
class ModelSource:
    """A model as its folder describes it, whatever wrote that. ``weights`` is None for a start from scratch.

    ``is_hugging_face``: transformers saved them; ``spec`` is in PaddleNLP's words all the same. ``folder``:
    the one that was given, or that a run stands for; None of a name of PaddleNLP.
    """

    name: str
    spec: ModelSpec
    vocab_file: Path
    weights: Optional[Path]
    is_hugging_face: bool = False
    folder: Optional[Path] = None

    @cached_property
    def embedding(self) -> Optional[EmbeddingSettings]:
        """Return how the folder says that vectors are made; None: it does not. Raises InputError."""
        return None if self.folder is None else settings_of_folder(self.folder, self.spec)

    def read_tokenizer(self) -> AnyTokenizer:
        """Open the tokenizer, for which control tokens in a text are text. Raises InputError."""
        return read_tokenizer(self.vocab_file, self.spec).without_control_tokens()

    def read_dense(self) -> Arrays:
        """Read the weights of the dense steps of sentence-transformers, if any. Raises CheckpointError."""
        found = None if self.folder is None else read_sentence_folder(self.folder)
        return {} if found is None else found.dense_arrays()

    @property
    def weight_files(self) -> List[Path]:
        """Return the files that hold the weights: none, one, those of a folder, or the shards of an index."""
        if self.weights is None:
            return []
        return sorted(self.weights.iterdir()) if self.weights.is_dir() else weight_files(self.weights)

    def read_weights(self) -> Arrays:
        """Read the weights, under PaddleNLP's names. Raises CheckpointError when they are damaged."""
        assert self.weights is not None  # a model that is not from scratch has some
        if self.is_hugging_face:
            return read_their_weights(self.weights, self.spec.family)
        return unwrapped(read_weights(self.weights), str(self.weights))


def open_model(
    name_or_path: str,
    *,
    model_type: str = "",
    from_scratch: Optional[bool] = None,
    flag: str = "",
    no_family: str = "",
) -> ModelSource:
    """Find config, vocabulary and weights of ``name_or_path``.

    ``model_type``: one of FAMILIES (ernie-gram is ernie_gram), or '' for whichever it is; the config of
    a source that names no family gets it. For what a run's folders stand see `model_folder_of`. ``flag``: of
    a command that takes a trained model, which is a folder; ``no_family``: how to give a family, where one is
    needed. Raises InputError when something is missing, cannot be fetched or is no such model; weights may be
    missing only with ``from_scratch``, None without training. Raises CheckpointError for another family.
    """
    name_or_path = os.path.expanduser(name_or_path)
    if flag and not os.path.isdir(name_or_path):
        raise no_model_folder(flag, name_or_path, "give the OUT of a training run, or OUT/best")
    family, folder = model_type.replace("-", "_"), Path(name_or_path)
    if folder.is_dir():
        source = _open_folder(folder, family, from_scratch)
    elif folder.exists() or ("/" in name_or_path and _family_of_built_in(name_or_path) is None):
        raise no_model_folder("", name_or_path, f"give one that holds {CONFIG}")
    else:
        source = _fetch(ALIASES.get(name_or_path, name_or_path), family, from_scratch)
    if source.spec.unknown_family:
        raise unsupported_type(source.spec.unknown_family, source.name, FAMILIES)
    named = source.spec.family or family
    if family and FAMILIES.get(family) == FAMILIES.get(named):  # PaddleNLP calls an XLM-RoBERTa a RoBERTa
        named = family
    if family not in ("", named):
        raise CheckpointError(
            f"--model_type {family}: {source.name} holds {named} weights; leave --model_type out, or give "
            "another model"
        )
    if no_family and not named:
        raise InputError(
            f"{source.name}: neither model_type nor architectures in {CONFIG} names one of "
            f"{', '.join(FAMILIES)}; {no_family}"
        )
    return replace(source, spec=source.spec.replace(model_type=named)) if named else source


def open_start(config: Any, name_or_path: str = "") -> ModelSource:
    """Open the model that a run of ``config`` begins from; ``name_or_path``: in place of its flag's."""
    return open_model(
        name_or_path or config.model_name_or_path,
        model_type=getattr(config, "model_type", "") or "",
        from_scratch=config.from_scratch,
        no_family=NAME_FAMILY,
    )


def tell_classifier(folder: Path, config: Mapping[str, object]) -> None:
    """Log that the config.json of a model, asked for vectors, is that of a classifier of pairs, if it is."""
    architecture = architecture_in(config)
    if architecture.endswith("ForSequenceClassification"):
        logger.warning(
            "%s is a classifier or reranker of pairs (%s), which was not trained to make vectors: they are "
            "the means of its hidden states. Its scores of pairs are those of predict, rank, search and "
            "serve with --model_path %s", folder, architecture, folder,
        )  # fmt: skip


def refuse_cased(source: ModelSource) -> None:
    """Raise InputError for a model that keeps case: a corpus is lower-cased."""
    if not source.spec.lower_case:
        raise InputError(
            f"{source.name} keeps case (do_lower_case false), and pretraining needs lower-cased text; "
            "give another model"
        )


def _open_folder(
    folder: Path, family: str, from_scratch: Optional[bool], is_layer: bool = False
) -> ModelSource:
    given = model_folder_of(folder)
    folder = encoder_folder_of(given)
    config, vocab_file = find_config(folder), find_tokenizer(folder)
    if config is None and (folder / RECIPE_NOTE).is_file():
        return _open_recipes_checkpoint(folder, family, from_scratch)
    if config is not None and not is_layer:
        refuse_unsupported(config)
    if (folder / ADAPTER).is_file():
        raise InputError(
            f"{folder / ADAPTER} is of PEFT: the weights are those of a base model and of an adapter; write "
            "them as one: merge_and_unload().save_pretrained(FOLDER) of the PeftModel, and give FOLDER"
        )
    missing = [CONFIG] * (config is None) + [VOCAB] * (not vocab_file.is_file())
    if config is None or missing:
        cure = f"; a model folder holds {CONFIG}, and {VOCAB} or {FAST_TOKENIZER}"
        cure += ", and ernie-pair new-model creates one" if from_scratch and config is None else ""
        cure += hint_below(folder)
        raise InputError(f"{folder} has no {' and no '.join(missing)}{cure}")
    weights = find_weights(folder) or find_their_weights(folder)
    if weights is None and not from_scratch:
        if any((folder / name).is_file() for name in OF_EXPORTED):
            raise InputError(
                f"{folder} holds an exported model, which has no weights to load; give the trained one that "
                "it was made from: the OUT of a training run, or OUT/best"
            )
        other = (
            "give another model" if from_scratch is None else "start from random weights: --from_scratch true"
        )
        raise InputError(f"{folder} holds no weights ({', '.join(WEIGHT_FILES)}); add them, or {other}")
    content = read_config(config)
    is_theirs = is_their_config(content)  # decides where there are no weights
    is_theirs = is_theirs if weights is None else is_their_file(weights, is_theirs)
    weights = None if from_scratch else weights
    is_own = cuts_by_own_rule(folder, content, is_theirs)
    vocab_file = folder / VOCAB if is_own else vocab_file
    _refuse_damage(folder, config, vocab_file, weights)

    def translate(found: Dict) -> Dict:
        return from_their_config(with_cross_encoder(found, folder), str(config), family)

    spec = read_spec(config, vocab_file, translate if is_theirs else None, is_folders=not is_own)
    if vocab_file.name == FAST_TOKENIZER and (folder / VOCAB).is_file():
        refuse_other_vocabulary(vocab_file, folder / VOCAB, spec)
    if is_own and is_theirs:
        refuse_other_cutting(folder, spec.lower_case)
    return ModelSource(str(folder), spec, vocab_file, weights, is_theirs, given)


def open_layer_folder(given: Path, class_name: str) -> ModelSource:
    """Open a folder that a layer of the user's own, of the class of this name, was saved in; or a checkpoint.

    Raises InputError when it is none, or of another class, CheckpointError when it is damaged.
    """
    config = find_config(model_folder_of(given))
    named = layer_class_in(read_config(config)) if config is not None else ""
    if named.rpartition(".")[2] != class_name:
        made = f"was made from the class {named}" if named else "is no folder of a layer of your own"
        raise InputError(
            f"weights={str(given)!r} {made}, and the model is a {class_name}; give the folder of save_model, "
            "or the output_dir of a run, of that class"
        )
    return _open_folder(given, "", None, is_layer=True)


def model_folder_of(given: Path) -> Path:
    """Return the folder of the model that ``given`` stands for.

    A run's output_dir stands for its best model if it has one, otherwise for its newest checkpoint; a link
    of a run, OUT/best or OUT/model_last, for what it leads to; any other folder for itself. Raises
    CheckpointError if all checkpoints of a run are damaged.
    """
    if given.is_symlink():
        given = given.parent / os.readlink(given)
    if find_config(given) is not None or (given / RECIPE_NOTE).is_file():
        return given
    best = best_of(given)
    if best is not None:
        return best
    if not any((given / name).is_dir() for name in (LAST, CHECKPOINTS)):
        return given
    steps = sorted((given / CHECKPOINTS).glob("step_*"), reverse=True)
    for step in steps:
        try:
            Checkpoint(step).verify()
            return step
        except CheckpointError as error:
            logger.warning("%s; the checkpoint before it is taken", error.message)
    if steps:
        raise CheckpointError(f"no usable checkpoint in {given}; give another model")
    return given / LAST


def kind_of_folder(given: str) -> str:
    """Return what the model that ``given`` stands for is: embedding, mlm of a pretrained one, '' of pairs.

    It is '' as well where there is no folder of a model. Raises InputError for a damaged config.json.
    """
    folder = model_folder_of(Path(given))
    if (folder / EMBEDDING).is_file() or (folder / MODULES).is_file():
        return "embedding"
    path = find_config(folder)
    if path is None:
        return "mlm" if (folder / RECIPE_NOTE).is_file() else ""
    config = read_json_object(path, "correct it, or give the folder of a model")
    if LAYER_CLASS in config or "model_class" in config:
        return ""
    architecture = architecture_in(config).lower()
    is_pretrained = not architecture or architecture.endswith(("model", "forpretraining", "formaskedlm"))
    return "mlm" if is_pretrained else ""


def files_of_model(given: str) -> List[Path]:
    """Return what determines the answers of the model that ``given`` stands for; '': no model, no files."""
    folder = model_folder_of(Path(given))
    return [*content_of(str(folder)), *files_of_modules(folder)] if given else []


def find_weights(folder: Path) -> Optional[Path]:
    """Return the file of parameters in ``folder`` or, of the recipe's own kinds, the folder; None: none."""
    return next((folder / name for name in WEIGHT_FILES if (folder / name).exists()), None)


def _refuse_damage(folder: Path, *files: Optional[Path]) -> None:
    checkpoint = Checkpoint(folder) if (folder / MANIFEST).is_file() else None
    for file in files:
        if checkpoint is not None and file is not None:
            checkpoint.read(file.name)


def _open_recipes_checkpoint(folder: Path, family: str, from_scratch: Optional[bool]) -> ModelSource:
    """Open the recipe's model_last: parameters, and a config.yml that names the model they began from."""
    note = folder / RECIPE_NOTE
    try:
        named = yaml.safe_load(read_regular(note, MOST_NOTE_BYTES))["model_name"]
    except (yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError):
        named = None
    if not isinstance(named, str) or (Path(named).is_dir() and find_config(Path(named)) is None):
        raise InputError(f"{note}: no usable model_name; put {CONFIG} and {VOCAB} of the model into {folder}")
    weights = find_weights(folder)
    if weights is None and not from_scratch:
        raise InputError(f"{folder} holds no weights ({', '.join(WEIGHT_FILES[3:5])}); see model_last_bak")
    base = open_model(named, model_type=family, from_scratch=True)
    return replace(base, name=str(folder), weights=None if from_scratch else weights, folder=folder)


def _fetch(name: str, family: str, from_scratch: Optional[bool]) -> ModelSource:
    found = _family_of_built_in(name)
    if found is None or (family and found != family):
        wanted = family or next(iter(FAMILIES))
        known = list(_built_in_configs(wanted))
        way_out = f"pass --model_type {found}" if found else "give one of them"
        raise InputError(
            f"{name} is neither a folder nor a built-in {wanted} model ({', '.join(known[:4])}, ...)"
            f"{'' if found else download_hint(name)}; {way_out}"
        )
    tokenizer = tokenizer_class(found)
    vocabulary = tokenizer.pretrained_resource_files_map["vocab_file"].get(name)
    weights = _model_class(found).pretrained_resource_files_map["model_state"].get(name)
    if name in SENTENCE_PIECE or not vocabulary or not weights:
        raise InputError(f"{name} has no word pieces or no weights; give another model")
    config = {**_built_in_configs(found)[name], "model_type": found}
    if not parse_tokenizer(tokenizer.pretrained_init_configuration.get(name, {}), name).lower_case:
        config["do_lower_case"] = False
    vocab_file = _download(name, vocabulary)
    return ModelSource(
        name, parse_spec(config), vocab_file, None if from_scratch else _download(name, weights)
    )


def _family_of_built_in(name: str) -> Optional[str]:
    return next((family for family in FAMILIES if name in _built_in_configs(family)), None)


def _built_in_configs(family: str) -> Dict[str, Dict]:
    return _model_class(family).config_class.pretrained_init_configuration


def _model_class(family: str):
    from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers

    return getattr(transformers, f"{FAMILIES[family]}Model")


def tokenizer_class(family: str):
    """Return PaddleNLP's tokenizer of word pieces for a family; it does not export each of them."""
    module = import_module(f"{_model_class(family).__module__.rpartition('.')[0]}.tokenizer")
    return getattr(module, tokenizer_class_of(family))


def _download(name: str, address: str) -> Path:
    from paddlenlp.utils.download import resolve_file_path

    logger.info("fetching %s of %s", address.rsplit("/", 1)[-1], name)
    try:
        path = resolve_file_path(name, [address])
    except OSError:
        path = None
    if path is None:
        raise InputError(
            f"{name} cannot be fetched (no network?); give a folder with {CONFIG}, {VOCAB} and weights"
        )
    return Path(path)


def write_model_folder(folder: Path, source: ModelSource, weights: Arrays) -> None:
    """Write config.json, the files of the tokenizer and model_state.pdparams into ``folder``.

    ``weights``: {structured name: float32 array} of the model of pretraining, heads included.
    """
    family = source.spec.family or "ernie"
    config = source.spec.to_config(model_type=family, architectures=[class_of(source.spec, weights)])
    if family == "ernie_gram":  # PaddleNLP's default is 768, whatever hidden_size is
        config.setdefault("embedding_size", source.spec.hidden_size)
    write_json(folder / CONFIG, config)
    if source.spec.tokenizer.is_folders:
        copy_tokenizer(source.vocab_file, source.spec, folder)
    else:
        tokenizer = {"do_lower_case": True, "tokenizer_class": f"{FAMILIES[family]}Tokenizer"}
        write_json(folder / TOKENIZER, tokenizer)
        (folder / VOCAB).write_bytes(own_vocabulary(source.vocab_file, source.spec))
    arrays = dict(weights)
    if any(name.startswith(DECODER) for name in arrays):
        # PaddleNLP misses a tied parameter that stands under one of its names alone; a pickle holds one copy.
        words = f"{family}.embeddings.word_embeddings.weight"
        for names in ((f"{DECODER}_bias", f"{DECODER}.bias"), (words, f"{DECODER}.weight")):
            array = next(arrays[name] for name in names if name in arrays)
            arrays.update(dict.fromkeys(names, array))
    write_weights(folder, arrays)


def class_of(spec: ModelSpec, weights: Iterable[str]) -> str:
    """Return PaddleNLP's class with the heads that the names ``weights`` have, or a name that it lacks.

    It has none for ErnieGram with heads: its encoder finds itself in the same file. Where PaddleNLP's class
    would compute something else, no class of it is named.
    """
    family = spec.family or "ernie"
    is_own = spec.own_epsilon is not None or spec.config.get("hidden_act") == GELU_NEW
    heads = {head for head in (TOKEN_HEAD, ORDER_HEAD) for name in weights if name.startswith(head)}
    ending = "Model"
    if TOKEN_HEAD in heads and family != "ernie_gram":
        ending = "ForPretraining" if ORDER_HEAD in heads else "ForMaskedLM"
    return ("Own" if is_own else "") + FAMILIES[family] + ending
