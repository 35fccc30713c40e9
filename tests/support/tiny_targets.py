"""Toy tasks beside classes: how many 好 a text has, and which candidate of a query has one."""

from pathlib import Path

import numpy as np
from tiny_pair import CHARACTERS, write_model, write_rows

from ernie_pair.pairs.config.pair_config import TrainConfig

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


def graded_rows(queries: int, seed: int):
    """(query, text, grade), of three to twenty candidates: how many 好 a text has, from 0 to 3."""
    rng = np.random.default_rng(seed)
    for number in range(queries):
        for place in range(3 + number % 18):
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
