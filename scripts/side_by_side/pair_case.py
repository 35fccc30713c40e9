"""Training a pair classifier side by side: the same batches of pairs in every lane."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np
from bench_table import write_model

from data_tools.files.errors import InputError
from ernie_pair.inference.token_rows import Batch
from ernie_pair.models.source import CONFIG, open_model
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.data.pair_records import Columns
from ernie_pair.pair.data.pair_source import PairSource
from ernie_pair.pair.train.datasets import open_pair_data
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.step_work import (
    FORWARD_PASSES_OF_TRAINING,
    EncoderSize,
    count_classifier,
    count_encoder,
)
from side_by_side.flags import SideBySideFlags
from side_by_side.lanes import Lane, TurnPlan, Work
from side_by_side.starting import PEER_WAYS, our_lane, peer_lane, peer_model, peer_ways, save_batches, ways_of

DEV_ROWS = 8
PEER_LENGTH = 128  # the peer's example scripts pad every pair to it


@dataclass(frozen=True)
class PairShape:
    """A case: the model's layers and width, pairs per batch, and whether the pairs fill all tokens."""

    layers: int
    hidden: int
    batch_size: int
    full: bool = False
    max_seq_len: int = 128

    @property
    def name(self) -> str:
        """Return the name of the case."""
        length = f" x {self.max_seq_len}" if self.full else ""
        return f"train pairs {self.layers} x {self.hidden}, batch {self.batch_size}{length}"


def pair_lanes(
    flags: SideBySideFlags, shape: PairShape, folder: Path, pair_file: str, vocab_file: str
) -> List[Lane]:
    """Return the lanes of a case, their model, pairs and batches written into ``folder``."""
    model = write_model(folder / "model", vocab_file, "ernie_gram", shape.hidden, shape.layers)
    plan = flags.plan
    write_pairs(folder, pair_file, shape, rows=plan.total * shape.batch_size)
    settings = pair_settings(folder, shape, flags.device, plan.total + 1, flags.steps)
    config = TrainConfig(output_dir=str(folder / "batches"), **settings)
    spec = open_model(str(model), model_type="", from_scratch=True).spec
    batches = _batches_of(config, plan.total)
    work = list(work_of(spec, batches, plan))
    return [*_our_lanes(flags, folder, settings, work), *_peer_lanes(flags, folder, batches, spec)]


def pair_settings(
    folder: Path, shape: PairShape, device: str, steps: int, steps_per_line: int
) -> Dict[str, Any]:
    """Return the flags of a run on the model and the pairs in ``folder``, all but --output_dir."""
    return {
        "model_name_or_path": str(folder / "model"),
        "from_scratch": True,
        "train_file": str(folder / "train.tsv"),
        "dev_file": str(folder / "dev.tsv"),
        "cache_dir": str(folder / "cache"),
        "batch_size": shape.batch_size,
        "max_seq_len": shape.max_seq_len,
        "max_steps": steps,
        "logging_freq": steps_per_line,
        "eval_freq": 10**6,
        "checkpoint_steps": 10**6,
        "device": device,
    }


def _our_lanes(flags: SideBySideFlags, folder: Path, settings: Dict, work: Sequence[Work]) -> List[Lane]:
    lanes = []
    for name, (precision, way) in ways_of(TrainConfig, flags.device).items():
        given = {**settings, **way, "output_dir": str(folder / name.replace(" ", "_"))}
        lanes.append(our_lane(folder, name, precision, {"task": "train_pairs", "flags": given}, work))
    return lanes


def _peer_lanes(
    flags: SideBySideFlags, folder: Path, batches: Sequence[Batch], spec: ModelSpec
) -> List[Lane]:
    if not flags.peer_python:
        return []
    longest = max(PEER_LENGTH, *(batch.input_ids.shape[1] for batch in batches))
    path = folder / "batches.npz"
    save_batches(path, [batch._asdict() for batch in batches])
    given = {
        "task": "train_pairs",
        "batches": str(path),
        "model": peer_model(folder / "model" / CONFIG),
        "pad_id": spec.pad_id,
        "padded_to": longest,
        "grad_clip": 0,
    }
    lanes = []
    for name in peer_ways(flags.device):
        best = PEER_WAYS[name][1]
        work = list(work_of(spec, batches, flags.plan, padded_to=0 if best else longest))
        lanes.append(peer_lane(flags, folder, name, given, work))
    return lanes


def write_pairs(folder: Path, pair_file: str, shape: PairShape, rows: int) -> None:
    """Write the first ``rows`` pairs as training pairs, and a few as dev pairs.

    If they are to fill all tokens, texts are joined until they do. Raises InputError for too few.
    """
    source = PairSource("pair_file", pair_file, "train", None, Columns("", "", ""))
    found = [(pair.left, pair.right) for pair in islice(source.rows(), rows + DEV_ROWS)]
    if len(found) < rows + DEV_ROWS and not shape.full:
        raise InputError(
            f"{pair_file} has {len(found)} rows, and {rows + DEV_ROWS} are needed; lower --rounds"
        )
    if shape.full:
        found = list(_joined([text for pair in found for text in pair], shape.max_seq_len, rows + DEV_ROWS))
    lines = [f"{a}\t{b}\t{number % 2}\n" for number, (a, b) in enumerate(found)]
    (folder / "train.tsv").write_text("".join(lines[:rows]), encoding="utf-8")
    (folder / "dev.tsv").write_text("".join(lines[rows:]), encoding="utf-8")


def _joined(texts: Sequence[str], length: int, rows: int):
    """Yield pairs of texts of at least ``length`` characters each: with any vocabulary they fill a pair."""
    place = 0
    for _ in range(rows):
        pair = []
        for _ in "ab":
            text = ""
            while len(text) < 2 * length:
                text, place = text + texts[place % len(texts)], place + 1
            pair.append(text)
        yield tuple(pair)


def _batches_of(config: TrainConfig, count: int) -> List[Batch]:
    """Return the first batches of a run, in its order."""
    source = open_model(config.model_name_or_path, model_type="", from_scratch=True)
    data = open_pair_data(config, source, World())
    return [batch for (batch,) in islice(data.updates(0), count)]


def work_of(spec: ModelSpec, batches: Sequence[Batch], plan: TurnPlan, padded_to: int = 0):
    """Yield the work of each turn: means over its steps, the warm-up excluded."""
    size = EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
    for first in range(plan.warmup, plan.total, plan.steps):
        taken = [batch.input_ids for batch in batches[first : first + plan.steps]]
        lengths = [padded_to or ids.shape[1] for ids in taken]
        flops = sum(_flops_of(size, len(ids), length) for ids, length in zip(taken, lengths))
        real = sum(int(np.count_nonzero(ids != spec.pad_id)) for ids in taken)
        padded = sum(len(ids) * length for ids, length in zip(taken, lengths))
        yield Work(*(count / len(taken) for count in (sum(map(len, taken)), real, padded, flops)))


def _flops_of(size: EncoderSize, batch: int, length: int) -> int:
    forward = count_encoder(size, batch, length, rows_read=batch) + count_classifier(size, batch, 2)
    return FORWARD_PASSES_OF_TRAINING * forward
