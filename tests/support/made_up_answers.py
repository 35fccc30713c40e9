"""Answers of a pair classifier that nobody trained, to be measured and shown."""

import numpy as np

from ernie_pair.evaluation.evaluation import Answers, Fitted, ScoreAnswers
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.pairs.data.pair_file import Pairs

RNG = np.random.default_rng(7)


def scored(labels, limits=None, groups=None, digits=1):
    """Answers with ties, and those of the swapped pairs."""
    texts = [f"今天{'很' * (row % 5)}{row % 3}" for row in range(len(labels))], ["今天很好"] * len(labels)
    outputs = [(labels + RNG.normal(size=len(labels)))[:, None].round(digits) for _ in range(2)]
    pairs = Pairs(*texts, labels, "0" * 64, groups=groups)
    return ScoreAnswers(pairs, limits, *(each.astype(np.float32) for each in outputs))


def ranking_answers():
    """60 queries of 2 to 120 candidates, one of which is relevant, or two; one query has none."""
    sizes = RNG.integers(2, 120, 60)
    groups = np.repeat(np.arange(60), sizes)
    labels = np.zeros(len(groups), np.int64)
    starts = np.cumsum(sizes) - sizes
    labels[starts[1:]] = labels[starts[1::3] + sizes[1::3] // 2] = 1
    return scored(labels, groups=groups)


def answers_of(classes=2, rows=60, swap=True, **changes):
    """Made up answers that know the label a little; row 0 is wrong, and wants to be HTML."""
    rng = np.random.default_rng(classes)
    labels = np.arange(rows) % classes
    logits = (rng.normal(size=(rows, classes)) + 2 * np.eye(classes)[labels]).astype(np.float32)
    logits[0] = [-9, 9, *[0] * (classes - 2)]
    left = ["<script>alert(1)</script>\t&", *(f"今天{i}不好" for i in range(1, rows))]
    right = [f"今天{i % 7}很好" for i in range(rows)]
    pairs = Pairs(left, right, labels, "0" * 64, first_line=2)
    values = {"in_use": 1.0, "fitted": Fitted(2.0, "dev.tsv", 60), **changes}
    names = tuple(f"<{label}>" for label in range(classes))
    return Answers(pairs, names, logits, logits[:, ::-1].copy() if swap else None, **values)


def config_of(**changes):
    return EvaluateConfig(
        "best-model", "test.tsv", "out.json", **{"bootstrap": 20, "device": "cpu", **changes}
    )
