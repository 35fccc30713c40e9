"""What a rule is given and what it returns; a rule is a function of the two that knows no model."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.files.installation import import_optional
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


LEAST_COUNT = 2  # of a character in the file: what stands there once is no common one


def make_homophone(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with a character of one text replaced by a homophone, its label unchanged.

    The sound is that of the character in its word, tones aside (pypinyin); the other is drawn from the
    characters of the file by how often they stand there. None where no character has one. Raises InputError
    without pypinyin.
    """
    by_sound = _by_sound(tuple(facts.characters.items()))

    def rewrite(text: str) -> Optional[str]:
        choices = _choices(text, by_sound)
        if not choices:
            return None
        place, others = choices[int(pair.rng.integers(len(choices)))]
        return text[:place] + draw_weighted(pair.rng, others) + text[place + 1 :]

    return pair.on_a_side(rewrite, pair.label, "homophone")


def _choices(text: str, by_sound) -> List[Tuple[int, List[Tuple[str, int]]]]:
    """Return the places of ``text`` that have homophones, and these with their counts."""
    found, begin = [], 0
    for word in words_of(text):
        sounds = _sounds(word.text) if is_hanzi(word.text) and not NEGATING.intersection(word.text) else []
        for offset, sound in enumerate(sounds):
            others = [entry for entry in by_sound.get(sound, ()) if entry[0] != word.text[offset]]
            if others:
                found.append((begin + offset, others))
        begin += len(word.text)
    return found


@lru_cache(maxsize=1 << 14)
def _sounds(word: str) -> Sequence[str]:
    """Return the pinyin of each character of a word, without tones; none where they do not fit."""
    found = import_optional("pypinyin", "robustness").lazy_pinyin(word)
    return found if len(found) == len(word) else []


@lru_cache(maxsize=1)
def _by_sound(characters: Tuple[Tuple[str, int], ...]) -> Dict[str, List[Tuple[str, int]]]:
    """Return {pinyin: common characters that sound so, with their counts}; none of them negates."""
    found: Dict[str, List[Tuple[str, int]]] = {}
    for character, count in sorted(characters):
        if count >= LEAST_COUNT and character not in NEGATING:
            for sound in _sounds(character):
                found.setdefault(sound, []).append((character, count))
    return found


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


# Characters that are mistaken for one another by their shape.
LOOK_ALIKES = """
己已巳 未末 土士 人入八 大太犬 天夫无 日曰目 田由甲申 千干于 刀力刁 牛午 王玉主 木本术 贝见 今令 九丸 儿几
乌鸟 免兔 折拆析 拔拨 微徽 戊戌戍 暑署 侯候 部陪 师帅 侍待持 特恃 话活 请清情晴睛 蓝篮 辨辩辫 密蜜 卷券
幕慕墓暮 崇祟 治冶 竞竟 喝渴揭 跑炮泡抱饱 冒昌 衰衷 即既 卯卵 厉历 历厉 受爱 复夏 妄忘 孤狐 官宫
底低抵 徒徙 性姓 恒桓 悔侮海 慢漫 扰抚 挂桂 换唤 摸模 操澡燥躁 支友 旁劳 晓浇烧 景影 杨扬场 枝技 枪抢
校较 植值 概慨 欧殴 毫亳 氏氐 汁计 沐休 没设 泊拍 洒酒 浅线 浇挠 消削 渡度 漏满 炒抄钞 烂栏 燃然 爪瓜
狠狼很 玩完 环坏怀 理埋 班斑 球求 瑞端 生主 画面 皇星 盲育 直真 眼银 破坡波 碗腕 秋愁 科料 程理
租组祖 积织 第弟 等筹 管官 篇偏编 粉纷份 精情 纪记 约钓 纸低 练炼 线钱 绍招 绝艳 考老 职织
股服 胃骨 胖伴 能熊 腿退 船般 芽牙 苦若 草早 菜莱采 营管 蒙家 蓝监 虫中 裁栽载 观现 订打 论伦
诉诈 识织 试式 该孩 课棵 调周 贷货 费贵 贵责 赚谦 起超 趣越 路络 转传 输愉 辆俩 近进 远运 连莲 送迭 适话
逝浙 通桶 遍编 道首 邮由 配酉 银很 销稍 错借 锻缎 问间闷 闭闲 阅间 队认 阳阴 限根 院完 除徐 险检 零雷
雪需 静净 顶项 顺须 预顿 颗课 题匙 风凤 饭板 饿俄 馆官 马鸟 验检 骑奇 高亮 鱼渔 鸡鸭 麻床 黑墨
充允 冲种 净争 几凡 分芬 划戈 列例 别另 到倒 刻孩 前剪 加如 动劲 包句 化华 区匹 升开 午年 半平 协办 单卓
卡卞 印却 厂广 发友 变恋 吃乞 各名 合台 同司 听昕 员贝 周用 味昧 命令 品晶 哪那 唱倡 商高 喜善
图圆 在再 地他 坐座 块快 型形 城诚 增赠 声壳 处外 备各 复夏 头买 失矢 好奶 如奴 字宇 孝考 它宅
宁字 守宋 定走 客容 室宝 害割 家象 富畐 寄奇 对村 导异 小少 就京 尺尽 层尼 居屋 展屐 左右 币帀 市布
带滞 席度 帮邦 常尝 平乎 年午 库裤 应庆 店点 张涨 强弹 当挡 影景 得碍 心必 快块 念令 急争 总聪 想相 意音
感咸 慎镇 成戍 我找 戏戎 房肩 所听 手毛 才寸 打扎 托拖 把吧爸 投设 护沪 报极 拉位 招绍 拿掌 持特 指脂 按安
换焕 据居 掉悼 接按 提题 插播 放纺 故姑 数教 料科 新亲 方万 族旅 时对 明朋 是昰 显湿 最量 月用 有冇 服报
望忘 期斯 机肌 杀朵 权枚 条杂 来米 板扳 林材 果呆 查杳 标际 样洋 根很 格挌 案安 次决 款疑 歌欧 正止 步少
段假 每母 比此 水永 求球 汉汊 江扛 汽汔 油由 法去 注住 活话 流琉 测侧 海每 深探 清请 游遊 源原 火灭 点占
热执 照昭 爱受 版板 物忽 特持 状壮 率卒 现规 理里 生牛 用甩 电申 男界 留贸 病疾 白自 百白 的旳 盘舟 目自
省看 看着 着看 知如 码妈 确碗 票漂 福副 离禽 种钟 租粗 称你 移侈 究穷 空穴 立位 站战 童章 答合 简筒 算箅
类娄 精睛 系糸 索素 累果 红江 级极 纯钝 组阻 经轻 结洁 统充 继断 维唯 网冈 美羊 群郡 老考 者都 联取 肉内
"""
KEYS = dict(zip("qwertyuiopasdfghjklzxcvbnm", "wetrwytuoisqdjgfkhjlxzcvnb"))  # the key beside it
SHORTEST_TEXT, SHORTEST_WORD = 4, 4  # characters of a text with a typo, letters of such a Latin word

Place = Tuple[int, int]  # of a character in its text: begin and end of the part of its word that may change


def make_typo(pair: Untouched, facts: Facts) -> Optional[Change]:
    """Return the pair with one typo in one text, its label unchanged; None where no text can have one.

    Numbers and negations stay, and a word of one character is not left out: the meaning can be read still.
    """
    ways = [("swapped", _swap), ("left out", _leave_out), ("doubled", _double), ("look-alike", _mistake)]
    for place in pair.rng.permutation(len(ways)).tolist():
        how, way = ways[place]
        found = pair.on_a_side(partial(_applied, way, pair.rng), pair.label, how)
        if found is not None:
            return found
    return None


def _applied(way, rng: np.random.Generator, text: str) -> Optional[str]:
    found = [one for one in way(text, list(_spans(text))) if one != text]
    return found[int(rng.integers(len(found)))] if found and len(text) >= SHORTEST_TEXT else None


def _spans(text: str) -> Iterator[Place]:
    """Yield the stretches of ``text`` in which a character may change; the first Latin letter stays."""
    begin = 0
    for word in words_of(text):
        end = begin + len(word.text)
        if is_hanzi(word.text) and not NEGATING.intersection(word.text):
            yield begin, end
        elif word.text.isascii() and word.text.isalpha() and len(word.text) >= SHORTEST_WORD:
            yield begin + 1, end
        begin = end


def _swap(text: str, spans: List[Place]) -> Iterator[str]:
    for begin, end in spans:
        for i in range(begin, end - 1):
            yield text[:i] + text[i + 1] + text[i] + text[i + 2 :]


def _leave_out(text: str, spans: List[Place]) -> Iterator[str]:
    for begin, end in spans:
        for i in range(begin, end) if end - begin > 1 else ():
            yield text[:i] + text[i + 1 :]


def _double(text: str, spans: List[Place]) -> Iterator[str]:
    return (text[: i + 1] + text[i:] for begin, end in spans for i in range(begin, end))


def _mistake(text: str, spans: List[Place]) -> Iterator[str]:
    for begin, end in spans:
        for i in range(begin, end):
            for other in _look_alikes().get(text[i], KEYS.get(text[i], "")):
                yield text[:i] + other + text[i + 1 :]


@lru_cache(maxsize=1)
def _look_alikes() -> Dict[str, str]:
    """Return {character: those it is mistaken for}; none of them negates."""
    found: Dict[str, str] = {}
    for group in LOOK_ALIKES.split():
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
