"""The mean of the weights of several checkpoints or model folders, as a model folder.

After https://arxiv.org/abs/1803.05407: the mean of models of one run often does better than the last.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

import numpy as np

from data_tools.files.arrays import sha256_of_file
from data_tools.files.atomic_folder import MADE, publish_folder, refuse_loss
from data_tools.files.errors import CheckpointError, InputError
from data_tools.files.json_file import write_json
from data_tools.files.results import Results, settings_of
from data_tools.options.options import Options, option, refuse_empty
from data_tools.text.folder_tokenizer import FAST_TOKENIZER
from ernie_pair.checkpoint.run_config import CONFIG_YAML, with_config
from ernie_pair.models.config_json import CONFIG, EMBEDDING, VOCAB
from ernie_pair.models.hugging_face.folders import MODEL_STATE, write_own_folder
from ernie_pair.models.model_folder import write_model_folder, write_weights
from ernie_pair.models.source import ModelSource, open_model
from ernie_pair.models.spec import TOKENIZER
from ernie_pair.models.temperature import CALIBRATION, Calibration, read_calibration, write_calibration
from ernie_pair.models.tokenizer_files import copy_tokenizer, tokenizer_files
from ernie_pair.weights.parameter_names import is_numbered, without_ngram_head
from ernie_pair.weights.weight_files import Arrays, as_float32, refuse_mismatch

STATIC_WEIGHTS = "static_vars"
WRITTEN = (CONFIG, VOCAB, TOKENIZER, FAST_TOKENIZER, MODEL_STATE, CALIBRATION, EMBEDDING)


@dataclass(frozen=True)
class AverageConfig(Options):
    """Average the weights of checkpoints or model folders of the same shape into a new model folder."""

    EXAMPLE = "output/checkpoints/step_00005000 output/checkpoints/step_00010000 --output_dir averaged"

    checkpoints: List[str] = option(
        help="two or more checkpoints (OUT/checkpoints/step_...) or model folders",
        positional=True,
        group="model",
    )
    output_dir: str = option(help="folder to create", group="data")
    overwrite: bool = option(False, help="replace an existing averaged model", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if len(self.checkpoints) < 2:
            raise InputError(f"{self.checkpoints[0]} has nothing to be averaged with; name two or more")


def average_checkpoints(config: AverageConfig) -> None:
    """Write ``output_dir``, a folder of PaddleNLP that loads wherever the first of the models does.

    Raises InputError for models that differ in vocabulary, family, classes, pooling or the settings of an
    embedding model, CheckpointError for other names or shapes.
    """
    sources = [open_model(path, model_type="") for path in config.checkpoints]
    for source in sources[1:]:
        _refuse_other_model(source, sources[0])
    output_dir = Path(os.path.realpath(config.output_dir))
    refuse_loss(output_dir, (*WRITTEN, CONFIG_YAML))
    results = _results(config, output_dir, sources)
    if results.are_done():
        return
    weights = mean_of(sources)
    publish_folder(
        output_dir,
        with_config(lambda draft: _fill(draft, sources, weights), "average-checkpoints", config),
        results.about_folder,
        may_be_lost=lambda folder: config.overwrite,
    )
    print(f"wrote {config.output_dir}: {len(weights)} arrays, each the mean of {len(sources)}")


def mean_of(sources: Sequence[ModelSource]) -> Arrays:
    """Return the mean of the weights, float32, added up in float64; whole numbers must be equal.

    Raises CheckpointError naming what is missing, unknown or of another shape.
    """
    sums: Arrays = {}
    for source in sources:
        found = _weights_of(source)
        if sums:
            refuse_mismatch({name: array.shape for name, array in sums.items()}, found, str(source.weights))
        for name, array in found.items():
            is_whole = array.dtype.kind in "ib"
            if is_whole and not np.array_equal(sums.setdefault(name, array), array):
                raise CheckpointError(
                    f"{source.weights}: {name} has other values; average models of one kind"
                )
            if not is_whole:
                sums[name] = sums.get(name, 0.0) + array.astype(np.float64)
    return {
        name: array if array.dtype.kind in "ib" else (array / len(sources)).astype(np.float32)
        for name, array in sums.items()
    }


def _weights_of(source: ModelSource) -> Arrays:
    found = without_ngram_head(source.read_weights())
    numbered = next(filter(is_numbered, found), None)
    if numbered is not None:
        raise CheckpointError(
            f"{source.weights} names its weights as {numbered}, by their order; convert it first: ernie-pair "
            "convert"
        )
    tables = {name: array for name, array in found.items() if array.dtype.kind in "ib"}
    floats = {name: array for name, array in found.items() if name not in tables}
    return {**as_float32(floats, str(source.weights)), **tables}


def _refuse_other_model(source: ModelSource, first: ModelSource) -> None:
    """Raise InputError when the weights of two models mean different things."""
    if source.spec.family != first.spec.family:
        raise InputError(
            f"{source.name} is {source.spec.family or 'of no named family'}, and {first.name} "
            f"{first.spec.family or 'of none'}; average models of one family"
        )
    if sha256_of_file(source.vocab_file) != sha256_of_file(first.vocab_file):
        raise InputError(
            f"{source.vocab_file} is not {first.vocab_file}: their rows stand for different tokens; average "
            "models of one vocabulary"
        )
    found, wanted = _meaning_of(source), _meaning_of(first)
    for what in wanted:
        if found[what] != wanted[what]:
            raise InputError(
                f"{source.name} and {first.name} differ in {what}: {found[what]} and {wanted[what]}; average "
                "models of one kind"
            )


def _meaning_of(source: ModelSource) -> Dict[str, object]:
    """Return {what: value} of all besides shapes and vocabulary that the weights were trained for."""
    spec, settings = source.spec, source.vocab_file.parent / EMBEDDING
    return {
        "labels": spec.labels.to_config(),
        "pooling": spec.pooling,
        "lower case": spec.lower_case,
        EMBEDDING: settings.read_text(encoding="utf-8") if settings.is_file() else "none",
    }


def _results(config: AverageConfig, output_dir: Path, sources: Sequence[ModelSource]) -> Results:
    inputs: Dict[str, Sequence[Path]] = {
        "checkpoints": [path for source in sources for path in (source.vocab_file, *source.weight_files)],
    }
    settings: Dict[str, object] = settings_of(config, "checkpoints", "output_dir")
    settings["config.json"] = sources[0].spec.to_config()
    outputs = [output_dir / name for name in WRITTEN]
    return Results(
        "average-checkpoints",
        outputs,
        inputs,
        settings,
        config.overwrite,
        record=output_dir / MADE,
        positional=["checkpoints"],
    )


def _fill(draft: Path, sources: Sequence[ModelSource], weights: Arrays) -> None:
    first = sources[0]
    if first.weights is not None and first.weights.stem == STATIC_WEIGHTS:  # a checkpoint of pretraining
        write_model_folder(draft, first, weights)
        return
    spec, beside = first.spec, first.vocab_file.parent
    if first.is_hugging_face:  # whose weights have been read under the names of PaddleNLP
        tokenizer = tokenizer_files(first.vocab_file, spec, spec.trained_length)
        write_own_folder(draft, spec.to_config(), tokenizer, weights)
    else:
        write_json(draft / CONFIG, spec.to_config())
        copy_tokenizer(first.vocab_file, spec, draft)
        write_weights(draft, weights)
    if (beside / EMBEDDING).is_file():
        shutil.copyfile(beside / EMBEDDING, draft / EMBEDDING)
    if all(_is_symmetric(source) for source in sources):
        write_calibration(draft, Calibration(symmetric="average"))


def _is_symmetric(source: ModelSource) -> bool:
    """Return whether the model is asked in both orders; its temperature and threshold are its own."""
    folder = source.vocab_file.parent
    return read_calibration(folder, source.spec.num_labels).symmetric == "average"
