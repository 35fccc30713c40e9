"""A tiny teacher on the toy task, and runs that distil it."""

from pathlib import Path

from tiny_pair import train_config, write_model, write_pairs

from ernie_pair.pairs.config.distill_config import DistillConfig
from ernie_pair.pairs.train.train_pair import train_pair

TEACHER_LAYERS = 3


def write_teacher(folder: Path, **changes) -> Path:
    """Train a classifier of three layers of 32; the folder of its run."""
    config = train_config(
        folder, max_steps=40, learning_rate=5e-3, eval_freq=20, checkpoint_steps=40, **changes
    )
    write_model(folder / "model", num_hidden_layers=TEACHER_LAYERS)
    train_pair(config)
    return folder / "out"


def distill_config(folder: Path, teacher: Path, **changes) -> DistillConfig:
    """A run of 12 steps on the pairs of the teacher, into ``folder``/small."""
    files = {name: write_pairs(folder / f"{name}.tsv", rows, seed) for name, rows, seed in PAIRS}
    flags = {"train_file": str(files["train"]), "dev_file": str(files["dev"]), "teacher": str(teacher)}
    sizes = {"batch_size": 16, "max_steps": 12, "eval_freq": 4, "checkpoint_steps": 4, "logging_freq": 1}
    given = {"output_dir": str(folder / "small"), "learning_rate": 5e-3, "device": "cpu", **flags, **sizes}
    return DistillConfig(**{**given, **changes})


PAIRS = (("train", 90, 0), ("dev", 41, 1))
