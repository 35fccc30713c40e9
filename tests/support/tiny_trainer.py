"""A run of PairTrainer on made-up pairs: its data, its settings, and what was logged of it."""

from tiny_pair import toy_rows

TRAIN, DEV = list(toy_rows(90, seed=0)), list(toy_rows(41, seed=1))
SETTINGS = {"batch_size": 16, "learning_rate": 5e-3, "logging_freq": 1, "device": "cpu"}
UNTRAINED = {**SETTINGS, "model_type": "ernie", "from_scratch": True}


def as_dicts(rows):
    return [{"query": a, "title": b, "label": label} for a, b, label in rows]
