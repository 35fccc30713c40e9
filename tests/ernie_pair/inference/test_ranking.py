"""Ranking many candidates: the best ones, in a fixed order, in bounded memory."""

import doctest

import numpy as np
import pytest
from tiny_ship import random_texts, ship, write_trained

from data_tools.files.errors import InputError, NumbersError
from ernie_pair.inference import scores as ranking
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.scores import Ranked, best_places, rank_texts


def lengths(texts):
    return np.array([len(text) for text in texts], dtype=np.float64)


@pytest.mark.parametrize("window", [1, 3, 1000])
@pytest.mark.parametrize("top_k", [1, 4, 50, 500])
def test_top_k_equals_a_stable_full_sort(monkeypatch, window, top_k):
    monkeypatch.setattr(ranking, "CANDIDATES", window)
    texts = ["x" * size for size in np.random.default_rng(1).integers(0, 9, 120)]
    found = rank_texts(lengths, iter(texts), top_k)
    places = sorted(range(len(texts)), key=lambda place: (-len(texts[place]), place))[:top_k]
    assert found == [Ranked(place, texts[place], len(texts[place])) for place in places]
    assert best_places(lengths(texts), top_k) == places


def test_streamed_candidates_are_scored_in_bounded_windows(monkeypatch):
    monkeypatch.setattr(ranking, "CANDIDATES", 100)
    scored, taken = [], []

    def stream():
        for number in range(20_000):
            taken.append(number)
            assert len(taken) - sum(scored) <= 100
            yield str(number)

    def score(texts):
        scored.append(len(texts))
        return np.array([float(text) % 777 for text in texts])

    best = rank_texts(score, stream(), 2)
    assert max(scored) == 100 and [found.place for found in best] == [776, 776 + 777]


def test_ranking_no_candidates_returns_an_empty_list():
    assert rank_texts(lengths, [], 3) == []


@pytest.mark.parametrize(
    "candidates, top_k, reason",
    [
        (["a"], 0, "top_k 0 is below 1; ask for at least one"),
        ("abc", 1, "the candidates are one text, 'abc'; give a list"),
        (["a", None], 1, "candidate 1 is None; give a text"),
    ],
)
def test_invalid_ranking_arguments_are_rejected(candidates, top_k, reason):
    with pytest.raises(InputError, match=reason):
        rank_texts(lengths, candidates, top_k)


def test_a_nan_score_is_an_error_naming_the_candidate(monkeypatch):
    monkeypatch.setattr(ranking, "CANDIDATES", 2)
    with pytest.raises(NumbersError, match="the score of candidate 3 is NaN"):
        rank_texts(lambda texts: np.where(np.array(texts) == "d", np.nan, 1.0), "a b c d".split(), 1)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranking")
    return PairPredictor(ship(write_trained(folder / "best"), folder / "ship"), "paddle", threads=1)


def test_a_predictor_ranks_by_the_probability_of_class_1(predictor):
    candidates = [pair[0] for pair in random_texts(70, seed=4)]
    best = predictor.rank("今天天气很好", iter(candidates), top_k=5)
    shares = predictor.predict([("今天天气很好", text) for text in candidates]).probabilities[:, 1]
    assert [found.place for found in best] == np.argsort(-shares, kind="stable")[:5].tolist()
    assert [found.score for found in best] == pytest.approx(np.sort(shares)[::-1][:5], abs=1e-6)
    assert [found.text for found in best] == [candidates[found.place] for found in best]


def test_the_docstring_example_of_rank_runs(predictor, monkeypatch):
    monkeypatch.chdir(predictor.exported.folder.parent)
    (example,) = doctest.DocTestFinder().find(PairPredictor.rank, "rank", globs={})
    assert len(example.examples) == 3
    assert doctest.DocTestRunner().run(example).failed == 0


def test_rank_rejects_three_classes_and_a_missing_query(predictor, monkeypatch):
    monkeypatch.setattr(predictor, "class_names", ("a", "b", "c"))
    with pytest.raises(InputError, match="has 3 classes, but candidates are ranked by the second of two"):
        predictor.rank("今", ["天"])
    with pytest.raises(InputError, match="the query is None; give a text"):
        predictor.rank(None, ["天"])
