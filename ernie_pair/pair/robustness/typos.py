"""A slip of the pen or the keyboard: a character of one text swapped, left out, doubled or mistaken."""

from functools import lru_cache, partial
from typing import Dict, Iterator, List, Optional, Tuple

import numpy as np

from ernie_pair.pair.robustness.change import Change, Facts, Untouched
from ernie_pair.pair.robustness.words import NEGATING, is_hanzi, words_of

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
