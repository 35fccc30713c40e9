"""Retrieval metrics, against values computed by hand and a naive implementation."""

import numpy as np
import pytest

from data_tools.files.errors import InputError
from ernie_pair.embedding.retrieval import METRICS, build_retrieval_set, match_ranks, measure_retrieval
from ernie_pair.pair.data.pair_file import Pairs


def pairs_of(rows):
    left, right, labels = zip(*rows)
    return Pairs(list(left), list(right), np.array(labels), "")


def unit(rows):
    rows = np.array(rows, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


ROWS = [("q", "near", 1), ("q", "far", 1), ("q", "middle", 0), ("p", "own", 1), ("far", "q", 0)]


def vectors_for(asked, places):
    return unit([places[text] for text in asked.texts])


def test_queries_are_matched_against_all_second_texts():
    asked = build_retrieval_set(pairs_of(ROWS), "dev.tsv")
    assert [asked.texts[query] for query in asked.queries] == ["q", "p"]
    found = [sorted(asked.texts[one] for one in found) for found in asked.matches]
    assert found == [["far", "near"], ["own"]]
    assert sorted(asked.texts[one] for one in asked.corpus) == ["far", "middle", "near", "own", "q"]


def test_metrics_match_values_computed_by_hand():
    asked = build_retrieval_set(pairs_of(ROWS), "dev.tsv")
    places = {
        "q": (1, 0),
        "near": (1, 0.1),
        "middle": (1, 0.2),
        "far": (1, 0.3),
        "p": (0, 1),
        "own": (0.1, 1),
    }
    vectors = vectors_for(asked, places)
    assert [ranks.tolist() for ranks in match_ranks(vectors, asked)] == [[1, 3], [1]]
    found = measure_retrieval(vectors, asked)
    assert tuple(found) == METRICS
    gain = (1 + 1 / np.log2(4)) / (1 + 1 / np.log2(3))
    wanted = {"recall_at_1": 0.75, "recall_at_10": 1, "recall_at_100": 1, "mrr": 1}
    wanted["ndcg_at_10"] = (gain + 1) / 2
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)


def test_a_query_does_not_find_itself():
    asked = build_retrieval_set(pairs_of([("q", "a", 1), ("a", "q", 0), ("a", "b", 0)]), "dev.tsv")
    vectors = vectors_for(asked, {"q": (1, 0), "a": (1, 1), "b": (0, 1)})
    assert match_ranks(vectors, asked)[0].tolist() == [1]


def test_a_match_ranks_last_among_equal_scores():
    asked = build_retrieval_set(pairs_of([("q", "a", 1), ("x", "b", 0), ("x", "c", 0)]), "dev.tsv")
    vectors = np.ones((len(asked.texts), 1), dtype=np.float32)
    assert match_ranks(vectors, asked)[0].tolist() == [3]
    assert measure_retrieval(vectors, asked)["spearman"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_ranks_match_a_full_sort(seed):
    rng = np.random.default_rng(seed)
    texts = [f"t{number}" for number in range(60)]
    rows = [(rng.choice(texts), rng.choice(texts), int(rng.integers(2))) for _ in range(200)]
    rows = [row for row in rows if row[0] != row[1]]
    asked = build_retrieval_set(pairs_of(rows), "dev.tsv")
    vectors = unit(rng.normal(size=(len(asked.texts), 8)))
    for query, matches, ranks in zip(asked.queries, asked.matches, match_ranks(vectors, asked)):
        others = [one for one in asked.corpus if one != query]
        order = sorted(others, key=lambda one: -float(vectors[query] @ vectors[one]))
        assert sorted(order.index(one) + 1 for one in matches) == ranks.tolist()


def test_spearman_correlates_cosines_and_labels():
    rows = [("a", "b", 1), ("c", "d", 0), ("e", "f", 1)]
    asked = build_retrieval_set(pairs_of(rows), "dev.tsv")
    places = {"a": (1, 0), "b": (1, 0.1), "c": (1, 0), "d": (0, 1), "e": (0, 1), "f": (0.2, 1)}
    assert measure_retrieval(vectors_for(asked, places), asked)["spearman"] == pytest.approx(0.866, abs=1e-3)


def test_pairs_without_a_match_are_refused():
    with pytest.raises(InputError, match="dev.tsv has no pair of label 1"):
        build_retrieval_set(pairs_of([("a", "b", 0)]), "dev.tsv")
