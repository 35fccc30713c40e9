"""Another number, place or name in one of two equal texts, or 从A到B the other way: then they differ.

Only in pairs that are labelled the same, and only what stands in both texts.
"""

import re
from typing import Dict, Iterator, List, Optional, Tuple

import numpy as np

from ernie_pair.pair.robustness.change import Change, Facts, Untouched, draw_weighted
from ernie_pair.pair.robustness.words import is_name, words_of

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
    found = [*_directions(pair), *_named(pair, facts), *_numbers(pair)]
    if not found:
        return None
    how, words = found[int(pair.rng.integers(len(found)))]
    rewrite = _with_numbers if how == "number" else _with_words
    return pair.on_a_side(lambda text: rewrite(text, words), facts.different, how)


def _directions(pair: Untouched) -> Iterator[Rewriting]:
    """Yield the exchange of two places of which one text says that one leads to the other."""
    for first, second in sorted({*_ways(pair.left)} & {*_ways(pair.right)}):
        yield "direction", {first: second, second: first}


def _ways(text: str) -> List[Tuple[str, str]]:
    words = words_of(text)
    return [
        (first.text, second.text)
        for first, towards, second in zip(words, words[1:], words[2:])
        if first.text in GROUP_OF and second.text in GROUP_OF and towards.text in TOWARDS
    ]


def _named(pair: Untouched, facts: Facts) -> Iterator[Rewriting]:
    """Yield a place for a place of its group, and a person of the file for a person."""
    for word in sorted({*words_of(pair.left)} & {*words_of(pair.right)}):
        counts = facts.names if is_name(word) else dict.fromkeys(GROUP_OF.get(word.text, ()), 1)
        others = [
            (other, count)
            for other, count in counts.items()
            if other not in pair.left and other not in pair.right
        ]
        if others:
            yield "name" if is_name(word) else "place", {word.text: draw_weighted(pair.rng, others)}


def _numbers(pair: Untouched) -> Iterator[Rewriting]:
    numbers = {*NUMBER.findall(pair.left)}, {*NUMBER.findall(pair.right)}
    for number in sorted(numbers[0] & numbers[1]):
        for _ in range(TRIES):
            other = _like(number, pair.rng)
            if other not in numbers[0] | numbers[1]:
                yield "number", {number: other}
                break


def _like(number: str, rng: np.random.Generator) -> str:
    """Return a number of the same form with one digit changed; the first digit becomes no 0."""
    places = [place for place, digit in enumerate(number) if digit != "."]
    place = places[int(rng.integers(len(places)))]
    least = 1 if place == 0 and len(number) > 1 else 0
    return f"{number[:place]}{rng.integers(least, 10)}{number[place + 1 :]}"


def _with_numbers(text: str, numbers: Dict[str, str]) -> str:
    return NUMBER.sub(lambda found: numbers.get(found[0], found[0]), text)


def _with_words(text: str, words: Dict[str, str]) -> str:
    return "".join(words.get(word.text, word.text) for word in words_of(text))
