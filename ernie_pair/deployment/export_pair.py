"""Export a trained model to Paddle Inference and ONNX, and check that they predict the same."""

import logging
import os
import shutil
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from data_tools.text.folder_tokenizer import AnyTokenizer, find_tokenizer, is_their_config
from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.checkpoint.run_config import CONFIG_YAML, publish_results
from ernie_pair.core.cli.options import paths_in
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_folder import (
    MADE,
    README,
    check_replaceable,
    list_content,
    read_folder_record,
)
from ernie_pair.core.files.json_file import write_json
from ernie_pair.core.files.results import Results, files_of, settings_of
from ernie_pair.deployment.docker import DOCKERFILE, TRITON_FILES, check_wheel, write_dockerfile, write_triton
from ernie_pair.deployment.export_config import ExportConfig, ExportFlags
from ernie_pair.deployment.formats import (
    compute_answers,
    largest_difference,
    parity_batches,
    write_int8,
    write_onnx,
    write_paddle,
)
from ernie_pair.deployment.judge_precision import (
    INT8_BESIDE_FLOAT,
    ON_CPU,
    ON_GPU,
    JudgingPairs,
    check_accuracy,
    judge,
    judging_pairs,
)
from ernie_pair.deployment.onnx_gpu import ON_A_GPU, GpuGraph
from ernie_pair.inference.backends import open_backend
from ernie_pair.inference.exported_model import (
    EXPORT_FORMAT,
    EXPORT_MANIFEST,
    GPU,
    PADDLE_FILES,
    WRITTEN,
    ExportedModel,
)
from ernie_pair.inference.scores import chosen_calibration
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.models.model_card import (
    DataFile,
    Measured,
    ModelCard,
    baseline_in,
    data_in,
    is_above_baseline,
    learned_nothing_in,
    measured_in,
    metrics_in,
    write_card,
)
from ernie_pair.models.model_folder import with_model_folder
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.networks.custom_model import CustomModel
from ernie_pair.models.spec import CONFIG, TRAINED_PAIRS, find_config, read_config
from ernie_pair.models.temperature import Calibration, describe_decision, read_calibration
from ernie_pair.models.tokenizers import copy_tokenizer
from ernie_pair.pairs.config.pair_config import refuse_class_flags
from ernie_pair.runtime.cpu import check_bf16, cpu_threads
from ernie_pair.runtime.device import quiet_libraries, start_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World

COMMANDS = """\
ernie-pair predict --model_path . --input_file pairs.tsv --output_file predictions.tsv --scores true
ernie-pair serve --model_path . --port 8000"""
PYTHON = """\
from ernie_pair import load

answer = load(".").predict([("怎么注销信用卡", "如何注销信用卡")])
print(answer.labels, answer.probabilities)"""
PYTHON_OF_SCORES = PYTHON.replace("answer.labels, answer.probabilities", "answer.scores")
VERSIONED = (
    "ernie-pair", "paddlepaddle", "paddlepaddle-gpu", "paddlenlp", "paddle2onnx", "onnxruntime", "numpy",
)  # fmt: skip
OUTPUTS = (*WRITTEN, *TRITON_FILES, DOCKERFILE, README, TRAINED_PAIRS)

logger = logging.getLogger(__name__)


def card_of_exported(
    exported: ExportedModel, source: "Source", family: str, differences: Dict[str, float]
) -> ModelCard:
    """Return the card; ``differences``: {format: the largest difference from the trained model}."""
    model = source.name
    limits, threshold, tokens = exported.label_range, exported.threshold, str(exported.max_seq_len)
    scored = f"with --symmetric {exported.symmetric}"
    facts = {"exported from": model}
    if exported.has_classes:
        chosen = "the likeliest class" if threshold is None else f"class 1 from {threshold:.4f} on"
        facts.update({"classes": ", ".join(exported.labels), "tokens per pair": tokens})
        facts["temperature"] = f"{exported.temperature:.4g}"
        facts["decision"] = f"{chosen}, pairs scored {scored}"
        title, python, commands = f"{family} sentence-pair classifier, exported", PYTHON, COMMANDS
    else:
        facts["made for"] = exported.target
        facts["scores"] = "any number" if limits is None else "from {:g} to {:g}".format(*limits)
        facts.update({"tokens per pair": tokens, "pairs scored": scored})
        title = f"A model of the family {family} that scores sentence pairs, exported"
        python, commands = PYTHON_OF_SCORES, COMMANDS.replace(" --scores true", "")
    told = {"verdict": exported.verdict, "caution": exported.learned_nothing}
    facts.update({what: words for what, words in told.items() if words})
    facts["largest difference"] = ", ".join(f"{name} {value:.3g}" for name, value in differences.items())
    facts.update(ON_A_GPU if GPU in differences else {})
    on, metrics = source.measured
    card = ModelCard(title=title, facts=facts, commands=commands, python=python)
    return replace(card, data=source.data, metrics=metrics, measured_on=on)


@dataclass(frozen=True)
class Source:
    """A trained model, and how it decides.

    ``name``: what the model card calls it; ``facts``: what export.json says of it besides; ``report``: writes
    a report into the folder that it is given, None: there is none. ``learned_nothing``, ``data``,
    ``measured``, ``baseline``, ``verdict``: see `learned_nothing_in`, `data_in`, `measured_in`,
    `baseline_in`, `describe_worth`.
    """

    model: Any  # a PairClassifier or a CustomModel
    vocab_file: Path
    tokenizer: AnyTokenizer
    max_seq_len: int
    calibration: Calibration
    name: str
    facts: Dict[str, Any] = field(default_factory=dict)
    report: Optional[Callable[[Path], None]] = None
    learned_nothing: str = ""
    data: Sequence[DataFile] = ()
    measured: Tuple[str, Mapping[str, Measured]] = field(default_factory=lambda: ("", {}))
    baseline: Mapping[str, float] = field(default_factory=dict)
    verdict: str = ""


def export_pair(config: ExportConfig, model: Optional[CustomModel] = None) -> None:
    """Export a model of pairs or of vectors for use without training code.

    Of pairs the largest difference of each format from the trained model is logged.

    ``model``: the layer of the user's own that ``model_path`` is the folder of, a static one on the CPU
    afterwards; None: it is loaded from there. Raises InputError for what cannot be exported or would be lost,
    CheckpointError if a format answers differently from the model; then nothing is written.
    """
    config = with_model_folder(config)
    models = {"model_path": [Path(config.model_path)]}
    if publish_export(config, "export", models, lambda: _source_of(config, model)):
        logger.info("exported %s to %s", config.model_path, config.output_dir)


def publish_export(
    config: ExportFlags, command: str, models: Dict[str, List[Path]], open_source: Callable[[], Source]
) -> bool:
    """Write ``output_dir`` of the model that ``open_source`` opens; return False where it is there already.

    ``models``: {flag of ``command``: the folders that it names}. Raises as `export_pair`.
    """
    start_console(World())
    quiet_libraries()
    output_dir = Path(os.path.realpath(config.output_dir))
    own: Set[str] = set()
    if (output_dir / EXPORT_MANIFEST).is_file():  # what an earlier export may have written, with its folders
        recorded = (read_folder_record(output_dir) or {}).get("outputs")
        own = {*OUTPUTS, CONFIG_YAML, MADE, *(recorded if isinstance(recorded, dict) else ())}
        own |= {str(folder) for name in own for folder in PurePosixPath(name).parents}
    check_replaceable(output_dir, own)
    inputs: Dict[str, Sequence[Path]] = {}
    for flag, folders in models.items():
        inputs[flag] = [path for folder in folders for path in list_content(str(folder))]
    for name in (name for name in paths_in(config, "reads") if name not in models):
        files = files_of(getattr(config, name))
        inputs.update({name: files} if files else {})  # otherwise it is the name of a set, or nothing
    settings = settings_of(config, *inputs, "output_dir")
    outputs = [output_dir / name for name in OUTPUTS]
    results = Results(command, outputs, inputs, settings, config.overwrite, record=output_dir / MADE)
    if results.are_done():
        return False
    if config.precision == "bf16" and config.format != GPU:
        check_bf16()
    check_wheel(config.wheel)
    start_device("cpu", World())
    source, judging = open_source(), None
    if config.lower_precisions:
        judging = judging_pairs(config, source.model.spec.labels, source.tokenizer, source.max_seq_len)
    fill = partial(_fill, config=config, source=source, judging=judging)
    publish_results(output_dir, fill, command, config, results)
    if source.model.spec.labels.has_classes:
        how, is_saved = source.calibration, config.threshold is None
        logger.info("%s", describe_decision(how.threshold, is_saved, how.symmetric))
    return True


def _source_of(config: ExportConfig, given: Optional[CustomModel]) -> Source:
    where, folder = config.model_path, Path(config.model_path)
    if given is None:
        model, vocab_file = load_classifier(where, config.model_class)
    else:
        model, vocab_file = given.to(device="cpu"), find_tokenizer(folder)
    refuse_class_flags(config, model.spec.labels, where)
    saved = read_calibration(folder, model.num_classes)
    calibration = chosen_calibration(saved, config.threshold, config.symmetric, model.num_classes, where)
    max_seq_len = config.max_seq_len or model.spec.inference_length
    tokenizer = open_tokenizer(vocab_file, model.spec, max_seq_len)
    places = model, vocab_file, tokenizer, max_seq_len, calibration, folder.name
    measured = measured_as(calibration, saved)
    return Source(
        *places,
        learned_nothing="" if is_above_baseline(calibration.measured) else learned_nothing_in(folder),
        data=[*data_in(folder), *list_decision_files(calibration)],
        measured=measured or measured_in(folder),
        baseline=baseline_in(folder),
        verdict=str(calibration.measured.get("verdict", "")) if measured else "",
    )


def list_decision_files(calibration: Calibration) -> List[DataFile]:
    """Return the files by which a model decides, and the one on which that was measured."""
    c, measured = calibration, calibration.measured
    found = [
        DataFile("temperature", c.fitted_on, c.fitted_on_sha256, c.rows),
        DataFile("threshold", c.tuned_on, c.tuned_on_sha256, c.tuned_rows),
        DataFile("test", str(measured.get("on", "")), str(measured.get("sha256")), measured.get("rows")),
    ]
    return [one for one in found if one.name]


def measured_as(calibration: Calibration, saved: Calibration) -> Optional[Tuple[str, Dict[str, Measured]]]:
    """Return what was measured with the ``saved`` way of deciding, None if it is another, or unknown."""
    metrics = metrics_in(calibration.measured)
    if not metrics or calibration != saved:
        return None
    by = "the likeliest class" if saved.threshold is None else f"the threshold {saved.threshold:.4f}"
    return f"On {calibration.measured.get('on')}, by {by}, as this model predicts.", metrics


def _fill(draft: Path, config: ExportFlags, source: Source, judging: Optional[JudgingPairs]) -> None:
    batches = parity_batches(source.tokenizer, source.max_seq_len)
    expected = compute_answers(source.model, batches)
    for_gpu = _write_models(draft, config, source)
    files = {path.name: sha256_of_file(path) for path in sorted(draft.iterdir())}
    learned = source.vocab_file.with_name(TRAINED_PAIRS)
    if learned.is_file():
        (draft / TRAINED_PAIRS).write_bytes(learned.read_bytes())
    labels, how = source.model.spec.labels, source.calibration
    decides = how.threshold, how.symmetric, labels.target, labels.label_range, source.learned_nothing
    told = *decides, dict(source.baseline), source.verdict
    exported = ExportedModel(draft, labels.names, source.max_seq_len, how.temperature, files, *told)
    threads, differences = cpu_threads(), {}
    message = "largest difference of %-6s from the trained model %.3g, in %d batches"
    for name in config.backends:
        if for_gpu is not None and name == GPU:
            differences[name] = for_gpu.difference(batches, expected, threads)
        else:
            differences[name] = largest_difference(open_backend(exported, name, threads), batches, expected)
        logger.info(message, name, differences[name], len(batches))
    on, metrics = source.measured
    facts: Dict[str, Any] = {
        "data": [list(one) for one in source.data],
        "measured": {"on": on, "metrics": {name: list(one) for name, one in metrics.items()}},
        "parity": differences,
        "model": source.name,
        **source.facts,
        "vocab_sha256": source.tokenizer.sha256,
        "versions": installed_versions(VERSIONED),
    }
    _write_manifest(exported, facts)
    if judging is not None:  # it is asked as it will be, by the folder
        ways = [INT8_BESIDE_FLOAT] if config.quantize == "int8" else []
        lower = config.gpu_precision if for_gpu else config.precision
        ways += [way for way in (ON_GPU if for_gpu else ON_CPU) if way.name == lower]
        for way in ways:
            with for_gpu.twin(lower, threads) if for_gpu and way in ON_GPU else nullcontext() as twin:
                facts[way.name] = judge(draft, judging, threads, way, twin)
            check_accuracy(facts[way.name], config.max_accuracy_drop, way, not exported.has_classes)
        _write_manifest(exported, facts)
    if config.triton:
        write_triton(exported)
    if config.docker:
        write_dockerfile(exported, config.wheel)
    if source.report is not None:
        source.report(draft)
    write_card(draft, card_of_exported(exported, source, source.model.family, differences))


def _write_models(draft: Path, config: ExportFlags, source: Source) -> Optional[GpuGraph]:
    """Write the model in every format that is asked for, and the files by which texts become its ids.

    Return the graph of the file for cards, if there is one.
    """
    folder = source.vocab_file.parent
    copy_tokenizer(source.vocab_file, source.model.spec, draft)
    config_file = find_config(folder)
    assert config_file is not None  # the model was read by it
    if is_their_config(read_config(config_file)):
        write_json(draft / CONFIG, source.model.spec.to_config())
    else:
        shutil.copyfile(config_file, draft / CONFIG)
    write_paddle(source.model, draft)
    if "onnx" in config.backends:
        write_onnx(draft)
    if config.quantize == "int8":
        write_int8(draft)
    for name in PADDLE_FILES if "paddle" not in config.backends else ():
        (draft / name).unlink()
    if GPU not in config.backends:
        return None
    for_gpu = GpuGraph(source.model)
    for_gpu.write(draft, config.gpu_precision)
    return for_gpu


def _write_manifest(exported: ExportedModel, facts: Dict[str, object]) -> None:
    own = {name: value for name, value in asdict(exported).items() if name != "folder" and value != ""}
    write_json(exported.folder / EXPORT_MANIFEST, {"format": EXPORT_FORMAT, **own, **facts})
