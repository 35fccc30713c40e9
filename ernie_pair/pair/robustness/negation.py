"""A "not" put into one of two equal texts, or taken out of it: then they differ.

Only where that is sure: the pair is labelled the same, both texts are negated or neither is, and none of
them asks for yes or no: 能提现吗 and 不能提现吗 have one answer.
"""

import re
from typing import Dict, List, Optional, Tuple

from ernie_pair.pair.robustness.change import Change, Facts, Untouched
from ernie_pair.pair.robustness.words import QUESTION_WORDS, count_negations, words_of

NEGATED = {
    **{word: f"不{word}" for word in ("能", "会", "可以", "应该", "需要", "喜欢", "愿意", "支持", "允许")},
    **{"能够": "不能够", "是": "不是", "有": "没有"},
}
# 谁能告诉我: a request, which 不 leaves one.
REQUEST = re.compile(
    r"(?:谁|哪位|有人|大家|求)\w{0,4}(?:能|可以)|"
    r"(?:能|可以)\w?(?:告诉|帮|给|推荐|提供|教|介绍|说|讲|解|发)"
)
NOT_IN_QUESTIONS = ("是", "有", "需要", "应该")  # 没有什么, 不需要多少: no negation of the question
AFFIRMED = {
    **{negated: word for word, negated in NEGATED.items() if word != "能够"},
    **{"无法": "能", "不想": "想", "不要": "要", "不行": "行", "不足": "足", "不见": "见"},
}
POLAR = re.compile(
    r"(\w)[不没]\1|是否|能否|可否|会否|有无|还是|难道|吗|(?<![什怎这那多])么[\W]*$|[吧嘛没不][\W]*$|没有[\W]*$"
)
AUXILIARIES = ("is", "are", "was", "were", "can", "could", "will", "would", "should", "must")
_POLAR_ENGLISH = re.compile(rf"\s*(?:{'|'.join(AUXILIARIES)}|do|does|did|has|have|had)\b", re.I)
_AUXILIARY = re.compile(rf"\b(?:{'|'.join(AUXILIARIES)})\b")
_NOT = re.compile(rf"\b({'|'.join(AUXILIARIES)})(?: not\b|n ?['’]t\b)|\b(can)(?:not| ?['’]t)\b")


def change_negation(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with a negation more or less in one text, labelled different; None where unsure."""
    if facts.different is None or pair.label != facts.same or is_polar(pair.left) or is_polar(pair.right):
        return None
    counts = count_negations(pair.left.lower()), count_negations(pair.right.lower())
    if counts == (0, 0):
        return pair.on_a_side(lambda text: _drawn(pair, _negated(text)), facts.different, "inserted")
    if counts == (1, 1):
        return pair.on_a_side(lambda text: _drawn(pair, _affirmed(text)), facts.different, "removed")
    return None


def is_polar(text: str) -> bool:
    """Return whether a text asks for yes or no, or may do so."""
    if POLAR.search(text) or _POLAR_ENGLISH.match(text):
        return True
    return text.rstrip().endswith(("?", "？")) and not QUESTION_WORDS.search(text.lower())


def _drawn(pair: Untouched, found: List[str]) -> Optional[str]:
    return found[int(pair.rng.integers(len(found)))] if found else None


def _negated(text: str) -> List[str]:
    if REQUEST.search(text):
        return []
    is_question = QUESTION_WORDS.search(text.lower()) is not None
    words = {word: other for word, other in NEGATED.items() if not (is_question and word in NOT_IN_QUESTIONS)}
    if not _is_verb_hui(text):
        del words["会"]
    english = [text[: found.end()] + " not" + text[found.end() :] for found in _AUXILIARY.finditer(text)]
    return _replaced(text, words) + (english if len(english) == 1 else [])


def _is_verb_hui(text: str) -> bool:
    """Return whether a 会 of the text follows a pronoun, an adverb or a time: that of 唯品会 is none."""
    words = words_of(text)
    return any(word.text == "会" and before.kind[:1] in "rdt" for before, word in zip(words, words[1:]))


def _affirmed(text: str) -> List[str]:
    found = _replaced(text, AFFIRMED) + _without_not(text)
    for match in _NOT.finditer(text):
        found.append(text[: match.start()] + (match[1] or match[2]) + text[match.end() :])
    return found


def _replaced(text: str, words: Dict[str, str]) -> List[str]:
    """Return the text with one of its words replaced, for each that is in ``words``."""
    return [
        text[:begin] + words[word] + text[begin + len(word) :]
        for begin, word, _ in _placed(text)
        if word in words
    ]


def _without_not(text: str) -> List[str]:
    """Return the text without a 不 or 没 that stands on its own before a long verb or adjective."""
    placed = _placed(text)
    return [
        text[:begin] + text[begin + 1 :]
        for (begin, word, _), (_, following, kind) in zip(placed, placed[1:])
        if word in ("不", "没") and kind[:1] in ("v", "a") and len(following) > 1
    ]


def _placed(text: str) -> List[Tuple[int, str, str]]:
    """Return where each word of a text begins, the word, and its part of speech."""
    found, begin = [], 0
    for word in words_of(text):
        found.append((begin, *word))
        begin += len(word.text)
    return found
