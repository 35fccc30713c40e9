"""The words that files and models have for two classes: which of them says that two texts match."""

import re
from typing import List, Optional, Sequence, Tuple

from data_tools.text.characters import compatible

# What a word says, for no (0) and for yes (1): of answers, to a question that they do not tell; of relations,
# what two texts are to one another. A negation needs no entry.
_ANSWERS, _RELATIONS = (
    {word: sense for sense, words in enumerate(kinds) for word in words.split()}
    for kinds in (
        (
            "否 不是 非 no n false f 错误 错 假 负 反 负例 负样本 negative neg wrong",
            "是 yes y true t 正确 对 真 正 正例 正样本 positive pos right correct",
        ),
        (
            "不同 异 无关 矛盾 冲突 差异 有差异 区别 有区别 different diff differ differs distinct unique "
            "uniq irrelevant contradiction",
            "相同 同 一样 相似 相近 相等 匹配 命中 同义 一致 等价 重复 相关 有关 蕴含 蕴涵 same identical "
            "similar equal match matched duplicate dup relevant related entailment equivalent paraphrase",
        ),
    )
)
_BETWEEN = frozenset(("neutral", "中立", "中性"))  # the third class of entailment
_NEGATIONS = ("不", "非", "未", "无", "没", "没有", "not", "un", "mis", "dis", "no", "non", "in")
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
    """Return 0 for a word for no, 1 for one for yes, in any spelling; None for others.

    What a word that is not known means is not known of its negation either.
    """
    base, is_negated = _base_of(word)
    sense = _ANSWERS.get(base, _RELATIONS.get(base))
    return sense if sense is None or not is_negated else 1 - sense


def is_answer(word: str) -> bool:
    """Return whether ``word`` answers yes or no, whatever the question is."""
    return _base_of(word)[0] in _ANSWERS


def are_relations(words: Sequence[str]) -> bool:
    """Return whether one of ``words`` says what two texts are to one another: same, different, ..."""
    return any(_base_of(word)[0] in _RELATIONS for word in words)


def _base_of(word: str) -> Tuple[str, bool]:
    """Return the known word that ``word`` is, and whether it is its negation; '' where none is known."""
    joined = re.sub(r"[\s_-]+", "", plain_label(word))
    if joined in _ANSWERS or joined in _RELATIONS:
        return joined, False
    bases = [joined[len(negation) :] for negation in _NEGATIONS if joined.startswith(negation)]
    known = [base for base in bases if base in _RELATIONS or base in _ANSWERS and len(base.encode()) > 1]
    return (known[0], True) if known else ("", False)


def match_of(words: Sequence[str]) -> Optional[int]:
    """Return the place, 0 or 1, of the one of two ``words`` that says that texts match, None if not known."""
    senses = [sense_of(word) for word in words]
    return senses.index(1) if set(senses) == {0, 1} else None


def order_of(words: Sequence[str]) -> List[List[str]]:
    """Return the spellings of classes 0, 1, ... among ``words``; [] where the words do not tell.

    Class 1 is the match; a third class is what lies between. Answers, 是, and one relation, 匹配, may both
    stand for a class, two relations may not: what is 相关 need not be 同义.
    """
    between = [word for word in words if plain_label(word) in _BETWEEN]
    senses = {word: sense_of(word) for word in words if word not in between}
    classes = [[word for word, sense in senses.items() if sense == number] for number in (0, 1)]
    is_clear = all(classes) and None not in senses.values() and len(between) < 2
    is_clear = is_clear and all(sum(not is_answer(word) for word in each) < 2 for each in classes)
    return [*classes, *([between] if between else [])] if is_clear else []
