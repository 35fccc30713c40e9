"""Count findings in text, and keep the first examples."""

import unicodedata
from dataclasses import dataclass, field
from typing import Dict, List, Sequence

import numpy as np

from data_tools.audit.paragraphs import Paragraphs, quote, starts_of

EXAMPLES = 3  # kept of each kind


@dataclass(frozen=True)
class Example:
    """A finding: ``what`` occurs ``at`` file:line, with some of the ``text`` there."""

    at: str
    what: str
    text: str


@dataclass
class Tally:
    """The number of characters and paragraphs with findings of one kind, and the first examples."""

    characters: int = 0
    paragraphs: int = 0
    examples: List[Example] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add what was found in later text; keep the first EXAMPLES examples."""
        self.characters += other.characters
        self.paragraphs += other.paragraphs
        self.examples = (self.examples + other.examples)[:EXAMPLES]


@dataclass(frozen=True)
class Findings:
    """n findings in some paragraphs; all arrays are int64 [n].

    ``kinds``: indices into ``names``; ``at``: offsets in "\\n".join(texts); ``marked``: how many
    characters from there an example shows; ``characters``: how many it counts for.
    """

    names: Sequence[str]
    kinds: np.ndarray
    at: np.ndarray
    marked: np.ndarray
    characters: np.ndarray


def tally(paragraphs: Paragraphs, findings: Findings) -> Dict[str, Tally]:
    """Count findings by the name of their kind, each example from a different paragraph."""
    firsts = starts_of(paragraphs.texts)
    rows = np.searchsorted(firsts, findings.at, side="right") - 1
    tallies = {}
    for kind in np.unique(findings.kinds).tolist():
        picked = np.flatnonzero(findings.kinds == kind)
        different, first = np.unique(rows[picked], return_index=True)
        examples = []
        for row, number in zip(different.tolist(), picked[first[:EXAMPLES]].tolist()):
            text, column = paragraphs.texts[row], int(findings.at[number] - firsts[row])
            what = text[column : column + int(findings.marked[number])]
            examples.append(Example(str(paragraphs.place(row)), shown(what), quote(text, column)))
        total = int(findings.characters[picked].sum())
        tallies[findings.names[kind]] = Tally(total, len(different), examples)
    return tallies


def add_all(total: Dict[str, Tally], more: Dict[str, Tally]) -> None:
    """Add the tallies of ``more`` to those of ``total``, in place."""
    for name, found in more.items():
        total.setdefault(name, Tally()).add(found)


def shown(text: str) -> str:
    """Return ``text``, or the code point of a single character that is not a letter: U+200B."""
    if len(text) != 1 or (text.isalpha() and unicodedata.is_normalized("NFKC", text)):
        return quote(text)
    return f"U+{ord(text):04X}"
