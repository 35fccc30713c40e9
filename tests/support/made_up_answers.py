"""Answers of a pair classifier that nobody trained, to be measured and shown."""

import numpy as np

from ernie_pair.evaluation.evaluation import Answers, Fitted
from ernie_pair.pairs.config.ask_config import EvaluateConfig
from ernie_pair.pairs.data.pair_file import Pairs


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
