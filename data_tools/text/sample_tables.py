"""The phrase tables of the built-in sample, parsed, and the forms in which a phrase may be said."""

import random
import re
from typing import Dict, List, NamedTuple, Sequence, Tuple

from data_tools.text import sample_text

_CHOICE = re.compile(r"\(([^()]*)\)|\{(\w+)\}")

Slots = Dict[str, Tuple[Tuple[str, ...], ...]]
Values = Dict[str, Tuple[str, ...]]


class Topic(NamedTuple):
    """One block of the tables: what may be asked and what a document may say about it."""

    slots: Slots
    asks: Tuple[Tuple[str, ...], ...]
    parts: Dict[str, Tuple[str, ...]]


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
    closings = sample_text.CLOSINGS_AFTER_MA if sentence.endswith("吗") else sample_text.CLOSINGS
    return rng.choice(sample_text.OPENINGS) + sentence + rng.choice(closings)
