"""Pretraining side by side: the same masked samples in every lane."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Dict, Iterator, List, Sequence

import numpy as np
from bench_table import write_model

from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.make_sample import SampleConfig, make_sample
from data_tools.text.wordpiece import WordPiece
from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.models.source import CONFIG, open_model
from ernie_pair.models.spec import ModelSpec
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.pretrain.data import open_pretrain_data
from ernie_pair.runtime.processes.world import World
from ernie_pair.train.step_work import FORWARD_PASSES_OF_TRAINING, EncoderSize, count_pretraining
from side_by_side.flags import SideBySideFlags
from side_by_side.lanes import Lane, TurnPlan, Work
from side_by_side.starting import our_lane, peer_lane, peer_model, peer_ways, save_batches, ways_of

GRAD_CLIP, DOCUMENTS = 1.0, 20_000
NO_LABEL_OF_PEER = -100


@dataclass(frozen=True)
class PretrainShape:
    """A case: the model's layers and width, samples per batch and tokens per sample."""

    layers: int
    hidden: int
    batch_size: int
    max_seq_len: int = 128
    documents: int = DOCUMENTS

    @property
    def name(self) -> str:
        """Return the name of the case."""
        return f"pretrain {self.layers} x {self.hidden}, batch {self.batch_size} x {self.max_seq_len}"


def pretrain_lanes(flags: SideBySideFlags, shape: PretrainShape, folder: Path, vocab_file: str) -> List[Lane]:
    """Return the lanes of a case, their model, corpus and batches written into ``folder``."""
    model = write_model(folder / "model", vocab_file, "ernie", shape.hidden, shape.layers, hidden_act="gelu")
    write_corpus(folder, vocab_file, shape.documents)
    settings = {
        "model_name_or_path": str(model),
        "from_scratch": True,
        "input_dir": str(folder / "data"),
        "split": "98,1,1",
        "max_seq_len": shape.max_seq_len,
        "short_seq_prob": 0.0,
        "micro_batch_size": shape.batch_size,
        "max_steps": flags.plan.total + 1,
        "logging_freq": flags.steps,
        "grad_clip": GRAD_CLIP,
        "device": flags.device,
        "num_workers": 0,
    }
    config = PretrainConfig(output_dir=str(folder / "batches"), **settings)
    source = open_model(str(model), model_type="ernie", from_scratch=True)
    data = open_pretrain_data(config, World(), WordPiece.from_file(source.vocab_file), source.spec)
    batches = [batch for (batch,) in islice(data.updates(0), flags.plan.total)]
    work = list(work_of(source.spec, batches, flags.plan))
    lanes = []
    for name, (precision, way) in ways_of(PretrainConfig, flags.device).items():
        given = {**settings, **way, "output_dir": str(folder / name.replace(" ", "_"))}
        lanes.append(our_lane(folder, name, precision, {"task": "pretrain", "flags": given}, work))
    return [*lanes, *_peer_lanes(flags, folder, batches, source.spec, work)]


def _peer_lanes(
    flags: SideBySideFlags, folder: Path, batches: Sequence[Dict], spec: ModelSpec, work: Sequence[Work]
) -> List[Lane]:
    if not flags.peer_python:
        return []
    save_batches(folder / "batches.npz", list(map(_as_theirs, batches)))
    given = {
        "task": "pretrain",
        "batches": str(folder / "batches.npz"),
        "model": peer_model(folder / "model" / CONFIG),
        "pad_id": spec.pad_id,
        "grad_clip": GRAD_CLIP,
    }
    return [peer_lane(flags, folder, name, given, work) for name in peer_ways(flags.device)]


def _as_theirs(batch: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Return a batch with the label of torch's cross entropy for what has none."""
    names = ("masked_lm_labels", "next_sentence_labels")
    return {**batch, **{name: np.where(batch[name] < 0, NO_LABEL_OF_PEER, batch[name]) for name in names}}


def write_corpus(folder: Path, vocab_file: str, documents: int) -> None:
    """Write a corpus of the built-in sample into ``folder``/data."""
    make_sample(SampleConfig(output_dir=str(folder / "sample"), documents=documents))
    text = str(folder / "sample" / "corpus.txt")
    trans_to_json(TransConfig(input_path=text, output_path=str(folder / "text")))
    create_pretraining_data(
        CreateConfig(
            input_path=str(folder / "text.jsonl"),
            output_prefix=str(folder / "data" / "text"),
            vocab_file=vocab_file,
            chinese=True,
            cn_whole_word_segment=True,
        )
    )


def work_of(spec: ModelSpec, batches: Sequence[Dict[str, np.ndarray]], plan: TurnPlan) -> Iterator[Work]:
    """Yield the work of each turn: means over its steps, the warm-up excluded."""
    size = EncoderSize(spec.num_layers, spec.hidden_size, spec.intermediate_size)
    for first in range(plan.warmup, plan.total, plan.steps):
        taken = batches[first : first + plan.steps]
        ids = [batch["input_ids"] for batch in taken]
        forward = sum(
            count_pretraining(size, *each.shape, len(batch["masked_positions"]), spec.vocab_size)
            for each, batch in zip(ids, taken)
        )
        samples, padded = sum(map(len, ids)), sum(each.size for each in ids)
        real = sum(int(np.count_nonzero(each != spec.pad_id)) for each in ids)
        sums = (samples, real, padded, FORWARD_PASSES_OF_TRAINING * forward)
        yield Work(*(count / len(taken) for count in sums))
