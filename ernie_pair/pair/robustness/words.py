"""The words of a text with their parts of speech, as the rules of this room look at them."""

import re
from functools import lru_cache
from typing import NamedTuple, Tuple

from data_tools.text.wordpiece import is_cjk

# 能不能, 有没有 ask, and these words have nothing of a "not" left.
NO_NEGATION = re.compile(
    r"(\w)[不没]\1|非常|特别|区别|分别|级别|性别|别人|别墅|别克|未来|无论|不管|不过|不仅|不但|不错|差不多"
)
NEGATION = re.compile(r"[不没無无未非别莫勿否甭]|\b(?:not?|never|none|without|cannot)\b|n ?['’]t\b")
NEGATING = frozenset("不没無无未非别莫勿否甭")
QUESTION_WORDS = re.compile(
    r"什么|怎|哪|谁|几|多少|多久|多长|多大|多远|为何|如何|何时|啥|咋|"
    r"\b(?:what|who|whom|whose|which|when|where|why|how)\b"
)
SURNAMES = frozenset(
    "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛叶阎余潘杜戴夏"
    "钟汪田任姜范方石姚谭廖邹熊金陆郝孔白崔康毛邱秦江史顾侯邵孟龙万段雷钱汤尹黎易常武乔贺赖龚文"
)
NAME_LENGTH = 3  # characters of a person's name; shorter ones are often none: 白银, 谢谢
NO_NAMES = ("石家庄",)


class Word(NamedTuple):
    """A word and its part of speech: ns a place, nr a person, v a verb, x a mark, eng Latin letters."""

    text: str
    kind: str


@lru_cache(maxsize=1 << 14)
def words_of(text: str) -> Tuple[Word, ...]:
    """Return the words of ``text``, whose concatenation is the text, with their parts of speech (rjieba)."""
    import rjieba

    return tuple(Word(*word) for word in rjieba.tag(text))


def is_negated(text: str) -> bool:
    """Return whether a text in lower case holds a Chinese or English negation."""
    return count_negations(text) > 0


def count_negations(text: str) -> int:
    """Return how many Chinese or English negations a text in lower case holds; 能不能 is none."""
    return len(NEGATION.findall(NO_NEGATION.sub(" ", text)))


def is_hanzi(word: str) -> bool:
    """Return whether ``word`` consists of Chinese characters alone."""
    return bool(word) and all(map(is_cjk, word))


def is_name(word: Word) -> bool:
    """Return whether a word is the name of a Chinese person: tagged so, and with a common surname."""
    is_person = word.kind == "nr" and word.text[:1] in SURNAMES
    return is_person and len(word.text) == NAME_LENGTH and word.text not in NO_NAMES
