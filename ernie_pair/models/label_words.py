"""The words that files and models have for two classes: which of them says that two texts match."""

import re
from typing import List, Optional, Sequence

from data_tools.text.characters import compatible

# No and yes to a question that the words do not tell; and what two texts are to one another.
_ANSWERS, _RELATIONS = (
    {word: sense for kind in kinds.split() for sense, word in enumerate(kind.split("/"))}
    for kinds in (
        "否/是 不是/是 非/是 no/yes n/y false/true f/t 错误/正确 错/对 假/真 负/正 反/正 负例/正例 "
        "负样本/正样本 negative/positive neg/pos",
        "不同/相同 不相同/相同 异/同 不一样/一样 不相似/相似 不匹配/匹配 未命中/命中 不同义/同义 不一致/一致 "
        "不等价/等价 不重复/重复 不相关/相关 无关/有关 矛盾/蕴含 矛盾/蕴涵 different/same diff/identical "
        "dissimilar/similar mismatch/match unmatched/matched distinct/duplicate irrelevant/relevant "
        "unrelated/related contradiction/entailment inequivalent/equivalent nonparaphrase/paraphrase",
    )
)
_SENSES = {**_ANSWERS, **_RELATIONS}
NO_WORDS, YES_WORDS = (frozenset(w for w, sense in _SENSES.items() if sense == no) for no in (0, 1))
_BETWEEN = frozenset(("neutral", "中立", "中性"))  # the third class of entailment
_NEGATIONS = ("不", "非", "未", "无", "没", "没有", "not", "un", "mis", "dis", "no", "non")
_QUOTES = ('""', "''", "“”", "‘’", "「」", "＂＂", "＇＇", "``")


def bare_label(label: object) -> str:
    """Return the text of a label without spaces and quotes around it."""
    try:
        text = str(label).strip()
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    while len(text) > 1 and text[0] + text[-1] in _QUOTES:
        text = text[1:-1].strip()
    return text


def plain_label(label: object) -> str:
    """Return the text that labels of one class share, whatever their case, width and quotes."""
    return bare_label(compatible(bare_label(label))).casefold()


def sense_of(word: str) -> Optional[int]:
    """Return 0 for a word for no, 1 for one for yes, in any spelling; None for others."""
    return _SENSES.get(_joined(word))


def is_answer(word: str) -> bool:
    """Return whether ``word`` answers yes or no, whatever the question is."""
    return _joined(word) in _ANSWERS


def are_relations(words: Sequence[str]) -> bool:
    """Return whether one of ``words`` says what two texts are to one another: same, different, ..."""
    return any(_joined(word) in _RELATIONS for word in words)


def match_of(words: Sequence[str]) -> Optional[int]:
    """Return the place, 0 or 1, of the one of two ``words`` that says that texts match.

    It is known, or the other one is its negation. None where the words do not tell.
    """
    joined = [_joined(word) for word in words]
    senses = [_SENSES.get(word) for word in joined]
    if set(senses) == {0, 1}:
        return senses.index(1)
    for base in (0, 1):
        if joined[1 - base] in [negation + joined[base] for negation in _NEGATIONS]:
            return 1 - base if senses[base] == 0 else base
    return None


def order_of(words: Sequence[str]) -> List[str]:
    """Return ``words`` as the classes 0, 1, ... that they mean; [] where that is not known.

    Of two the match is 1. Of three, no and yes are 0 and 1, and what lies between is 2.
    """
    if len(words) == 2:
        match = match_of(words)
        return [] if match is None else [words[1 - match], words[match]]
    between = [word for word in words if plain_label(word) in _BETWEEN]
    rest = [word for word in words if word not in between]
    return order_of(rest) + between if len(between) == 1 and len(rest) == 2 and order_of(rest) else []


def _joined(word: str) -> str:
    return re.sub(r"[\s_-]+", "", plain_label(word))
