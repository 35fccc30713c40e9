"""The commands that make a model folder without training, in numpy alone.

ernie-pair new-model            config.json for a size of your choice, beside a vocabulary
ernie-pair convert --to hf      for Hugging Face's transformers; --from hf: for PaddleNLP
ernie-pair checkpoint average  the mean of the weights of several, which often does better than the last of a
                                run, see https://arxiv.org/abs/1803.05407
"""

import json
import math
import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Callable, Collection, Dict, List, Literal, Optional, Sequence, Tuple, Union

import numpy as np

from data_tools.text.folder_tokenizer import FAST_TOKENIZER
from data_tools.text.wordpiece import WordPiece
from ernie_pair.checkpoint.run_config import CONFIG_YAML, publish_results, replace_config
from ernie_pair.core.cli.options import (
    OverwriteFlag,
    data_option,
    file_option,
    model_folder_option,
    model_option,
    new_model_option,
    parse_shares,
    paths_in,
)
from ernie_pair.core.errors import CheckpointError, InputError, counted
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_folder import MADE, check_replaceable
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.core.installation import TRAINING
from ernie_pair.core.progress import say
from ernie_pair.models.embedding_json import EmbeddingSettings, read_embedding
from ernie_pair.models.families import FAMILIES, OF_MATCH, encoder_name
from ernie_pair.models.hugging_face import OWN_FILES, WRITTEN, split_heads, write_hf_folder, write_own_folder
from ernie_pair.models.model_folder import kind_of_folder, resolve_model_folder
from ernie_pair.models.sentence_transformers import (
    DENSE,
    list_module_files,
    list_written,
    write_sentence_files,
)
from ernie_pair.models.source import ModelSource, open_model, with_match, write_model_folder
from ernie_pair.models.spec import (
    CONFIG,
    EMBEDDING,
    MIN_PAIR_LENGTH,
    MODULES,
    SIZES,
    TOKENIZER,
    TRAINED_PAIRS,
    VOCAB,
    check_config,
    find_config,
    tokenizer_json,
)
from ernie_pair.models.temperature import CALIBRATION, Calibration, read_calibration, write_calibration
from ernie_pair.models.tokenizers import copy_tokenizer, hf_tokenizer_files, tokenizer_files
from ernie_pair.runtime.processes.child_command import run_child, words_of
from ernie_pair.weights.parameter_names import HEADS, MATCH_HEAD, is_numbered, without_training_heads
from ernie_pair.weights.weight_files import MODEL_STATE, Arrays, as_float32, check_match, write_weights

BASE_RANGE, BASE_WIDTH = 0.02, 768
PLACES = ("_Pooling", "_Dense", "_Normalize")  # ends the names of folders
AUTO, DECISIVE = "auto", ("mrr", "accuracy", "spearman")  # of what was measured, the first that there is
OF_CLASSIFIERS = ("labels", "pooling")  # a start of neither has any
MODEL_FILES = (CONFIG, VOCAB, TOKENIZER, FAST_TOKENIZER, MODEL_STATE, CALIBRATION, EMBEDDING, TRAINED_PAIRS)


@dataclass(frozen=True)
class NewModelConfig(OverwriteFlag):
    """Write the folder of a new model of the given size, to be trained with --from_scratch true."""

    EXAMPLE = "--vocab_file vocab.txt --output_dir small --hidden_size 312 --num_hidden_layers 4"
    NEEDS = TRAINING

    vocab_file: str = file_option(help="the vocabulary, one token per line")
    output_dir: str = data_option(help="folder to create", writes="FOLDER")
    model_type: str = model_option(
        "ernie", help="model family; ernie, ernie_gram and bert can be pretrained", choices=FAMILIES
    )
    do_lower_case: bool = model_option(
        True, help="lower-case text and strip accents; false: for a cased vocabulary"
    )
    hidden_size: int = model_option(768, help="width of the hidden states", at_least=1)
    num_hidden_layers: int = model_option(12, help="encoder layers", unit="layers", at_least=1)
    num_attention_heads: int = model_option(
        0,
        help="attention heads per layer; must divide hidden_size; 0: 12, or of a width of about 64 each",
        unit="heads",
        at_least=0,
    )
    intermediate_size: int = model_option(3072, help="width inside the feed-forward blocks", at_least=1)
    max_position_embeddings: int = model_option(
        513, help="maximum sequence length", unit="tokens", at_least=MIN_PAIR_LENGTH
    )
    hidden_act: Literal["auto", "gelu", "relu"] = model_option(
        "auto", help="activation of the feed-forward blocks; auto: the default of the family"
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.num_attention_heads:
            numbers = (12, *range(max(1, round(self.hidden_size / 64)), 0, -1))
            heads = next(number for number in numbers if self.hidden_size % number == 0)
            # In place of the option: the record of a folder has the number, as it always had.
            object.__setattr__(self, "num_attention_heads", heads)


def new_model(config: NewModelConfig) -> None:
    """Create a model folder with a configuration of your own, to pretrain from scratch.

    It holds config.json, tokenizer_config.json and vocab.txt.

    Raises InputError when the vocabulary cannot be used, or for sizes that no model has.
    """
    folder = Path(config.output_dir)
    results = Results(
        command="new-model",
        outputs=[folder / VOCAB, folder / TOKENIZER, folder / CONFIG],
        inputs={"vocab_file": [Path(config.vocab_file)]},
        settings=settings_of(config, "vocab_file", "output_dir"),
        overwrite=config.overwrite,
    )
    if results.are_done():
        return
    tokenizer = WordPiece.from_file(config.vocab_file, config.do_lower_case)
    default_act = FAMILIES[config.model_type].hidden_act
    settings = {
        "model_type": config.model_type,
        "vocab_size": tokenizer.vocab_size,
        **{name: getattr(config, name) for name in SIZES if hasattr(config, name)},
        "hidden_act": default_act if config.hidden_act == "auto" else config.hidden_act,
        "type_vocab_size": 2,
        "pad_token_id": tokenizer.pad_id,
        **width_settings(config.model_type, config.hidden_size),
    }
    check_config(settings, "the new model")  # or no command could open it
    tokenizer_settings = tokenizer_json(config.model_type, config.do_lower_case, max_seq_len=0)
    with results.published() as (vocab, *drafts):
        vocab.write_bytes(Path(config.vocab_file).read_bytes())
        for draft, value in zip(drafts, (tokenizer_settings, settings)):
            draft.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    replace_config(folder, "new-model", config)
    layers = counted(config.num_hidden_layers, "layer")
    size = f"{layers} x {config.hidden_size}, {tokenizer.vocab_size} tokens"
    say(f"{folder}: {FAMILIES[config.model_type].class_start}, {size}")


def width_settings(family: str, width: int) -> Dict[str, object]:
    """Return the keys of config.json that follow from another hidden_size, beside itself.

    The sizes among them are those that PaddleNLP would otherwise take from the family's published models.
    """
    # 0.02 is for a width of 768; a narrow model that starts with it learns nothing for a long time.
    settings: Dict[str, object] = {"initializer_range": round(BASE_RANGE * math.sqrt(BASE_WIDTH / width), 4)}
    return {**settings, **dict.fromkeys(FAMILIES[family].keys_of_width, width), **FAMILIES[family].fixed}


@dataclass(frozen=True)
class InterchangeConfig(OverwriteFlag):
    """Convert a model folder from one library to the other; the base of both directions."""

    NEEDS = TRAINING

    model_path: str = model_folder_option(help="model folder, or the output folder of a pretraining run")
    output_dir: str = data_option(help="folder to create", writes="FOLDER")


@dataclass(frozen=True)
class ToHuggingFaceConfig(InterchangeConfig):
    """Convert a model of this package or of PaddleNLP into a folder that transformers loads."""

    EXAMPLE = "--model_path output/best --output_dir for_transformers"

    drop_match_embeddings: bool = model_option(
        False, help="leave out what no class of transformers has, although the answers are others without it"
    )
    model_type: Optional[str] = new_model_option(
        None,
        help="bert: write an ERNIE without task embedding as the BERT that it is, for servers without ERNIE; "
        "none: as its own family",
        choices=("bert",),
    )


@dataclass(frozen=True)
class FromHuggingFaceConfig(InterchangeConfig):
    """Convert a folder of transformers into one that PaddleNLP loads."""

    EXAMPLE = "--model_path from_transformers --output_dir for_paddlenlp"


def convert_to_hugging_face(config: ToHuggingFaceConfig) -> None:
    """Write ``output_dir`` for transformers, and print what was written.

    An embedding model becomes a folder of sentence-transformers. Raises InputError for a family or a setting
    that transformers lacks, CheckpointError for weights that are damaged or not a whole model.
    """
    source = open_model(config.model_path, flag="model_path")
    if source.is_hugging_face:
        raise InputError(f"--model_path {config.model_path} is a folder of transformers already; copy it")
    if source.spec.has_match and not config.drop_match_embeddings:
        raise InputError(
            f"{source.name} has match embeddings, and no class of transformers has them; pass "
            "--drop_match_embeddings true to leave them out, which changes its answers"
        )
    if config.drop_match_embeddings and not source.spec.has_match:
        raise InputError(f"--drop_match_embeddings true: {source.name} has none; leave it out")
    if source.spec.has_match:
        sys.stderr.write(
            f"left out: {MATCH_HEAD}*, and the rows of matched tokens in the table of token types; the model "
            "answers otherwise without them: evaluate it again, or train it on\n"
        )
    source = with_match(source, False)
    settings = read_embedding(source.vocab_file.parent)

    if (source.vocab_file.parent / CALIBRATION).is_file():
        sys.stderr.write(
            f"{CALIBRATION} (temperature, threshold, both orders of a pair) has no place in a folder of "
            "transformers, which gives the plain answers of the model\n"
        )

    def fill(draft: Path) -> int:
        spec, where, arrays = source.spec, str(source.weights), without_training_heads(source.read_weights())
        _check_named(arrays, where)
        tokenizer = hf_tokenizer_files(source.vocab_file, spec, spec.trained_length)
        dense = {name: arrays[name] for name in arrays if name.startswith(DENSE)}
        others = {name: array for name, array in arrays.items() if name not in dense}
        family, settings_of_model = spec.family, spec.config
        if config.model_type:
            family, settings_of_model, others = _as_bert(source, others)
        write_hf_folder(draft, family, settings_of_model, tokenizer, others, where)
        if settings is not None:
            write_sentence_files(draft, settings, spec.hidden_size, as_float32(dense, where))
        return len(arrays)

    _publish(config, source, [*WRITTEN, *list_written(settings)], fill)


def _as_bert(source: ModelSource, arrays: Arrays) -> Tuple[str, Dict[str, object], Arrays]:
    """Return family, configuration and weights of an ERNIE as those of a BERT. InputError: it is none."""
    spec, own, tasks = source.spec, f"{encoder_name('ernie')}.", "embeddings.task_type_embeddings."
    if spec.family == "bert" or spec.family == "ernie_gram":  # transformers has them as BERT in any case
        return spec.family, dict(spec.config), arrays
    if spec.family != "ernie" or spec.config.get("use_task_id"):
        what = "adds a task embedding" if spec.family == "ernie" else f"is a model of {spec.family}"
        raise InputError(f"--model_type bert: {source.name} {what}, which no BERT does; leave the flag out")
    of_bert = f"{encoder_name('bert')}."
    renamed = {
        name.replace(own, of_bert, 1) if name.startswith(own) else name: a for name, a in arrays.items()
    }
    return (
        "bert",
        {**spec.to_config(), "model_type": "bert"},
        {name: array for name, array in renamed.items() if tasks not in name},
    )


def convert_from_hugging_face(config: FromHuggingFaceConfig) -> None:
    """Write ``output_dir`` for PaddleNLP, and print what was written.

    Heads that PaddleNLP's classes have in another form are left out, with a message. What modules.json of
    sentence-transformers says goes into embedding.json. Raises InputError for a
    model that no family here computes the same, CheckpointError for weights that are damaged or incomplete.
    """
    source = open_model(config.model_path, flag="model_path")
    if not source.is_hugging_face:
        raise InputError(
            f"--model_path {config.model_path} is a folder of PaddleNLP already; use it as it is"
        )

    if source.spec.own_epsilon is not None:
        # An ERNIE without task embedding is a BERT, and PaddleNLP's class of that computes with any epsilon.
        if source.spec.family != "ernie" or source.spec.config.get("use_task_id"):
            raise InputError(
                f"{source.name}/config.json: layer_norm_eps is {source.spec.own_epsilon:g}, and PaddleNLP's "
                f"class of {source.spec.family} computes with another, whatever config.json says; use the "
                "folder as it is here"
            )
        source = replace(open_model(source.name, model_type="bert"), folder=source.folder)
    settings = source.embedding

    def fill(draft: Path) -> int:
        spec, where = source.spec, str(source.weights)
        arrays, others = split_heads(source.read_weights(), spec.family, spec.num_layers, where)
        if others:
            sys.stderr.write(
                f"{len(others)} weights are left out, of heads that PaddleNLP lacks: {others[0]}\n"
            )
        tokenizer = tokenizer_files(source.vocab_file, spec, spec.trained_length)
        arrays = {**arrays, **source.read_dense()}
        write_own_folder(draft, spec.to_config(), tokenizer, arrays)
        if settings is not None:
            (draft / EMBEDDING).write_text(settings.to_json(), encoding="utf-8")
        return len(arrays)

    _publish(config, source, [*OWN_FILES, *([EMBEDDING] if settings else [])], fill)


def _publish(
    config: InterchangeConfig, source: ModelSource, names: Collection[str], fill: Callable[[Path], int]
) -> None:
    """Let ``fill`` write the files ``names`` into ``output_dir``; it returns the number of weights."""
    output_dir = Path(os.path.realpath(config.output_dir))
    check_replaceable(output_dir, {*names, CONFIG_YAML})
    folder = resolve_model_folder(Path(config.model_path))
    beside = [find_config(source.vocab_file.parent), *list_module_files(folder)]
    beside += [folder / name for name in (EMBEDDING, MODULES) if (folder / name).is_file()]
    is_to = isinstance(config, ToHuggingFaceConfig)
    results = Results(
        command="convert",
        outputs=[output_dir / name for name in sorted(names) if not name.endswith(PLACES)],
        inputs={"model_path": [*source.weight_files, source.vocab_file, *filter(None, beside)]},
        settings={"to": "hf" if is_to else "paddle"},
        overwrite=config.overwrite,
        record=output_dir / MADE,
    )
    if results.are_done():
        return
    counts: List[int] = []
    command = f"convert --{'to' if is_to else 'from'} hf"
    publish_results(output_dir, lambda draft: counts.append(fill(draft)), command, config, results)
    print(f"wrote {config.output_dir}: {counts[0]} weights of {source.weights}")


@dataclass(frozen=True)
class AverageConfig(OverwriteFlag):
    """Average the weights of checkpoints or model folders of the same shape into a new model folder."""

    EXAMPLE = "output/checkpoints/step_00005000 output/checkpoints/step_00010000 --output_dir averaged"
    NEEDS = TRAINING

    checkpoints: List[str] = model_option(
        help="two or more checkpoints (OUT/checkpoints/step_...) or model folders",
        positional=True,
        reads="PATH",
    )
    output_dir: str = data_option(help="folder to create", writes="FOLDER")
    weights: Union[Literal["auto"], str] = data_option(
        "",
        help="shares of the models, for example 0.7,0.3 of a trained model and its start, against what "
        "training forgets; auto: of these two, what is best on --dev_file; empty: equal",
    )
    dev_file: str = file_option("", help="labelled pairs that choose the shares", only_with="weights=auto")
    general_file: str = file_option(
        "", help="labelled pairs of another domain, measured beside them", only_with="weights=auto"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.weights == AUTO and not (self.dev_file and len(self.checkpoints) == 2):
            raise InputError(
                "--weights auto mixes a trained model with its start: give these two models, in this order, "
                "and --dev_file, labelled pairs by which it chooses"
            )

    @property
    def measured(self) -> Dict[str, str]:
        """Return the files of pairs that are given, by their flags; the first one chooses."""
        return {name: path for name in paths_in(self, "reads")[1:] if (path := getattr(self, name))}

    @property
    def shares(self) -> List[float]:
        """Return the share of each model; they add up to 1. Raises InputError."""
        count = len(self.checkpoints)
        shares = parse_shares("weights", self.weights, count, "model") or [1.0] * count
        return [share / sum(shares) for share in shares]


def average_checkpoints(config: AverageConfig) -> None:
    """Write ``output_dir``, a folder of PaddleNLP that loads wherever the first of the models does.

    Beside an encoder trained for vectors may stand the plain one that it was trained from.

    Raises InputError for models that differ in vocabulary, family, classes, pooling or the settings of an
    embedding model, CheckpointError for other names or shapes.
    """
    shares = [] if config.weights == AUTO else config.shares
    sources = [open_model(path, model_type="") for path in config.checkpoints]
    embedding = _embedding_of(sources)
    first, *others = sources
    wanted = _describe_kind(first)
    for source in others:
        for what, found in _describe_kind(source).items():
            if found != wanted[what] and not (what in OF_CLASSIFIERS and _is_start(source)):
                raise InputError(
                    f"{source.name} and {first.name} differ in {what}: {found} and {wanted[what]}; average "
                    "models of one kind"
                )
    output_dir = Path(os.path.realpath(config.output_dir))
    check_replaceable(output_dir, (*MODEL_FILES, CONFIG_YAML))
    results = Results(
        "checkpoint average",
        [output_dir / name for name in MODEL_FILES],
        {
            "checkpoints": [path for each in sources for path in (each.vocab_file, *each.weight_files)],
            **{name: files_of(given) for name, given in config.measured.items()},
        },
        {**settings_of(config, *paths_in(config)), "config.json": sources[0].spec.to_config()},
        config.overwrite,
        record=output_dir / MADE,
        positional=["checkpoints"],
    )
    if results.are_done():
        return
    shares = shares or _choose_shares(config, sources, embedding)
    weights = average_weights(sources, shares, is_encoder=embedding is not None)
    fill = partial(_fill, sources=sources, weights=weights, embedding=embedding)
    publish_results(output_dir, fill, "checkpoint average", config, results)
    by = f" by {','.join(f'{share:g}' for share in shares)}" if config.weights else ""
    print(f"wrote {config.output_dir}: {len(weights)} arrays, each the mean of {len(sources)}{by}")


def _is_start(source: ModelSource) -> bool:
    """Return whether a model has no classifier, so that it cannot differ in classes."""
    return source.folder is None or kind_of_folder(str(source.folder)) == "mlm"


def _choose_shares(
    config: AverageConfig, sources: Sequence[ModelSource], embedding: Optional[EmbeddingSettings]
) -> List[float]:
    """Return the shares of a trained model and its start that are best on dev; print what each reaches.

    Of equal ones that with the most of the start. Raises the error that `evaluate` ends with.
    """
    log, found = Path(f"{os.path.realpath(config.output_dir)}.log"), []
    command = ("evaluate", "embedding") if embedding else ("evaluate",)
    flags = {} if embedding else {"bootstrap": 0, "swap": "false"}
    for tenths in range(11):
        shares = [1 - tenths / 10, tenths / 10]
        with TemporaryDirectory() as place:
            weights = average_weights(sources, shares, is_encoder=embedding is not None)
            _fill(Path(place), sources, weights, embedding)
            row = []
            for name, file in config.measured.items():
                output = Path(place, f"{name}.json")
                words = words_of(*command, model_path=place, input_file=file, output_file=output, **flags)
                run_child(words, f"evaluate with {shares[1]:g} of the start", log)
                metrics = read_json_object(output, "run the same command again")
                metrics = {**metrics, **metrics.get("metrics", {})}
                metric = next(name for name in DECISIVE if name in metrics)
                row.append(metrics[metric])
        line = ", ".join(f"{metric} {value:.4f} on {name}" for name, value in zip(config.measured, row))
        say(f"{shares[1]:g} of the start: {line}")
        found.append((row[0], tenths, shares))
    return max(found)[2]


def _embedding_of(sources: Sequence[ModelSource]) -> Optional[EmbeddingSettings]:
    """Return the settings of the first embedding model. Raises InputError where those of others differ."""
    found = [(source, source.embedding) for source in sources]
    known = [(source, settings) for source, settings in found if settings is not None]
    for source, settings in known:
        if any(step.kind == "dense" for step in settings.steps):
            raise InputError(
                f"{source.name} has a dense layer behind its pooling, which is not averaged; average others"
            )
        for what in ("pooling", "dim", "steps", "prompts", "similarity", "lower_case"):
            one, other = getattr(known[0][1], what), getattr(settings, what)
            if one != other:
                raise InputError(
                    f"{source.name} and {known[0][0].name} differ in {what}: {other} and {one}; average "
                    "models of one kind"
                )
    return known[0][1] if known else None


def average_weights(
    sources: Sequence[ModelSource], shares: Sequence[float], is_encoder: bool = False
) -> Arrays:
    """Return the mean of the weights by ``shares``, float32, added up in float64; whole numbers are equal.

    ``is_encoder``: poolers are left out: not every model has one, and no vector depends on it.
    Raises CheckpointError naming what is missing, unknown or of another shape.
    """
    sums: Arrays = {}
    tables: Arrays = {}
    first: Arrays = {}
    for source, share in zip(sources, shares):
        where, found = str(source.weights), without_training_heads(source.read_weights())
        if is_encoder:
            found = {name: array for name, array in found.items() if ".pooler." not in f".{name}"}
        _check_named(found, where)
        found = _with_head(found, first) if first else found
        first = first or found
        whole = {name: array for name, array in found.items() if array.dtype.kind in "ib"}
        found = as_float32({name: array for name, array in found.items() if name not in whole}, where)
        if sums:
            check_match({n: a.shape for n, a in {**sums, **tables}.items()}, {**found, **whole}, where)
        other = [n for n, a in whole.items() if n in sums or not np.array_equal(tables.setdefault(n, a), a)]
        other += found.keys() & tables.keys()
        if other:
            raise CheckpointError(f"{where}: {other[0]} has other values; average models of one kind")
        for name, array in found.items():
            sums[name] = sums.get(name, 0.0) + share * array.astype(np.float64)
    return {**{name: array.astype(np.float32) for name, array in sums.items()}, **tables}


def _with_head(found: Arrays, first: Arrays) -> Arrays:
    """Return the weights of a start with the head of the ``first`` model, which is taken whole, for its own.

    Those of a model with the same head stay as they are.
    """
    heads = {name: array for name, array in first.items() if name.startswith(HEADS)}
    if not heads.keys().isdisjoint(found):
        return found
    return {**{name: array for name, array in found.items() if not name.startswith(HEADS)}, **heads}


def _check_named(arrays: Arrays, where: str) -> None:
    numbered = next(filter(is_numbered, arrays), None)
    if numbered is not None:
        raise CheckpointError(
            f"{where} names its weights as {numbered}, by their order; convert it first: ernie-pair convert "
            f"--static_model_path {where} --output_dir DYNAMIC"
        )


def _describe_kind(source: ModelSource) -> Dict[str, object]:
    """Return {what: value} of all besides shapes that the weights were trained for."""
    spec = source.spec
    return {
        "family": spec.family or "none",
        "vocabulary": sha256_of_file(source.vocab_file),
        "labels": spec.labels.to_config(),
        "pooling": spec.pooling,
        OF_MATCH[0]: spec.has_match,
        "lower case": spec.lower_case,
    }


def _fill(
    draft: Path, sources: Sequence[ModelSource], weights: Arrays, embedding: Optional[EmbeddingSettings]
) -> None:
    first = sources[0]
    if first.weights is not None and first.weights.stem == "static_vars":  # a checkpoint of pretraining
        write_model_folder(draft, first, weights)
        return
    spec = first.spec
    if first.is_hugging_face:  # whose weights have been read under the names of PaddleNLP
        tokenizer = tokenizer_files(first.vocab_file, spec, spec.trained_length)
        write_own_folder(draft, spec.to_config(), tokenizer, weights)
    else:
        write_json(draft / CONFIG, spec.to_config())
        copy_tokenizer(first.vocab_file, spec, draft)
        write_weights(draft, weights)
    if embedding is not None:
        (draft / EMBEDDING).write_text(embedding.to_json(), encoding="utf-8")
    learned = [path for each in sources if (path := each.vocab_file.with_name(TRAINED_PAIRS)).is_file()]
    if learned:
        np.save(draft / TRAINED_PAIRS, np.unique(np.concatenate([*map(np.load, learned)])))
    asked = [read_calibration(each.vocab_file.parent, each.spec.num_labels).symmetric for each in sources]
    if set(asked) == {"average"}:  # in both orders; a temperature and a threshold are a model's own
        write_calibration(draft, Calibration(symmetric="average"))
