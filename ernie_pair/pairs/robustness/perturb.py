"""Generate the changed pairs of a file: of each kind the rows whose rule applies, the same for a seed.

A row is a function of the file, the seed, its kind and its place alone, so any process makes the same ones. A
rule is a function of the pair and of what is known of the whole file, and knows no model.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from data_tools.text.wordpiece import is_cjk
from ernie_pair.core.cli.options import check_names, names_in
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import import_optional
from ernie_pair.pairs.data.pair_file import Pairs

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
    begin: int = 0  # its first character in the text


@lru_cache(maxsize=1 << 14)
def words_of(text: str) -> Tuple[Word, ...]:
    """Return the words of ``text``, whose concatenation is the text, with their parts of speech (rjieba)."""
    tagged = import_optional("rjieba").tag(text)
    begins = accumulate((len(word) for word, _ in tagged), initial=0)
    return tuple(Word(word, kind, begin) for (word, kind), begin in zip(tagged, begins))


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


UNKNOWN = -1  # in place of a label that does not follow from that of the original pair


class Change(NamedTuple):
    """A changed pair. ``how`` says which rule of its kind made it; ``label`` may be UNKNOWN."""

    left: str
    right: str
    label: int
    how: str


class Untouched(NamedTuple):
    """A pair of the file as a rule sees it, and ``rng``, which belongs to this row and kind alone."""

    left: str
    right: str
    label: int
    rng: np.random.Generator

    def one_of(self, found: Sequence[str]) -> Optional[str]:
        """Return one of ``found`` that is drawn, None of nothing."""
        return found[int(self.rng.integers(len(found)))] if found else None

    def on_a_side(self, rewrite: Callable[[str], Optional[str]], label: int, how: str) -> Optional[Change]:
        """Return the pair with ``rewrite`` of a text that is drawn, or of the other where that is None."""
        for is_right in (True, False) if self.rng.integers(2) else (False, True):
            changed = rewrite(self.right if is_right else self.left)
            if changed is not None:
                texts = (self.left, changed) if is_right else (changed, self.right)
                return Change(*texts, label, how)
        return None


@dataclass(frozen=True)
class Facts:
    """What rules know of the whole file: its texts, and of its classes those that mean equal and not.

    ``same`` and ``different`` are None where the classes do not say so: with more than two of them.
    """

    texts: Sequence[str]
    same: Optional[int]
    different: Optional[int]

    @cached_property
    def characters(self) -> Dict[str, int]:
        """Return how often each Chinese character stands in the texts."""
        counts = Counter("".join(self.texts))
        return {one: count for one, count in counts.items() if is_hanzi(one)}

    @cached_property
    def names(self) -> Dict[str, int]:
        """Return how often each name of a person stands in the texts."""
        counts = Counter(word.text for text in self.texts for word in words_of(text) if is_name(word))
        return dict(sorted(counts.items()))


Rule = Callable[[Untouched, Facts], Optional[Change]]


def draw_weighted(rng: np.random.Generator, counted: Sequence[Tuple[str, int]]) -> str:
    """Return a text of ``counted``, drawn in proportion to its count."""
    ends = np.cumsum([count for _, count in counted])
    return counted[int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))][0]


NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
TOWARDS = ("到", "至", "飞", "去", "飞往", "开往", "-", "—", "→")
# Of one group each may stand in the place of another.
PLACES = (
    "北京 上海 天津 重庆 广州 深圳 成都 杭州 武汉 西安 南京 苏州 郑州 长沙 沈阳 青岛 "
    "济南 大连 宁波 厦门 福州 合肥 昆明 哈尔滨 长春 石家庄 太原 南昌 南宁 贵阳 兰州 海口 "
    "三亚 无锡 东莞 佛山 珠海 温州 洛阳 桂林 拉萨 西宁 银川 呼和浩特 乌鲁木齐",
    "河北 山西 辽宁 吉林 黑龙江 江苏 浙江 安徽 福建 江西 山东 河南 湖北 湖南 广东 海南 "
    "四川 贵州 云南 陕西 甘肃 青海 台湾 广西 西藏 宁夏 新疆 内蒙古",
    "中国 美国 英国 法国 德国 日本 韩国 俄罗斯 印度 泰国 越南 加拿大 澳大利亚 新西兰 意大利 西班牙 "
    "荷兰 瑞士 瑞典 巴西 墨西哥 埃及 新加坡 马来西亚",
    "纽约 伦敦 巴黎 东京 首尔 柏林 罗马 莫斯科 悉尼 曼谷",
)
GROUP_OF = {place: group.split() for group in PLACES for place in group.split()}
TRIES = 20  # draws of a number that is neither text's

Rewriting = Tuple[str, Dict[str, str]]  # how, and what takes the place of what


def change_entity(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with an entity of one text changed, labelled different; None without a shared one."""
    if facts.different is None or pair.label != facts.same:
        return None
    shared = sorted(_find_directions(pair.left) & _find_directions(pair.right))
    found: List[Rewriting] = [("direction", {one: other, other: one}) for one, other in shared]
    found += [*_named(pair, facts), *_numbers(pair)]
    if not found:
        return None
    how, words = found[int(pair.rng.integers(len(found)))]

    def rewrite(text: str) -> str:
        if how == "number":
            return NUMBER.sub(lambda number: words.get(number[0], number[0]), text)
        return "".join(words.get(word.text, word.text) for word in words_of(text))

    return pair.on_a_side(rewrite, facts.different, how)


def _find_directions(text: str) -> Set[Tuple[str, str]]:
    """Return (place, place) where the text says that one leads to the other."""
    words = words_of(text)
    return {
        (first.text, second.text)
        for first, towards, second in zip(words, words[1:], words[2:])
        if first.text in GROUP_OF and second.text in GROUP_OF and towards.text in TOWARDS
    }


def _named(pair: Untouched, facts: Facts) -> Iterator[Rewriting]:
    """Yield a place for a place of its group, and a person of the file for a person."""
    of_sides = ({word[:2] for word in words_of(text)} for text in (pair.left, pair.right))
    for word in (Word(*shared) for shared in sorted(set.intersection(*of_sides))):
        counts = facts.names if is_name(word) else dict.fromkeys(GROUP_OF.get(word.text, ()), 1)
        others = [
            (other, count)
            for other, count in counts.items()
            if other not in pair.left and other not in pair.right
        ]
        if others:
            yield "name" if is_name(word) else "place", {word.text: draw_weighted(pair.rng, others)}


def _numbers(pair: Untouched) -> Iterator[Rewriting]:
    """Yield a number of the same form for one of both texts: a digit changes, and the first becomes no 0."""
    numbers = {*NUMBER.findall(pair.left)}, {*NUMBER.findall(pair.right)}
    for number in sorted(numbers[0] & numbers[1]):
        places = [place for place, digit in enumerate(number) if digit != "."]
        for _ in range(TRIES):
            place = places[int(pair.rng.integers(len(places)))]
            least = 1 if place == 0 and len(number) > 1 else 0
            other = f"{number[:place]}{pair.rng.integers(least, 10)}{number[place + 1 :]}"
            if other not in numbers[0] | numbers[1]:
                yield "number", {number: other}
                break


MIN_COUNT = 2  # of a character in the file: what stands there once is no common one


def make_homophone(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with a character of one text replaced by a homophone, its label unchanged.

    The sound is that of the character in its word, tones aside (pypinyin); the other is drawn from the
    characters of the file by how often they stand there. None where no character has one. Raises InputError
    without pypinyin.
    """
    by_sound = _group_by_pinyin(tuple(facts.characters.items()))

    def rewrite(text: str) -> Optional[str]:
        choices = _find_homophones(text, by_sound)
        if not choices:
            return None
        place, others = choices[int(pair.rng.integers(len(choices)))]
        return text[:place] + draw_weighted(pair.rng, others) + text[place + 1 :]

    return pair.on_a_side(rewrite, pair.label, "homophone")


def _find_homophones(text: str, by_sound) -> List[Tuple[int, List[Tuple[str, int]]]]:
    """Return the places of ``text`` that have homophones, and these with their counts."""
    found = []
    for word, _, begin in words_of(text):
        sounds = _read_pinyin(word) if is_hanzi(word) and not NEGATING.intersection(word) else []
        for offset, sound in enumerate(sounds):
            others = [entry for entry in by_sound.get(sound, ()) if entry[0] != word[offset]]
            if others:
                found.append((begin + offset, others))
    return found


@lru_cache(maxsize=1 << 14)
def _read_pinyin(word: str) -> Sequence[str]:
    """Return the pinyin of each character of a word, without tones; none where they do not fit."""
    found = import_optional("pypinyin").lazy_pinyin(word)
    return found if len(found) == len(word) else []


@lru_cache(maxsize=1)
def _group_by_pinyin(characters: Tuple[Tuple[str, int], ...]) -> Dict[str, List[Tuple[str, int]]]:
    """Return {pinyin: common characters that sound so, with their counts}; none of them negates."""
    found: Dict[str, List[Tuple[str, int]]] = {}
    for character, count in sorted(characters):
        if count >= MIN_COUNT and character not in NEGATING:
            for sound in _read_pinyin(character):
                found.setdefault(sound, []).append((character, count))
    return found


NEGATED = {
    **{word: f"不{word}" for word in ("能", "会", "可以", "应该", "需要", "喜欢", "愿意", "支持", "允许")},
    "能够": "不能够",
    "是": "不是",
    "有": "没有",
}
# 谁能告诉我: a request, which 不 leaves one.
REQUEST = re.compile(
    r"(?:谁|哪位|有人|大家|求)\w{0,4}(?:能|可以)|"
    r"(?:能|可以)\w?(?:告诉|帮|给|推荐|提供|教|介绍|说|讲|解|发)"
)
NOT_IN_QUESTIONS = ("是", "有", "需要", "应该")  # 没有什么, 不需要多少: no negation of the question
AFFIRMED = {
    **{negated: word for word, negated in NEGATED.items() if word != "能够"},
    "无法": "能", "不想": "想", "不要": "要", "不行": "行", "不足": "足", "不见": "见",
}  # fmt: skip
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
        rewritings, how = _negated, "inserted"
    elif counts == (1, 1):
        rewritings, how = _affirmed, "removed"
    else:
        return None
    return pair.on_a_side(lambda text: pair.one_of(rewritings(text)), facts.different, how)


def is_polar(text: str) -> bool:
    """Return whether a text asks for yes or no, or may do so."""
    if POLAR.search(text) or _POLAR_ENGLISH.match(text):
        return True
    return text.rstrip().endswith(("?", "？")) and not QUESTION_WORDS.search(text.lower())


def _negated(text: str) -> List[str]:
    if REQUEST.search(text):
        return []
    is_question = QUESTION_WORDS.search(text.lower()) is not None
    words = {word: other for word, other in NEGATED.items() if not (is_question and word in NOT_IN_QUESTIONS)}
    tagged = words_of(text)
    # A 会 that follows a pronoun, an adverb or a time is the verb: that of 唯品会 is none.
    if not any(word.text == "会" and before.kind[:1] in "rdt" for before, word in zip(tagged, tagged[1:])):
        del words["会"]
    english = [text[: found.end()] + " not" + text[found.end() :] for found in _AUXILIARY.finditer(text)]
    return _replaced(text, words) + (english if len(english) == 1 else [])


def _affirmed(text: str) -> List[str]:
    words, found = words_of(text), _replaced(text, AFFIRMED)
    # a 不 or 没 that stands on its own before a long verb or adjective
    for word, following in zip(words, words[1:]):
        if word.text in ("不", "没") and following.kind[:1] in ("v", "a") and len(following.text) > 1:
            found.append(text[: word.begin] + text[word.begin + 1 :])
    for match in _NOT.finditer(text):
        found.append(text[: match.start()] + (match[1] or match[2]) + text[match.end() :])
    return found


def _replaced(text: str, words: Dict[str, str]) -> List[str]:
    """Return the text with one of its words replaced, for each that is in ``words``."""
    return [
        text[:begin] + words[word] + text[begin + len(word) :]
        for word, _, begin in words_of(text)
        if word in words
    ]


# Groups of characters that are mistaken for one another by their shape.
LOOK_ALIKES = Path(__file__).with_name("look_alikes.txt")
KEYS = dict(zip("qwertyuiopasdfghjklzxcvbnm", "wetrwytuoisqdjgfkhjlxzcvnb"))  # the key beside it
SHORTEST_TEXT, MIN_WORD_LENGTH = 4, 4  # characters of a text with a typo, letters of such a Latin word

TYPOS = ("swapped", "left out", "doubled", "look-alike")


def make_typo(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with one typo in one text, its label unchanged; None where no text can have one.

    Numbers and negations stay, and a word of one character is not left out: the meaning can be read still.
    """
    for place in pair.rng.permutation(len(TYPOS)).tolist():
        how = TYPOS[place]

        def rewrite(text: str, how: str = how) -> Optional[str]:
            return pair.one_of([one for one in _typos(how, text) if one != text])

        found = pair.on_a_side(rewrite, pair.label, how)
        if found is not None:
            return found
    return None


def _typos(how: str, text: str) -> Iterator[str]:
    """Yield ``text`` with one typo, for each place that may have one; the first Latin letter stays."""
    for word, _, begin in words_of(text) if len(text) >= SHORTEST_TEXT else ():
        end = begin + len(word)
        if word.isascii() and word.isalpha() and len(word) >= MIN_WORD_LENGTH:
            begin += 1
        elif not is_hanzi(word) or NEGATING.intersection(word):
            continue
        for i in range(begin, end):
            if how == "swapped" and i + 1 < end:
                yield text[:i] + text[i + 1] + text[i] + text[i + 2 :]
            elif how == "left out" and end - begin > 1:
                yield text[:i] + text[i + 1 :]
            elif how == "doubled":
                yield text[: i + 1] + text[i:]
            elif how == "look-alike":
                for other in _look_alikes().get(text[i], KEYS.get(text[i], "")):
                    yield text[:i] + other + text[i + 1 :]


@lru_cache(maxsize=1)
def _look_alikes() -> Dict[str, str]:
    """Return {character: those it is mistaken for}; none of them negates."""
    found: Dict[str, str] = {}
    for group in LOOK_ALIKES.read_text(encoding="utf-8").split():
        for one in group:
            others = [other for other in group if other != one and other not in found.get(one, "")]
            found[one] = found.get(one, "") + "".join(other for other in others if other not in NEGATING)
    return {one: others for one, others in found.items() if one not in NEGATING}


POLITE = ("请问", "请问一下，", "我想问一下，", "麻烦问一下，", "你好，")
PLAIN = ("那个，", "就是说，", "话说", "你好，")
ENGLISH = ("Well, ", "By the way, ", "Actually, ")
_GREETED = re.compile(r"请|问|你好|您好|麻烦|话说|那个|就是")
_END = re.compile(r"(?<=\w)(?=\W*$)")
_PARTICLE = re.compile(r"[吗呢啊呀吧嘛么呗哦哈了的没不]\W*$")


def exchange_texts(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair turned round, its label unknown if classes may mean a direction; None of one text."""
    if pair.left == pair.right:
        return None
    return Change(pair.right, pair.left, UNKNOWN if facts.same is None else pair.label, "exchanged")


def add_filler(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with a word in one text that only fills, its label unchanged; None where none fits."""
    return pair.on_a_side(
        lambda text: pair.one_of([filled for _, filled in fillings(text)]), pair.label, "filler"
    )


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


ALL = "all"
# The numbers belong to the draws: a kind that is added gets a new one.
KINDS: Dict[str, Tuple[int, Rule]] = {
    "typo": (1, make_typo),
    "homophone": (2, make_homophone),
    "negation": (3, change_negation),
    "entity": (4, change_entity),
    "order": (5, exchange_texts),
    "filler": (6, add_filler),
}
CHANGING = ("negation", "entity")  # the label becomes that of different texts


class Perturbed(NamedTuple):
    """Changed pairs, kind after kind, each in the order of the file.

    ``labels`` int64 [N] are UNKNOWN where they do not follow; ``origins`` int64 [N] are the rows of the file
    that they were made of, ``kinds`` and ``hows`` say by which rule.
    """

    left: List[str]
    right: List[str]
    labels: np.ndarray
    kinds: List[str]
    hows: List[str]
    origins: np.ndarray

    def __len__(self) -> int:
        return len(self.left)

    def origin(self, row: int, pairs: Pairs) -> str:
        """Return where row ``row`` comes from among ``pairs``: `typo doubled line 17`."""
        kind, how = self.kinds[row], self.hows[row]
        named = kind if how == kind else f"{kind} {how}"
        place = int(self.origins[row])
        return f"{named} line {pairs.where(place) if pairs.paths else pairs.number(place)}"


def parse_kinds(text: str) -> Tuple[str, ...]:
    """Return the named kinds in order; `all`: each. Raises InputError for others."""
    names = names_in(text)
    fault = f" is no kind; name some of {', '.join(KINDS)}, or {ALL}"
    check_names("robustness", names, (*KINDS, ALL), fault)
    return tuple(kind for kind in KINDS if kind in names or ALL in names)


def perturb(pairs: Pairs, num_classes: int, asked: Sequence[str], most: int, seed: int) -> Perturbed:
    """Return the changed pairs of ``pairs``, which have labels: of each kind ``asked`` ``most``, 0: all.

    Raises InputError if there is none.
    """
    same, different = (1, 0) if num_classes == 2 else (None, None)
    facts = Facts(sorted({*pairs.left, *pairs.right}), same, different)
    found = [
        (kind, row, *change)
        for kind in asked
        for row, change in _changes(pairs, facts, *KINDS[kind], most, seed)
    ]
    if not found:
        raise InputError(f"{pairs.path}: no rule of {', '.join(asked)} applies to any row; name others")
    kinds, rows, left, right, labels, hows = map(list, zip(*found))
    return Perturbed(left, right, np.array(labels, np.int64), kinds, hows, np.array(rows, np.int64))


def _changes(
    pairs: Pairs, facts: Facts, number: int, rule: Rule, most: int, seed: int
) -> List[Tuple[int, Change]]:
    """Return the rows of a kind and what became of them; where there are more than enough, drawn ones."""
    order = list(range(len(pairs)))
    if most:
        order = np.random.default_rng([seed, number]).permutation(len(pairs)).tolist()
    found: List[Tuple[int, Change]] = []
    for row in order:
        texts, rng = (pairs.left[row], pairs.right[row]), np.random.default_rng([seed, number, row])
        change = rule(Untouched(*texts, int(pairs.known_labels[row]), rng), facts)
        if change is not None and change[:2] != texts:
            found.append((row, change))
            if len(found) == most:
                break
    return sorted(found, key=lambda entry: entry[0])
