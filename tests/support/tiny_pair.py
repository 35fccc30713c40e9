"""Tiny models and toy tasks for the tests of sentence pairs: a label tells whether b has a 好."""

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


TRAIN, DEV = list(toy_rows(90, seed=0)), list(toy_rows(41, seed=1))
SETTINGS = {"batch_size": 16, "learning_rate": 5e-3, "logging_freq": 1, "device": "cpu"}
UNTRAINED = {**SETTINGS, "model_type": "ernie", "from_scratch": True}


def as_dicts(rows):
    return [{"query": a, "title": b, "label": label} for a, b, label in rows]


OTHERS = [character for character in CHARACTERS if character != "好"]
LEARNS = {"epochs": 4, "learning_rate": 3e-3, "dropout": 0.0, "logging_freq": 10, "eval_freq": 1000}


def score_rows(count: int, seed: int):
    """(text, text, score): from 0 to 5, half of the number of 好 in the second text, which has 10 at most."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        left, right = (rng.choice(OTHERS, 10) for _ in "ab")
        right[: index % 11] = "好"
        yield "".join(left), "".join(rng.permutation(right)), index % 11 / 2


def candidate_rows(queries: int, seed: int):
    """(query, text, label), of three to five candidates the second is relevant: it has a 好."""
    rng = np.random.default_rng(seed)
    for number in range(queries):
        query = "".join(rng.choice(OTHERS, 6)) + "".join(OTHERS[number // 10 % 10] + OTHERS[number % 10])
        for place in range(3 + number % 3):
            text = rng.choice(OTHERS, 5)
            if place == 1:
                text[rng.integers(5)] = "好"
            yield query, "".join(text), int(place == 1)


def graded_rows(queries: int, seed: int, most: int = 20):
    """(query, text, grade), of three to ``most`` candidates: how many 好 a text has, from 0 to 3."""
    rng = np.random.default_rng(seed)
    for number in range(queries):
        for place in range(3 + number % (most - 2)):
            grade = (0, 3)[place] if place < 2 else int(rng.integers(4))
            text = [*rng.choice(OTHERS, 5 - grade), *"好" * grade]
            yield OTHERS[number // 10 % 10] + OTHERS[number % 10], "".join(rng.permutation(text)), grade


def target_config(folder: Path, target: str, rows=None, **changes) -> TrainConfig:
    """A run of a tiny ERNIE on a toy task of ``target``, whose files it writes, into ``folder``/out."""
    rows = rows or (score_rows if target == "regression" else candidate_rows)
    sizes = (165, 44) if target == "regression" else (64, 20)
    for seed, (name, size) in enumerate(zip(("train", "dev"), sizes)):
        write_rows(folder / f"{name}.tsv", rows(size, seed))
    limits = {"label_range": "0,5"} if target == "regression" else {}
    return TrainConfig(
        model_name_or_path=str(write_model(folder / "model")),
        model_type="ernie",
        target=target,
        train_file=str(folder / "train.tsv"),
        dev_file=str(folder / "dev.tsv"),
        output_dir=str(folder / "out"),
        **{"batch_size": 11, "device": "cpu", "from_scratch": True, **LEARNS, **limits, **changes},
    )


TEACHER_LAYERS = 3


def write_teacher(folder: Path, **changes) -> Path:
    """Train a classifier of three layers of 32; the folder of its run."""
    from ernie_pair.pairs.train.train_pair import train_pair

    config = train_config(
        folder, max_steps=40, learning_rate=5e-3, eval_freq=20, checkpoint_steps=40, **changes
    )
    write_model(folder / "model", num_hidden_layers=TEACHER_LAYERS)
    train_pair(config)
    return folder / "out"


def distill_config(folder: Path, teacher: Path, **changes):
    from ernie_pair.pairs.config.distill_config import DistillConfig

    files = {name: write_pairs(folder / f"{name}.tsv", rows, seed) for name, rows, seed in PAIRS}
    flags = {"train_file": str(files["train"]), "dev_file": str(files["dev"]), "teacher": str(teacher)}
    sizes = {"batch_size": 16, "max_steps": 12, "eval_freq": 4, "checkpoint_steps": 4, "logging_freq": 1}
    given = {"output_dir": str(folder / "small"), "learning_rate": 5e-3, "device": "cpu", **flags, **sizes}
    return DistillConfig(**{**given, **changes})


PAIRS = (("train", 90, 0), ("dev", 41, 1))
