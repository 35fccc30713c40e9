"""The number of threads used by the trained models of a search."""

import pytest
from tiny_ship import write_trained

from ernie_pair.embeddings.open_embedder import EmbedderOptions, open_embedder
from ernie_pair.evaluation.scorer import load
from ernie_pair.kernels.encoder_layer import ModelState
from ernie_pair.models.networks import kernel_path


@pytest.fixture
def taken(monkeypatch):
    """The thread counts given to Paddle's own kernels and to the fused ones of each model, in order."""
    told = []
    monkeypatch.setattr(kernel_path, "set_math_threads", told.append)
    change = ModelState.__setattr__

    def changed(state, name, value):
        change(state, name, value)
        if name == "threads":
            told.append(value)

    monkeypatch.setattr(ModelState, "__setattr__", changed)
    return told


@pytest.mark.parametrize("threads", [0, 3])
def test_trained_models_use_the_threads_of_the_flag(tmp_path, taken, threads):
    model = str(write_trained(tmp_path / "model"))
    scorer = load(model, "cpu", threads)
    own = taken.copy()
    taken.clear()
    embedder = open_embedder(model, "cpu", EmbedderOptions(threads=threads))
    for told in (own, taken):
        assert (3 in told) == bool(threads) and (not threads or told[-1] == 3)
    assert len(scorer.score([("今天", "明天")])) == 1 and len(embedder.embed(["今天"])) == 1


def test_a_trained_regression_model_gives_its_score_range(tmp_path):
    asked = {"num_labels": 1, "problem_type": "regression", "label_range": [0.0, 5.0]}
    model = str(write_trained(tmp_path / "model", **asked))
    assert load(model, "cpu", 1).unit[1:] == (0.0, 5.0)
