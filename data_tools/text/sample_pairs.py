"""The labelled pairs of the built-in sample: questions that mean the same, and others that look alike."""

import random
from itertools import combinations, product
from typing import List, NamedTuple, Sequence, Tuple

from data_tools.base.errors import InputError
from data_tools.text.sample_tables import Topic, Values, alternatives, dressed

SMALLEST_DATA_SET = 18  # pairs: one positive and one negative in dev and in test
OTHER_TOPICS = 0.8  # share of the negatives that ask about something else altogether
OTHER_QUESTIONS = 0.3  # of the other negatives; in the rest one slot differs
SAME_WORDING = 0.5  # of those with another slot
CANDIDATES = 32  # partners to choose the most similar from

Pair = Tuple[str, str]


class Meaning(NamedTuple):
    """A question with fixed slot values, in all its wordings."""

    topic: int
    ask: int
    chosen: Tuple[Tuple[str, int], ...]
    wordings: Tuple[Tuple[str, ...], ...]

    @property
    def sentences(self) -> List[str]:
        """Return every form of every wording."""
        return [sentence for wording in self.wordings for sentence in wording]


def make_splits(topics: Sequence[Topic], count: int, rng: random.Random) -> List[List[Tuple[str, str, int]]]:
    """Return the train, dev and test rows of (query, title, label), half of each with label 1.

    Raises InputError when the tables cannot give ``count`` different pairs.
    """
    meanings = all_meanings(topics)
    rng.shuffle(meanings)
    limits = [len(m.sentences) * (len(m.sentences) - 1) // 2 for m in meanings]
    if count > 2 * sum(limits):
        raise InputError(f"--pairs {count} is more than the tables can give; use at most {2 * sum(limits)}")
    shares = _shares(count // 2, limits)
    by_label = [_negatives(meanings, shares, rng), _positives(meanings, shares, rng)]
    rows = [[(*_dressed(pair, rng), label) for pair in pairs] for label, pairs in enumerate(by_label)]
    for same_label in rows:
        rng.shuffle(same_label)
    held_out = count // SMALLEST_DATA_SET
    cuts = ((2 * held_out, None), (0, held_out), (held_out, 2 * held_out))
    splits = [[row for same_label in rows for row in same_label[a:b]] for a, b in cuts]
    for split in splits:
        rng.shuffle(split)
    return splits


def all_meanings(topics: Sequence[Topic]) -> List[Meaning]:
    """Return every question of the tables with every choice of its slots."""
    meanings = []
    for number, topic in enumerate(topics):
        for ask, wordings in enumerate(topic.asks):
            used = [name for name in topic.slots if f"{{{name}}}" in wordings[0]]
            for indices in product(*(range(len(topic.slots[name])) for name in used)):
                values = {name: topic.slots[name][index] for name, index in zip(used, indices)}
                forms = tuple(_forms(wording, values) for wording in wordings)
                meanings.append(Meaning(number, ask, tuple(zip(used, indices)), forms))
    return meanings


def _forms(wording: str, values: Values) -> Tuple[str, ...]:
    return tuple("".join(parts) for parts in product(*alternatives(wording, values)))


def _shares(total: int, limits: Sequence[int]) -> List[int]:
    """Share ``total`` out as evenly as the limits allow; return the share of each."""
    shares = [0] * len(limits)
    while total:
        for index, limit in enumerate(limits):
            if total and shares[index] < limit:
                shares[index] += 1
                total -= 1
    return shares


def _positives(meanings: List[Meaning], shares: List[int], rng: random.Random) -> List[Pair]:
    """Return ``shares[i]`` pairs of wordings of meaning i: the less similar half of a random draw."""
    pairs = []
    for meaning, share in zip(meanings, shares):
        every = list(combinations(meaning.sentences, 2))
        drawn = rng.sample(every, min(2 * share, len(every)))
        pairs += sorted(drawn, key=lambda pair: overlap(*pair))[:share]
    return [_either_way(pair, rng) for pair in pairs]


def _negatives(meanings: List[Meaning], shares: List[int], rng: random.Random) -> List[Pair]:
    pairs, seen = [], set()
    for meaning, share in zip(meanings, shares):
        far = [other for other in meanings if other.topic != meaning.topic]
        near = [other for other in meanings if _is_near(meaning, other)]
        while share:
            pair = _negative(meaning, near, far, rng)
            key = min(pair, pair[::-1])
            if key not in seen:
                seen.add(key)
                pairs.append(_either_way(pair, rng))
                share -= 1
    return pairs


def _negative(meaning: Meaning, near: List[Meaning], far: List[Meaning], rng: random.Random) -> Pair:
    sentence = rng.choice(meaning.sentences)
    if rng.random() < OTHER_TOPICS:
        return sentence, _most_similar(sentence, far, rng)
    other_question = rng.random() < OTHER_QUESTIONS
    choices = [other for other in near if (other.ask != meaning.ask) == other_question]
    if not other_question and rng.random() < SAME_WORDING:
        wording = rng.randrange(len(meaning.wordings))
        return rng.choice(meaning.wordings[wording]), rng.choice(rng.choice(choices).wordings[wording])
    return sentence, _most_similar(sentence, choices, rng)


def _most_similar(sentence: str, meanings: List[Meaning], rng: random.Random) -> str:
    """Return the one of CANDIDATES random wordings that shares the most characters with ``sentence``."""
    candidates = [rng.choice(rng.choice(meanings).sentences) for _ in range(CANDIDATES)]
    return max(candidates, key=lambda text: overlap(sentence, text))


def _is_near(meaning: Meaning, other: Meaning) -> bool:
    """Return whether one thing differs: the value of one slot, or what is asked about the same values."""
    if meaning.topic != other.topic:
        return False
    theirs = dict(other.chosen)
    differing = sum(theirs.get(name, index) != index for name, index in meaning.chosen)
    return differing == (1 if meaning.ask == other.ask else 0)


def overlap(a: str, b: str) -> float:
    """Return the Jaccard similarity of the characters of two sentences, 0 to 1."""
    ours, theirs = set(a), set(b)
    return len(ours & theirs) / len(ours | theirs)


def _either_way(pair: Pair, rng: random.Random) -> Pair:
    return pair if rng.random() < 0.5 else (pair[1], pair[0])


def _dressed(pair: Pair, rng: random.Random) -> Pair:
    """Return ``pair`` with openings and closings that change no meaning."""
    first, second = pair
    return dressed(first, rng), dressed(second, rng)
