"""audit duplicates: groups of texts that ask the same, beside all pairs compared one by one."""

import json

import numpy as np
import pytest
from openpyxl import load_workbook
from scipy.cluster.hierarchy import DisjointSet
from tiny_search import HashEmbedder, index_of, texts_of, use_embedder, write_exports

from ernie_pair import PairPredictor, audit_duplicates, index
from ernie_pair.core.errors import InputError


def texts_with_twins():
    texts = texts_of(40)
    return [one for n, text in enumerate(texts) for one in ([text, f"{text}{text[0]}"] if n % 3 else [text])]


def groups_of(texts, is_same):
    """The sets of texts, by place, that pairs for which ``is_same`` link."""
    sets = DisjointSet(range(len(texts)))
    for left in range(len(texts)):
        for right in range(left):
            if is_same[left, right]:
                sets.merge(left, right)
    return {frozenset(f"t{n}" for n in one) for one in sets.subsets() if len(one) > 1}


def found_in(path):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    groups = {}
    for row in rows:
        groups.setdefault(row["group"], set()).add(row["id"])
    sizes = [len(one) for one in groups.values()]
    assert sizes == sorted(sizes, reverse=True) and list(groups) == list(range(1, len(groups) + 1))
    return rows, {frozenset(one) for one in groups.values()}


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_groups_by_vectors_are_those_of_all_pairs(tmp_path, monkeypatch, kind):
    embedder, texts = HashEmbedder(), texts_with_twins()
    use_embedder(monkeypatch, embedder)
    made, output = index_of(tmp_path, texts, kind=kind), tmp_path / "same.jsonl"
    audit_duplicates(index=str(made), threshold=0.8, output_file=str(output), top_k=30)
    vectors = embedder.embed(texts)
    cosines = vectors @ vectors.T
    rows, groups = found_in(output)
    assert groups == groups_of(texts, cosines >= 0.8) and len(groups) > 10
    for row in rows:
        place, near = int(row["id"][1:]), int(row["nearest_id"][1:])
        assert row["text"] == texts[place] and row["nearest_text"] == texts[near] and row["keep"] == ""
        assert row["score"] == pytest.approx(float(np.delete(cosines[place], place).max()), abs=1e-5)


@pytest.mark.parametrize("retrieval", ["bm25", "both"])
def test_groups_by_a_classifier_have_its_threshold(tmp_path, monkeypatch, retrieval):
    ship = write_exports(tmp_path / "models") / "ship"
    texts = texts_with_twins()
    use_embedder(monkeypatch, HashEmbedder())
    made, output = index_of(tmp_path, texts, **({} if retrieval == "both" else {"embedding_model": ""}),
                            retrieval=retrieval), tmp_path / "same.jsonl"  # fmt: skip
    pairs = [(left, right) for left in texts for right in texts]
    scores = PairPredictor(ship).predict(pairs).scores.reshape(len(texts), len(texts))
    scores = np.triu(scores, 1) + np.triu(scores, 1).T  # the lower position stands first
    threshold = float(np.quantile(scores[np.triu_indices(len(texts), 1)], 0.99))
    flags = {"index": str(made), "model_path": str(ship), "top_k": len(texts), "threshold": threshold}
    audit_duplicates(**flags, output_file=str(output))
    shares = np.array([[bool({*one} & {*other}) for other in texts] for one in texts])
    near = shares if retrieval == "bm25" else np.ones_like(shares)
    _, groups = found_in(output)
    assert groups == groups_of(texts, (scores >= threshold) & near) and groups


def test_a_table_to_decide_in_has_what_rides_along(tmp_path):
    (tmp_path / "faq.csv").write_text(
        "id,text,answer,score\n007,怎么开户,柜台,1\n8,怎么开户?,网点,2\n9,还款,,\n", encoding="utf-8"
    )
    made = index(input_file=str(tmp_path / "faq.csv"), retrieval="bm25", payload_columns="answer,score",
                 output_dir=str(tmp_path / "index"))  # fmt: skip
    ship = write_exports(tmp_path / "models") / "ship"
    output = tmp_path / "same.xlsx"
    found = audit_duplicates(index=str(made), model_path=str(ship), threshold=0.0, output_file=str(output))
    assert found == output
    head, *rows = load_workbook(output).active.iter_rows(values_only=True)
    assert head[:3] == ("group", "id", "text") and head[-3:] == ("keep", "answer", "payload_score")
    assert [row[1] for row in rows] == ["007", "8"] and [row[-2] for row in rows] == ["柜台", "网点"]


@pytest.mark.parametrize("flags, said", [
    ({}, "does not say which texts are the same: give a classifier"),
    ({"threshold": 0.9}, "does not say which texts are the same: give a classifier"),
    ({"output_file": "same.txt"}, "name a file that ends with"),
])  # fmt: skip
def test_nothing_is_guessed(tmp_path, flags, said):
    made = index_of(tmp_path, texts_of(5), embedding_model="", retrieval="bm25")
    with pytest.raises(InputError, match=said):
        audit_duplicates(**{"index": str(made), "output_file": str(tmp_path / "same.tsv"), **flags})
    assert not (tmp_path / "same.tsv").exists()


def test_vectors_need_a_threshold_and_a_single_text_no_other(tmp_path, monkeypatch):
    use_embedder(monkeypatch, HashEmbedder())
    made, output = index_of(tmp_path, ["怎么开户"]), tmp_path / "same.tsv"
    with pytest.raises(InputError, match="give one, or --?threshold|give one, or threshold"):
        audit_duplicates(index=str(made), output_file=str(output))
    audit_duplicates(index=str(made), output_file=str(output), threshold=0.5)
    assert output.read_text().splitlines() == ["group\tid\ttext\tnearest_id\tnearest_text\tscore\tkeep"]
