"""Model folders between PaddleNLP and Hugging Face's transformers, both ways, in numpy alone.

ernie-pair convert --to hf --model_path output/best --output_dir for_transformers
ernie-pair convert --from hf --model_path from_transformers --output_dir for_paddlenlp
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Collection

from data_tools.files.atomic_folder import MADE, publish_folder, refuse_loss
from data_tools.files.errors import CheckpointError, InputError
from data_tools.files.results import Results
from data_tools.options.options import Options, option, refuse_empty
from ernie_pair.checkpoint.run_config import CONFIG_YAML, with_config
from ernie_pair.models.config_json import EMBEDDING, find_config
from ernie_pair.models.embedding_json import read_embedding
from ernie_pair.models.hugging_face.folders import (
    OWN_FILES,
    WRITTEN,
    ModelParts,
    split_heads,
    write_own_folder,
    write_their_folder,
)
from ernie_pair.models.sentence_transformers import (
    DENSE,
    MODULES,
    files_of_modules,
    names_written,
    read_sentence_folder,
    settings_of_folder,
    write_sentence_files,
)
from ernie_pair.models.source import ModelSource, model_folder_of, open_model
from ernie_pair.models.temperature import CALIBRATION
from ernie_pair.models.tokenizer_files import their_tokenizer_files, tokenizer_files
from ernie_pair.weights.parameter_names import is_numbered, without_ngram_head
from ernie_pair.weights.weight_files import as_float32

PLACES = ("_Pooling", "_Dense", "_Normalize")  # ends the names of folders


@dataclass(frozen=True)
class InterchangeConfig(Options):
    """Convert a model folder from one library to the other; the base of both directions."""

    model_path: str = option(help="model folder, or the output folder of a pretraining run", group="model")
    output_dir: str = option(help="folder to create", group="data")
    overwrite: bool = option(False, help="replace an existing converted model", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")


@dataclass(frozen=True)
class ToHuggingFaceConfig(InterchangeConfig):
    """Convert a model of this package or of PaddleNLP into a folder that transformers loads."""

    EXAMPLE = "--model_path output/best --output_dir for_transformers"


@dataclass(frozen=True)
class FromHuggingFaceConfig(InterchangeConfig):
    """Convert a folder of transformers into one that PaddleNLP loads."""

    EXAMPLE = "--model_path from_transformers --output_dir for_paddlenlp"


def convert_to_hugging_face(config: ToHuggingFaceConfig) -> None:
    """Write ``output_dir`` for transformers, and print what was written.

    An embedding model becomes a folder of sentence-transformers.
    Raises InputError for a family or a setting that transformers lacks, CheckpointError for weights that
    are damaged or not a whole model.
    """
    source = _open_folder(config.model_path)
    if source.is_hugging_face:
        raise InputError(f"--model_path {config.model_path} is a folder of transformers already; copy it")
    settings = read_embedding(source.vocab_file.parent)

    if (source.vocab_file.parent / CALIBRATION).is_file():
        sys.stderr.write(
            f"{CALIBRATION} (temperature, threshold, both orders of a pair) has no place in a folder of "
            "transformers, which gives the plain answers of the model\n"
        )

    def fill(draft: Path) -> int:
        parts = _parts_of(source)
        dense = {name: parts.arrays[name] for name in parts.arrays if name.startswith(DENSE)}
        others = {name: array for name, array in parts.arrays.items() if name not in dense}
        write_their_folder(draft, parts._replace(arrays=others))
        if settings is not None:
            write_sentence_files(draft, settings, source.spec.hidden_size, as_float32(dense, parts.where))
        return len(parts.arrays)

    _publish(config, source, [*WRITTEN, *names_written(settings)], fill)


def convert_from_hugging_face(config: FromHuggingFaceConfig) -> None:
    """Write ``output_dir`` for PaddleNLP, and print what was written.

    Heads that PaddleNLP's classes have in another form are left out, with a message. What modules.json of
    sentence-transformers says goes into embedding.json. Raises InputError for a
    model that no family here computes the same, CheckpointError for weights that are damaged or incomplete.
    """
    source = _open_folder(config.model_path)
    if not source.is_hugging_face:
        raise InputError(
            f"--model_path {config.model_path} is a folder of PaddleNLP already; use it as it is"
        )

    if source.spec.own_epsilon is not None:
        source = _as_bert(source)
    folder = model_folder_of(Path(config.model_path))
    sentence, settings = read_sentence_folder(folder), settings_of_folder(folder, source.spec)

    def fill(draft: Path) -> int:
        spec, where = source.spec, str(source.weights)
        arrays, others = split_heads(source.read_weights(), spec.family, spec.num_layers, where)
        if others:
            sys.stderr.write(
                f"{len(others)} weights are left out, of heads that PaddleNLP lacks: {others[0]}\n"
            )
        tokenizer = tokenizer_files(source.vocab_file, spec, spec.trained_length)
        arrays = {**arrays, **(sentence.dense_arrays() if sentence else {})}
        write_own_folder(draft, spec.to_config(), tokenizer, arrays)
        if settings is not None:
            (draft / EMBEDDING).write_text(settings.to_json(), encoding="utf-8")
        return len(arrays)

    _publish(config, source, [*OWN_FILES, *([EMBEDDING] if settings else [])], fill)


def _open_folder(model_path: str) -> ModelSource:
    if not Path(model_path).is_dir():
        raise InputError(f"--model_path {model_path} is not a folder; give that of a model")
    return open_model(model_path, model_type="")


def _as_bert(source: ModelSource) -> ModelSource:
    """Return an ERNIE without task embedding as a BERT: PaddleNLP's class of that computes with any epsilon.

    Raises InputError for a model that is none.
    """
    spec = source.spec
    if spec.family != "ernie" or spec.config.get("use_task_id"):
        raise InputError(
            f"{source.name}/config.json: layer_norm_eps is {spec.own_epsilon:g}, and PaddleNLP's class of "
            f"{spec.family} computes with another, whatever config.json says; use the folder as it is here"
        )
    return open_model(source.name, model_type="bert")


def _parts_of(source: ModelSource) -> ModelParts:
    spec, where = source.spec, str(source.weights)
    arrays = without_ngram_head(source.read_weights())
    if any(map(is_numbered, arrays)):
        raise CheckpointError(
            f"{where} numbers its weights in the order of creation; convert them first: ernie-pair convert "
            f"--static_model_path {where} --output_dir DYNAMIC"
        )
    tokenizer = their_tokenizer_files(source.vocab_file, spec, spec.trained_length)
    return ModelParts(spec.family, spec.config, arrays, tokenizer, where)


def _publish(
    config: InterchangeConfig, source: ModelSource, names: Collection[str], fill: Callable[[Path], int]
) -> None:
    """Let ``fill`` write the files ``names`` into ``output_dir``; it returns the number of weights."""
    output_dir = Path(os.path.realpath(config.output_dir))
    _refuse_loss(output_dir, source, names)
    folder = model_folder_of(Path(config.model_path))
    beside = [find_config(source.vocab_file.parent), *files_of_modules(folder)]
    beside += [folder / name for name in (EMBEDDING, MODULES) if (folder / name).is_file()]
    results = Results(
        command="convert",
        outputs=[output_dir / name for name in sorted(names) if not name.endswith(PLACES)],
        inputs={"model_path": [*source.weight_files, source.vocab_file, *filter(None, beside)]},
        settings={"to": "hf" if isinstance(config, ToHuggingFaceConfig) else "paddle"},
        overwrite=config.overwrite,
        record=output_dir / MADE,
    )
    if results.are_done():
        return
    command = f"convert --{'to' if isinstance(config, ToHuggingFaceConfig) else 'from'} hf"
    counts = []
    publish_folder(
        output_dir,
        with_config(lambda draft: counts.append(fill(draft)), command, config),
        results.about_folder,
        may_be_lost=lambda folder: config.overwrite,
    )
    print(f"wrote {config.output_dir}: {counts[0]} weights of {source.weights}")


def _refuse_loss(output_dir: Path, source: ModelSource, names: Collection[str]) -> None:
    """Raise InputError when what would be replaced is an input, or not what this command writes."""
    if output_dir == Path(os.path.realpath(source.vocab_file.parent)):
        raise InputError(f"--output_dir {output_dir} is where the model came from; give another folder")
    refuse_loss(output_dir, {*names, CONFIG_YAML})
