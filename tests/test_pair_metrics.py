"""Metrics against numbers worked out by hand."""

import math

import numpy as np

from ernie_pair.pair.metrics import cross_entropies, measure


def test_metrics_of_four_rows():
    logits = np.array([[2, 0], [0, 2], [0, 2], [2, 0]], dtype=np.float32)
    labels = np.array([0, 1, 0, 1])
    near, far = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    metrics = measure(logits, labels)
    assert metrics["accuracy"] == metrics["f1"] == 0.5
    assert math.isclose(metrics["loss"], (near + far) / 2, rel_tol=1e-15)


def test_f1_of_two_classes_is_that_of_class_one():
    logits = np.eye(2, dtype=np.float32)[[1, 1, 1, 0]]
    assert measure(logits, np.array([1, 1, 0, 0]))["f1"] == 0.8


def test_f1_of_three_classes_is_the_mean_over_classes():
    logits = np.eye(3, dtype=np.float32)[[0, 1, 1]]
    assert math.isclose(measure(logits, np.array([0, 1, 2]))["f1"], (1 + 2 / 3 + 0) / 3)


def test_large_logits_do_not_overflow():
    losses = cross_entropies(np.array([[3e4, -3e4]], dtype=np.float32), np.array([1]))
    assert losses.tolist() == [6e4]
