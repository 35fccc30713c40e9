"""The measures of a search are those of trec_eval, also where scores are equal."""

import numpy as np
import pytest

from ernie_pair.retrieval.evaluate_search import METRICS, values_of

trec_eval = pytest.importorskip("pytrec_eval", reason="tests/peer runs by scripts/test_peer.sh")
THEIRS = "success_1 success_10 recall_1 recall_10 recip_rank ndcg_cut_10 map".split()


def test_runs_are_measured_as_trec_eval_does():
    rng = np.random.default_rng(0)
    judged, runs, ours = {}, {}, {}
    for number in range(200):
        texts = [f"d{place}" for place in rng.permutation(80)[: rng.integers(10, 60)]]
        found = dict(zip(texts, rng.integers(0, 8, len(texts)).astype(float).tolist()))
        relevant = rng.permutation(80)[: rng.integers(1, 15)]
        grades = dict(zip((f"d{place}" for place in relevant), rng.integers(1, 4, len(relevant)).tolist()))
        judged[f"q{number}"], runs[f"q{number}"] = grades, found
        # It puts the later of two ids with equal scores first; a search of ours the earlier text.
        ranked = sorted(sorted(texts, reverse=True), key=found.__getitem__, reverse=True)
        ours[f"q{number}"] = values_of({name: float(grade) for name, grade in grades.items()}, ranked)
    asked = {"success.1,10", "recall.1,10", "recip_rank", "ndcg_cut.10", "map"}
    theirs = trec_eval.RelevanceEvaluator(judged, asked).evaluate(runs)
    assert len(METRICS) == len(THEIRS)
    for query, values in ours.items():
        np.testing.assert_allclose(values, [theirs[query][name] for name in THEIRS], atol=1e-12)
