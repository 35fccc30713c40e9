"""Texts for comparing tokenizers: sentences to train them on, every character, strings drawn at random."""

import sys
import unicodedata
from random import Random

NOUNS = (
    "银行卡 订单 快递 退款 密码 手机号 账户 优惠券 发票 会员 花呗 借呗 额度 "
    "refund order password account coupon invoice delivery payment card limit"
).split()
VERBS = (
    "怎么修改,如何取消,为什么不能使用,什么时候收到,可以查询,忘记了,想要申请,已经关闭,"
    "how do I change,where is,why was,please cancel,I forgot,when do I get,can I use"
).split(",")
ENDS = "？|。|！|?|.|，谢谢|, thank you| today|吗？|呢".split("|")
TIMES = "昨天|今天上午|三月二十五日|last week|in 2024|at 9:30|周末|".split("|")

# Prices, units, chat: ERNIE splits these symbols off as words, BERT does not.
WITH_SYMBOLS = (
    "5¥ each|good👍👍 job|a≥b and c≤d|25°C, not 30°C|10€/month|3×4=12|1+1=2|price: $9.99|C++ & C#|50% off!|"
    "満足度★★★☆☆|→ next|x² + y²|½ cup|№ 7|5㎡的房间|Ⅳ级|①先登录②再付款|已付款√|余额≤¥100怎么办|"
    "这个👍🏽不错|café naïve|ﬁne ﬂow|ｆｕｌｌ　ｗｉｄｔｈ|한국어 문장|Ελληνικά|e\u0301 combining|"
    "zero\u200bwidth|tab\tand\nline|soft\u00adhyphen|👨‍👩‍👧 family|~`^<>||\u3000"
).split("|")
CONTROL_TOKENS = "[MASK] [SEP] [CLS] [PAD] [UNK] <s> </s> <mask> <unk> <pad> [mask]".split()
# Where random strings take their characters from: first and last code point.
BLOCKS = [
    tuple(int(code, 16) for code in block.split("-"))
    for block in (
        "20-7E 20-7E 4E00-9FFF 4E00-4FFF 3000-30FF FF00-FFEF 0-1F 7F-FF 100-24F 300-36F 370-5FF 900-97F "
        "E00-E7F 1100-11FF 2000-206F 20A0-27BF 3400-4DBF AC00-D7A3 F900-FAFF FE00-FE2F 1F300-1FAFF "
        "1D400-1D7FF 20000-2A6DF E000-E0FF"
    ).split()
]


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
    assigned = [chr(code) for code in range(sys.maxunicode + 1)]
    found = [sign for sign in assigned if unicodedata.category(sign) not in ("Cn", "Cs", "Co")]
    return [*found, "\ue000", "\uf8ff", "\U000f0000", "\U00100000"]


def random_strings(count=10_000, seed=0):
    """Return strings of up to 40 characters that mix scripts, symbols, words, spaces and control tokens."""
    rng = Random(seed)
    words = (*NOUNS, *VERBS, *WITH_SYMBOLS)
    found = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 9)):
            kind = rng.random()
            if kind < 0.25:
                parts.append(rng.choice(words))
            elif kind < 0.32:
                parts.append(rng.choice(CONTROL_TOKENS))
            elif kind < 0.42:
                parts.append(rng.choice((" ", "  ", "\u3000", "\t", "\n", "\u00a0", "\u2028", "\u200b")))
            else:
                first, last = rng.choice(BLOCKS)
                parts.append("".join(chr(rng.randint(first, last)) for _ in range(rng.randrange(1, 6))))
        found.append("".join(parts))
    return found
