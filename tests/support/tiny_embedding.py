"""A toy task for vectors: the match of a text is that text in another alphabet, one character for each."""

from pathlib import Path
from typing import Dict

import numpy as np
from tiny_pair import CHARACTERS, write_model, write_rows

from ernie_pair.embeddings.train.embedding_config import TrainEmbeddingConfig
from ernie_pair.embeddings.train.train_embedding import EmbeddingTask
from ernie_pair.models.networks.kernel_path import choose_path
from ernie_pair.runtime.processes.stop_signals import StopSignals
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.process_group import ProcessGroup
from ernie_pair.training.recompute import recompute_layers

LETTERS = list(CHARACTERS)
OTHER = dict(zip(LETTERS, np.random.default_rng(9).permutation(LETTERS)))
SETTINGS = {"batch_size": 16, "learning_rate": 5e-3, "device": "cpu", "logging_freq": 1, "max_seq_len": 16}


def random_text(rng, least=3, most=7) -> str:
    return "".join(rng.choice(LETTERS, rng.integers(least, most)))


def toy_matches(count: int, seed: int):
    """(text, match, 1), and for every other text (text, another text, 0)."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        text = random_text(rng)
        yield text, "".join(OTHER[letter] for letter in text), 1
        if number % 2:
            yield text, random_text(rng), 0


def toy_graded(count: int, seed: int):
    """(text, text, score): from 0 to 5, by how many characters of the second are those of a match."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        text, kept = random_text(rng, 5, 6), number % 6
        yield text, "".join(OTHER[letter] for letter in text[:kept]) + random_text(rng, 5, 6)[kept:], kept


def write_matches(path: Path, count: int, seed: int = 0) -> Path:
    lines = ("\t".join(map(str, row)) for row in toy_matches(count, seed))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_texts(path: Path, count: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    path.write_text("".join(f"{random_text(rng, 1, 20)}\n" for _ in range(count)), encoding="utf-8")
    return path


def write_files(folder: Path, spread: float = 0.02) -> Path:
    """What ``embedding_config`` names; a larger ``spread`` of the weights lays texts far from each other."""
    write_model(folder / "model", initializer_range=spread)
    write_matches(folder / "train.tsv", 120, seed=0)
    write_matches(folder / "dev.tsv", 40, seed=1)
    write_rows(folder / "graded.tsv", toy_graded(96, seed=0))
    write_rows(folder / "graded_dev.tsv", toy_graded(48, seed=1))
    return folder


def embedding_config(folder: Path, **changes) -> TrainEmbeddingConfig:
    """A run of a tiny ERNIE into ``folder``/out; `write_files` wrote the rest."""
    flags = {
        "model_name_or_path": str(folder / "model"),
        "model_type": "ernie",
        "from_scratch": True,
        "train_file": str(folder / "train.tsv"),
        "dev_file": str(folder / "dev.tsv"),
        "output_dir": str(folder / "out"),
    }
    return TrainEmbeddingConfig(**{**flags, **SETTINGS, **changes})


def embedding_job(folder: Path, process_group=None, consumed: int = 0, **flags):
    config, group = embedding_config(folder, **flags), process_group or ProcessGroup()
    task = EmbeddingTask(config)
    task.open_model()
    task.open_data(World(group.rank, group.size))
    choose_path(task.model, task.config, "cpu")
    recompute_layers(task.model, config.use_recompute)
    task.prepare(20, group)
    return task, task.data.updates(consumed)


def run_steps(job: EmbeddingTask, updates, last: int, first: int = 1):
    return [dict(job.step(next(updates), number, StopSignals())) for number in range(first, last + 1)]


def gradients_of_next(job: EmbeddingTask, updates, number: int = 1) -> Dict[str, np.ndarray]:
    """The gradient by which the next step moves the weights, as a share of its largest number."""
    found: Dict[str, np.ndarray] = {}
    move = job.parallel.step

    def spy(*given):
        trained = {name: p for name, p in job.model.named_parameters() if p.grad is not None}
        found.update({name: parameter.grad.numpy() for name, parameter in trained.items()})
        move(*given)

    job.parallel.step = spy
    run_steps(job, updates, number, first=number)
    job.parallel.step = move
    largest = max(float(np.abs(gradient).max()) for gradient in found.values())
    return {name: gradient / largest for name, gradient in found.items()}
