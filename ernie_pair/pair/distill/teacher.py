"""The teacher of a distillation: a trained pair classifier that only predicts.

Its logits may be kept in CACHE: a part of the rows is a file, so that a run that is killed goes on with the
next part.

CACHE/teacher-NAME.npy    the logits of up to PART rows, float32 [rows, C]
CACHE/teacher-NAME.json   its sha256, and the key: the teacher, the ids of the rows, how they were asked
"""

import hashlib
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, ContextManager, Dict, List, Sequence

import numpy as np
import paddle

from data_tools.base.errors import InputError
from data_tools.base.progress import CountProgress
from data_tools.files.array_cache import ArrayKind, array_cache
from data_tools.files.keyed_cache import KeyedCache
from data_tools.files.npy_stream import sha256_of_file
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.device.paddle_patches.core_settings import without_tf32
from ernie_pair.inference.token_rows import Batch, EncodedPairs, exchange_texts, open_tokenizer
from ernie_pair.model_files.labels import refuse_no_classes
from ernie_pair.model_files.source import ModelSource, model_folder_of, open_model
from ernie_pair.model_files.temperature import read_calibration
from ernie_pair.pair.config.distill_config import StudentConfig
from ernie_pair.pair.data.row_cache import LOCK_SECONDS
from ernie_pair.pair.model.classifier import PairClassifier
from ernie_pair.pair.model.classifier_weights import load_classifier, refuse_no_classifier
from ernie_pair.pair.model.kernel_path import choose_path, constant_weights
from ernie_pair.pair.model.logits import logits_of
from ernie_pair.pair.step.amp import FLOAT32_OPS

VERSION = 1  # raised when the same teacher would give other logits for the same rows
PART = 1 << 14  # rows of one file


class Teacher:
    """A trained classifier, frozen, that answers as its calibration.json says: in one order, or both.

    It is called as a classifier is, and gives its logits, float32 [B, C] without a gradient. Raises
    InputError when --teacher is no trained classifier, CheckpointError when its weights cannot be used.
    """

    def __init__(self, config: StudentConfig):
        if not Path(config.teacher).is_dir():
            raise InputError(
                f"--teacher {config.teacher} is not a folder; give the OUT of a training run, or OUT/best"
            )
        folder = model_folder_of(Path(config.teacher))
        self.config, self.name = config, str(folder)
        self.source: ModelSource = open_model(str(folder), model_type="")
        refuse_no_classifier(self.source.read_weights(), f"--teacher {self.source.name}")
        refuse_no_classes(self.source.spec.labels, f"--teacher {folder}", "distill")
        self.model: PairClassifier = load_classifier(str(folder), config.model_class)[0]
        for parameter in self.model.parameters():
            parameter.stop_gradient = True
        self.symmetric = read_calibration(folder, self.num_classes).symmetric
        self.tokenizer: AnyTokenizer = open_tokenizer(
            self.source.vocab_file, self.source.spec, config.max_seq_len
        )
        self._sha256 = self._kernels = ""
        self._constant = ExitStack()

    @property
    def num_classes(self) -> int:
        """Return the number of classes C."""
        return self.model.num_classes

    @property
    def fused_state(self):
        """Return the state of the fused kernels, None where Paddle's own compute."""
        return self.model.fused_state

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of all that its answers depend on, in hex."""
        if not self._sha256:
            parts = [self.source.spec.sha256, self.tokenizer.sha256, self.symmetric]
            parts += map(sha256_of_file, self.source.weight_files)
            self._sha256 = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return self._sha256

    def describe(self) -> str:
        """Return its family and size in words."""
        spec = self.model.spec
        return f"{self.model.family}, {spec.num_layers} layers x {spec.hidden_size}"

    def prepare(self, process_group) -> None:
        """Choose the kernels, the same on all ranks; the weights stay as they are from here on."""
        config, group = self.config, process_group
        self._kernels = choose_path(self.model, config, config.device, group.size, group.all_reduce).name
        self._constant.enter_context(constant_weights(self.model))

    def eval(self) -> None:
        """Do nothing: a teacher is always in evaluation mode."""

    def __call__(self, input_ids, token_type_ids):
        """Return the logits of ids and token types int64 [B, S]."""
        with paddle.no_grad(), without_tf32(), self._casting():
            if self.symmetric != "average":
                return self.model(input_ids, token_type_ids).astype("float32")
            batch = exchange_texts(Batch(input_ids.numpy(), token_type_ids.numpy(), None))
            ids, types = paddle.to_tensor(batch.input_ids), paddle.to_tensor(batch.token_type_ids)
            exchanged = self.model(ids, types).astype("float32")
            # The given order last: a student compares its hidden states with those of the last forward pass.
            return (self.model(input_ids, token_type_ids).astype("float32") + exchanged) / 2

    def _casting(self) -> ContextManager:
        dtype = self.config.amp_dtype if self.config.use_amp else "float32"
        if dtype == "float32":
            return nullcontext()
        return paddle.amp.auto_cast(level="O1", dtype=dtype, custom_black_list=FLOAT32_OPS)

    def logits_of_rows(self, rows: EncodedPairs, cache_dir: Path, process_group) -> np.ndarray:
        """Return the logits of all rows, float32 [N, C], on every rank, from ``cache_dir`` where they are.

        All ranks call it and share the work; rank 0 writes. Raises NumbersError for a logit that is not
        finite, MachineError when the disk does not keep what is written.
        """
        found: List[np.ndarray] = []
        with CountProgress(len(rows), "pair", shown=process_group.rank == 0) as progress:
            for part in _parts_of(rows):
                cache = self._cache_of(part, cache_dir)
                logits = cache.read()
                is_missing = process_group.all_reduce(np.array([float(logits is None)]))[0]
                if logits is None or is_missing:
                    logits = self._ask(part, process_group, progress, cache)
                else:
                    progress.advance(len(part))
                found.append(logits)
        return np.concatenate(found)

    def _ask(
        self, part: EncodedPairs, process_group, progress: CountProgress, cache: KeyedCache[np.ndarray]
    ) -> np.ndarray:
        """Return the logits of a part, of which rank 0 writes the file."""
        size, asked = self.config.batch_size, progress.advance
        logits = logits_of(self, part, size, process_group, asked)  # type: ignore[arg-type]  # answers alike
        return cache.get(lambda: logits, LOCK_SECONDS) if process_group.rank == 0 else logits

    def _cache_of(self, part: EncodedPairs, cache_dir: Path) -> KeyedCache[np.ndarray]:
        config = self.config
        key: Dict[str, Any] = {
            "version": VERSION,
            "teacher": self.sha256,
            "rows": sha256_of_rows(part),
            "batch_size": config.batch_size,
            "kernels": f"{config.device}, {self._kernels}",
            "computed in": config.amp_dtype if config.use_amp else config.precision,
        }
        wanted = ArrayKind(np.dtype(np.float32), (len(part), self.num_classes))
        return array_cache(cache_dir, key, "teacher-", wanted)


def sha256_of_rows(rows: EncodedPairs) -> str:
    """Return the SHA-256 of the ids of encoded pairs, and of where each begins and parts, in hex."""
    digest = hashlib.sha256()
    for array, dtype in ((rows.ids, np.int32), (rows.lengths, np.int64), (rows.heads, np.int64)):
        digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
    return digest.hexdigest()


def _parts_of(rows: EncodedPairs) -> Sequence[EncodedPairs]:
    """Return ``rows`` in parts of up to PART, without labels."""
    parts = []
    for first in range(0, len(rows), PART):
        last = min(first + PART, len(rows))
        begin, end = rows.starts[first], rows.starts[last]
        starts, heads = rows.starts[first : last + 1] - begin, rows.heads[first:last]
        ids = rows.ids[begin:end]
        parts.append(EncodedPairs(ids, starts, heads, None, rows.pad_id, separators=rows.separators))
    return parts
