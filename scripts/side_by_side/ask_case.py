"""Prediction by a pair classifier side by side: the same texts in every lane, from texts to logits."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
from bench_table import write_model

from ernie_pair.inference.token_rows import EncodedPairs, encode_texts, evaluation_batches, open_tokenizer
from ernie_pair.kernels.library import open_kernels
from ernie_pair.models.source import CONFIG, VOCAB, open_model
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pair.config.ask_config import PredictConfig
from ernie_pair.pair.config.pair_config import PairConfig
from ernie_pair.pair.data.pair_records import Columns
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.train.trainer import PairTrainer
from ernie_pair.score.export.export_config import ExportConfig
from ernie_pair.score.export.export_pair import export_pair
from ernie_pair.train.step_work import EncoderSize, count_classifier, count_encoder
from side_by_side.flags import SideBySideFlags
from side_by_side.lanes import Lane, Work
from side_by_side.starting import our_lane, peer_lane, peer_model, peer_ways, ways_of

# Of an exported model: name of the lane, precision, arguments of PairPredictor.
EXPORTED_BF16 = "exported paddle bf16"
EXPORTED = {
    "exported paddle": ("fp32", {"backend": "paddle"}),
    EXPORTED_BF16: ("bf16", {"backend": "paddle", "precision": "bf16"}),
    "exported onnx": ("fp32", {"backend": "onnx"}),
    "exported onnx int8": ("int8", {"backend": "onnx-int8"}),
}
EXPORTED_ON_GPU = {
    f"exported paddle {name}": (name, {"backend": "paddle", "precision": name, "device": "gpu"})
    for name in ("fp32", "bf16", "fp16")
}


@dataclass(frozen=True)
class AskShape:
    """A case: the model's layers and width, the number of pairs, and pairs per forward pass."""

    layers: int
    hidden: int
    pairs: int = 512
    batch_size: int = 64
    max_seq_len: int = 128

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return f"ask {self.layers} x {self.hidden}, {self.pairs} pairs"


def ask_lanes(
    flags: SideBySideFlags, shape: AskShape, folder: Path, pair_file: str, vocab_file: str
) -> List[Lane]:
    """Return the lanes of a case; a model of random weights, its export and the pairs go into ``folder``."""
    rows = _write_pairs(folder, pair_file, shape.pairs)
    model = _write_trained(flags, shape, folder, vocab_file)
    spec = open_model(str(model), model_type="").spec
    work = [_work_of(spec, encode(rows, model, spec, shape.max_seq_len), shape.batch_size)] * flags.rounds
    asked = {
        "model_path": str(model),
        "input_file": str(folder / "pairs.tsv"),
        "output_file": str(folder / "out.tsv"),
        "batch_size": shape.batch_size,
        "device": flags.device,
    }
    lanes = []
    for name, (precision, way) in ways_of(PredictConfig, flags.device).items():
        spec_of_lane = {"task": "ask_trained", "flags": {**asked, **way}}
        lanes.append(our_lane(folder, name, precision, spec_of_lane, work))
    lanes += _exported_lanes(flags, folder, model, work)
    if flags.peer_python:
        given = _of_peer(folder, model, spec, shape)
        lanes += [peer_lane(flags, folder, name, given, work) for name in peer_ways(flags.device)]
    return lanes


def _exported_lanes(flags: SideBySideFlags, folder: Path, model: Path, work: List[Work]) -> List[Lane]:
    judged = {"quantize": "int8", "quantize_file": str(folder / "train.tsv"), "format": "both"}
    settings = ExportConfig(
        model_path=str(model),
        output_dir=str(folder / "ship"),
        max_accuracy_drop=1.0,  # random weights have no accuracy to lose
        **(judged if flags.device == "cpu" else {}),
    )
    export_pair(settings)
    given = {"folder": str(folder / "ship"), "texts": str(folder / "pairs.tsv")}
    return [
        our_lane(
            folder,
            name,
            precision,
            {"task": "ask_exported", **given, "settings": {**backend, "threads": flags.threads}},
            work,
        )
        for name, (precision, backend) in (EXPORTED if flags.device == "cpu" else EXPORTED_ON_GPU).items()
        if name != EXPORTED_BF16 or flags.device == "gpu" or open_kernels().has_bf16
    ]


def _of_peer(folder: Path, model: Path, spec: ModelSpec, shape: AskShape) -> Dict[str, Any]:
    return {
        "task": "ask",
        "texts": str(folder / "pairs.tsv"),
        "vocab_file": str(model / VOCAB),
        "model": peer_model(model / CONFIG),
        "pad_id": spec.pad_id,
        "max_seq_len": shape.max_seq_len,
        "batch_size": shape.batch_size,
    }


def _write_pairs(folder: Path, pair_file: str, count: int) -> List[tuple]:
    source = PairSource("pair_file", pair_file, "train", None, Columns("", "", ""))
    rows = [(pair.left, pair.right) for pair in islice(source.rows(), count)]
    text = "".join(f"{left}\t{right}\n" for left, right in rows)
    (folder / "pairs.tsv").write_text(text, encoding="utf-8")
    labelled = "".join(f"{left}\t{right}\t{number % 2}\n" for number, (left, right) in enumerate(rows))
    (folder / "train.tsv").write_text(labelled, encoding="utf-8")
    return rows


def _write_trained(flags: SideBySideFlags, shape: AskShape, folder: Path, vocab_file: str) -> Path:
    """Return the folder of a classifier of random weights, which costs what a trained one does."""
    start = write_model(folder / "model", vocab_file, "ernie_gram", shape.hidden, shape.layers)
    config = PairConfig(
        str(folder / "trainer"), from_scratch=True, device=flags.device, max_seq_len=shape.max_seq_len
    )
    PairTrainer(str(start), config).save_model(folder / "trained")
    return folder / "trained"


def encode(rows: List[tuple], model: Path, spec: ModelSpec, max_seq_len: int) -> EncodedPairs:
    """Return the token ids of the pairs."""
    tokenizer = open_tokenizer(model / VOCAB, spec, max_seq_len)
    return encode_texts([row[0] for row in rows], [row[1] for row in rows], None, tokenizer, max_seq_len)


def _work_of(spec: ModelSpec, rows: EncodedPairs, batch_size: int) -> Work:
    size = EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
    padded = flops = 0
    for picked in evaluation_batches(rows.lengths, batch_size):
        length = int(rows.lengths[picked].max())
        padded += len(picked) * length
        flops += count_encoder(size, len(picked), length, rows_read=len(picked))
        flops += count_classifier(size, len(picked), spec.num_labels)
    return Work(len(rows), int(np.sum(rows.lengths)), padded, flops)
