"""Ranking many candidates in a fixed order and bounded memory; and the rows of tokens that models read."""

import doctest

import numpy as np
import pytest
from scipy.special import softmax
from tiny_ship import random_texts, ship, write_trained
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from data_tools.text.folder_tokenizer import FolderTokenizer
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError, NumbersError
from ernie_pair.inference import scores as ranking
from ernie_pair.inference import token_rows
from ernie_pair.inference.predictor import PairPredictor, PairScorer
from ernie_pair.inference.scores import Ranked, best_places, decide, rank_texts
from ernie_pair.models.labels import Labels
from ernie_pair.models.temperature import Calibration


class FixedScorer(PairScorer):
    """A model that says class 0 to equal texts, and class 1 to others."""

    where, calibration = "folder", Calibration()

    def __init__(self, *names):
        self.labels = Labels.named({name: n for n, name in enumerate(names)})

    def logits_of_texts(self, left, right, advance=None):
        return np.array([[2.0, 0.0] if a == b else [0.0, 2.0] for a, b in zip(left, right)], np.float32)


@pytest.mark.parametrize("names, match, said", [
    (("duplicate", "not_duplicate"), 0, "class 0, duplicate, is taken as the match"),
    (("entailment", "contradiction"), 0, "class 0, entailment,"),
    (("no", "yes"), 1, ""),
    (("yes", "no"), 1, "class 1, no, is taken as the match"),
])  # fmt: skip
def test_candidates_are_ranked_by_the_class_of_the_match(caplog, names, match, said):
    model = FixedScorer(*names)
    model.check_rankable()
    equal, other = model.score([("甲", "甲"), ("甲", "乙")])
    assert (equal > other) == (match == 0) and said in caplog.text and bool(said) == bool(caplog.text)


def test_decisions_match_scipy_and_reach_the_threshold():
    logits = np.random.default_rng(0).integers(-9, 9, (50, 2)).astype(np.float32)
    wanted = softmax(logits.astype(np.float64) / 2.5, axis=1)
    classes, found = decide(logits, 2.5)
    assert np.allclose(found, wanted, rtol=1e-12) and classes.tolist() == wanted.argmax(axis=1).tolist()
    for at in found[:, 1]:
        for threshold in (at, np.nextafter(at, 2)):
            assert decide(logits, 2.5, threshold)[0].tolist() == (found[:, 1] >= threshold).tolist()


def lengths(texts):
    return np.array([len(text) for text in texts], dtype=np.float64)


def read_whole(score):
    return lambda texts: (score(texts), [None] * len(texts))


@pytest.mark.parametrize("window", [1, 3, 1000])
@pytest.mark.parametrize("top_k", [1, 4, 50, 500])
def test_top_k_equals_a_stable_full_sort(monkeypatch, window, top_k):
    monkeypatch.setattr(ranking, "CANDIDATES", window)
    texts = ["x" * size for size in np.random.default_rng(1).integers(0, 9, 120)]
    found = rank_texts(read_whole(lengths), iter(texts), top_k)
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

    assert rank_texts(read_whole(lengths), [], 3) == []
    best = rank_texts(read_whole(score), stream(), 2)
    assert max(scored) == 100 and [found.place for found in best] == [776, 776 + 777]


@pytest.mark.parametrize("candidates, top_k, reason", [
    (["a"], 0, "top_k=0 is below 1; use 1 or more"),
    ("abc", 1, "the candidates are one text, 'abc'; give a list"),
])  # fmt: skip
def test_invalid_ranking_arguments_are_rejected(candidates, top_k, reason):
    with pytest.raises(InputError, match=reason):
        rank_texts(read_whole(lengths), candidates, top_k)


def test_rank_rejects_nan_three_classes_and_no_query(monkeypatch, predictor):
    monkeypatch.setattr(ranking, "CANDIDATES", 2)
    with pytest.raises(NumbersError, match="the score of candidate 3 is NaN"):
        score = read_whole(lambda texts: np.where(np.array(texts) == "d", np.nan, 1.0))
        rank_texts(score, "a b c d".split(), 1)
    with pytest.raises(InputError, match="pair 0 is .None, .*; give two texts"):
        predictor.rank(None, ["天"])
    monkeypatch.setattr(predictor, "labels", Labels.numbered(3))
    with pytest.raises(InputError, match="has 3 classes, but candidates are ranked by the second of two"):
        predictor.rank("今", ["天"])


@pytest.fixture(scope="module")
def predictor(module_path):
    return PairPredictor(ship(write_trained(module_path / "best"), module_path / "ship"), "paddle", threads=1)


def test_a_predictor_ranks_by_the_probability_of_class_1(predictor):
    candidates = [pair[0] for pair in random_texts(70, seed=4)]
    best = predictor.rank("今天天气很好", iter(candidates), top_k=5)
    shares = predictor.predict([("今天天气很好", text) for text in candidates]).probabilities[:, 1]
    assert [found.place for found in best] == np.argsort(-shares, kind="stable")[:5].tolist()
    assert [found.score for found in best] == pytest.approx(np.sort(shares)[::-1][:5], abs=1e-6)
    assert [found.text for found in best] == [candidates[found.place] for found in best]


def test_a_predictor_decides_by_its_threshold_in_both_orders(predictor):
    pairs, folder = random_texts(30, seed=8), predictor.exported.folder
    both = PairPredictor(folder, "paddle", threads=1, symmetric="average")
    shares = both.predict(pairs).probabilities[:, 1]
    threshold = float(np.median(shares))
    asked = PairPredictor(folder, "paddle", threads=1, threshold=threshold, symmetric="average")
    found, turned = asked.predict(pairs), asked.predict([pair[::-1] for pair in pairs])
    assert np.array_equal(found.probabilities, turned.probabilities)
    assert np.array_equal(found.classes, (shares >= threshold).astype(int)) and len(set(found.classes)) == 2
    alone = predictor.predict(pairs).probabilities[:, 1]
    assert np.abs(alone - shares).max() > 1e-3


def test_the_docstring_example_of_rank_runs(predictor, monkeypatch):
    monkeypatch.chdir(predictor.exported.folder.parent)
    (example,) = doctest.DocTestFinder().find(PairPredictor.rank, "rank", globs={})
    assert len(example.examples) == 3
    assert doctest.DocTestRunner().run(example).failed == 0


# --- rows of tokens


PAIRS = [("a " * left, "b " * right) for left in range(12) for right in range(12)]


def library(pair):
    """A tokenizer of the library with the words a and b, and ``pair`` as its template."""
    made = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "<s>": 2, "</s>": 3, "a": 4, "b": 5}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return made


def rows_of(encoded):
    return [encoded.ids[begin:end].tolist() for begin, end in zip(encoded.starts, encoded.starts[1:])]


@pytest.mark.parametrize("pair", ["<s> $A </s> $B:1 </s>:1", "<s> $A </s> </s> $B </s>"])
@pytest.mark.parametrize("length", range(6, 20))
def test_pairs_are_truncated_as_the_library_truncates_them(pair, length):
    theirs, ours = library(pair), FolderTokenizer(library(pair), {}, "here")
    theirs.enable_truncation(length, strategy="longest_first")
    left, right = zip(*PAIRS)
    encoded = token_rows.encode_texts(left, right, None, ours, length)
    expected = [theirs.encode(*both).ids for both in PAIRS]
    assert rows_of(encoded) == expected
    full = [len(a.split()) + len(b.split()) + 3 + len(ours.pair_specials[1]) - 1 for a, b in PAIRS]
    assert encoded.num_cut == sum(size > length for size in full)


def test_ties_are_cut_on_the_other_side_by_ernies_own_rule():
    assert token_rows.kept_lengths(9, 9, 7) == (4, 3)
    assert token_rows.kept_lengths(9, 9, 7, is_fast=True) == (3, 4)
    assert token_rows.kept_lengths(10, 9, 7, is_fast=True) == (4, 3)


@pytest.mark.parametrize("pair", ["<s> $A </s> $B:1 </s>:1", "<s> $A </s> </s> $B </s>"])
def test_exchanged_rows_are_those_of_the_exchanged_texts(pair):
    ours = FolderTokenizer(library(pair), {}, "here")
    left, right = zip(*PAIRS)
    rows, columns = token_rows.encode_texts(left, right, None, ours, 64), np.arange(len(PAIRS))
    exchanged = token_rows.encode_texts(right, left, None, ours, 64).batch(columns)
    batch = token_rows.exchange_texts(rows.batch(columns))
    assert np.array_equal(batch.input_ids, exchanged.input_ids)
    assert np.array_equal(batch.token_type_ids, exchanged.token_type_ids)
    assert (batch.token_type_ids == token_rows.SEPARATOR).sum() == (len(PAIRS) if "</s> </s>" in pair else 0)
    assert np.array_equal(token_rows.exchange_texts(batch).input_ids, rows.batch(columns).input_ids)


def test_a_text_without_tokens_takes_no_place():
    ours = WordPiece(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"])
    theirs = FolderTokenizer(library("<s> $A </s> $B:1 </s>:1"), {}, "here")
    assert rows_of(token_rows.encode_single_texts([""], ours, 8)) == [[1, 2]]
    assert rows_of(token_rows.encode_single_texts([""], theirs, 8)) == [[2, 3]]
    assert rows_of(token_rows.encode_texts([""], [""], None, theirs, 8)) == [[2, 3, 3]]
