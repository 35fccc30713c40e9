"""The columns of the two texts and the label.

A header, or the keys of JSON, may call them as the known sets do, in any order, among any other columns:

    text_a text_b label    query title label    sentence1 sentence2 label    question answer score
    id qid1 qid2 question1 question2 is_duplicate                                            (QQP)
    Quality #1_ID #2_ID #1_String #2_String              (MRPC, with spaces for the underscores)
    文本1 文本2 标签    句子一 句子二 是否相似    用户问题 标准问题 是否匹配

    anchor positive    query pos    query answer negative_1 negative_2          (encoders: with negatives)

Otherwise they are the two columns that hold texts, where no other does, and the one that may be the label.
--text_a, --text_b and --label name columns. Without a header the order is text, text, label.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Optional, Sequence

from data_tools.text.columns import (
    LABELS,
    NUMBER,
    PAIRS,
    TWINS,
    are_ids,
    has_few_words,
    holds_texts,
    is_header,
    numbered_columns,
    plain_name,
    split_columns,
)
from data_tools.text.file_content import ENCODINGS
from data_tools.text.tables import SheetFlags
from data_tools.text.text_files import Place
from ernie_pair.core.cli.options import data_option, kept_data_option
from ernie_pair.core.errors import InputError, OpenError, counted
from ernie_pair.core.files.json_file import shown
from ernie_pair.models.labels import find_sense

LEFT, RIGHT, LABEL = ROLES = ("sentence1", "sentence2", "label")
FLAG_OF = {LEFT: "--text_a", RIGHT: "--text_b", LABEL: "--label"}
NAMES = {
    LEFT: {left for left, _ in TWINS} | {"query"},
    RIGHT: {right for _, right in TWINS},
    LABEL: set(LABELS),
}
FIRST_TEXT_HELP = "the column of the first text; empty: a known name, or the first column"
SECOND_TEXT_HELP = "the column of the second text"
NEGATIVE = re.compile(r"(hard)?neg(ative)?s?[0-9]*")  # the plain name of a column of hard negatives
PASSED_OVER = re.compile(
    r"(id|index|idx|#[12]id|qid[12]?|pairid|origin|编号|序号|no|(pos|neg)scores?"
    rf"|prediction|predictedlabel|probability[0-9]+|{NEGATIVE.pattern})?\Z|unnamed:"
)


@dataclass(frozen=True)
class Columns:
    """The column names that flags give; an empty one is left to the known names."""

    text_a: str = ""
    text_b: str = ""
    label: str = ""
    query: str = ""  # what rows of one query share; empty: their first text

    @classmethod
    def of(cls, config: Any) -> "Columns":
        """Return the columns that the flags of a command name."""
        return cls(*(getattr(config, name, "") for name in ("text_a", "text_b", "label", "query")))

    @property
    def by_role(self) -> dict[str, str]:
        """Return {role: the name given by a flag} for ROLES; the name is empty where no flag was given."""
        return dict(zip(ROLES, (self.text_a, self.text_b, self.label)))


class Layout(NamedTuple):
    """The places of the texts, the label and the query in a line of ``width`` columns.

    ``names``: of the columns, where the first line is a header; ``is_known``: they tell the texts.
    ``may_be_header``: the first line is read as a pair, though nothing tells that it is one.
    """

    left: int
    right: int
    label: Optional[int]
    width: int
    has_header: bool
    query: Optional[int] = None
    names: tuple[str, ...] = ()
    is_known: bool = True
    may_be_header: bool = False

    @property
    def roles(self) -> dict[str, str]:
        """Return {role: the name of its column}; {} without a header."""
        places = dict(zip(ROLES, (self.left, self.right, self.label)))
        return {role: self.names[n] for role, n in places.items() if self.names and n is not None}


def find_columns(
    where: str,
    first: Sequence[Any],
    columns: Columns,
    needs_label: bool = True,
    rows: Sequence[list[Any]] = (),
    has_header: Optional[bool] = None,
) -> Layout:
    """Return the layout of a table, judged by the cells of its first line, and by ``rows`` that follow it.

    Without ``needs_label`` the column that --label names may be absent. ``has_header``: whether the first
    line is one, None: it is found. Raises InputError for a header that is not understood, and for other than
    2 or 3 columns without a header.
    """
    cells = ["" if cell is None else str(cell).strip() for cell in first]
    if not needs_label and columns.label not in cells:
        columns = replace(columns, label="")
    named = [name for name in (*columns.by_role.values(), columns.query) if name]
    are_numbers = bool(named) and all(map(str.isdecimal, named))
    if are_numbers and not has_header and (has_header is False or not set(named) <= set(cells)):
        return _numbered_layout(where, columns, len(cells))
    if named and has_header is False:
        flags = f"--text_a 1 to {len(cells)}, --text_b and --label"
        raise InputError(f"{where}: --header_row 0 has no names; give columns by number, {flags}")
    rows = [row for row in rows if len(row) == len(cells)]
    places = _known_places(where, cells, columns)
    if has_header is None:
        has_header = bool(named) or is_header(cells, rows, _is_answer)
    if not has_header and len(cells) in (2, 3):
        _check_label_column(where, [cells, *rows])
        label = 2 if len(cells) == 3 else None
        return Layout(0, 1, label, len(cells), False, may_be_header=has_header is None)
    if not has_header and len(cells) == 4 and _begins_with_ids([cells, *rows]):
        return Layout(1, 2, 3, 4, False, names=_numbers_of(4))
    if not has_header:
        how = "separate them by tabs, commas or semicolons, or name a file of JSON lines .jsonl"
        if len(cells) > 1:
            line = shown(", ".join(cells))
            how = (
                "give the columns with --text_a, --text_b and --label: their names, if the line is a header, "
                f"or their numbers from 1, or the row of the header with --header_row: {line}"
            )
        raise InputError(
            f"{where}: {counted(len(cells), 'column')} instead of 3 (text, text, label) or 2 (text, text); "
            + how
        )
    is_known = {LEFT, RIGHT} <= set(places)
    places = _places(where, cells, columns, needs_label, rows)
    query = None
    if columns.query:
        if columns.query not in cells:
            raise InputError(f"{where}: no column {columns.query!r} in {', '.join(cells)}; fix --query")
        query = cells.index(columns.query)
    left, right, label = (places.get(role) for role in ROLES)
    assert left is not None and right is not None  # or `_places` has raised
    return Layout(left, right, label, len(cells), True, query, tuple(cells), is_known)


def _numbered_layout(where: str, columns: Columns, width: int) -> Layout:
    """Return the layout of a table without a header whose columns flags give as numbers, from 1."""
    given = {**columns.by_role, "query": columns.query}
    places = {role: int(name) - 1 for role, name in given.items() if name}
    if not {LEFT, RIGHT} <= set(places) or not all(0 <= place < width for place in places.values()):
        raise InputError(
            f"{where}: columns by number: give --text_a and --text_b from 1 to {width}, and --label where "
            "there is one"
        )
    query = places.get("query")
    names = _numbers_of(width)
    return Layout(places[LEFT], places[RIGHT], places.get(LABEL), width, False, query, names)


def _numbers_of(width: int) -> tuple[str, ...]:
    return tuple(f"column {n}" for n in range(1, width + 1))


def _check_label_column(where: str, rows: Sequence[Sequence[Any]]) -> None:
    """Raise InputError for rows of three cells, without a header, whose last one is a text and no label."""
    columns = split_columns([list(row) for row in rows], len(rows[0]))
    texts = [n for n, column in enumerate(columns) if column and _is_text(column)]
    if len(columns) < 3 or len(texts) != 2 or 2 not in texts or any(map(NUMBER.fullmatch, columns[2])):
        return
    (other,) = {0, 1, 2} - set(texts)
    flags = {FLAG_OF[role][2:]: str(n + 1) for role, n in zip((LEFT, RIGHT), texts)}
    flags |= {"label": str(other + 1)} if _may_be_label(columns[other]) else {}
    numbers = " and ".join(str(n + 1) for n in texts)
    raise OpenError(f"{where}: no header, and columns {numbers} hold the texts; give them by number", flags)


def _begins_with_ids(rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether rows of four cells are an id, two texts and a label, as those of ATEC are."""
    ids, left, right, labels = split_columns([list(row) for row in rows], 4)
    is_label = all(map(NUMBER.fullmatch, labels)) or _is_yes_or_no(labels) or has_few_words(labels)
    are_texts = _is_text(left) and _is_text(right)
    return len(set(ids)) == len(rows) and are_ids(ids) and are_texts and is_label


def find_keys(
    where: str, first: Sequence[str], columns: Columns, rows: Sequence[dict] = ()
) -> tuple[str, str, str]:
    """Return the keys of texts and label in JSON lines. Raises InputError if two may have one role."""
    places = _known_places(where, list(first), columns, must_be_there=False)
    if rows and not {LEFT, RIGHT} <= set(places) and not any(columns.by_role.values()):
        table = [[row.get(key) for key in first] for row in rows]
        places = _places(where, list(first), columns, False, table)
    left, right, label = (
        columns.by_role[role] or (first[places[role]] if role in places else role) for role in ROLES
    )
    return left, right, label


def is_negative(name: str) -> bool:
    """Return whether a column of this name has hard negatives of the first text: neg, negative_2, ..."""
    return bool(NEGATIVE.fullmatch(plain_name(name)))


def _known_places(
    where: str, cells: list[str], columns: Columns, must_be_there: bool = True
) -> dict[str, int]:
    """Return {role: the place of its column}, of those that a flag or a known name tells."""
    plain = [plain_name(cell) for cell in cells]
    places, named = {}, columns.by_role
    for more in (n for each in numbered_columns(plain) if len(each) > 2 for n in each):
        plain[more] = ""  # of three texts no name tells which two are meant
    if not (columns.text_a or columns.text_b):
        pair = _known_pair(where, cells, plain)
        places = dict(zip((LEFT, RIGHT), pair))
    for role in ROLES:
        if role in places:
            continue
        taken = {LEFT: RIGHT, RIGHT: LEFT}.get(role)
        found = [
            place
            for place, cell in enumerate(cells)
            if (cell == named[role] if named[role] else plain[place] in NAMES[role])
            and not (taken and not named[role] and cell == named[taken])
        ]
        if len(found) > 1:
            raise _several(where, role, [cells[place] for place in found])
        if named[role] and must_be_there and not found:
            raise InputError(f"{where}: no column {named[role]!r} in {', '.join(cells)}; fix {FLAG_OF[role]}")
        if found:
            places[role] = found[0]
    return places


def _several(where: str, role: str, names: list[str]) -> InputError:
    """Return the error about columns that may each have one role, with the command of each answer."""
    if len(set(names)) < len(names):
        return InputError(
            f"{where}: several columns are called {names[0]}; rename all but the one to be read"
        )
    ranks = {name: LABELS.index(plain_name(name)) if plain_name(name) in LABELS else 0 for name in names}
    answers = [{FLAG_OF[role][2:]: name} for name in sorted(names, key=ranks.__getitem__)]
    return OpenError(
        f"{where}: both columns {', '.join(names)} may be {role}; name one with {FLAG_OF[role]}", *answers
    )


def _known_pair(where: str, cells: list[str], plain: list[str]) -> tuple[int, ...]:
    """Return the places of two columns that are certainly the texts, () without such names.

    Raises InputError where several pairs are.
    """
    twins = [tuple(map(plain.index, pair)) for pair in TWINS if set(pair) <= set(plain)]
    twins = list(dict.fromkeys([*(each for each in numbered_columns(plain) if len(each) == 2), *twins]))
    pairs = twins or [tuple(map(plain.index, pair)) for pair in PAIRS if set(pair) <= set(plain)]
    others = {n for n, name in enumerate(plain) if name in NAMES[LEFT] | NAMES[RIGHT]}
    if len(pairs) != 1 or not twins and others - set(pairs[0]):
        return ()
    return pairs[0] if all(plain.count(plain[n]) == 1 for n in pairs[0]) else ()


def _places(
    where: str, cells: list[str], columns: Columns, needs_label: bool, rows: Sequence[list[Any]]
) -> dict[str, int]:
    """Return the places of the texts and the label, by what ``rows`` hold where no name tells."""
    places = _known_places(where, cells, columns)
    found = split_columns(rows, len(cells))
    nested = [n for n in range(len(cells)) if any(isinstance(row[n], (list, dict, tuple)) for row in rows)]
    free = [
        n
        for n, cell in enumerate(cells)
        if found[n]
        and n not in places.values()
        and n not in nested
        and not PASSED_OVER.match(plain_name(cell))
    ]
    texts = [n for n in free if _is_text(found[n])]
    lacking = [role for role in (LEFT, RIGHT) if role not in places]
    if lacking and len(texts) == len(lacking) and not nested:
        places.update(zip(lacking, texts))
    if LABEL not in places:
        kept = [n for n in free if n not in places.values() and _may_be_label(found[n])]
        if len(kept) == 1:
            places[LABEL] = kept[0]
        elif len(kept) > 1 and needs_label:
            raise _not_understood(where, cells, places, texts, kept, nested)
    if not {LEFT, RIGHT} <= set(places):
        raise _not_understood(where, cells, places, texts, [], nested)
    return places


def _not_understood(
    where: str,
    cells: list[str],
    places: dict[str, int],
    texts: list[int],
    labels: list[int],
    nested: list[int],
) -> InputError:
    """Return one error with everything that a header leaves open, and the command that names its columns."""
    known = {role: cells[place] for role, place in places.items()}
    open_texts, open_labels = ([cells[n] for n in each] for each in (texts, labels))
    found = [
        f"{name} is {known[role]}"
        for role, name in zip(ROLES, ("the first text", "the second text", "the label"))
        if role in known
    ]
    if len(open_labels) > 1:
        found.append(f"{' and '.join(open_labels)} could be the label")
    if not {LEFT, RIGHT} <= set(places):
        found.append(f"the texts could be {', '.join(open_texts) or 'in none of its columns'}")
    if nested:
        found.append(f"{', '.join(cells[n] for n in nested)} hold lists or objects")
    rest = iter(text for text in open_texts if text not in known.values())
    flags = {FLAG_OF[role][2:]: known.get(role, "") or next(rest, "...") for role in (LEFT, RIGHT)}
    flags["label"] = known.get(LABEL, "") or (open_labels or [""])[0]
    names = "text_a, text_b, label" + (" (or anchor, positive, negative)" if len(open_texts) > 2 else "")
    return OpenError(
        f"{where}: the header {', '.join(cells)} is not understood ({'; '.join(found)}); write {names}, or "
        "name its columns",
        flags,
    )


def _is_text(column: Sequence[str]) -> bool:
    """Return whether a column holds texts, and not yes and no."""
    return holds_texts(column) and not _is_yes_or_no(column)


def _is_yes_or_no(column: Sequence[str]) -> bool:
    return all(map(_is_answer, column))


def _is_answer(cell: str) -> bool:
    return find_sense(cell) is not None


def _may_be_label(column: Sequence[str]) -> bool:
    """Return whether a column is of a few words, or of numbers that do not count the rows."""
    if not all(map(NUMBER.fullmatch, column)):
        return (has_few_words(column) or _is_yes_or_no(column)) and len(set(column)) > 1
    is_whole = all("." not in cell for cell in column)
    return set(column) <= {"0", "1"} or not is_whole or 2 * len(set(column)) <= len(column)


ENCODING_HELP = (
    "encoding of tables and JSON lines: utf-8 (UTF-16 and GB18030 are found as well), gb18030, gbk or big5"
)
# Flags with which commands take scores; --label_range needs no more than what the labels of a file are.
FOR_SCORES = (
    ("are_scores", "true"),
    ("target", "regression"),
    ("objective", "cosent"),
    ("label_range", ""),
)
LABEL_MAP_HELP = (
    "names of the classes, for example 0=different,1=same, class 1 being the match; 0=no,0=unsure,1=yes puts "
    "two words into one class, 0=1,1=0 turns numbers; empty: known words, or numbers"
)
PAIR_HELP = "two texts whose prediction is printed, instead of --input_file and --output_file"
BAD_ROW_HELP = "a row that is not a pair: stop with an error, or skip it, count it and write it to a file"


@dataclass(frozen=True, kw_only=True)
class ColumnFlags(SheetFlags):
    """The columns of a file of pairs."""

    text_a: str = kept_data_option("", help=FIRST_TEXT_HELP, affects="rows")
    text_b: str = kept_data_option("", help=SECOND_TEXT_HELP, affects="rows")
    label: str = kept_data_option("", help="the column of the label", affects="rows")
    encoding: str = kept_data_option("utf-8", help=ENCODING_HELP, choices=ENCODINGS, affects="rows")


@dataclass(frozen=True, kw_only=True)
class RowFlags(ColumnFlags):
    """How the rows of a file of pairs are read."""

    on_bad_row: Literal["stop", "skip"] = data_option("stop", help=BAD_ROW_HELP, affects="rows")

    @property
    def row_flags(self) -> dict[str, object]:
        """Return the flags that say how the rows of the given files are read, without usual ones."""
        usual = {name: item.default for name, item in RowFlags.__dataclass_fields__.items()}
        return {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}


@dataclass(frozen=True)
class RowRules:
    """The ``encoding`` of a file; ``skips``: a bad row is left out, otherwise it ends the command.

    ``place``: of the table in it.
    ``of_encoders``: a row may hold several matches and hard negatives of its first text, and where nothing is
    a label, the two texts of a row belong together; see `pair_file`.
    ``most_classes``: how many --label_map of the command may name; 0: it has no such flag. ``match``: which
    of two is the match; None: the classes are those of a model that has more. ``for_scores``: the flag, and
    its value, with which the command takes scores; () where it takes none.
    """

    encoding: str = "utf-8"
    skips: bool = False
    of_encoders: bool = False
    most_classes: int = 0
    match: Optional[int] = 1
    for_scores: tuple[str, ...] = ()
    place: Place = Place()

    @classmethod
    def of(cls, config) -> "RowRules":
        """Return the rules of the flags of rows, and what the command may do with labels."""
        most = getattr(config, "MOST_CLASSES", 0)
        for_scores = next((flag for flag in FOR_SCORES if hasattr(config, flag[0])), ())
        skips = getattr(config, "on_bad_row", "stop") == "skip"
        place = getattr(config, "place", Place())
        return cls(config.encoding, skips, most_classes=most, for_scores=for_scores, place=place)
