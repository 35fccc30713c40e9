"""Write the embedded sample: documents for pretraining, labelled sentence pairs for fine-tuning.

Both are made from the phrase tables of ``sample_text.py`` and speak the same language, so that
pretraining on the one helps with the other. The same flags give the same bytes on every Python.

    python data_tools/make_sample.py --output_dir sample
"""

import random
import re
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from data_tools.base.cli import run_command
from data_tools.base.errors import InputError
from data_tools.base.options import Options, option, refuse_empty
from data_tools.files.results import Results, settings_of
from data_tools.text import sample_text

SMALLEST_DATA_SET = 18  # pairs: one positive and one negative in dev and in test
MOST_DOCUMENTS = 100_000
QUESTION_PAGES = 0.5  # share of the documents that list what users ask, in several wordings
BORROWED = 0.5  # of the second sentences of a part: from the common tables
OTHER_TOPICS = 0.8  # share of the negatives that ask about something else altogether
OTHER_QUESTIONS = 0.3  # of the other negatives; in the rest one slot differs
SAME_WORDING = 0.5  # of those with another slot
CANDIDATES = 32  # partners to choose the most similar from
_CHOICE = re.compile(r"\(([^()]*)\)|\{(\w+)\}")

Slots = Dict[str, Tuple[Tuple[str, ...], ...]]
Values = Dict[str, Tuple[str, ...]]
Pair = Tuple[str, str]


@dataclass(frozen=True)
class SampleConfig(Options):
    """Write the embedded sample: a Chinese corpus and a data set of Chinese sentence pairs."""

    EXAMPLE = "--output_dir sample"

    output_dir: str = option(help="corpus.txt and pairs/{train,dev,test}.tsv go here", group="data")
    seed: int = option(1234, help="another seed gives another sample", group="data", at_least=0)
    documents: int = option(
        600,
        help="documents of the corpus, each of 4 to 9 sentences",
        group="data",
        unit="documents",
        at_least=1,
        at_most=MOST_DOCUMENTS,
    )
    pairs: int = option(
        3600,
        help="sentence pairs; dev and test get a ninth each",
        group="data",
        unit="pairs",
        at_least=SMALLEST_DATA_SET,
    )
    overwrite: bool = option(False, help="replace another sample that is there", group="data")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_dir")
        if self.pairs % 2:
            raise InputError(f"--pairs {self.pairs} is odd and half have label 1; use {self.pairs + 1}")


class Topic(NamedTuple):
    """One block of the tables: what may be asked and what a document may say about it."""

    slots: Slots
    asks: Tuple[Tuple[str, ...], ...]
    parts: Dict[str, Tuple[str, ...]]


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


def make_sample(config: SampleConfig) -> None:
    """Write corpus.txt and pairs/{train,dev,test}.tsv below ``config.output_dir``.

    Raises InputError when the tables cannot give so many pairs, and when another sample is there.
    """
    names = ("corpus.txt", "pairs/train.tsv", "pairs/dev.tsv", "pairs/test.tsv")
    results = Results(
        command="make_sample",
        outputs=[Path(config.output_dir, name) for name in names],
        inputs={"tables": [Path(sample_text.__file__), Path(__file__)]},
        settings=settings_of(config, "output_dir"),
        overwrite=config.overwrite,
    )
    if results.are_done():
        return
    topics = [read_topic(block) for block in sample_text.TOPICS]
    rng = random.Random(config.seed)
    corpus = make_documents(topics, config.documents, rng)
    splits = make_splits(topics, config.pairs, rng)
    folder = Path(config.output_dir)
    texts = ["\n\n".join(corpus) + "\n"]
    texts += ["".join(f"{a}\t{b}\t{label}\n" for a, b, label in rows) for rows in splits]
    with results.published() as drafts:
        for draft, text in zip(drafts, texts):
            draft.write_bytes(text.encode("utf-8"))
    counts = " + ".join(str(len(rows)) for rows in splits)
    print(f"wrote {len(corpus)} documents to {folder}/corpus.txt, {counts} pairs to {folder}/pairs")


# --- the tables


def read_topic(block: str) -> Topic:
    """Parse one block of ``sample_text`` into a Topic."""
    head, *sections = block.strip().split("\n[")
    asks: List[Tuple[str, ...]] = []
    parts: Dict[str, Tuple[str, ...]] = {}
    for section in sections:
        name, *lines = section.split("\n")
        if name == "ask]":
            asks.append(tuple(lines))
        else:
            parts[name.rstrip("]")] = tuple(lines)
    return Topic(read_slots(head), tuple(asks), parts)


def read_slots(block: str) -> Slots:
    """Parse the ``name = a/b | c`` lines of a block: {name: its values, each with its wordings}."""
    lines = (line.split(" = ") for line in block.strip().split("\n"))
    return {name: tuple(tuple(v.split("/")) for v in values.split(" | ")) for name, values in lines}


def alternatives(phrase: str, values: Values) -> List[Sequence[str]]:
    """Cut ``phrase`` at its slots and choices; return for each part the texts that may stand there."""
    tokenizer: List[Sequence[str]] = []
    end = 0
    for match in _CHOICE.finditer(phrase):
        tokenizer.append((phrase[end : match.start()],))
        tokenizer.append(match[1].split("/") if match[2] is None else values[match[2]])
        end = match.end()
    return [*tokenizer, (phrase[end:],)]


def spoken(phrase: str, values: Values, rng: random.Random) -> str:
    """Return ``phrase`` in one random form."""
    return "".join(rng.choice(piece) for piece in alternatives(phrase, values))


# --- documents


def make_documents(topics: Sequence[Topic], count: int, rng: random.Random) -> List[str]:
    """Return ``count`` different documents, one sentence a line, evenly from all topics."""
    common = read_topic(sample_text.COMMON_SLOTS.strip() + sample_text.COMMON.rstrip())
    documents: Dict[str, None] = {}
    while len(documents) < count:
        topic = topics[len(documents) % len(topics)]
        lines = _question_page(topic, rng) if rng.random() < QUESTION_PAGES else _document(topic, common, rng)
        documents.setdefault("\n".join(lines))
    return list(documents)


def _document(topic: Topic, common: Topic, rng: random.Random) -> List[str]:
    values = {name: rng.choice(choices) for name, choices in {**topic.slots, **common.slots}.items()}
    values.update({name: (rng.choice(values[name]),) for name in common.slots})
    title, question = (spoken(rng.choice(rng.choice(topic.asks)), values, rng) for _ in range(2))
    values["question"] = (question,)
    phrases = list(rng.sample(common.parts["asked"], rng.randrange(2)) if question != title else ())
    for part in ("steps", "rules", "failures"):
        phrases += _part(topic.parts[part], common.parts[part], rng)
    phrases += rng.sample(topic.parts["tips"] + common.parts["tips"], rng.randrange(2))
    heading = rng.choice((f"{title}？", spoken(rng.choice(topic.parts["title"]), values, rng)))
    return [heading] + [spoken(phrase, values, rng) for phrase in phrases]


def _question_page(topic: Topic, rng: random.Random) -> List[str]:
    """Return the lines of a page that lists two questions, each in two to four wordings."""
    values = {name: rng.choice(choices) for name, choices in topic.slots.items()}
    lines = []
    for wordings in rng.sample(topic.asks, 2):
        said = rng.sample(wordings, min(len(wordings), rng.randint(2, 4)))
        lines += [_dressed_sentence(spoken(wording, values, rng), rng) for wording in said]
    return lines


def _part(own: Tuple[str, ...], common: Tuple[str, ...], rng: random.Random) -> List[str]:
    """Return one or two phrases of a topic in their order, the second perhaps a common one."""
    kept = [own[index] for index in sorted(rng.sample(range(len(own)), rng.randint(1, 2)))]
    return [kept[0], rng.choice(common)] if len(kept) == 2 and rng.random() < BORROWED else kept


# --- pairs


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
    return tuple("".join(tokenizer) for tokenizer in product(*alternatives(wording, values)))


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
    return _dressed_sentence(first, rng), _dressed_sentence(second, rng)


def _dressed_sentence(sentence: str, rng: random.Random) -> str:
    closings = sample_text.CLOSINGS_AFTER_MA if sentence.endswith("吗") else sample_text.CLOSINGS
    return rng.choice(sample_text.OPENINGS) + sentence + rng.choice(closings)


def main() -> None:
    """Run the command ``python data_tools/make_sample.py``."""
    run_command(make_sample, SampleConfig)


if __name__ == "__main__":
    main()
