"""What the columns of a table hold, and whether its first row is a header: for pairs and for texts.

The first row is a header if its cells are known names, or if it stands above numbers, dates or a few words
that recur, and is none of them. It is none if it holds a number, or one of the words of its
column. Else nothing tells, and it is read like the other rows.
"""

import re
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ernie_pair.core.errors import again_with

LOOKED_AT = 200  # rows that tell which columns hold the texts, where their names do not
MAX_WORDS = 20  # that a column of labels has; each is of MAX_WORD_LENGTH characters at the most
MAX_WORD_LENGTH = 12
MAX_ID_LENGTH = 64  # characters of an id
_MAY_BE_ID = re.compile(r"[!-~]+|(?=\S*\d)[!-~]*[^\s!-~]{1,3}[!-~]*")
NUMBER = re.compile(r"[-+]?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?")
DATE = re.compile(r"[0-9]{4}[-/.年][0-9]{1,2}\b.*")
IsWord = Callable[[str], bool]
TEXTS = ("文本", "句子", "问题", "问句", "语句")  # with a number or letter behind
# Names are compared as `plain_name` gives them. Two of one line are certainly the texts.
TWINS = [
    ("sentence1", "sentence2"), ("texta", "textb"), ("text1", "text2"), ("sentencea", "sentenceb"),
    ("question1", "question2"), ("#1string", "#2string"), ("s1", "s2"), ("q1", "q2"), ("sent1", "sent2"),
    ("title1", "title2"), ("string1", "string2"), ("premise", "hypothesis"),
    *((text + a, text + b) for text in (*TEXTS, "标题", "题目", "内容")
      for a, b in (("1", "2"), ("一", "二"), ("a", "b"))),
]  # fmt: skip
PAIRS = [
    ("query", "title"), ("query", "passage"), ("query", "doc"), ("query", "document"), ("query", "answer"),
    ("query", "text"), ("query", "positive"), ("query", "pos"), ("question", "answer"),
    ("question", "passage"), ("question", "sentence"), ("question", "positive"), ("text", "textpair"),
    ("anchor", "positive"), ("anchor", "pos"), ("问题", "答案"), ("问题", "回答"),
    ("用户问题", "标准问题"), ("用户问", "标准问"), ("用户问句", "标准问句"), ("标准问题", "相似问题"),
    ("标准问", "相似问"), ("标准问", "扩展问"), ("查询", "标题"), ("查询", "文档"), ("前提", "假设"),
]  # fmt: skip
LABELS = (
    "label", "labels", "quality", "isduplicate", "goldlabel", "score", "similarity", "similarityscore",
    "issimilar", "ismatch", "标签", "类别", "是否匹配", "是否相似", "是否相同", "是否同义", "是否一致",
    "相似度", "匹配", "结果", "得分", "分数",
)  # fmt: skip
ID_NAMES = {"id", "编号", "序号", "docid", "qid", "pid", "textid"}
FIRST_NAMES = {"text", "文本", "句子", "sentence", "content", "内容", "正文"}  # one is surely the text
_TEXT_NAMES = {
    *(name for pair in (*TWINS, *PAIRS) for name in pair), *TEXTS, *FIRST_NAMES,
    *("title", "标题", "q", "a", "问", "答", "问法", "faq"),
}  # fmt: skip
_KNOWN = _TEXT_NAMES | ID_NAMES | {*LABELS}
_SURE = {name for pair in TWINS for name in pair} | {*LABELS, "query", "title"}
_IN_ORDER = "0123456789abcdefgh一二三四五六"
_SERIES = re.compile(
    "({})([0-9]+|[a-h]|[一二三四五六])".format(
        "|".join({left[:-1] for left, _ in TWINS if left[-1] in "1a一"})
    )
)
_DIGIT = re.compile("[0-9]")
_SHORT = 20  # characters of the name of a column
_FEW = 4  # words that recur in a column of labels, each
_OFTEN = 10  # times


def text_of(cell: object) -> str:
    """Return a cell as text, without the white space around it; '' of none."""
    return "" if cell is None else str(cell).strip()


def split_columns(rows: Iterable[List[Any]], width: int) -> List[List[str]]:
    """Return the cells of each of ``width`` columns as texts, without those that are empty."""
    columns: List[List[str]] = [[] for _ in range(width)]
    for row in rows:
        for column, cell in zip(columns, row):
            text = text_of(cell)
            if text:
                column.append(text)
    return columns


def plain_name(name: str) -> str:
    """Return the name of a column as names are compared: in lower case, no spaces, dashes, last colon."""
    return re.sub(r"[\s_-]|[:：]\s*$", "", name.lower())


def holds_texts(column: Sequence[str]) -> bool:
    """Return whether a column holds texts: neither numbers, dates nor a few short words over and over."""
    if all(NUMBER.fullmatch(cell) or DATE.fullmatch(cell) for cell in column):
        return False
    return not has_few_words(column)


def are_ids(column: Sequence[str]) -> bool:
    """Return whether each cell of a column may be an id: A-7 or 编号2, without a blank, not long."""
    return all(len(cell) <= MAX_ID_LENGTH and _MAY_BE_ID.fullmatch(cell) for cell in column if cell)


def has_few_words(column: Sequence[str]) -> bool:
    """Return whether the cells of a column are a few short words, each in several rows."""
    words = {cell.casefold() for cell in column}
    return (
        3 * len(words) <= len(column) and len(words) <= MAX_WORDS and max(map(len, words)) <= MAX_WORD_LENGTH
    )


def numbered_columns(plain: Sequence[str]) -> List[Tuple[int, ...]]:
    """Return the places of texts whose names differ in a number or letter alone, in the order of those."""
    found: Dict[Tuple[str, bool], List[Tuple[int, int]]] = {}
    for place, name in enumerate(plain):
        match = _SERIES.fullmatch(name)
        if match:
            is_number = match[2].isdigit()
            number = int(match[2]) if match[2].isascii() and is_number else _IN_ORDER.index(match[2])
            found.setdefault((match[1], is_number), []).append((number, place))
    return [tuple(n for _, n in sorted(each)) for each in found.values() if len(dict(each)) > 1]


def is_header(
    cells: Sequence[str], rows: Sequence[List[Any]], is_word: IsWord = lambda cell: False
) -> Optional[bool]:
    """Return whether ``cells``, the first row, are names of the columns of ``rows``; None: nothing tells.

    ``is_word``: whether a word is a label wherever it stands.
    """
    plain = [plain_name(cell) for cell in cells]
    if any(map(NUMBER.fullmatch, plain)):
        begin = plain[:1] == [""]
        return plain[begin:] == [str(n) for n in range(len(plain) - begin)] and len(plain) > 2 and bool(rows)
    below = split_columns([row for row in rows if len(row) == len(cells)], len(cells))
    words = [_words_of(column, is_word) for column in below]
    fits = (
        cell.casefold() in found or found and all(map(is_word, (cell, *found)))
        for cell, found in zip(cells, words)
    )
    if any(fits) or any(column and _is_next(name, column[0]) for name, column in zip(plain, below)):
        return False
    if _has_known_names(cells, plain, is_word):
        return True
    if len(cells) > 3 and plain[0] == "" and rows:
        return True
    if any(len(cell) > _SHORT for cell in cells):
        return False
    if len(rows) > 1 and len(cells) > 1 and any(column and holds_texts(column) for column in below):
        named = (n for n, cell in enumerate(cells) if any(map(str.isalpha, cell)) and below[n])
        if any(words[n] or all(NUMBER.fullmatch(c) or DATE.fullmatch(c) for c in below[n]) for n in named):
            return True
    with_ids = (cell for cell, column in zip(cells, below) if column and are_ids(column))
    return None if all(cells) and not any(map(_DIGIT.search, with_ids)) else False


def say_no_header(what: str, cells: Sequence[str], flags: Mapping[str, str]) -> str:
    """Return in words that the first row is read as ``what``, and the command with ``flags`` otherwise."""
    return (
        f"no header: the first row is read as {what} ({', '.join(cells)}); if it is a header: "
        + again_with({}, **flags)
    )


def _has_known_names(cells: Sequence[str], plain: Sequence[str], is_word: IsWord) -> bool:
    # `query` may be a text, `text_a` hardly.
    is_sure = any(not cell.isalpha() and name in _SURE for cell, name in zip(cells, plain))
    known = [name in _KNOWN for name in plain]
    of_three = len(plain) > 2 and plain[-1] in LABELS and not is_word(plain[-1])
    is_listed = len(plain) > 3 and any(known) or len(plain) == 3 and sum(known) > 1
    is_named = is_sure or of_three or is_listed or all(known) or plain[0] in ID_NAMES
    return is_named or bool(numbered_columns(plain))


def _is_next(name: str, cell: str) -> bool:
    """Return whether ``cell`` counts on from ``name``, as q2 does from q1: both are ids."""
    first, second = (_SERIES.fullmatch(each) for each in (name, plain_name(cell)))
    if first is None or second is None or first[1] != second[1]:
        return False
    return first[2].isdecimal() and second[2].isdecimal()


def _words_of(column: Sequence[str], is_word: IsWord) -> Collection[str]:
    """Return the words of a column of labels, in lower case; none of another column."""
    if not column:
        return ()
    words = {cell.casefold() for cell in column}
    is_few = len(words) <= _FEW and _OFTEN * len(words) <= len(column) and has_few_words(column)
    return words if all(map(is_word, words)) or is_few else ()
