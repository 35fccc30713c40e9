"""Changes that say nothing new: the two texts exchanged, and words that only fill."""

import re
from typing import List, Optional, Tuple

from ernie_pair.pair.robustness.change import UNKNOWN, Change, Facts, Untouched
from ernie_pair.pair.robustness.negation import is_polar
from ernie_pair.pair.robustness.words import QUESTION_WORDS, is_hanzi

POLITE = ("请问", "请问一下，", "我想问一下，", "麻烦问一下，", "你好，")
PLAIN = ("那个，", "就是说，", "话说", "你好，")
ENGLISH = ("Well, ", "By the way, ", "Actually, ")
_GREETED = re.compile(r"请|问|你好|您好|麻烦|话说|那个|就是")
_END = re.compile(r"(?<=\w)(?=\W*$)")
_PARTICLE = re.compile(r"[吗呢啊呀吧嘛么呗哦哈了的没不]\W*$")


def exchange_texts(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair the other way round; of classes that may mean a direction the label is unknown.

    None where both texts are one.
    """
    if pair.left == pair.right:
        return None
    return Change(pair.right, pair.left, UNKNOWN if facts.same is None else pair.label, "exchanged")


def add_filler(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with a word in one text that only fills, its label unchanged; None where none fits."""

    def rewrite(text: str) -> Optional[str]:
        found = fillings(text)
        return found[int(pair.rng.integers(len(found)))][1] if found else None

    return pair.on_a_side(rewrite, pair.label, "filler")


def fillings(text: str) -> List[Tuple[str, str]]:
    """Return the words that fit ``text`` and only fill, each with the text that has it."""
    if not any(map(is_hanzi, text)):
        return [(word.strip(), word + text) for word in ENGLISH if text[:1].isalpha()]
    is_question = bool(QUESTION_WORDS.search(text)) or is_polar(text)
    before = () if _GREETED.search(text) else POLITE if is_question else PLAIN
    found = [(word, word + text) for word in before]
    if is_question and not _PARTICLE.search(text):
        particle = "呢" if QUESTION_WORDS.search(text) or not text.rstrip().endswith(("?", "？")) else "吗"
        found.append((particle, _END.sub(particle, text, count=1)))
    if is_question:
        found.append(("谢谢", text + ("谢谢" if not text[-1:].isalnum() else "，谢谢")))
    return found
