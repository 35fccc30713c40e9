"""A trained model as an exported one: Paddle Inference, ONNX, and the proof that they answer alike."""

import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Dict, Literal, Optional, Sequence, Tuple

from data_tools.base.errors import InputError
from data_tools.base.optional_import import import_optional
from data_tools.base.options import Options, option, refuse_empty
from data_tools.files.atomic_folder import MADE, publish_folder
from data_tools.files.npy_stream import sha256_of_file
from data_tools.files.results import Results, files_of, settings_of
from ernie_pair.checkpoint.manifest import installed_versions
from ernie_pair.device.cpu_env import cpu_threads
from ernie_pair.device.device import quiet_libraries, start_device
from ernie_pair.engine.run_log import start_console
from ernie_pair.inference.backends import open_backend
from ernie_pair.inference.exported_model import (
    EXPORT_FORMAT,
    EXPORT_MANIFEST,
    PADDLE_FILES,
    WRITTEN,
    ExportedModel,
)
from ernie_pair.inference.softmax import refuse_threshold
from ernie_pair.inference.token_rows import open_tokenizer
from ernie_pair.model_files.config_json import CONFIG, VOCAB, find_config, read_config
from ernie_pair.model_files.hugging_face.settings import is_their_config
from ernie_pair.model_files.temperature import Calibration, describe_decision, read_calibration
from ernie_pair.model_files.tokenizer_json import TOKENIZER
from ernie_pair.pair.config.ask_config import refuse_short_pairs
from ernie_pair.pair.export.export_parity import answers_of, largest_difference, parity_batches
from ernie_pair.pair.export.formats import write_onnx, write_paddle
from ernie_pair.pair.model.classifier import PairClassifier, load_classifier
from ernie_pair.processes.world import World

VERSIONED = (
    *("ernie-pair", "paddlepaddle", "paddlepaddle-gpu", "paddlenlp"),
    *("paddle2onnx", "onnxruntime", "numpy"),
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExportConfig(Options):
    """Make a folder that runs without the training code, and prove that it answers as the model does."""

    EXAMPLE = "--model_path output/best-accuracy-0.8962 --output_dir exported --format onnx"

    model_path: str = option(
        help="the folder of a trained model, OUT/best-accuracy-0.8962 for example", group="model"
    )
    output_dir: str = option(help="the folder to make", group="data")
    format: Literal["paddle", "onnx", "both"] = option(
        "paddle", help="Paddle Inference, ONNX (needs ernie-pair[onnx]), or both", group="model"
    )
    max_seq_len: int = option(
        0,
        help="tokens per pair, longer ones are cut; 0: as in training",
        group="data",
        unit="tokens",
        at_least=0,
    )
    threshold: Optional[float] = option(
        None,
        help="of two classes: answer 1 from this probability on; none: as calibration.json says",
        group="evaluation",
        at_least=0,
        at_most=1,
    )
    symmetric: Literal["auto", "none", "average"] = option(
        "auto",
        help="average: score (a, b) and (b, a) and take the mean of the logits; auto: as it was tuned",
        group="evaluation",
    )
    overwrite: bool = option(False, help="replace another export that is there", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        refuse_short_pairs(self.max_seq_len)

    @property
    def backends(self) -> Tuple[str, ...]:
        """Return the formats to write: paddle, onnx, or both."""
        return ("paddle", "onnx") if self.format == "both" else (self.format,)


def export_pair(config: ExportConfig) -> None:
    """Write ``output_dir`` and log the largest difference of each format from the trained model.

    Raises InputError for what cannot be exported or would be lost, CheckpointError where a format answers
    otherwise than the model; then nothing is written.
    """
    start_console(World())
    quiet_libraries()
    output_dir = Path(os.path.realpath(config.output_dir))
    _refuse_loss(output_dir)
    results = _results(config, output_dir)
    if results.are_done():
        return
    if "onnx" in config.backends:
        import_optional("onnxruntime", "onnx")
    start_device("cpu", World())
    model, vocab_file = load_classifier(config.model_path)
    calibration = _calibration(config, model.num_classes)
    publish_folder(
        output_dir,
        lambda draft: _fill(draft, config, model, vocab_file, calibration),
        results.about_folder,
        may_be_lost=lambda folder: config.overwrite,
    )
    logger.info(
        "%s",
        describe_decision(calibration.threshold, config.threshold is None, calibration.symmetric),
    )
    logger.info("%s is ready to ship: %s", config.model_path, config.output_dir)


def _results(config: ExportConfig, output_dir: Path) -> Results:
    inputs: Dict[str, Sequence[Path]] = {"model_path": files_of(config.model_path)}
    settings = settings_of(config, "model_path", "output_dir")
    outputs = [output_dir / name for name in WRITTEN]
    return Results("export", outputs, inputs, settings, config.overwrite, record=output_dir / MADE)


def _refuse_loss(output_dir: Path) -> None:
    """Raise InputError when what would be replaced is not an earlier export."""
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir {output_dir} is a file; give a folder")
    found = {path.name for path in output_dir.iterdir()} if output_dir.is_dir() else set()
    others = found - {*WRITTEN, MADE} if EXPORT_MANIFEST in found else found
    if others:
        raise InputError(
            f"--output_dir {output_dir} holds {min(others)}, which would be lost; give another folder"
        )


def _calibration(config: ExportConfig, num_classes: int) -> Calibration:
    """Return the calibration of the model, as the flags change it. Raises InputError where they cannot."""
    refuse_threshold(config.threshold, num_classes, config.model_path)
    saved = read_calibration(Path(config.model_path), num_classes)
    symmetric = saved.chosen_symmetry(config.symmetric, config.model_path)
    threshold = saved.threshold if config.threshold is None else config.threshold
    return replace(saved, symmetric=symmetric, threshold=threshold)


def _fill(
    draft: Path, config: ExportConfig, model: PairClassifier, vocab_file: Path, calibration: Calibration
) -> None:
    folder = vocab_file.parent
    max_seq_len = config.max_seq_len or model.spec.inference_length
    tokenizer = open_tokenizer(vocab_file, model.spec, max_seq_len)
    batches = parity_batches(tokenizer, max_seq_len)
    expected = answers_of(model, batches)
    shutil.copyfile(vocab_file, draft / VOCAB)
    config_file = find_config(folder)
    assert config_file is not None  # the model was read by it
    if is_their_config(read_config(config_file)):
        settings = json.dumps(model.spec.to_config(), indent=2, ensure_ascii=False)
        (draft / CONFIG).write_text(f"{settings}\n", encoding="utf-8")
    else:
        shutil.copyfile(config_file, draft / CONFIG)
    if (folder / TOKENIZER).is_file():
        shutil.copyfile(folder / TOKENIZER, draft / TOKENIZER)
    write_paddle(model, draft)
    if "onnx" in config.backends:
        write_onnx(draft)
    for name in PADDLE_FILES if "paddle" not in config.backends else ():
        (draft / name).unlink()
    exported = ExportedModel(
        draft,
        model.spec.labels.names,
        max_seq_len,
        calibration.temperature,
        {path.name: sha256_of_file(path) for path in sorted(draft.iterdir())},
        calibration.threshold,
        calibration.symmetric,
    )
    differences = {}
    for name in config.backends:
        backend = open_backend(exported, name, cpu_threads())
        differences[name] = largest_difference(backend, batches, expected)
        logger.info("largest difference of %-6s %.3g, of %d batches", name, differences[name], len(batches))
    manifest = _manifest(
        exported,
        parity=differences,
        model=Path(config.model_path).name,
        vocab_sha256=tokenizer.sha256,
        versions=installed_versions(VERSIONED),
    )
    (draft / EXPORT_MANIFEST).write_text(manifest, encoding="utf-8")


def _manifest(exported: ExportedModel, **facts) -> str:
    said = {name: value for name, value in asdict(exported).items() if name != "folder"}
    return json.dumps({"format": EXPORT_FORMAT, **said, **facts}, indent=2, ensure_ascii=False) + "\n"
