"""Texts for comparing tokenizers: sentences to train them on, every character, strings drawn at random."""

import json
import sys
import unicodedata
from pathlib import Path
from random import Random

TEXTS = json.loads(Path(__file__).with_name("texts.json").read_text(encoding="utf-8"))
NOUNS, VERBS, ENDS, TIMES = (TEXTS[name] for name in ("nouns", "verbs", "ends", "times"))
WITH_SYMBOLS = TEXTS["with symbols"]  # prices, units, chat: ERNIE splits these off as words, BERT does not
# Where random strings take their characters from: first and last code point.
BLOCKS = [tuple(int(code, 16) for code in block.split("-")) for block in TEXTS["blocks"]]


def sentences(count=600, seed=0):
    """Return questions of customers, Chinese, English and mixed."""
    rng = Random(seed)
    return [
        f"{rng.choice(TIMES)}{rng.choice(VERBS)} {rng.choice(NOUNS)}{rng.choice(ENDS)}"
        if rng.random() < 0.5
        else f"{rng.choice(NOUNS)}{rng.choice(TIMES)}{rng.choice(VERBS)}{rng.choice(ENDS)}"
        for _ in range(count)
    ]


def assigned_characters():
    """Return every character that this Python's Unicode assigns, surrogates not; of private ones, four."""
    signs = map(chr, range(sys.maxunicode + 1))
    assigned = (sign for sign in signs if unicodedata.category(sign) not in ("Cn", "Cs", "Co"))
    return [*assigned, "\ue000", "\uf8ff", "\U000f0000", "\U00100000"]


def random_strings(count=10_000, seed=0):
    """Return strings of up to 40 characters that mix scripts, symbols, words, spaces and control tokens."""
    rng = Random(seed)
    words = (*NOUNS, *VERBS, *WITH_SYMBOLS)
    return ["".join(_part(rng, words) for _ in range(rng.randrange(1, 9))) for _ in range(count)]


def _part(rng, words):
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(words)
    if kind < 0.32:
        return rng.choice(TEXTS["control tokens"])
    if kind < 0.42:
        return rng.choice((" ", "  ", "\u3000", "\t", "\n", "\u00a0", "\u2028", "\u200b"))
    first, last = rng.choice(BLOCKS)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randrange(1, 6)))
