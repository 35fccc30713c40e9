"""The documents of the built-in sample: what may be said of a topic, and pages that list its questions."""

import random
from typing import Dict, List, Sequence, Tuple

from data_tools.text import sample_text
from data_tools.text.sample_tables import Topic, dressed, read_topic, spoken

QUESTION_PAGES = 0.5  # share of the documents that list what users ask, in several wordings
BORROWED = 0.5  # share of the second sentences of a part that are from the common tables


def make_documents(topics: Sequence[Topic], count: int, rng: random.Random) -> List[str]:
    """Return ``count`` different documents, one sentence per line, evenly from all topics."""
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
        lines += [dressed(spoken(wording, values, rng), rng) for wording in said]
    return lines


def _part(own: Tuple[str, ...], common: Tuple[str, ...], rng: random.Random) -> List[str]:
    """Return one or two phrases of a topic in their order, the second perhaps a common one."""
    kept = [own[index] for index in sorted(rng.sample(range(len(own)), rng.randint(1, 2)))]
    return [kept[0], rng.choice(common)] if len(kept) == 2 and rng.random() < BORROWED else kept
