"""Why a pair has its score: its tokens, what its texts share, its score without each word, training pairs."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from data_tools.text.characters import is_letter_or_digit
from ernie_pair.core.installation import import_optional
from ernie_pair.inference.pair_tokenizer import show_pair
from ernie_pair.inference.scores import Prediction
from ernie_pair.inference.word_index import WordIndex, write_bm25
from ernie_pair.weights.parameter_names import LEVELS

if TYPE_CHECKING:
    from ernie_pair.inference.predictor import PairScorer

NEAREST = 5  # training pairs


@dataclass(frozen=True)
class Token:
    """A token; of an unknown one the characters. ``run``: see `common_runs`; 0 for one that is cut off."""

    text: str
    run: int
    is_unknown: bool
    is_cut: bool


@dataclass(frozen=True)
class LeftOut:
    """A word at character ``place`` of text a or b, and the score without it; ``change``: what it adds."""

    text: str
    place: int
    word: str
    score: float
    change: float


@dataclass(frozen=True)
class TrainPair:
    """A training pair that is near by its words, with its label as it was given."""

    text_a: str
    text_b: str
    label: str
    bm25: float


@dataclass(frozen=True)
class Explanation:
    """What a model says of one pair, and why.

    ``score``: that of `predict`; with more than two classes, the probability of the one that is predicted.
    ``a_b`` and ``b_a``: the same of each order alone. ``logits`` are before ``temperature``; ``label``,
    ``class_number`` and ``probabilities`` are None without classes. ``has_match_embeddings``: the model is
    told which tokens stand in both texts, as the ``run`` of ``tokens_a`` and ``tokens_b`` says.
    """

    text_a: str
    text_b: str
    verdict: str
    score: float
    a_b: float
    b_a: float
    logits: List[float]
    temperature: float
    threshold: Optional[float]
    symmetric: str
    max_seq_len: int
    has_match_embeddings: bool
    tokens_a: List[Token]
    tokens_b: List[Token]
    left_out: List[LeftOut]
    nearest: List[TrainPair]
    label: Optional[str] = None
    class_number: Optional[int] = None
    probabilities: Optional[List[float]] = None

    def content(self) -> Dict[str, Any]:
        """Return it as JSON content."""
        return asdict(self)


def explain_pair(scorer: "PairScorer", a: str, b: str, train_pairs: Iterable[Sequence[str]]) -> Explanation:
    """Return why ``scorer`` gives a pair its score; see `PairScorer.explain`."""
    logits, decided = scorer.logits([(a, b)]), scorer.calibration
    found = scorer.prediction_of(logits)
    number = None if found.classes is None else int(found.classes[0])
    shares = None if found.probabilities is None else found.probabilities[0].tolist()
    ask = partial(scorer.logits_of_texts, advance=lambda rows: None)  # which shows no bar

    def scores_of(asked: np.ndarray) -> List[float]:
        some = scorer.prediction_of(asked)
        return (some.rows[:, number] if some.scores is None else some.scores).tolist()

    tokens, (score,) = _tokens_of(scorer, (a, b)), scores_of(logits)
    words, pairs = [], []
    for name, text, own in zip("ab", (a, b), tokens):
        for place, word in _words_in(text, sum(not token.is_cut for token in own)):
            rest = text[:place] + text[place + len(word) :]
            pairs.append((rest, b) if name == "a" else (a, rest))
            words.append((name, place, word))
    scores = scores_of(scorer.logits(pairs)) if pairs else []
    left_out = [LeftOut(*word, score=each, change=score - each) for word, each in zip(words, scores)]
    a_b, b_a = (scores_of(ask([one], [other]))[0] for one, other in ((a, b), (b, a)))
    return Explanation(
        text_a=a, text_b=b, verdict=_verdict_of(found, decided.threshold), score=score, a_b=a_b, b_a=b_a,
        logits=logits[0].tolist(), temperature=decided.temperature, threshold=decided.threshold,
        symmetric=decided.symmetric, max_seq_len=scorer.max_seq_len, tokens_a=tokens[0], tokens_b=tokens[1],
        has_match_embeddings=scorer.spec.has_match, left_out=left_out, class_number=number,
        nearest=nearest_pairs(a, b, list(train_pairs)), label=found.labels[0] if found.labels else None,
        probabilities=shares
    )  # fmt: skip


def _verdict_of(found: Prediction, threshold: Optional[float]) -> str:
    """Return what is predicted of one pair, and what decides it."""
    if found.labels is None:
        return f"a score of {found.rows[0, 0]:.4f}"
    label, shares = found.labels[0], found.rows[0]
    if threshold is None:
        return f"{label}: the likeliest class, of probability {shares.max():.4f}"
    side = "at or above" if shares[1] >= threshold else "below"
    return f"{label}: the probability of class 1 is {shares[1]:.4f}, {side} the threshold {threshold:.4f}"


def _tokens_of(scorer: "PairScorer", texts: Tuple[str, str]) -> List[List[Token]]:
    """Return the tokens of both texts, in their order, those that are cut off too."""
    tokenizer, shown = scorer.tokenizer, show_pair(scorer.tokenizer, *texts, scorer.max_seq_len)
    special = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.unk_id}
    unmatched = scorer.spec.unmatched_ids if scorer.spec.has_match else special
    cuts = [tokenizer.tokenize(text) for text in texts]
    kept = [cut.ids[: len(cut.ids) - len(gone)].tolist() for cut, gone in zip(cuts, shown.cut)]
    found: List[List[Token]] = []
    for text, cut, own, others in zip(texts, cuts, kept, kept[::-1]):
        runs = chain(common_runs(own, others, unmatched), repeat(0))
        found.append([])
        for place, (number, start, end, run) in enumerate(zip(cut.ids.tolist(), cut.starts, cut.ends, runs)):
            is_unknown = number == tokenizer.unk_id
            shape = text[start:end] if is_unknown else tokenizer.tokens[number]
            found[-1].append(Token(shape, run, is_unknown, is_cut=place >= len(own)))
    return found


def common_runs(ids: Sequence[int], others: Sequence[int], unmatched: Iterable[int] = ()) -> List[int]:
    """Return for each of ``ids`` the length of the longest run, up to LEVELS, that ``others`` have too.

    It is what match embeddings are told; ``unmatched``: ids that match nothing.
    """
    ids, found = [-1 if one in unmatched else one for one in ids], [0] * len(ids)
    others = [-2 if one in unmatched else one for one in others]
    for length in range(1, LEVELS + 1):
        there = {tuple(others[n : n + length]) for n in range(len(others) - length + 1)}
        for n in range(len(ids) - length + 1):
            if tuple(ids[n : n + length]) in there:
                found[n : n + length] = [length] * length
    return found


def _words_in(text: str, most: int) -> List[Tuple[int, str]]:
    """Return the first words of a text as jieba cuts it, with their places, without punctuation."""
    words = import_optional("rjieba").cut(text)
    placed = zip(accumulate(map(len, words), initial=0), words)
    return [(place, word) for place, word in placed if any(map(is_letter_or_digit, word))][:most]


def nearest_pairs(a: str, b: str, pairs: Sequence[Sequence[str]]) -> List[TrainPair]:
    """Return the NEAREST of ``pairs``, (text, text, label), by BM25 of the words of both texts together."""
    if not pairs:
        return []
    with TemporaryDirectory(prefix="ernie-pair-") as folder:
        write_bm25(Path(folder), (f"{left}\n{right}" for left, right, _ in pairs))
        index = WordIndex(Path(folder), len(pairs))
        (best,) = index.best([f"{a}\n{b}"], min(NEAREST, len(pairs)))
    return [TrainPair(pairs[n][0], pairs[n][1], str(pairs[n][2]), score) for n, score in best.items()]
