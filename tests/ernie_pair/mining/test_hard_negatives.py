"""Near texts by rank, margin and reranker, of a corpus or an index: against loops, and as training files."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from run_files import Killed
from tiny_embedding import embedding_config, write_matches
from tiny_embedding import write_files as write_embedding_files
from tiny_pair import train_config, write_rows
from tiny_search import HashEmbedder, index_of, texts_of, use_embedder, write_lines
from tiny_ship import write_trained

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings import open_embedder as opening
from ernie_pair.embeddings.train.train_embedding import train_embedding
from ernie_pair.evaluation.scorer import load
from ernie_pair.inference.predictor import PairScorer
from ernie_pair.inference.scores import PROBABILITY
from ernie_pair.mining import mine_pairs as mining
from ernie_pair.mining.mine_pairs import SPARE, MineConfig, mine_pairs
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.retrieval.index_folder import IndexFolder


class Vectors(HashEmbedder):
    """Vectors of texts by their characters; as a query a text has others."""

    has_roles = True

    def unit_vectors(self, texts, role):
        return self.embed([f"{text}？" if role == "query" else text for text in texts])


class Reranker:
    """Scores a pair by its two texts; ``asked``: how many pairs."""

    threshold, unit, labels, asked = None, PROBABILITY, SimpleNamespace(has_classes=True), 0
    match_threshold = PairScorer.match_threshold

    def check_rankable(self):
        """It has one score."""

    def score(self, pairs):
        self.asked += len(pairs)
        return np.array([score_of(*pair) for pair in pairs])


def score_of(one, other):
    return np.random.default_rng([*map(ord, one + other)]).random()


@pytest.fixture
def models(monkeypatch):
    """Every folder of an embedding model opens as Vectors, and every pair model as the Reranker returned."""
    embedder, reranker = Vectors(), Reranker()
    use_embedder(monkeypatch, embedder)
    monkeypatch.setattr(opening, "open_embedder", lambda *given: embedder)
    monkeypatch.setattr(mining, "load", lambda *given, **named: reranker)
    return reranker


def labelled(seed, count=40):
    """Rows of random texts, a third of them labelled the same; chains join some."""
    rng, texts = np.random.default_rng(seed), texts_of(count, seed)
    rows = {}
    for one, other in rng.integers(count, size=(count, 2)).tolist():
        if one != other and (other, one) not in rows:
            rows[one, other] = int(rng.random() < 0.4)
    return texts, [(texts[one], texts[other], label) for (one, other), label in rows.items()]


def mine(folder, rows, **flags):
    """(the rows that were written for each first text: [(second text, similarity)], the log's two counts)."""
    out, train = folder / "mined.tsv", write_rows(folder / "train.tsv", rows)
    wide = {"min_similarity": 0.0, "max_similarity": 1.0, "embedding_model": "any"}
    mine_pairs(MineConfig(str(train), str(out), device="cpu", overwrite=True, **{**wide, **flags}))
    found = {}
    for line in out.read_text(encoding="utf-8").splitlines()[1:]:
        one, other, label, origin = line.split("\t")
        assert label == "0" and origin.startswith("near ")
        found.setdefault(one, []).append((other, float(origin.split()[1])))
    return found


def counts_in(text):
    return [
        tuple(map(int, re.findall(r"(\d+) by the", line))) for line in text.splitlines() if "by the l" in line
    ][-1]


def groups_of(rows):
    """{text: the texts that a chain of rows labelled the same joins with it}"""
    groups = {text: {text} for row in rows for text in row[:2]}
    for one, other, label in rows:
        if label:
            joined = groups[one] | groups[other]
            groups.update(dict.fromkeys(joined, joined))
    return groups


def by_loops(rows, corpus, per_text, flags, reranks):
    """What `mine` should write of ``corpus``, in loops; and the two counts."""
    embedder, groups, found, counts = Vectors(), groups_of(rows), {}, [0, 0]
    known = {frozenset(row[:2]) for row in rows}
    taken = set()
    loops = {frozenset(row[:2]) for row in rows if row[:2][::-1] in {r[:2] for r in rows}}
    assert not loops  # a pair stands in one order: none is contradicted
    vectors = {text: embedder.unit_vectors([text], "passage")[0] for text in {*corpus, *groups}}
    queries = list(dict.fromkeys(row[0] for row in rows))
    for query in queries:
        matches = [right for left, right, label in rows if left == query and label]
        if not matches:
            continue
        asks = embedder.unit_vectors([query], "query")[0]
        worst = min(float(asks @ vectors[match]) for match in matches)
        most = flags.get("max_similarity", 1.0)
        if flags.get("absolute_margin") is not None:
            most = min(most, worst - flags["absolute_margin"])
        if flags.get("relative_margin") is not None:
            most = min(most, worst - abs(worst) * flags["relative_margin"])
        ordered = sorted(
            ((float(asks @ vectors[text]), text) for text in dict.fromkeys(corpus)), reverse=True
        )
        others = [pair for pair in ordered if pair[1] not in groups.get(query, {query})]
        ranked = others[flags.get("min_rank", 0) : flags.get("max_rank") or None]
        inside = [pair for pair in ranked if 0 <= pair[0] <= most][: SPARE * per_text]
        chosen, least = [], 0.0  # where fewer texts are found than wanted, all matches in the range count
        for similarity, text in inside:
            if len(chosen) == per_text:
                break
            least, pair = similarity, frozenset((query, text))
            if reranks and score_of(query, text) >= 0.5:
                counts[1] += pair not in known
            elif pair not in known | taken:
                taken.add(pair)
                chosen.append((text, similarity))
        if len(chosen) < per_text and len(inside) < SPARE * per_text:
            least = 0.0
        if chosen:
            found[query] = chosen
        equal = groups.get(query, set()) - {query}
        counts[0] += sum(text in equal and least <= value <= most for value, text in ordered)
    return found, tuple(counts)


CASES = [
    {},
    {"min_rank": 3, "max_rank": 12},
    {"max_rank": 4},
    {"min_rank": 5},
    {"absolute_margin": 0.001},
    {"absolute_margin": 0.1, "max_similarity": 0.7},
    {"relative_margin": 0.05},
    {"absolute_margin": 0.02, "relative_margin": 0.2, "min_rank": 1, "max_rank": 30},
]


@pytest.mark.parametrize("reranks", [False, True])
@pytest.mark.parametrize("flags", CASES, ids=str)
def test_mined_texts_are_those_of_loops(models, tmp_path, capfd, flags, reranks):
    """Over corpora that hold matches, queries and repeated texts."""
    for seed in range(3):
        texts, rows = labelled(seed)
        corpus = [*texts_of(50, seed + 100), *texts[::2], *texts[:4]]
        more = {"corpus": str(write_lines(tmp_path / "corpus.txt", corpus)), **flags}
        if reranks:
            more["model_path"] = "any"
        found = mine(tmp_path, rows, per_text=3, **more)
        wanted, counts = by_loops(rows, corpus, 3, flags, reranks)
        assert found.keys() == wanted.keys() and (found or flags)
        for query, others in found.items():
            assert [text for text, _ in others] == [text for text, _ in wanted[query]]
            assert [value for _, value in others] == pytest.approx([v for _, v in wanted[query]], abs=1e-4)
        assert counts_in(capfd.readouterr().err) == counts
        assert not reranks or models.asked


def test_texts_match_from_the_threshold_of_the_model_on(models, tmp_path, capfd, monkeypatch):
    _, rows = labelled(4)
    most = max(similarity for found in mine(tmp_path, rows).values() for _, similarity in found)
    least = 0.75 * most
    monkeypatch.setattr(Vectors, "match_threshold", least)
    found = mine(tmp_path, rows, max_similarity=None)
    assert found and all(similarity < least for others in found.values() for _, similarity in others)
    assert f"from a similarity of {least:.4f} on texts match, as any says" in "".join(capfd.readouterr())
    assert found == mine(tmp_path, rows, max_similarity=float(np.nextafter(np.float32(least), 0)))
    monkeypatch.setattr(Vectors, "match_threshold", -0.3)
    with pytest.raises(InputError, match=r"from a similarity of -0.3000 on, .*; give max_similarity=0.6"):
        mine(tmp_path, rows, max_similarity=None)


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_an_index_gives_what_its_texts_give(models, tmp_path, kind):
    texts, rows = labelled(5)
    corpus = [*texts_of(80, 7), *texts[::3]]
    flags = {"per_text": 3, "max_rank": 20, "relative_margin": 0.05}
    index = index_of(tmp_path, [*corpus, *corpus[:9]], kind=kind, threads=1)
    of_file = mine(tmp_path, rows, corpus=str(write_lines(tmp_path / "c.txt", corpus)), **flags)
    embedder = opening.open_embedder()
    embedder.calls.clear()
    assert mine(tmp_path, rows, corpus=str(index), **flags) == of_file and of_file
    assert sum(embedder.calls) == 2 * len({text for row in rows for text in row[:2]})  # of no text of it


def test_texts_are_compared_at_the_length_of_an_index(models, tmp_path, monkeypatch):
    """A model of several lengths, of which the index has a shorter one; another model is refused."""
    shorter = Vectors(dim=8)
    use_embedder(monkeypatch, shorter)
    _, rows = labelled(5)
    index = index_of(tmp_path, texts_of(80, 7))
    monkeypatch.setattr(IndexFolder, "fit_embedder", lambda folder, embedder: shorter)
    assert mine(tmp_path, rows, corpus=str(index))
    monkeypatch.undo()
    monkeypatch.setattr(opening, "open_embedder", lambda *given: Vectors(fingerprint="other"))
    with pytest.raises(InputError, match="its vectors are of another model"):
        mine(tmp_path, rows, corpus=str(index))


def test_without_a_model_an_index_is_searched_by_ngrams(models, tmp_path):
    _, rows = labelled(5)
    corpus = texts_of(80, 7)
    index = index_of(tmp_path, corpus)
    found = mine(tmp_path, rows, corpus=str(index), embedding_model="")
    assert found and {text for others in found.values() for text, _ in others} <= set(corpus)


def test_all_texts_search_each_other_below_their_matches(models, tmp_path):
    """Without a corpus a pair counts for both texts, and both are limited by their matches."""
    _, rows = labelled(6)
    found = mine(tmp_path, rows, per_text=2, absolute_margin=0.05)
    groups, embedder, uses = groups_of(rows), Vectors(), {}
    matches = [row[:2] for row in rows if row[2]]
    for query, others in found.items():
        asks = embedder.unit_vectors([query], "query")[0]
        own = [other for pair in matches if query in pair for other in pair if other != query]
        worst = min(float(asks @ embedder.unit_vectors([match], "passage")[0]) for match in own)
        for text, similarity in others:
            assert text not in groups[query] and similarity <= worst - 0.05 + 1e-4
            for one in (query, text):
                uses[one] = uses.get(one, 0) + 1
    assert found and max(uses.values()) <= 2


def test_a_killed_reranker_goes_on_to_the_same_bytes(models, tmp_path, monkeypatch):
    _, rows = labelled(8, count=120)
    corpus = str(write_lines(tmp_path / "corpus.txt", texts_of(200, 9)))
    monkeypatch.setattr(mining, "RERANKED", 5)
    flags = {"corpus": corpus, "model_path": "any", "max_rank": 40}
    mine(tmp_path, rows, **flags)
    whole, asked = (tmp_path / "mined.tsv").read_bytes(), models.asked
    (tmp_path / "mined.tsv").unlink()
    score = models.score

    def until_killed(pairs):
        if models.asked > asked * 3 // 2:
            raise Killed
        return score(pairs)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(models, "score", until_killed)
        mine(tmp_path, rows, **flags)
    assert not (tmp_path / "mined.tsv").exists()
    before = models.asked
    mine(tmp_path, rows, **flags)
    assert (tmp_path / "mined.tsv").read_bytes() == whole
    assert 0 < models.asked - before < asked, "what was scored is scored once"


def test_a_trained_model_reranks_near_texts(tmp_path, capfd):
    """With a folder on the disk; its own probability of each pair that is written is below the threshold."""
    model = str(write_trained(tmp_path / "model"))
    _, rows = labelled(3)
    flags = {"embedding_model": "", "per_text": 4, "min_similarity": 0.01}
    loose = mine(tmp_path, rows, **flags)
    pairs = [(one, other) for one, others in loose.items() for other, _ in others]
    scorer = load(model, "cpu", 0)
    threshold = float(np.median(scorer.score(pairs)))
    strict = mine(tmp_path, rows, model_path=model, threshold=threshold, **flags)
    pairs = [(one, other) for one, others in strict.items() for other, _ in others]
    assert pairs and (scorer.score(pairs) < threshold).all() and strict != loose
    assert counts_in(capfd.readouterr().err)[1] > 0


def test_the_mined_file_trains_at_once(models, tmp_path, capfd):
    write_embedding_files(tmp_path)
    write_matches(tmp_path / "train.tsv", 60)
    rows = [line.split("\t") for line in (tmp_path / "train.tsv").read_text("utf-8").splitlines()]
    rows = [(left, right, int(label)) for left, right, label in rows if label == "1"]
    corpus = str(write_lines(tmp_path / "corpus.txt", texts_of(200, 9)))
    assert mine(tmp_path, rows, corpus=corpus, per_text=2)
    negatives = str(tmp_path / "mined.tsv")
    train_embedding(embedding_config(tmp_path, negatives_file=negatives, hard_negatives=2, max_steps=2))
    said = re.search(r"(\d+) pairs that .*; (\d+) of them have hard", capfd.readouterr().err)
    assert said.groups() == (str(len(rows)), str(len(rows)))
    (tmp_path / "pair").mkdir()
    config = train_config(tmp_path / "pair", max_steps=2)
    out = tmp_path / "all.tsv"
    train = str(tmp_path / "train.tsv")
    mine_pairs(MineConfig(train, str(out), corpus=corpus, include_labelled=True, min_similarity=0.01))
    train_pair(type(config)(**{**vars(config), "train_file": str(out)}))
    assert (tmp_path / "pair" / "out" / "best").exists()


def test_a_corpus_needs_pairs_that_mean_the_same(models, tmp_path):
    corpus = str(write_lines(tmp_path / "corpus.txt", texts_of(9)))
    rows = [(one, other, 0) for one, other, _ in labelled(0)[1]]
    with pytest.raises(InputError, match="train.tsv has no pair with the same meaning"):
        mine(tmp_path, rows, corpus=corpus)
    found = mine(tmp_path, rows, absolute_margin=0.1)
    assert not found, "no text has a match to be below"
