"""Tiny models and a toy task for the tests of sentence pairs: the label tells whether b has a 好."""

import json
from pathlib import Path

import numpy as np

from ernie_pair.models.commands import NewModelConfig, new_model
from ernie_pair.pairs.config.pair_config import TrainConfig

CHARACTERS = "我你他她它们今天明昨气候真很不太好坏大小多少上下左右前后来去"
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
VOCAB = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, "[UNK]"]


def write_model(folder: Path, **changes) -> Path:
    """config.json and vocab.txt of a 2-layer model of 32, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    limits = {"vocab_size": len(VOCAB), "max_position_embeddings": 128, "type_vocab_size": 2}
    (folder / "config.json").write_text(json.dumps({**limits, **sizes, **changes}))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    return folder


def toy_rows(count: int, seed: int):
    """(text, text, label) of many lengths, labels balanced."""
    rng = np.random.default_rng(seed)
    others = [character for character in CHARACTERS if character != "好"]
    for index in range(count):
        left, right = (rng.choice(others, rng.integers(2, 9)).tolist() for _ in "ab")
        if index % 2:
            right[rng.integers(len(right))] = "好"
        yield "".join(left), "".join(right), index % 2


def write_pairs(path: Path, count: int, seed: int = 0, labels: bool = True) -> Path:
    return write_rows(path, (row if labels else row[:2] for row in toy_rows(count, seed)))


def write_rows(path: Path, rows) -> Path:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


def train_config(folder: Path, **changes) -> TrainConfig:
    """A run of a tiny ERNIE on 90 pairs, which it writes, into ``folder``/out."""
    return TrainConfig(
        model_name_or_path=str(write_model(folder / "model")),
        model_type="ernie",
        from_scratch=True,
        train_file=str(write_pairs(folder / "train.tsv", 90, seed=0)),
        dev_file=str(write_pairs(folder / "dev.tsv", 41, seed=1)),
        output_dir=str(folder / "out"),
        **{"batch_size": 16, "logging_freq": 1, "device": "cpu", **changes},
    )


def write_new(folder, family, **flags):
    """The folder that `ernie-pair new-model` makes; its weights are to differ clearly from each other."""
    vocab_file = folder.with_name(f"{folder.name}.txt")
    vocab_file.write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    sizes = {**SIZES, "max_position_embeddings": 64, **flags}
    new_model(NewModelConfig(str(vocab_file), str(folder), model_type=family, **sizes))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "initializer_range": 0.5}))
    return folder
