"""Convert static weights to a dynamic model folder, and check that both compute the same for the same ids."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, NamedTuple

import numpy as np

from data_tools.text.folder_tokenizer import FAST_TOKENIZER, find_tokenizer
from ernie_pair.checkpoint.checkpoint_folder import MANIFEST, Checkpoint
from ernie_pair.checkpoint.fingerprint import flags_of
from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.checkpoint.run_config import CONFIG_YAML, publish_results
from ernie_pair.core.cli.options import OverwriteFlag, data_option, model_folder_option, model_option
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_folder import MADE, README, check_replaceable
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.core.files.results import Results, files_of
from ernie_pair.core.installation import TRAINING
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.model_card import DataFile, ModelCard, write_card
from ernie_pair.models.model_folder import RECIPE_NOTE
from ernie_pair.models.source import CONVERSION, ModelSource, choose_class, open_model, write_model_folder
from ernie_pair.models.spec import CONFIG, VOCAB, ModelSpec, find_config, read_spec
from ernie_pair.runtime.device import quiet_libraries
from ernie_pair.runtime.gpu import check_paddle_version
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World
from ernie_pair.weights.parameter_names import (
    NGRAM_HEAD,
    ORDER_HEAD,
    RETRO_DECODER,
    TOKEN_HEAD,
    cut_vocabulary,
    match_parameters,
    structured_names,
    without_training_heads,
)
from ernie_pair.weights.weight_files import Arrays, as_float32, read_weights

FEEDS = ("input_ids", "token_type_ids")
PADDED_LENGTH = 64
# The outputs that a model may lack, and what the names of their weights begin with, within the model.
HEAD_OUTPUTS = {"pooled_output": "pooler.", "lm_logits": TOKEN_HEAD, "sop_logits": ORDER_HEAD}


def parity_batches(spec: ModelSpec) -> dict[str, Arrays]:
    """Draw the batches that verify a conversion, always the same for a spec.

    Returns {name: input_ids and token_type_ids, int64 [B, S]}: padded rows that reach every part of the
    vocabulary and every type, pairs of two segments, and a row as long as the position table.
    """
    rng = np.random.default_rng(0)
    length = min(PADDED_LENGTH, spec.max_positions)
    kept = {
        "padded": [length, length - 1, length // 2, 2],
        "two_segments": [length, 2 * length // 3, length // 3],
        "full_length": [spec.max_positions],
    }
    batches = {}
    for name, lengths in kept.items():
        places, ends = np.arange(max(lengths)), np.array(lengths)[:, None]
        shape = len(lengths), max(lengths)
        ids, types = (rng.integers(0, max(1, most), shape) for most in (spec.vocab_size, spec.token_types))
        if name != "padded":  # the first half of a row is the first segment
            types = np.where(places < ends // 2, 0, min(1, max(0, spec.token_types - 1)))
        batches[name] = {
            "input_ids": np.where(places < ends, ids, spec.pad_id).astype(np.int64),
            "token_type_ids": np.where(places < ends, types, 0).astype(np.int64),
        }
    return batches


def run_static(spec: ModelSpec, found: Arrays, where: str, batches: dict[str, Arrays]) -> tuple:
    """Run the static model with the weights ``found`` on ``batches``, on the CPU and in float32.

    ``batches``: see `parity_batches`. Returns the weights under structured names, and {batch: {output:
    float32 array}}: sequence_output [B, S, H], pooled_output [B, H], lm_logits [B, S, V], sop_logits [B, 2].
    Raises CheckpointError when ``found`` does not fit the model.
    """
    import paddle

    from ernie_pair.pretraining.graph.model import build_ernie, ernie_config

    paddle.enable_static()
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.program_guard(main, startup), paddle.static.scope_guard(scope):
        model = build_ernie(ernie_config(spec))
        model.eval()
        inputs = {name: paddle.static.data(name, [None, None], "int64") for name in FEEDS}
        outputs = _all_outputs(model, inputs)
        executor.run(startup)
        parameters = model.state_dict()
        named = without_training_heads(structured_names(found, parameters, where))  # PaddleNLP has none
        named = as_float32(cut_vocabulary(named, model.config.vocab_size), where)
        # A head is there entirely or not at all; that for the sentence order needs the pooler.
        missing = [output for output, head in HEAD_OUTPUTS.items() if not any(head in name for name in named)]
        missing = missing if "sop_logits" in missing else [o for o in missing if o != "pooled_output"]
        heads = [HEAD_OUTPUTS[output] for output in missing]
        may_miss = (*heads, *(f"{model.base_model_prefix}.{head}" for head in heads))
        match_parameters(parameters, named, where, may_miss=may_miss)
        for name, array in named.items():
            scope.find_var(parameters[name].name).get_tensor().set(array, executor.place)
        wanted = ["sequence_output", *(output for output in HEAD_OUTPUTS if output not in missing)]
        fetched = [outputs[name] for name in wanted]
        values = {
            name: dict(zip(wanted, executor.run(main, feed=batch, fetch_list=fetched)))
            for name, batch in batches.items()
        }
    paddle.disable_static()
    return named, values


def run_dynamic(folder: Path, spec: ModelSpec, batches: dict[str, Arrays]) -> dict[str, Arrays]:
    """Run the dynamic model that from_pretrained loads from ``folder``.

    Returns {batch: {output: float32 array}}. ``batches`` and the shapes of the outputs are those of
    `run_static`; all heads are among them.
    """
    import paddle

    from ernie_pair.pretraining.graph.model import CLASSES

    quiet_libraries()
    paddle.set_device("cpu")
    model = CLASSES[spec.family or "ernie"][1].from_pretrained(str(folder))
    model.eval()
    found = {}
    with paddle.no_grad():
        for batch, feed in batches.items():
            tensors = {name: paddle.to_tensor(array) for name, array in feed.items()}
            found[batch] = {name: output.numpy() for name, output in _all_outputs(model, tensors).items()}
    return found


def _all_outputs(model, inputs: dict) -> dict:
    from ernie_pair.pretraining.graph.model import encoder_of

    sequence, pooled = encoder_of(model)(**inputs)
    return dict(zip(("sequence_output", *HEAD_OUTPUTS), (sequence, pooled, *model.cls(sequence, pooled))))


def largest_differences(one: dict[str, Arrays], other: dict[str, Arrays]) -> dict[str, dict[str, float]]:
    """Return {output: {batch: the largest difference}} of what ``one`` has. Raises CheckpointError on NaN."""
    found: dict[str, dict[str, float]] = {}
    for batch, outputs in one.items():
        for name, array in outputs.items():
            difference = float(np.abs(array - other[batch][name]).max())
            if not np.isfinite(difference):
                raise CheckpointError(f"{name} holds NaN or infinity; convert a checkpoint without them")
            found.setdefault(name, {})[batch] = difference
    return found


CONVERSION_FORMAT = 1
MAX_DIFFERENCE = 1e-5  # in float32


COMMANDS = """\
ernie-pair train --model_name_or_path . --train_file train.tsv --dev_file dev.tsv --output_dir output \\
    --max_seq_len {length}"""
PYTHON = """\
from paddlenlp.transformers import {name}Model, {name}Tokenizer

model, tokenizer = {name}Model.from_pretrained("."), {name}Tokenizer.from_pretrained(".")
model.eval()
print(model(**tokenizer("怎么开户", return_tensors="pd"))[1].shape)"""


def card_of_converted(
    source: ModelSource, weights_file: Path, differences: dict[str, dict[str, float]]
) -> ModelCard:
    """Return the card of a dynamic model that was made from ``weights_file``.

    If the weights are in a checkpoint, the card has the flags and the corpus that its manifest records.
    ``differences``: {output: {batch: the largest difference from the static model}}.
    """
    checkpoint = weights_file.parent
    run = Checkpoint(checkpoint).manifest if (checkpoint / MANIFEST).is_file() else {}
    recorded = run.get("fingerprint", {})  # all flags, and hashes of the corpora
    corpora = [str(value) for key, value in recorded.items() if flags_of(key) == ["input_dir"]]
    family = source.spec.family or "ernie"
    largest = {name: max(of_batches.values()) for name, of_batches in differences.items()}
    sha256 = sha256_of_file(weights_file) if weights_file.is_file() else "see conversion.json"
    return ModelCard(
        title=f"A pretrained {FAMILIES[family].class_start} model",
        facts={
            "converted from": str(weights_file),
            "config and vocabulary of": source.name,
            **({"trained": f"{run['step']} steps of pretraining"} if run else {}),
            "largest difference from it": ", ".join(f"{name} {value:.3g}" for name, value in largest.items()),
        },
        data=[
            DataFile("static weights", weights_file.name, sha256, None),
            *(DataFile("corpus", "of the pretraining", corpus, None) for corpus in corpora),
        ],
        flags={key: value for key, value in recorded.items() if key.isidentifier()},
        commands=COMMANDS.format(length=source.spec.inference_length),
        python=PYTHON.format(name=FAMILIES[family].class_start),
    )


SUFFIXES = (".safetensors", ".pdparams")
WRITTEN = {
    CONFIG, VOCAB, FAST_TOKENIZER, "tokenizer_config.json", "model_state.pdparams", CONVERSION, README, MADE,
}  # fmt: skip

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConvertConfig(OverwriteFlag):
    """Convert static ERNIE weights to a folder that from_pretrained loads, and check that both agree.

    With --to hf or --from hf, convert a model folder to or from the format of transformers; see
    `ernie-pair convert --to hf --help`.
    """

    EXAMPLE = "--static_model_path output/model_last/static_vars --output_dir dynamic"
    NEEDS = TRAINING

    static_model_path: str = model_option(
        help="PREFIX of the weights, for example output/model_last/static_vars, or a folder with one file "
        "per variable",
        reads="PATH",
    )
    output_dir: str = data_option(help="folder to create", writes="FOLDER")
    model_name_or_path: str = model_folder_option(
        "", help="folder with config.json and vocab.txt; empty: next to the weights"
    )


class Conversion(NamedTuple):
    """A model folder, and {output: {batch: the largest difference from the static model}}."""

    folder: Path
    differences: Dict[str, Dict[str, float]]


def convert(config: ConvertConfig) -> Conversion:
    """Convert pretrained static weights to a model folder, and return the folder and the differences.

    These are {output: {batch: the largest difference from the static model}}; they are printed, too.

    Raises CheckpointError when a parameter is missing or left over on either side, or when an output
    differs by more than 1e-5; then nothing is written. A head that the file lacks is left out, and logged.
    """
    start_console(World())
    check_paddle_version()
    weights_file = find_static_weights(Path(config.static_model_path))
    source = _source_of(config, weights_file)
    output_dir = Path(os.path.realpath(config.output_dir))
    _check_convertible(source, output_dir)
    results = Results(
        "convert",
        [output_dir / name for name in sorted(WRITTEN - {MADE})],
        {"static_model_path": files_of(str(weights_file)), "model_name_or_path": [source.vocab_file]},
        {"config.json": source.spec.to_config()},
        config.overwrite,
        record=output_dir / MADE,
    )
    if results.are_done():
        return _conversion_of(output_dir)
    batches, found = parity_batches(source.spec), read_weights(weights_file)
    weights, outputs = run_static(source.spec, found, str(weights_file), batches)
    for part, what in ((NGRAM_HEAD, "the n-gram head"), (RETRO_DECODER, "RetroMAE's decoder")):
        if any(name.startswith(part) for name in found):
            logger.info("%s holds %s*: %s, only for pretraining, is left out", weights_file, part, what)
    for output in HEAD_OUTPUTS.keys() - outputs["padded"].keys():
        logger.info("%s holds no %s*: the head is left out", weights_file, HEAD_OUTPUTS[output])

    def fill(draft: Path) -> None:
        write_model_folder(draft, source, weights)
        differences = largest_differences(outputs, run_dynamic(draft, source.spec, batches))
        _check_differences(differences, config.output_dir)
        record = results.about_folder(draft)
        content = {
            "format": CONVERSION_FORMAT,
            "largest_difference": differences,
            "most_allowed": MAX_DIFFERENCE,
            "batches": {name: list(batch["input_ids"].shape) for name, batch in batches.items()},
            "config_sha256": source.spec.sha256,
            "inputs": record["inputs"],
            "outputs": record["outputs"],
            "versions": installed_versions(),
        }
        write_json(draft / CONVERSION, content)
        write_card(draft, card_of_converted(source, weights_file, differences))

    publish_results(output_dir, fill, "convert", config, results)
    logger.info("wrote %s: %d parameters of %s", config.output_dir, len(weights), weights_file)
    return _conversion_of(output_dir)


def _conversion_of(folder: Path) -> Conversion:
    record = read_json_object(folder / CONVERSION, "convert again with --overwrite true", CheckpointError)
    return Conversion(folder, record["largest_difference"])


def _check_convertible(source: ModelSource, output_dir: Path) -> None:
    """Raise InputError for a model that PaddleNLP has no class for, and for a folder not to be filled."""
    if choose_class(source.spec, ()).startswith("Own"):
        raise InputError(
            f"{source.name}: PaddleNLP's class computes with another epsilon or activation than this model; "
            "use the checkpoint as it is, or for transformers: ernie-pair convert --to hf"
        )
    if output_dir == source.vocab_file.parent.resolve():
        raise InputError(f"--output_dir {output_dir} is where the model came from; give another folder")
    check_replaceable(output_dir, {*WRITTEN, CONFIG_YAML})


def find_static_weights(location: Path) -> Path:
    """Return the weights that ``location`` names: a file, or a folder with one file per variable.

    ``location`` is PREFIX of PREFIX.safetensors of this package, or of the recipe's PREFIX.pdparams or folder
    PREFIX with one file per variable. The file itself may be given too. Raises InputError when there is none,
    CheckpointError when it is in a damaged checkpoint.
    """
    # . and .. end in no name of a folder
    place = location.resolve() if location.name in ("", "..") else location
    prefixes = (place, place / "static_vars") if place.is_dir() else (place,)
    files = [Path(f"{prefix}{suffix}") for prefix in prefixes for suffix in SUFFIXES]
    for path in (*files, *prefixes):
        names = [each.name for each in path.iterdir()] if path.is_dir() else []
        of_single_files = any(name.startswith(("embedding_", "word_embedding")) for name in names)
        if of_single_files or (path.is_file() and path.suffix in SUFFIXES):
            if (path.parent / MANIFEST).is_file():
                Checkpoint(path.parent).verify()
            return path
    raise InputError(
        f"--static_model_path {location}: neither {place.name}.safetensors nor {place.name}.pdparams is in "
        f"{place.parent}, and it is not a folder of parameters; give for example OUT/model_last/static_vars"
    )


def _source_of(config: ConvertConfig, weights_file: Path) -> ModelSource:
    if config.model_name_or_path:
        return open_model(config.model_name_or_path, model_type="", from_scratch=True)
    folder = weights_file.parent
    if find_config(folder) is None and (folder / RECIPE_NOTE).is_file():
        return open_model(str(folder), model_type="", from_scratch=True)
    settings, vocab_file = find_config(folder), find_tokenizer(folder)
    missing = [CONFIG] * (settings is None) + [VOCAB] * (not vocab_file.is_file())
    if settings is None or missing:
        raise InputError(f"{folder} has no {' and no '.join(missing)}; give --model_name_or_path")
    return ModelSource(str(folder), read_spec(settings, vocab_file), vocab_file, weights_file)


def _check_differences(differences: dict[str, dict[str, float]], output_dir: str) -> None:
    """Log the largest difference of each output. Raises CheckpointError for one above MAX_DIFFERENCE."""
    largest = {name: max(of_batches.values()) for name, of_batches in differences.items()}
    for name, difference in largest.items():
        logger.info("largest difference of %-15s %.3g", name, difference)
    worst = max(largest.values())
    if worst > MAX_DIFFERENCE:
        raise CheckpointError(
            f"the dynamic model differs from the static one by {worst:.3g}, more than {MAX_DIFFERENCE}: "
            f"{output_dir} is not written; check that config.json is the one it was trained with"
        )
