"""Retrieval metrics, against scikit-learn and scipy."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import ndcg_score

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings import retrieval
from ernie_pair.embeddings.retrieval import METRICS, build_retrieval_set, match_ranks, measure_retrieval
from ernie_pair.pairs.data.pair_file import Pairs


def pairs_of(rows):
    left, right, labels = zip(*rows)
    return Pairs(list(left), list(right), np.array(labels), "")


ROWS = [("q", "near", 1), ("q", "far", 1), ("q", "middle", 0), ("p", "own", 1), ("far", "q", 0)]


def test_queries_are_matched_against_all_second_texts():
    asked = build_retrieval_set(pairs_of(ROWS), "dev.tsv")
    assert [asked.texts[query] for query in asked.queries] == ["q", "p"]
    found = [sorted(asked.texts[one] for one in found) for found in asked.matches]
    assert found == [["far", "near"], ["own"]]
    assert sorted(asked.texts[one] for one in asked.corpus) == ["far", "middle", "near", "own", "q"]


@pytest.mark.parametrize("seed", range(4))
def test_metrics_match_scikit_learn_and_scipy(seed, monkeypatch):
    """Vectors of few values give many ties, and most queries have more matches than the 10 that count."""
    monkeypatch.setattr(retrieval, "BLOCK", 5)
    rng = np.random.default_rng(seed)
    texts = [f"t{number}" for number in range(60)]
    rows = [(rng.choice(texts[:12]), rng.choice(texts), int(rng.integers(2))) for _ in range(300)]
    asked = build_retrieval_set(pairs_of(rows), "dev.tsv")
    vectors, as_queries = rng.integers(-2, 3, size=(2, len(asked.texts), 4)).astype(np.float32)
    for keeps_same_text in (False, True):
        found, wanted = measure_retrieval(vectors, asked, as_queries, keeps_same_text), []
        for query, matches in zip(asked.queries, asked.matches):
            corpus = [one for one in asked.corpus if keeps_same_text or one != query or one in matches]
            gains, scores = np.isin(corpus, matches), vectors[corpus] @ as_queries[query]
            order = np.lexsort((gains, -scores))  # of equal scores the matches last
            untied = -np.argsort(order).astype(float)
            recalls = [gains[order[:k]].sum() / len(matches) for k in (1, 10, 100)]
            ndcg = ndcg_score([gains], [untied], k=10)
            wanted.append([*recalls, 1 / (1 + np.argmax(gains[order])), ndcg])
        cosines = (as_queries[asked.left] * vectors[asked.right]).sum(axis=1)
        wanted = [*np.mean(wanted, axis=0), spearmanr(cosines, asked.labels)[0]]
        assert found == pytest.approx(dict(zip(METRICS, wanted)), abs=1e-12)


def test_a_query_does_not_find_itself():
    asked = build_retrieval_set(pairs_of([("q", "a", 1), ("a", "q", 0), ("a", "b", 0)]), "dev.tsv")
    vectors = np.array([{"q": (2, 0), "a": (1, 1), "b": (0, 1)}[text] for text in asked.texts])
    assert match_ranks(vectors, asked, vectors)[0].tolist() == [1]
    assert match_ranks(vectors, asked, vectors, keeps_same_text=True)[0].tolist() == [2]
    assert measure_retrieval(vectors, asked)["mrr"] == 1
    own_match = build_retrieval_set(pairs_of([("q", "a", 1), ("q", "q", 1), ("x", "a", 1)]), "dev.tsv")
    assert (asked.num_left_out, own_match.num_left_out) == (1, 0)


def test_pairs_with_any_score_between_are_graded():
    asked = build_retrieval_set(pairs_of([("q", "a", 1), ("q", "b", 0), ("q", "c", 0.5)]), "dev.tsv")
    vectors = np.array([{"q": 4, "a": 3, "c": 2, "b": 1}[text] for text in asked.texts], np.float32)[:, None]
    assert measure_retrieval(vectors, asked) == {"spearman": 1.0}


def test_a_match_ranks_last_among_equal_scores():
    asked = build_retrieval_set(pairs_of([("q", "a", 1), ("x", "b", 0), ("x", "c", 0)]), "dev.tsv")
    vectors = np.ones((len(asked.texts), 1), dtype=np.float32)
    assert match_ranks(vectors, asked, vectors)[0].tolist() == [3]
    assert measure_retrieval(vectors, asked)["spearman"] == 0


def test_pairs_without_a_match_are_refused():
    with pytest.raises(InputError, match="dev.tsv has no pair of label 1"):
        build_retrieval_set(pairs_of([("a", "b", 0)]), "dev.tsv")
