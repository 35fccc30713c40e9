"""The built-in sample: documents and pairs of questions, drawn from the phrases in sample.txt.

A question with its slots filled in is a meaning: two of its wordings are a positive pair.
"""

import random
import re
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ernie_pair.core.errors import InputError

TABLES = Path(__file__).with_name("sample.txt")  # where its format is explained
_CHOICE = re.compile(r"\(([^()]*)\)|\{(\w+)\}")

Slots = Dict[str, Tuple[Tuple[str, ...], ...]]
Values = Dict[str, Tuple[str, ...]]


class Topic(NamedTuple):
    """One block of the tables: what may be asked and what a document may say about it."""

    slots: Slots
    asks: Tuple[Tuple[str, ...], ...]
    parts: Dict[str, Tuple[str, ...]]


class Tables(NamedTuple):
    """The blocks of sample.txt: what may surround a question, what all topics share, and the topics."""

    around: Values
    common: Topic
    topics: List[Topic]


@lru_cache(maxsize=1)
def read_tables() -> Tables:
    """Read sample.txt."""
    lines = TABLES.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#"))
    around, common, *topics = (_read_topic(block) for block in re.split(r"\n{2,}", text.strip()))
    return Tables({name: values[0] for name, values in around.slots.items()}, common, topics)


def _read_topic(block: str) -> Topic:
    head, *sections = block.split("\n[")
    rows = (line.split(" = ") for line in head.split("\n"))
    slots = {name: tuple(tuple(v.split("/")) for v in values.split(" | ")) for name, values in rows}
    named = [(name.rstrip("]"), tuple(lines)) for name, *lines in (part.split("\n") for part in sections)]
    asks = tuple(lines for name, lines in named if name == "ask")
    return Topic(slots, asks, {name: lines for name, lines in named if name != "ask"})


def alternatives(phrase: str, values: Values) -> List[Sequence[str]]:
    """Cut ``phrase`` at its slots and choices; return for each part the texts that it may be."""
    parts: List[Sequence[str]] = []
    end = 0
    for match in _CHOICE.finditer(phrase):
        parts.append((phrase[end : match.start()],))
        parts.append(match[1].split("/") if match[2] is None else values[match[2]])
        end = match.end()
    return [*parts, (phrase[end:],)]


def spoken(phrase: str, values: Values, rng: random.Random) -> str:
    """Return ``phrase`` in one random form."""
    return "".join(rng.choice(piece) for piece in alternatives(phrase, values))


def dressed(sentence: str, rng: random.Random) -> str:
    """Return ``sentence`` with an opening and a closing that change no meaning."""
    around = read_tables().around
    closings = around["closings_after_ma" if sentence.endswith("吗") else "closings"]
    return rng.choice(around["openings"]) + sentence + rng.choice(closings)


QUESTION_PAGES = 0.5  # share of the documents that list what users ask, in several wordings
BORROWED = 0.5  # share of the second sentences of a part that are from the common tables


def make_documents(count: int, rng: random.Random) -> List[str]:
    """Return ``count`` different documents, one sentence per line, evenly from all topics."""
    tables = read_tables()
    documents: Dict[str, None] = {}
    while len(documents) < count:
        topic = tables.topics[len(documents) % len(tables.topics)]
        if rng.random() < QUESTION_PAGES:
            # Lists two questions, each in two to four wordings.
            values = {name: rng.choice(choices) for name, choices in topic.slots.items()}
            lines = []
            for wordings in rng.sample(topic.asks, 2):
                some = rng.sample(wordings, min(len(wordings), rng.randint(2, 4)))
                lines += [dressed(spoken(wording, values, rng), rng) for wording in some]
        else:
            lines = _document(topic, tables.common, rng)
        documents.setdefault("\n".join(lines))
    return list(documents)


def _document(topic: Topic, common: Topic, rng: random.Random) -> List[str]:
    values = {name: rng.choice(choices) for name, choices in {**topic.slots, **common.slots}.items()}
    values.update({name: (rng.choice(values[name]),) for name in common.slots})
    title, question = (spoken(rng.choice(rng.choice(topic.asks)), values, rng) for _ in range(2))
    values["question"] = (question,)
    phrases = list(rng.sample(common.parts["asked"], rng.randrange(2)) if question != title else ())
    for part in ("steps", "rules", "failures"):
        own = topic.parts[part]
        kept = [own[index] for index in sorted(rng.sample(range(len(own)), rng.randint(1, 2)))]
        if len(kept) == 2 and rng.random() < BORROWED:
            kept[1] = rng.choice(common.parts[part])
        phrases += kept
    phrases += rng.sample(topic.parts["tips"] + common.parts["tips"], rng.randrange(2))
    heading = rng.choice((f"{title}？", spoken(rng.choice(topic.parts["title"]), values, rng)))
    return [heading] + [spoken(phrase, values, rng) for phrase in phrases]


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


def make_splits(count: int, rng: random.Random) -> List[List[Tuple[str, str, int]]]:
    """Return the train, dev and test rows of (query, title, label), half of each with label 1.

    Raises InputError when the tables cannot give ``count`` different pairs.
    """
    meanings = all_meanings()
    rng.shuffle(meanings)
    limits = [len(m.sentences) * (len(m.sentences) - 1) // 2 for m in meanings]
    if count > 2 * sum(limits):
        raise InputError(f"--pairs {count} is more than the tables can give; use at most {2 * sum(limits)}")
    shares = _shares(count // 2, limits)
    by_label = [_negatives(meanings, shares, rng), _positives(meanings, shares, rng)]
    rows = [
        [(dressed(a, rng), dressed(b, rng), label) for a, b in pairs] for label, pairs in enumerate(by_label)
    ]
    for same_label in rows:
        rng.shuffle(same_label)
    held_out = count // SMALLEST_DATA_SET
    cuts = ((2 * held_out, None), (0, held_out), (held_out, 2 * held_out))
    splits = [[row for same_label in rows for row in same_label[a:b]] for a, b in cuts]
    for split in splits:
        rng.shuffle(split)
    return splits


def all_meanings() -> List[Meaning]:
    """Return every question of the tables with every choice of its slots."""
    meanings = []
    for number, topic in enumerate(read_tables().topics):
        for ask, wordings in enumerate(topic.asks):
            used = [name for name in topic.slots if f"{{{name}}}" in wordings[0]]
            for indices in product(*(range(len(topic.slots[name])) for name in used)):
                values = {name: topic.slots[name][index] for name, index in zip(used, indices)}
                forms = tuple(
                    tuple("".join(parts) for parts in product(*alternatives(wording, values)))
                    for wording in wordings
                )
                meanings.append(Meaning(number, ask, tuple(zip(used, indices)), forms))
    return meanings


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
