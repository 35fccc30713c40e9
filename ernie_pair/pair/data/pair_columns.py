"""The columns of the two texts and the label.

A header, or the keys of the first JSON line, may call them as the known sets do, in any order:

    text_a text_b label    query title label    sentence1 sentence2 label
    id qid1 qid2 question1 question2 is_duplicate                                            (QQP)
    Quality #1_ID #2_ID #1_String #2_String              (MRPC, with spaces for the underscores)
    文本1 文本2 标签    句子一 句子二 标签    问题A 问题B 标签

--text_a, --text_b and --label name columns that are called otherwise. Without a header the order is
text, text, label.
"""

from dataclasses import dataclass, replace
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from data_tools.base.errors import InputError, counted
from data_tools.files.json_file import shown

LEFT, RIGHT, LABEL = ROLES = ("sentence1", "sentence2", "label")
TEXTS = ("文本", "句子", "问题", "问句", "语句")  # with a number or letter behind
NAMES = {
    LEFT: (LEFT, "text_a", "query", "question1", "#1 string", "premise", "sentence_a", "text1", "s1", "q1")
    + tuple(text + number for text in TEXTS for number in "1一a"),
    RIGHT: (
        RIGHT,
        "text_b",
        "title",
        "question2",
        "#2 string",
        "hypothesis",
        "sentence_b",
        "text2",
        "s2",
        "q2",
    )
    + tuple(text + number for text in TEXTS for number in "2二b"),
    LABEL: (LABEL, "labels", "quality", "is_duplicate", "gold_label", "标签", "类别"),
}
# A first line of nothing but these is a header, though not which text is meant.
ALSO_NAMES = {"question", "answer", "text", "sentence", "query", "title", "答案", "标题", "查询", *TEXTS}
FIRST_TEXT_HELP = "the column of the first text; empty: a known name, or the first column"
SECOND_TEXT_HELP = "the column of the second text"
PASSED_OVER = ("id", "index", "idx", "#1 id", "#2 id", "qid", "qid1", "qid2", "pairid", "origin")


@dataclass(frozen=True)
class Columns:
    """The column names that flags give; an empty one is left to the known names."""

    text_a: str = ""
    text_b: str = ""
    label: str = ""
    query: str = ""  # what rows of one query share; empty: their first text

    @property
    def by_role(self) -> Dict[str, str]:
        """Return {role: the name given by a flag} for ROLES; the name is empty where no flag was given."""
        return dict(zip(ROLES, (self.text_a, self.text_b, self.label)))


class Layout(NamedTuple):
    """The places of the texts, the label and the query in a line of ``width`` columns."""

    left: int
    right: int
    label: Optional[int]
    width: int
    has_header: bool
    query: Optional[int] = None


def layout_of(where: str, first: List[str], columns: Columns, needs_label: bool = True) -> Layout:
    """Return the layout of a table, judged by the cells of its first line.

    Without ``needs_label`` the column that --label names may be absent. Raises InputError for a header that
    is not understood, and for other than 2 or 3 columns without a header.
    """
    cells = [cell.strip() for cell in first]
    if not needs_label and columns.label not in cells:
        columns = replace(columns, label="")
    places = _places(where, cells, columns, must_be_there=True)
    if LEFT in places and RIGHT in places:
        named_texts = columns.text_a and columns.text_b
        query = _query_place(where, cells, columns)
        known = {*places.values(), query}
        others = {cell.lower() for place, cell in enumerate(cells) if place not in known}
        if others - set(PASSED_OVER) and not named_texts:
            raise _not_understood(where, cells)
        return Layout(places[LEFT], places[RIGHT], places.get(LABEL), len(cells), True, query)
    if any(columns.by_role.values()) or columns.query or _is_header(cells):
        raise _not_understood(where, cells)
    if len(cells) not in (2, 3):
        found = (
            f"{where}: {counted(len(cells), 'column')} instead of 3 (text, text, label) or 2 (text, text); "
        )
        raise InputError(found + _how_to_separate(cells))
    return Layout(0, 1, 2 if len(cells) == 3 else None, len(cells), False)


def _how_to_separate(cells: List[str]) -> str:
    """Return what to do with a first line of one column, or of more than three."""
    if len(cells) == 1:
        return "separate them by tabs, or name a file of JSON lines .jsonl, one with commas .csv"
    line = shown(", ".join(cells))
    return f"if the line is a header, name its columns with --text_a, --text_b and --label: {line}"


def keys_of(where: str, first: Sequence[str], columns: Columns) -> Tuple[str, str, str]:
    """Return the keys of the two texts and the label in JSON lines, judged by the keys of the first line.

    Raises InputError when two keys may name the same role.
    """
    places = _places(where, list(first), columns, must_be_there=False)
    left, right, label = (
        columns.by_role[role] or (first[places[role]] if role in places else role) for role in ROLES
    )
    return left, right, label


def _places(where: str, cells: List[str], columns: Columns, must_be_there: bool) -> Dict[str, int]:
    places = {}
    for role, named in columns.by_role.items():
        found = [
            i for i, cell in enumerate(cells) if (cell == named if named else cell.lower() in NAMES[role])
        ]
        if len(found) > 1:
            both = ", ".join(cells[place] for place in found)
            raise InputError(f"{where}: both columns {both} may be {role}; name one with {_flag(role)}")
        if named and must_be_there and not found:
            raise InputError(f"{where}: no column {named!r} in {', '.join(cells)}; fix {_flag(role)}")
        if found:
            places[role] = found[0]
    return places


def _query_place(where: str, cells: List[str], columns: Columns) -> Optional[int]:
    if not columns.query:
        return None
    if columns.query not in cells:
        raise InputError(f"{where}: no column {columns.query!r} in {', '.join(cells)}; fix --query")
    return cells.index(columns.query)


def _flag(role: str) -> str:
    return dict(zip(ROLES, ("--text_a", "--text_b", "--label")))[role]


def _is_header(cells: List[str]) -> bool:
    """Return whether no row of texts, or of two texts and a label, has these cells."""
    names_a_label = len(cells) == 3 and cells[2].lower() in NAMES[LABEL]
    texts = [cell.lower() for cell in (cells[:2] if names_a_label else cells)]
    return names_a_label or any(map(_names_a_column, cells)) or ALSO_NAMES.issuperset(texts)


def _names_a_column(cell: str) -> bool:
    """Return whether a cell is a name that no text consists of: `query` may be a text, `text_a` hardly."""
    return not cell.isalpha() and any(cell.lower() in names for names in NAMES.values())


def _not_understood(where: str, cells: List[str]) -> InputError:
    names = cells if len(cells) in (2, 3) else ["..."] * 3
    flags = " ".join(f"{_flag(role)} {cell or '...'}" for role, cell in zip(ROLES, names))
    return InputError(
        f"{where}: the header {', '.join(cells)} is not understood; write text_a, text_b, label, or name "
        f"its columns: {flags}"
    )
