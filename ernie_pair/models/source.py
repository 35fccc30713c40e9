"""Open a model as one ModelSource: a folder (config, tokenizer, weights), a run, or a name of PaddleNLP.

A path that is given and cannot be read is an error, never a fresh start.
"""

import logging
import os
import shlex
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional

import yaml

from data_tools.text import folder_tokenizer
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, Checkpoint
from ernie_pair.core.cli.flag_words import nearest_names
from ernie_pair.core.errors import CheckpointError, InputError, again_with
from ernie_pair.core.files.atomic_files import read_regular
from ernie_pair.core.files.hub import download_hint, local_model
from ernie_pair.core.files.json_file import write_json
from ernie_pair.models.families import FAMILIES, OF_MATCH, get_family, unsupported_type
from ernie_pair.models.hugging_face import (
    DECODER,
    config_from_hf,
    find_hf_weights,
    is_hf_file,
    read_hf_weights,
    weight_files,
    with_cross_encoder,
)
from ernie_pair.models.model_folder import RECIPE_NOTE, hint_below, no_model_folder, resolve_model_folder
from ernie_pair.models.spec import (
    CONFIG,
    MODULES,
    TOKENIZER,
    VOCAB,
    ModelSpec,
    architecture_in,
    check_supported,
    find_config,
    layer_class_in,
    parse_spec,
    parse_tokenizer,
    read_config,
    read_spec,
    tokenizer_class_name,
)
from ernie_pair.models.tokenizers import (
    check_cutting,
    check_vocabulary,
    copy_tokenizer,
    own_vocabulary,
    read_tokenizer,
)
from ernie_pair.weights.parameter_names import MATCH_HEAD, ORDER_HEAD, TOKEN_HEAD, TYPES, fit_rows
from ernie_pair.weights.weight_files import Arrays, read_weights, unwrapped, write_weights

if TYPE_CHECKING:
    from ernie_pair.models.embedding_json import EmbeddingSettings

WEIGHT_FILES = (
    "model_state.pdparams", "model.safetensors", "static_vars.safetensors",
    "static_vars.pdparams", "static_vars", "params",  # the recipe's, and ERNIE's own releases
)  # fmt: skip
EXPORTED_FILES = ("export.json", "model.onnx")  # every exported model has one of them
ADAPTER = "adapter_config.json"
CONVERSION = "conversion.json"  # of a folder that was converted from a pretraining with this package
MAX_NOTE_BYTES = 1 << 16
# The recipe's spelling of the name that PaddleNLP knows.
ALIASES = {"ERNIE 1.0": "ernie-1.0"}
SENTENCE_PIECE = ("ernie-tiny",)  # of a family that otherwise reads word pieces
NAME_FAMILY, WRITE_FAMILY = "pass --model_type, or write model_type there", "write model_type there"
GELU_NEW = "gelu_new"  # of transformers; PaddleNLP has it under no name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSource:
    """A model as its folder describes it, whatever wrote that. ``weights`` is None for a start from scratch.

    ``is_hugging_face``: transformers saved them; ``spec`` is in PaddleNLP's words all the same. ``folder``:
    the one that was given, or that a run stands for; None of a name of PaddleNLP. ``match_in_file``: whether
    the file of the weights has match embeddings, None: as ``spec`` says.
    """

    name: str
    spec: ModelSpec
    vocab_file: Path
    weights: Optional[Path]
    is_hugging_face: bool = False
    folder: Optional[Path] = None
    match_in_file: Optional[bool] = None

    @property
    def has_match_in_file(self) -> bool:
        """Return whether the file of the weights has match embeddings."""
        return self.spec.has_match if self.match_in_file is None else self.match_in_file

    @cached_property
    def embedding(self) -> "Optional[EmbeddingSettings]":
        """Return how the folder says that vectors are made; None: it does not. Raises InputError."""
        from ernie_pair.models.sentence_transformers import read_vector_settings  # of encoders alone

        return None if self.folder is None else read_vector_settings(self.folder, self.spec)

    def read_tokenizer(self) -> folder_tokenizer.AnyTokenizer:
        """Open the tokenizer, for which control tokens in a text are text. Raises InputError."""
        return read_tokenizer(self.vocab_file, self.spec).without_control_tokens()

    def read_dense(self) -> Arrays:
        """Read the weights of the dense steps of sentence-transformers, if any. Raises CheckpointError."""
        from ernie_pair.models.sentence_transformers import read_sentence_folder  # of encoders alone

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
        where, has_match = str(self.weights), self.spec.has_match
        if self.is_hugging_face:
            found = read_hf_weights(self.weights, self.spec.family)
        else:
            found = unwrapped(read_weights(self.weights), where)
        if self.has_match_in_file == has_match:
            return found
        tables = {name: array for name, array in found.items() if name.endswith(TYPES)}
        fitting = {n: fit_rows(array, self.spec.token_types, has_match, where) for n, array in tables.items()}
        found = {n: array for n, array in found.items() if has_match or not n.startswith(MATCH_HEAD)}
        return {**found, **fitting}


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
    a source that names no family gets it. For what a run's folders stand see `resolve_model_folder`.
    ``flag``: of a command that takes a trained model, which is a folder; ``no_family``: how to give a family,
    where one is needed. Raises InputError when something is missing, cannot be fetched or is no such model;
    weights may be missing only with ``from_scratch``, None without training. Raises CheckpointError for
    another family.
    """
    name_or_path = local_model(os.path.expanduser(name_or_path), flag)
    if flag and not os.path.isdir(name_or_path):
        raise no_model_folder(flag, name_or_path, "give the OUT of a training run, or OUT/best")
    family, folder = model_type.replace("-", "_"), Path(name_or_path)
    if folder.is_dir():
        source = _open_folder(folder, family, from_scratch)
    elif folder.exists() or ("/" in name_or_path and _find_built_in(name_or_path) is None):
        raise no_model_folder("", name_or_path, f"give one that holds {CONFIG}")
    else:
        source = _fetch(ALIASES.get(name_or_path, name_or_path), family, from_scratch)
    if source.spec.unknown_family:
        raise unsupported_type(source.spec.unknown_family, source.name, FAMILIES)
    named = source.spec.family or family
    if (
        family in FAMILIES and get_family(family).class_start == get_family(named).class_start
    ):  # PaddleNLP calls an XLM-RoBERTa a RoBERTa
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


def warn_of_classifier(folder: Path, config: Mapping[str, object]) -> None:
    """Log that the config.json of a model, asked for vectors, is that of a classifier of pairs, if it is."""
    architecture = architecture_in(config)
    if architecture.endswith("ForSequenceClassification"):
        logger.warning(
            "%s is a classifier or reranker of pairs (%s), which was not trained to make vectors: they are "
            "the means of its hidden states. Its scores of pairs are those of predict, rank, search and "
            "serve with --model_path %s", folder, architecture, folder,
        )  # fmt: skip


def check_lower_case(source: ModelSource) -> None:
    """Raise InputError for a model that keeps case: a corpus is lower-cased."""
    if not source.spec.lower_case:
        raise InputError(
            f"{source.name} keeps case (do_lower_case false), and pretraining needs lower-cased text; "
            "give another model"
        )


def _open_folder(
    folder: Path, family: str, from_scratch: Optional[bool], is_layer: bool = False
) -> ModelSource:
    folder = given = resolve_model_folder(folder)
    if (given / MODULES).is_file():
        from ernie_pair.models.sentence_transformers import find_encoder_folder  # for such a folder alone

        folder = find_encoder_folder(given)
    config, vocab_file = find_config(folder), folder_tokenizer.find_tokenizer(folder)
    if config is None and (folder / RECIPE_NOTE).is_file():
        return _open_recipes_checkpoint(folder, family, from_scratch)
    if config is not None and not is_layer:
        check_supported(config)
    if (folder / ADAPTER).is_file():
        raise InputError(
            f"{folder / ADAPTER} is of PEFT: the weights are those of a base model and of an adapter; write "
            "them as one: merge_and_unload().save_pretrained(FOLDER) of the PeftModel, and give FOLDER"
        )
    missing = [CONFIG] * (config is None) + [VOCAB] * (not vocab_file.is_file())
    if config is None or missing:
        cure = f"; a model folder holds {CONFIG}, and {VOCAB} or {folder_tokenizer.FAST_TOKENIZER}"
        cure += ", and ernie-pair new-model creates one" if from_scratch and config is None else ""
        cure += hint_below(folder)
        raise InputError(f"{folder} has no {' and no '.join(missing)}{cure}")
    weights = find_weights(folder) or find_hf_weights(folder)
    if weights is None and not from_scratch:
        if any((folder / name).is_file() for name in EXPORTED_FILES):
            raise InputError(
                f"{folder} holds an exported model, which has no weights to load; give the trained one that "
                "it was made from: the OUT of a training run, or OUT/best"
            )
        other = (
            "give another model" if from_scratch is None else "start from random weights: --from_scratch true"
        )
        raise InputError(f"{folder} holds no weights ({', '.join(WEIGHT_FILES)}); add them, or {other}")
    content = read_config(config)
    is_hf = folder_tokenizer.is_their_config(content)  # decides where there are no weights
    is_hf = is_hf if weights is None else is_hf_file(weights, is_hf)
    weights = None if from_scratch else weights
    is_own = folder_tokenizer.cuts_by_own_rule(folder, content, is_hf)
    vocab_file = folder / VOCAB if is_own else vocab_file
    if (folder / MANIFEST).is_file():
        for file in filter(None, (config, vocab_file, weights)):
            Checkpoint(folder).read(file.name)  # checks its hash

    def translate(found: Dict) -> Dict:
        return config_from_hf(with_cross_encoder(found, folder), str(config), family)

    spec = read_spec(config, vocab_file, translate if is_hf else None, uses_hf_tokenizer=not is_own)
    if vocab_file.name == folder_tokenizer.FAST_TOKENIZER and (folder / VOCAB).is_file():
        check_vocabulary(vocab_file, folder / VOCAB, spec)
    if is_own and is_hf:
        check_cutting(folder, spec.lower_case)
    return ModelSource(str(folder), spec, vocab_file, weights, is_hf, given)


def open_layer_folder(given: Path, class_name: str) -> ModelSource:
    """Open a folder that a layer of the user's own, of the class of this name, was saved in; or a checkpoint.

    Raises InputError when it is none, or of another class, CheckpointError when it is damaged.
    """
    config = find_config(resolve_model_folder(given))
    named = layer_class_in(read_config(config)) if config is not None else ""
    if named.rpartition(".")[2] != class_name:
        made = f"was made from the class {named}" if named else "is no folder of a layer of your own"
        raise InputError(
            f"weights={str(given)!r} {made}, and the model is a {class_name}; give the folder of save_model, "
            "or the output_dir of a run, of that class"
        )
    return _open_folder(given, "", None, is_layer=True)


def find_weights(folder: Path) -> Optional[Path]:
    """Return the file of parameters in ``folder`` or, of the recipe's own kinds, the folder; None: none."""
    return next((folder / name for name in WEIGHT_FILES if (folder / name).exists()), None)


def _open_recipes_checkpoint(folder: Path, family: str, from_scratch: Optional[bool]) -> ModelSource:
    """Open the recipe's model_last: parameters, and a config.yml that names the model they began from."""
    note = folder / RECIPE_NOTE
    try:
        named = yaml.safe_load(read_regular(note, MAX_NOTE_BYTES))["model_name"]
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
    found = _find_built_in(name)
    if found is None or (family and found != family):
        wanted = family or next(iter(FAMILIES))
        known = list(_built_in_configs(wanted))
        meant = nearest_names(name, [one for each in FAMILIES for one in _built_in_configs(each)])
        way_out = f"{download_hint(name)}; give one of them"
        if meant:
            way_out = f"; did you mean {' or '.join(meant)}? then: {again_with({name: meant[0]})}"
        raise InputError(
            f"{name} is neither a folder nor a built-in {wanted} model ({', '.join(known[:4])}, ...)"
            f"{f'; pass --model_type {found}' if found else way_out}"
        )
    tokenizer = tokenizer_class(found)
    vocabulary = tokenizer.pretrained_resource_files_map["vocab_file"].get(name)
    weights = _model_class(found).pretrained_resource_files_map["model_state"].get(name)
    if name in SENTENCE_PIECE or not vocabulary or not weights:
        raise InputError(f"{name} has no word pieces or no weights; give another model")
    config = {**_built_in_configs(found)[name], "model_type": found}
    if not parse_tokenizer(tokenizer.pretrained_init_configuration.get(name, {}), name).lower_case:
        config["do_lower_case"] = False
    vocab_file = _download(name, vocabulary, weights)
    weights_file = None if from_scratch else _download(name, weights, vocabulary)
    return ModelSource(name, parse_spec(config), vocab_file, weights_file)


def _find_built_in(name: str) -> Optional[str]:
    return next((family for family in FAMILIES if name in _built_in_configs(family)), None)


def _built_in_configs(family: str) -> Dict[str, Dict]:
    return _model_class(family).config_class.pretrained_init_configuration


def _model_class(family: str):
    from ernie_pair.runtime.paddle_patches.paddlenlp_import import transformers

    return getattr(transformers, f"{FAMILIES[family].class_start}Model")


def tokenizer_class(family: str):
    """Return PaddleNLP's tokenizer of word pieces for a family; it does not export each of them."""
    module = import_module(f"{_model_class(family).__module__.rpartition('.')[0]}.tokenizer")
    return getattr(module, tokenizer_class_name(family))


def _download(name: str, address: str, *others: str) -> Path:
    """Return the file of a built-in model in PaddleNLP's cache; ``others``: it has these besides."""
    from paddlenlp.utils.download import resolve_file_path
    from paddlenlp.utils.env import MODEL_HOME

    logger.info("fetching %s of %s", address.rsplit("/", 1)[-1], name)
    try:
        return Path(resolve_file_path(name, [address]))
    except (OSError, TypeError):  # it answers None where nothing answers it
        folder, words = Path(MODEL_HOME, name), ["curl", "-fL", "--create-dirs"]
        for each in sorted({address, *others}):
            file = "model_state.pdparams" if each.endswith("pdparams") else each.rsplit("/", 1)[-1]
            words += ["-o", str(folder / file), each]
        raise InputError(
            f"{name} cannot be fetched (no network?); where there is one, fetch its two files for "
            f"PaddleNLP's cache: {shlex.join(words)}; then again: {again_with()}"
        ) from None


def write_model_folder(folder: Path, source: ModelSource, weights: Arrays) -> None:
    """Write config.json, the files of the tokenizer and model_state.pdparams into ``folder``.

    ``weights``: {structured name: float32 array} of the model of pretraining, heads included.
    """
    name = source.spec.family or "ernie"
    family = get_family(name)
    config = source.spec.to_config(model_type=name, architectures=[choose_class(source.spec, weights)])
    if family.embeds_in_width:
        config.setdefault("embedding_size", source.spec.hidden_size)
    write_json(folder / CONFIG, config)
    if source.spec.tokenizer.uses_hf_tokenizer:
        copy_tokenizer(source.vocab_file, source.spec, folder)
    else:
        tokenizer = {"do_lower_case": True, "tokenizer_class": f"{family.class_start}Tokenizer"}
        write_json(folder / TOKENIZER, tokenizer)
        (folder / VOCAB).write_bytes(own_vocabulary(source.vocab_file, source.spec))
    arrays = dict(weights)
    if any(name.startswith(DECODER) for name in arrays):
        # PaddleNLP misses a tied parameter that stands under one of its names alone; a pickle holds one copy.
        words = f"{name}.embeddings.word_embeddings.weight"
        for names in ((f"{DECODER}_bias", f"{DECODER}.bias"), (words, f"{DECODER}.weight")):
            array = next(arrays[each] for each in names if each in arrays)
            arrays.update(dict.fromkeys(names, array))
    write_weights(folder, arrays)


def choose_class(spec: ModelSpec, weights: Iterable[str]) -> str:
    """Return PaddleNLP's class with the heads that the names ``weights`` have, or a name that it lacks.

    It has none for ErnieGram with heads: its encoder finds itself in the same file. Where PaddleNLP's class
    would compute something else, no class of it is named.
    """
    family = get_family(spec.family)
    is_own = spec.own_epsilon is not None or spec.config.get("hidden_act") == GELU_NEW
    heads = {head for head in (TOKEN_HEAD, ORDER_HEAD) for name in weights if name.startswith(head)}
    ending = "Model"
    if TOKEN_HEAD in heads and family.names_heads:
        ending = "ForPretraining" if ORDER_HEAD in heads else "ForMaskedLM"
    return ("Own" if is_own else "") + family.class_start + ending


def with_match(source: ModelSource, asked: bool | str) -> ModelSource:
    """Return ``source`` with match embeddings or without, as --match_embeddings ``asked``: true, false, auto.

    auto keeps what a trained classifier has, gives them to random weights and to what was pretrained here,
    and leaves a published model as it is, which PaddleNLP and transformers load. `read_weights` of what is
    returned fits. Raises InputError for a model that cannot have them.
    """
    spec = source.spec
    can_have = FAMILIES[spec.family].takes_types and spec.token_types > 0
    if asked is True and not can_have:
        raise InputError(
            f"--match_embeddings true: {source.name} has no token types, which they are rows of; leave it out"
        )
    is_trained = "Classif" in architecture_in(spec.config) or bool(spec.model_class)
    usual = spec.has_match or not is_trained and can_have and _is_own(source)
    wanted = usual if asked == "auto" else asked
    if wanted == spec.has_match:
        return source
    if not wanted:
        config = {key: value for key, value in spec.config.items() if key not in OF_MATCH}
        return replace(source, spec=spec.with_config(config), match_in_file=source.has_match_in_file)
    one = read_tokenizer(source.vocab_file, spec)
    ids = {one.pad_id, one.cls_id, one.sep_id, one.mask_id, one.unk_id} - {-1}
    spec = spec.replace(**dict(zip(OF_MATCH, (True, sorted(ids)))))
    return replace(source, spec=spec, match_in_file=source.has_match_in_file)


def _is_own(source: ModelSource) -> bool:
    """Return whether the weights are random, or of a pretraining with this package."""
    folder = source.folder
    is_converted = folder is not None and (folder / CONVERSION).is_file()
    return source.weights is None or source.weights.stem == "static_vars" or is_converted
