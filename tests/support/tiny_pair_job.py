"""A pair job on the toy task, for this process or for one of several."""

from contextlib import closing
from pathlib import Path
from typing import Iterator, List, NamedTuple

import numpy as np
from tiny_pair import write_model, write_pairs

from data_tools.text.wordpiece import WordPiece
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.inference.token_rows import Batch, EncodedPairs
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.models.source import open_model
from ernie_pair.pairs.config.pair_config import TrainConfig
from ernie_pair.pairs.data.encoded_pairs import encode_pairs, training_steps
from ernie_pair.pairs.data.pair_source import read_pairs
from ernie_pair.pairs.targets.metrics import compute_class_weights
from ernie_pair.pairs.train.datasets import PairData
from ernie_pair.pairs.train.initial_model import InitialModel, with_best_metric
from ernie_pair.pairs.train.train_pair import PairTask
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.process_group import ProcessGroup
from ernie_pair.training.recompute import recompute_layers

STEPS = 60
PLACES = {"train_file": "t", "dev_file": "d", "output_dir": "o"}
SETTINGS = {
    "model_type": "ernie", "batch_size": 16, "learning_rate": 5e-3, "dropout": 0.1, "device": "cpu",
    "logging_freq": 1,  # the norm of the gradient is there in steps that are logged
}  # fmt: skip


class Tiny(NamedTuple):
    job: PairTask
    rows: EncodedPairs  # to train on
    updates: Iterator[List[Batch]]


def write_files(folder: Path) -> Path:
    write_model(folder / "model")
    for seed, name in enumerate(("train", "dev")):
        write_pairs(folder / f"{name}.tsv", 96, seed)
    return folder


def tiny_config(folder: Path, **flags) -> TrainConfig:
    return TrainConfig(**PLACES, model_name_or_path=str(folder / "model"), **{**SETTINGS, **flags})


def tiny_job(folder: Path, process_group=None, consumed: int = 0, prepare=None, **flags) -> Tiny:
    """A new job and the updates from ``consumed`` on; ``prepare`` sees its model before it is made."""
    config, process_group = tiny_config(folder, **flags), process_group or ProcessGroup()
    tokenizer = WordPiece.from_file(folder / "model" / "vocab.txt")
    train, dev = (
        encode_pairs(read_pairs(folder / f"{name}.tsv", 2), tokenizer, 64) for name in ("train", "dev")
    )
    source = open_model(str(folder / "model"), model_type=config.model_type, from_scratch=True)
    model = build_classifier(source, config.seed, config.dropout)
    choose_path(model, config, config.device)
    recompute_layers(model, config.use_recompute)
    if prepare:
        prepare(model)
    weights = compute_class_weights(config.class_weights, 2, train.labels, "train.tsv")
    updates = training_steps(train, config, World(process_group.rank, process_group.size), consumed)
    data = PairData(lambda first: updates, len(train), dev, np.bincount(train.ids), {}, weights)
    initial = InitialModel(model, source, "start from random weights")
    job = PairTask(with_best_metric(config, initial), initial, data)
    job.prepare(STEPS, process_group)
    return Tiny(job, train, updates)


def run(tiny: Tiny, last: int, first: int = 1):
    steps = range(first, last + 1)
    return [tiny.job.step(batches, step, StopSignals()) for step, batches in zip(steps, tiny.updates)]


def resumed(job, step: int, rest: Tiny, folder: Path) -> Tiny:
    state = TrainState(step, step * 16, skipped_updates=getattr(job, "skipped_updates", 0))
    with closing(Checkpoints(folder, World(), ProcessGroup().all_reduce)) as checkpoints:
        checkpoints.save(state, {}, job.state_files(), {})
        rest.job.restore(checkpoints.newest())
    return rest


def weights(job: PairTask):
    return {name: parameter.numpy() for name, parameter in job.model.named_parameters()}


def same(first, second) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def difference(first, second) -> float:
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)
