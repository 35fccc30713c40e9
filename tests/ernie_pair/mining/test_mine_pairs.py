"""Mining: nearest texts, data leaks, resuming after a kill, and bad input."""

import json
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from run_files import Killed
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity
from tiny_pair import toy_rows, write_rows
from tiny_ship import write_trained

from ernie_pair.__main__ import _run
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.mining import neighbours
from ernie_pair.mining.mine_pairs import MineConfig, TextGraph, mine_pairs
from ernie_pair.mining.neighbours import Embeddings, KeptBlocks, Ngrams, Range, find_similarity_range, nearest
from ernie_pair.pairs.audit.findings import coded
from ernie_pair.pairs.data.pair_source import read_pairs


def test_texts_of_the_same_group_are_never_neighbours(tmp_path):
    rows = [("天天气真好", "天天气很好", 1), ("天天气很好", "天天气不好", 1), ("天天气真好", "天天气来去", 0)]
    path = write_rows(tmp_path / "train.tsv", rows)
    graph = TextGraph(coded({"train": read_pairs(path, 2)})["train"], 1)
    everyone, wanted = np.arange(len(graph.texts)), Range(0.01, np.ones(len(graph.texts)), 5)
    found = nearest(Ngrams(graph.texts), everyone, graph.group, wanted, KeptBlocks(tmp_path / "out.tsv", {}))
    others = {(node, other) for node, row in enumerate(found) for other in row["node"].tolist() if other >= 0}
    assert others and all(graph.group[one] != graph.group[other] for one, other in others)


def test_common_ngrams_are_used_if_there_are_no_rare_ones(caplog):
    """If every n-gram is a common one, all are used; otherwise the common ones are dropped."""
    words = ["".join("ab"[number >> bit & 1] for bit in range(9)) for number in range(512)]
    caplog.set_level("INFO")
    compare = Ngrams(words)
    (nodes, similarities), *_ = compare.block(np.array([0]))
    assert words[nodes[np.argsort(-similarities, kind="stable")[0]]] == words[0] and len(nodes) > 200
    assert "every character n-gram is in more than 200 texts" in caplog.text
    caplog.clear()
    assert Ngrams([*words, "cd", "cde"]).weights.shape[1] == 5 and not caplog.text


class Fake:
    """Embeds texts as points on a circle, by their number; with roles, queries half a step further on."""

    def __init__(self, has_roles=False):
        self.has_roles = has_roles

    def unit_vectors(self, texts, role):
        shift = 0.5 if self.has_roles and role == "query" else 0
        angles = (np.array([int(text) for text in texts]) + shift) * 0.1
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_nearest_texts_are_in_range_for_any_block_size(tmp_path, monkeypatch):
    texts, group = [str(number) for number in range(30)], np.arange(30)
    group[4] = group[3]
    wanted = Range(np.cos(0.35), np.full(30, np.cos(0.15)), 3)

    def found(name):
        kept = KeptBlocks(tmp_path / name, {})
        rows = nearest(Embeddings(Fake(), texts, kept), np.arange(30), group, wanted, kept)
        return [[(int(n), round(float(s), 5)) for n, s, _ in row.tolist()] for row in rows]

    whole = found("whole")
    assert [node for node, _ in whole[10]] == [8, 12, 7]  # one step is too near, four too far
    assert [node for node, _ in whole[3]] == [1, 5, 0]
    assert [node for node, _ in whole[5]] == [3, 7, 2]
    assert [node for node, _ in whole[0]] == [2, 3, -1]
    monkeypatch.setattr(neighbours, "EMBEDDED_AT_ONCE", 7)
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 4 * 30 * 4)
    assert found("parts") == whole


def test_pairwise_similarities_equal_those_of_blocks(tmp_path):
    texts = ["今天天气", "今天很好", "天气不好", "来去"]
    kept = KeptBlocks(tmp_path / "x", {})
    for compare in (Ngrams(texts), Embeddings(Fake(), ["1", "9", "4", "7"], kept)):
        whole = np.zeros((4, 4), dtype=np.float32)
        for node, (others, similarities) in enumerate(compare.block(np.arange(4))):
            whole[node, others] = similarities
        left, right = np.array([0, 1, 2, 3, 0]), np.array([1, 2, 3, 0, 0])
        assert compare.pairs(left, right) == pytest.approx(whole[left, right], abs=1e-6)


@pytest.fixture
def train(tmp_path):
    rows = list(toy_rows(60, seed=4))
    rows = [(rows[i - 1][1] if i % 2 else rows[i][0], *rows[i][1:]) for i in range(60)]
    return write_rows(tmp_path / "train.tsv", rows)


def mine(train, out, **flags):
    mine_pairs(MineConfig(str(train), str(out), **{"device": "cpu", "min_similarity": 0.01, **flags}))
    return out.read_text(encoding="utf-8").splitlines()


def test_the_command_writes_a_valid_training_file(train, tmp_path, capsys):
    out = tmp_path / "more.jsonl"
    words = f"mine --train_file {train} --output_file {out} --include_labelled true --min_similarity 0.05"
    assert exit_code_of(lambda: _run(words.split())) == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    kinds = Counter(row["origin"].split()[0] for row in rows)
    assert kinds.keys() == {"labelled", "near"} and kinds["labelled"] == 60
    assert len(read_pairs(out, 2)) == len(rows)
    assert not (tmp_path / "more.jsonl.work").exists()
    assert "labelled pairs with a similarity from 0.05 to 0.6" in capsys.readouterr().err
    assert exit_code_of(lambda: _run(words.split())) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_pairs_of_the_dev_file_are_left_out(train, tmp_path):
    everything = mine(train, tmp_path / "all.tsv")[1:]
    dev = tmp_path / "dev.tsv"
    picked = [line.split("\t") for line in everything[::2]]
    dev.write_text("".join(f"{right} \t{left}！\t1\n" for left, right, *_ in picked), encoding="utf-8")
    rest = mine(train, tmp_path / "rest.tsv", dev_file=str(dev))[1:]
    assert rest == everything[1::2]


def test_labelled_pairs_of_dev_and_test_are_left_out(train, tmp_path, capfd):
    everything = mine(train, tmp_path / "all.tsv", include_labelled=True)[1:]
    rows = train.read_text(encoding="utf-8").splitlines()
    for name, row in (("dev", 0), ("test", 7)):
        left, right, _ = rows[row].split("\t")
        (tmp_path / f"{name}.tsv").write_text(f"{right}\t{left}\n", encoding="utf-8")
    files = {f"{name}_file": str(tmp_path / f"{name}.tsv") for name in ("dev", "test")}
    found = mine(train, tmp_path / "rest.tsv", include_labelled=True, **files)[1:]
    assert found == [line for row, line in enumerate(everything) if row not in (0, 7)]
    told = capfd.readouterr().err
    for name in ("dev", "test"):
        assert f"1 labelled pairs are in the {name} file and were left out" in told


def test_limit_keeps_a_subset_of_the_unlimited_pairs(train, tmp_path):
    near = mine(train, tmp_path / "near.tsv", per_text=3)[1:]
    few = mine(train, tmp_path / "few.tsv", per_text=3, limit=4)[1:]
    other = mine(train, tmp_path / "other.tsv", per_text=3, limit=4, seed=5)[1:]
    assert len(few) == 4 and [line for line in near if line in few] == few
    assert few != near[:4] and few != other  # drawn, and with the seed
    assert all("\t0\tnear 0." in line for line in near)


def test_a_killed_run_resumes_to_byte_identical_output(train, tmp_path, monkeypatch):
    model = str(write_trained(tmp_path / "model"))
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", 4 * 100 * 10)
    mine(train, tmp_path / "whole.tsv", embedding_model=model, max_similarity=0.99)
    block, found = neighbours._block, []

    def until_killed(*arguments):
        found.append(arguments[1].tolist())
        if len(found) == 3:
            raise Killed
        return block(*arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(neighbours, "_block", until_killed)
        mine(train, tmp_path / "cut.tsv", embedding_model=model, max_similarity=0.99)
    assert not (tmp_path / "cut.tsv").exists() and (tmp_path / "cut.tsv.work").is_dir()
    (tmp_path / "cut.tsv.work" / "mine.txt").write_text("of a person")
    again = []
    monkeypatch.setattr(neighbours, "_block", lambda *words: again.append(words[1].tolist()) or block(*words))
    mine(train, tmp_path / "cut.tsv", embedding_model=model, max_similarity=0.99)
    assert (tmp_path / "cut.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert again[0] == found[2] and not set(sum(again, [])) & set(sum(found[:2], []))
    assert [path.name for path in (tmp_path / "cut.tsv.work").iterdir()] == ["mine.txt"]


def test_a_damaged_block_is_computed_again(tmp_path):
    kept = KeptBlocks(tmp_path / "out.tsv", {"a": 1})
    assert kept.get("x", lambda: np.arange(3)).tolist() == [0, 1, 2]
    (path,) = kept.folder.glob("*.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"9")
    assert kept.get("x", lambda: np.arange(4)).tolist() == [0, 1, 2, 3]
    assert kept.get("x", lambda: np.arange(5)).tolist() == [0, 1, 2, 3]
    others = KeptBlocks(tmp_path / "out.tsv", {"a": 2})  # made with other flags
    assert others.get("x", lambda: np.arange(2)).tolist() == [0, 1]
    kept.remove()
    assert not kept.folder.exists()


def test_a_text_asks_as_a_query_and_is_found_as_a_passage(tmp_path):
    compare = Embeddings(Fake(has_roles=True), ["1", "9", "4"], KeptBlocks(tmp_path / "x", {}))
    wanted = np.cos((np.array([[1.5], [9.5], [4.5]]) - np.array([1, 9, 4])) * 0.1)
    found = np.stack([similarities for _, similarities in compare.block(np.arange(3))])
    assert found == pytest.approx(wanted, abs=1e-6)
    pairs = compare.pairs(np.array([0, 1]), np.array([1, 0]))
    assert pairs == pytest.approx(wanted[[0, 1], [1, 0]], abs=1e-6)


# --- beside scikit-learn and full sorts


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
