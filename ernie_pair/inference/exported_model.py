"""The folder of an exported model: written by `ernie-pair export`, read by the predictor.

model.json, model.pdiparams  the model for Paddle Inference
model.onnx                      the model for ONNX: input_ids, token_type_ids int64 [batch, length]
                                -> logits float32 [batch, classes]
model.int8.onnx                 the same with int8 weights in its products; only beside model.onnx
model.gpu.onnx                  the same of operators that only a card has; only beside model.onnx
vocab.txt, config.json          those of the trained model, and tokenizer_config.json if it has one
tokenizer.json                  beside or instead of vocab.txt, of a model that does not cut by ERNIE's rule
export.json                     how to use it, and the proof that it agrees with the trained model:

    {"format": 4, "target": "classification", "labels": ["0", "1"], "max_seq_len": 128, "temperature": 1.0,
     "threshold": 0.91, "symmetric": "none", "vocab_sha256": ..., "files": {"model.onnx": SHA-256, ...},
     "parity": {"onnx": 3.1e-07}, "int8": {"accuracy": {"onnx": 0.86, "onnx-int8": 0.859}, ...}, ...}

Any of the models may be missing; ``int8`` exists together with its file, and ``bf16``, in the same form, if
export measured the Paddle model in it. ``threshold`` is null if the most probable class is predicted. A model
without classes has one label, score, and ``label_range``, null if any number is possible.
``learned_nothing`` is there if the model is no better than without training: the reason.
``shared_characters``: the thresholds of the baseline, chosen on the training pairs; ``verdict``: what it is
worth beside that, where `evaluate` saved it. ``data`` and ``measured`` say what the model was made of and
what it reached, as its README.md does.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, Optional, Tuple

from data_tools.text.folder_tokenizer import FAST_TOKENIZER
from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.json_file import is_texts, is_whole_number, read_json_object
from ernie_pair.models.embedding_json import EMBEDDING
from ernie_pair.models.labels import CLASSIFICATION, REGRESSION, TARGETS
from ernie_pair.models.model_card import are_thresholds
from ernie_pair.models.model_folder import hint_below, no_model_folder
from ernie_pair.models.spec import CONFIG, MIN_PAIR_LENGTH, TOKENIZER, VOCAB, check_supported, is_range
from ernie_pair.models.temperature import SYMMETRIES, Calibration, is_temperature, is_threshold

EXPORT_MANIFEST, EXPORT_FORMAT = "export.json", 4
NEEDED = ("format", "labels", "files", "max_seq_len", "temperature")
PADDLE_FILES = ("model.json", "model.pdiparams")
ONNX_FILES, INT8_FILES = ("model.onnx",), ("model.int8.onnx",)
GPU, GPU_FILES = "onnx-gpu", ("model.gpu.onnx",)
# {backend: the files of its model}
FILES_OF = {"onnx": ONNX_FILES, "paddle": PADDLE_FILES, "onnx-int8": INT8_FILES, GPU: GPU_FILES}
MODELS = (*PADDLE_FILES, *ONNX_FILES, *INT8_FILES, *GPU_FILES)
WRITTEN = (*MODELS, VOCAB, FAST_TOKENIZER, CONFIG, TOKENIZER, EXPORT_MANIFEST)
MAX_MANIFEST_BYTES = 1 << 20
HINT = "export the model again"


@dataclass(frozen=True)
class ExportedModel:
    """An exported model as its export.json describes it. ``labels``: the name of every class."""

    folder: Path
    labels: Tuple[str, ...]
    max_seq_len: int
    temperature: float
    files: Dict[str, str]  # name: SHA-256
    threshold: Optional[float] = None  # of two classes: class 1 from this probability on
    symmetric: str = "none"  # one of SYMMETRIES
    target: str = CLASSIFICATION  # one of TARGETS
    label_range: Optional[Tuple[float, float]] = None  # for regression, if it is known
    learned_nothing: str = ""  # why it is no better than without training, if it is not
    shared_characters: Dict[str, float] = field(default_factory=dict)  # of the baseline: `best_thresholds`
    verdict: str = ""  # what it is worth beside the baseline, see `describe_worth`

    @property
    def has_classes(self) -> bool:
        """Return whether the model chooses among classes; otherwise it gives one score."""
        return self.target == CLASSIFICATION

    @property
    def calibration(self) -> Calibration:
        """Return how to decide: the temperature, the threshold and whether both orders are scored."""
        return Calibration(self.temperature, threshold=self.threshold, symmetric=self.symmetric)

    def files_of(self, backend: str) -> Tuple[str, ...]:
        """Return the names of the files of the model for ``backend``; none if it was not exported for it."""
        names = FILES_OF[backend]
        return names if self.files.keys() >= set(names) else ()

    def file(self, name: str) -> Path:
        """Return the path of file ``name``. Raises CheckpointError when it is missing or not as exported."""
        path = self.folder / name
        if name not in self.files or not path.is_file() or sha256_of_file(path) != self.files[name]:
            raise CheckpointError(f"{path} is not the file that was exported; export the model again")
        return path


def not_of_pairs(folder: str) -> InputError:
    """Return the error for an embedding model that is given as a model of pairs."""
    return InputError(
        f"--model_path {folder} is an embedding model, which makes vectors and classifies no pairs: give it "
        f"as --embedding_model {folder} to serve and search, as --model_path {folder} to embed and index, or "
        "to ernie_pair.open_embedder; a classifier or reranker is wanted here"
    )


def read_exported(folder: Path) -> ExportedModel:
    """Read the export.json of ``folder``. Raises InputError if it holds none, CheckpointError if damaged."""
    if not folder.is_dir():
        raise no_model_folder("model_path", folder, "give the --output_dir of ernie-pair export")
    path = folder / EXPORT_MANIFEST
    if not path.is_file():
        if (folder / EMBEDDING).is_file():
            raise not_of_pairs(str(folder))
        below = hint_below(folder, (EXPORT_MANIFEST,))
        if below:
            raise InputError(f"{folder} holds no {EXPORT_MANIFEST}{below}")
        if (folder / CONFIG).is_file():
            check_supported(folder / CONFIG)
        raise InputError(
            f"{folder} holds no {EXPORT_MANIFEST}; make an exported model of a trained one with ernie-pair "
            f"export --model_path {folder} --output_dir exported, or ernie_pair.export_pair, or use "
            "PairTrainer(folder, config).predict"
        )
    manifest = read_json_object(path, HINT, CheckpointError, MAX_MANIFEST_BYTES)
    missing = [repr(key) for key in NEEDED if key not in manifest]
    if manifest.get("format", EXPORT_FORMAT) != EXPORT_FORMAT:
        missing = [f"format {manifest['format']!r}, not {EXPORT_FORMAT}"]
    if missing:
        raise CheckpointError(f"{path}: wrong or missing: {missing[0]}; {HINT}")
    kept = ExportedModel.__dataclass_fields__.keys() - {"folder"}
    found = ExportedModel(folder, **{name: value for name, value in manifest.items() if name in kept})
    labels, files, limits = found.labels, found.files, found.label_range
    is_sound = {
        "target": found.target in TARGETS,
        "label_range": limits is None or (found.target == REGRESSION and is_range(limits)),
        "labels": is_texts(labels) and (len(labels) > 1) == found.has_classes,
        "files": isinstance(files, dict) and set(files) <= set(WRITTEN) and is_texts(list(files.values())),
        "max_seq_len": is_whole_number(found.max_seq_len, MIN_PAIR_LENGTH, 1 << 20),
        "temperature": is_temperature(found.temperature),
        "threshold": found.threshold is None or (is_threshold(found.threshold) and len(labels) == 2),
        "symmetric": found.symmetric in SYMMETRIES,
        "learned_nothing": isinstance(found.learned_nothing, str),
        "verdict": isinstance(found.verdict, str),
        "shared_characters": are_thresholds(found.shared_characters),
    }
    wrong = ", ".join(key for key, sound in is_sound.items() if not sound)
    if wrong:
        raise CheckpointError(f"{path}: wrong or missing: {wrong}; {HINT}")
    limits = limits and (limits[0], limits[1])
    temperature = float(found.temperature)
    return replace(found, labels=tuple(labels), temperature=temperature, label_range=limits)
