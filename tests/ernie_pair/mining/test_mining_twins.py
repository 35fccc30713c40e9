"""Near pairs beside scikit-learn's cosines of all texts."""

from itertools import combinations

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity
from tiny_pair import write_rows

from ernie_pair.mining import neighbours
from ernie_pair.mining.mine_pairs import MineConfig, mine_pairs
from ernie_pair.mining.neighbours import Embeddings, KeptBlocks, Ngrams, Range, find_similarity_range, nearest


def mined(folder, rows, **flags):
    """The new pairs near each other, {frozenset of two texts}."""
    train = write_rows(folder / "train.tsv", rows)
    flags = {"per_text": 99, "device": "cpu", **flags}
    mine_pairs(MineConfig(str(train), str(folder / "out.tsv"), **flags))
    lines = [line.split("\t") for line in (folder / "out.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert len({frozenset(line[:2]) for line in lines}) == len(lines) and {line[2] for line in lines} <= {"0"}
    return {frozenset(line[:2]) for line in lines}


@pytest.mark.parametrize("seed", range(3))
def test_all_near_pairs_of_other_groups_are_found(tmp_path, seed, capfd):
    """The ends of the range are those of pairs, labelled and new ones, which count."""
    rng = np.random.default_rng(seed)
    texts = ["".join(rng.choice(list("天气很好不来去今"), 6)) for _ in range(24)]
    rows = [(texts[2 * row], texts[2 * row + 1], int(rng.integers(2))) for row in range(12)]
    group = {text: row for row, (*pair, _) in enumerate(rows) for text in pair}
    group.update({right: 12 + row for row, (_, right, label) in enumerate(rows) if not label})
    weights = TfidfVectorizer(analyzer="char", ngram_range=(1, 2), dtype=np.float32).fit_transform(texts)
    cosines = cosine_similarity(weights)
    labelled = [(2 * row, 2 * row + 1) for row in range(12)]
    similar = {
        frozenset((texts[i], texts[j])): cosines[i, j]
        for i, j in combinations(range(24), 2)
        if group[texts[i]] != group[texts[j]] and (i, j) not in labelled
    }
    known = np.array([cosines[pair] for pair in labelled])
    for least, most in ((0.1, 0.4), (float(np.sort(known)[4]), float(np.sort(known)[-2]))):
        slack = 1e-6  # what the last bit of a cosine may move
        found = mined(tmp_path, rows, min_similarity=least, max_similarity=most, overwrite=True)
        assert {pair for pair, cosine in similar.items() if least + slack < cosine < most - slack} <= found
        assert found <= {pair for pair, cosine in similar.items() if least - slack < cosine < most + slack}
        inside = (known > least - slack) & (known < most + slack)
        share = np.mean([rows[row][2] for row in np.flatnonzero(inside)]) * 100
        told = capfd.readouterr().err
        assert f"of the {inside.sum()} labelled pairs with a similarity from {least:g} to {most:g}, " in told
        assert f"{share:.1f} % have the same meaning" in told


class Grid:
    """Embeds numbers as vectors whose products are quarters, to the last bit."""

    has_roles = False

    def unit_vectors(self, texts, role):
        signs = [[1 - 2 * (int(text) >> bit & 1) for bit in range(4)] for text in texts]
        return np.array(signs, dtype=np.float32) / 2


@pytest.mark.parametrize("most_texts", [1, 3, 40])
@pytest.mark.parametrize("least, most", [(-1, 1), (0, 0.5), (0.5, 0.5), (-0.5, 0.9)])
def test_the_nearest_are_those_of_a_full_sort(tmp_path, least, most, most_texts):
    """Both ends of the range count, and of equals the first texts."""
    rng = np.random.default_rng(most_texts)
    texts, group = list(map(str, rng.integers(0, 16, 40))), rng.integers(0, 30, 40)
    kept = KeptBlocks(tmp_path / "out.tsv", {})
    compare = Embeddings(Grid(), texts, kept)
    vectors = Grid().unit_vectors(texts, "")
    products = vectors @ vectors.T
    wanted_range = Range(least, np.full(40, most, np.float32), most_texts)
    found = nearest(compare, np.arange(40), group, wanted_range, kept)
    for node, row in enumerate(found):
        fits = (group != group[node]) & (products[node] >= least) & (products[node] <= most)
        order = np.argsort(-products[node], kind="stable")
        wanted = [(place, products[node][place]) for place in order if fits[place]][:most_texts]
        pairs = list(zip(row["node"].tolist(), row["similarity"].tolist()))
        assert [pair for pair in pairs if pair[0] >= 0] == wanted and len(pairs) == most_texts
    others = [products[n][group != group[n]] for n in range(7)]
    ends = min(row.min() for row in others), max(row.max() for row in others)
    assert find_similarity_range(compare, np.arange(7), group) == ends


def test_ngrams_of_too_many_texts_do_not_count(monkeypatch):
    """With 500 texts those of more than 10, which are 2 %, and of 3 in any case."""
    monkeypatch.setattr(neighbours, "MIN_COMMON", 3)
    letters = [chr(0x4E00 + place) for place in range(500)]
    texts = [f"{letter}{'甲' * (n < 10)}{'乙' * (10 <= n < 21)}" for n, letter in enumerate(letters)]
    rare, common = Ngrams(texts).pairs(np.array([0, 10]), np.array([1, 11]))
    assert rare > 0 == common


def test_the_range_of_known_pairs_alone_is_logged(tmp_path, capfd):
    rows = [("天天气", "天气天", 0), ("来去", "很好", 1)]
    assert not mined(tmp_path, rows, min_similarity=0.01, max_similarity=0.02)
    texts = [text for row in rows for text in row[:2]]
    ngrams = TfidfVectorizer(analyzer="char", ngram_range=(1, 2), dtype=np.float32).fit_transform(texts)
    cosine = cosine_similarity(ngrams)[0, 1]
    assert f"go from {cosine:.4f} to {cosine:.4f}, and those from 0.01 to 0.02" in capfd.readouterr().err
