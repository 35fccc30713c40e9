"""Where pairs come from: a file or a set, read at once, a row at a time, or checked and then by windows.

Sets: PaddleNLP downloads their files, and this package reads them. PaddleNLP's own readers pass over rows of
other widths without a word, and strip what is an empty text. So its dataset builder only says where the file
lies (it downloads and unpacks it when it is not there), and which columns of GLUE's tables are meant. A name
that PaddleNLP has no builder for is a set of the Hugging Face Hub, whose rows come as they are.
"""

import hashlib
import json
import logging
import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Callable, Deque, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.text.columns import LOOKED_AT
from data_tools.text.text_files import DOCUMENTS, decoded, list_inputs, read_lines
from ernie_pair.core.errors import InputError, OpenError, counted, one_error
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.results import paths_named
from ernie_pair.models.labels import (
    RANKING,
    UNLABELLED,
    Labels,
    are_class_names,
    bare_label,
    build_label_map,
    is_number,
    match_class,
    parse_label_map,
)
from ernie_pair.pairs.data.label_checks import (
    WITHOUT_LABELS,
    LabelsOfFile,
    ask_for_match,
    compare_with_texts,
    count_labels,
    describe_counts,
    explain_other_label,
)
from ernie_pair.pairs.data.pair_file import (
    FILE,
    BadRow,
    Pair,
    Pairs,
    Reject,
    RowReader,
    check_pair_file,
    checked_rows,
    collect_pairs,
    make_pairs,
    open_file,
    read_chunks,
    shown,
)
from ernie_pair.pairs.data.pair_records import LEFT, RIGHT, Columns, Layout, RowRules
from ernie_pair.pairs.data.rejected import Rejects
from ernie_pair.pairs.targets.metrics import check_defined, number_texts, rows_without_positive

# Our name: (PaddleNLP's, the part of it). Any other is NAME or NAME:PART of its own.
SETS = {"afqmc": ("clue", "afqmc"), "mrpc": ("glue", "mrpc"), "qqp": ("glue", "qqp")}
SPLITS = {"train": ("train",), "dev": ("dev", "validation", "dev_matched"), "test": ("test", "test_matched")}
MAX_ROWS_SEARCHED = 1_000_000  # rows behind a bad one that are looked through for others
_SET_NAME = re.compile(r"[A-Za-z0-9_-]+(:[A-Za-z0-9_-]+)?")
_END_BYTES = 1 << 20
_NO_CLASS = -1  # of a row of CLUE whose annotators did not agree: its label is -

logger = logging.getLogger(__name__)


class _Words(Labels):
    """Labels that are taken as the texts that they are."""

    def value_of(self, label: object) -> Any:
        """Return the text of a label."""
        return bare_label(label)


WORDS = _Words((), {}, are_optional=True)


class SetFile(NamedTuple):
    """A fetched file of a set, its columns, and in ``labels`` how the file spells classes 0, 1, ..."""

    path: Path
    columns: Columns
    labels: Sequence[str]


@lru_cache(maxsize=4)
def open_set(flag: str, name: str, split: str) -> Union[SetFile, list[dict]]:
    """Return a set's file, or rows of the Hub. Raises InputError: it is not there, or lacks ``split``."""
    path, part = SETS.get(name, (name.partition(":")[0], name.partition(":")[2] or None))
    try:
        return _open(path, part, SPLITS[split])
    except (OSError, RuntimeError, ValueError, AttributeError, KeyError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"--{flag} {name} is not a file, and PaddleNLP cannot load a set of that name ({reason}); "
            "check the name and the network, or give a file"
        ) from None


def _open(path: str, part: Optional[str], splits: tuple[str, ...]) -> Union[SetFile, list[dict]]:
    """Open the first of ``splits`` that the set has. Raises ValueError when it has none of them."""
    from paddlenlp.datasets.dataset import import_main_class

    try:
        builder_class = import_main_class(path)
    except ModuleNotFoundError:
        return [dict(example) for example in _load(path, part, splits)]
    builder = builder_class(name=part)
    parts = getattr(builder, "BUILDER_CONFIGS", None)
    if parts is None and part is not None:
        raise ValueError(f"{path} has no parts; write {path}")
    if parts is not None and part not in parts:
        raise ValueError(
            f"{path} has the parts {', '.join(parts)}; write {path}:{next(iter(parts))}, for example"
        )
    there: dict[str, Sequence] = builder.SPLITS if parts is None else parts[part]["splits"]
    split = next((split for split in splits if split in there), None)
    if split is None:
        raise ValueError(f"it has the parts {', '.join(there)}, and not {splits[0]}")
    builder.read = lambda filename, split: filename  # fetched, for all processes, and not read
    file, columns = Path(builder.read_datasets(splits=split)), Columns()
    if path == "glue" and there[split][3]:  # its builder gives the positions of columns, its header the names
        header = decoded(str(file), 1, next(read_lines(file), b"")).split("\t")
        columns = Columns(*(header[place].strip() for place in there[split][2] if place < len(header)))
    return SetFile(file, columns, builder.get_labels() or ())


def _load(path: str, part: Optional[str], splits: tuple[str, ...]):
    from paddlenlp.datasets import load_dataset

    for split in splits[:-1]:
        try:
            return load_dataset(path, name=part, splits=split)
        except ValueError:  # no such part: its other name is tried
            continue
    return load_dataset(path, name=part, splits=splits[-1])


class Source:
    """Pairs of a file, of a set or from Python: what any source of them does with its rows.

    ``labels`` None: they are not read.
    """

    flag: str
    name: str
    labels: Optional[Labels]
    columns: Columns
    rules: RowRules

    @property
    def parts(self) -> "Sequence[Source]":
        """Return the sources of each of several files."""
        return [self]

    def open(self, needs_label: bool = False) -> tuple[Optional[RowReader], Iterator[tuple[int, Any]]]:
        """Return what reads the rows, None where there are none, and the rows with their numbers."""
        raise NotImplementedError

    def all_rows(self) -> Iterator[Any]:
        """Yield every row, good or bad, read one at a time. Raises InputError for an unclear layout."""
        return self.rows_with(self.labels_in_rows())

    def rows_with(self, labels: Optional[Labels]) -> Iterator[Any]:
        """Yield every row of one file, good or bad, with ``labels``. Raises InputError as `all_rows`."""
        reader, rows = self.open(labels is not None)
        if reader is None:
            return
        reader.log()
        cells = reader.cells

        def make(number: int, row: Any) -> list[Pair]:
            return make_pairs(number, cells(number, row), labels)

        yield from checked_rows(rows, reader.where, make)

    def words(self) -> Iterator[Any]:
        """Yield every row with its label as the text that it is."""
        return replace(self, labels=WORDS).all_rows()  # type: ignore[type-var]  # each source is a dataclass

    def labels_in_rows(self) -> Optional[Labels]:
        """Return the labels, with the words for no and yes that the rows have; see `LabelsOfFile`."""
        if self.labels is None or self.labels is WORDS:
            return self.labels
        return LabelsOfFile.of(self.labels, self._counts)

    def rows(self, reject: Reject = lambda row: None) -> Iterator[Any]:
        """Yield the good rows, read one at a time, at least one; call ``reject`` with each that is left out.

        Bad rows are left out when the rules say so, and known ones always. Raises InputError naming the
        first other one, and those behind it, or when no row is good.
        """
        num_good, first_bad, found = 0, None, self.all_rows()
        for place, row in enumerate(found):
            if not isinstance(row, BadRow):
                num_good += 1
                yield row
                continue
            if not (self.rules.skips or row.is_known):
                raise self._describe_bad_row(row._replace(place=place), found)
            first_bad = first_bad or row
            reject(row._replace(place=place))
        if num_good:
            return
        if first_bad and first_bad.other_label == "":
            raise self._unlabelled(first_bad)
        told = f"none of its rows is a pair; the first: {first_bad.reason}" if first_bad else ""
        raise InputError(f"{self.name}: {told or 'it holds no pairs; give at least one'}")

    def _counts(self) -> dict[str, int]:
        return count_labels(row.label for row in self.words() if not isinstance(row, BadRow))

    def _unlabelled(self, row: BadRow) -> InputError:
        return InputError(f"{row.reason}; no row of {self.name} has one: {WITHOUT_LABELS}")

    def _describe_bad_row(self, row: BadRow, rest: Iterator) -> InputError:
        """Return the error of the bad ``row``, with all others in the ``rest`` of the rows.

        It ends with the command that works: without such rows, or with all labels of the file as classes.
        """
        behind = list(islice(rest, MAX_ROWS_SEARCHED))
        others = [other for other in behind if isinstance(other, BadRow)]
        if row.other_label == "" and row.place == 0 and len(others) == len(behind):
            return self._unlabelled(row)
        lines = ", ".join(
            str(other.number) if other.file == row.file else f"{other.file}:{other.number}"
            for other in others[:5]
        )
        more = ", ..." if len(others) > 5 else ""
        reason = row.reason
        reason += f"; {counted(len(others), 'more row')} so, in line {lines}{more}" if others else ""
        if row.other_label:
            return explain_other_label(reason, self.name, row.other_label, self._counts(), self.rules)
        has_few = 2 * (1 + len(others)) < row.place + 1 + len(behind)
        counts = self._counts() if row.other_label == "" else {}
        if has_few and len(counts) != 1:
            return OpenError(f"{reason}; to leave such rows out", {"on_bad_row": "skip"})
        if counts:
            reason += f"; the other labels: {describe_counts(counts)}; write the label of each row without"
        return InputError(reason)


@dataclass(frozen=True)
class PairSource(Source):
    """Files of pairs, or part ``split`` of a set, given to ``flag``; ``labels`` None: they are not read.

    ``name``: that of a file, a folder of them, a set, or several files and folders with commas between.
    """

    flag: str
    name: str
    split: str
    labels: Optional[Labels]
    columns: Columns = Columns()
    rules: RowRules = RowRules()

    @classmethod
    def of(
        cls, config: Any, flag: str, labels: Optional[Labels] = None, split: str = "", name: str = ""
    ) -> "PairSource":
        """Return the pairs that ``flag`` of a command names, or ``name``, read as its other flags say.

        ``split``: of a set, that of the flag if empty.
        """
        own = flag.removesuffix("_file")
        part = split or (
            own if own in SPLITS else {"negatives": "train", "unlabelled": "train"}.get(own, "dev")
        )
        given = name or getattr(config, flag)
        return cls(flag, given, part, labels, Columns.of(config), RowRules.of(config))

    @property
    def is_file(self) -> bool:
        """Return whether ``name`` is a file: it exists, or could not be the name of a set."""
        return Path(self.name).exists() or not _SET_NAME.fullmatch(self.name)

    @property
    def files(self) -> list[Path]:
        """Return the files that rows are read from, none for a set that has none. Raises InputError."""
        found = None if self.is_file else self._set()
        if found is not None:
            return [found.path] if isinstance(found, SetFile) else []
        if paths_named(self.name) == [self.name] and not Path(self.name).is_dir():
            check_pair_file(Path(self.name))
            return [Path(self.name)]
        return list_inputs(self.name, DOCUMENTS, named=f"--{self.flag}", levels=1)

    @property
    def parts(self) -> "Sequence[PairSource]":
        """Return the sources of each of several files."""
        if not self.is_file or Path(self.name).is_file():
            return [self]
        return [replace(self, name=str(path)) for path in self.files]

    def sha256(self) -> str:
        """Return the SHA-256 of the content, in hex. Raises InputError when it cannot be read."""
        if not self.files:
            digest = hashlib.sha256()
            for example in self._set():
                digest.update(json.dumps(example, sort_keys=True, default=str).encode() + b"\n")
            return digest.hexdigest()
        return _hash_all(map(sha256_of_file, self.files))

    def sha256_of_ends(self) -> str:
        """Return the SHA-256 of the size, the first and the last MiB of each file, in hex.

        The hash identifies a file larger than memory without reading all of it. Raises InputError when it is
        missing.
        """
        if not self.files:
            raise InputError(f"--{self.flag} {self.name} is a set of the Hugging Face Hub, and has no file")
        return _hash_all(map(self._hash_ends, self.files))

    @staticmethod
    def _hash_ends(path: Path) -> str:
        digest = hashlib.sha256(str(path.stat().st_size).encode())
        with open(path, "rb") as content:
            digest.update(content.read(_END_BYTES))
            content.seek(max(0, path.stat().st_size - _END_BYTES))
            digest.update(content.read(_END_BYTES))
        return digest.hexdigest()

    def read(self) -> Pairs:
        """Read all pairs. Raises InputError naming file:line, or the row of a set, or for a change."""
        sha256, files, bad = self.sha256(), self.files, []  # type: tuple[str, list[Path], list[BadRow]]
        stamps, parts = [*map(file_stamp, files)], self.parts
        path = str(files[0]) if len(files) == len(parts) == 1 else self.name
        if len(parts) > 1:
            check_columns([self])
        rows, paths = self.rows(bad.append), tuple(part.name for part in parts)
        path = path if files else f"{self.name} {self.split}"
        labelled = self.labels is not None
        found = collect_pairs(rows, bad, labelled, sha256, path, paths if len(parts) > 1 else ())
        for file, stamp in zip(files, stamps):
            check_unchanged(file, stamp)
        return group_candidates(found, self.labels, self.rules)

    def open(self, needs_label: bool = False) -> tuple[Optional[RowReader], Iterator[tuple[int, Any]]]:
        """Return what reads the rows of one file, None where there are none, and these; see `open_file`."""
        if self.is_file:
            (file,) = self.files
            return open_file(file, self.columns, self.rules, needs_label)
        found, place = self._set(), f"{self.name} {self.split}"
        if isinstance(found, SetFile):
            named = any(self.columns.by_role.values())
            columns = self.columns if named else replace(found.columns, query=self.columns.query)
            return open_file(found.path, columns, RowRules(), needs_label)
        if not found:
            return None, iter(())
        rows = list(enumerate(found, start=1))
        read = RowReader(
            place, lambda n: f"{place}:{n}", rows[:LOOKED_AT], self.columns, self.rules, needs_label
        )
        return read, iter(rows)

    def all_rows(self) -> Iterator[Union[Pair, BadRow]]:
        """Yield every row, good or bad, read one at a time. Raises InputError for an unclear layout."""
        found, labels = None if self.is_file else self._set(), self.labels_in_rows()
        if not isinstance(found, SetFile):
            for number, part in enumerate(self.parts):
                for row in part.rows_with(labels):
                    yield (
                        row._replace(number=row.number + FILE * number)
                        if number and isinstance(row, Pair)
                        else row
                    )
            return
        if labels is not None:
            known = labels.classes  # with the words of the file for no class and for classes 0, 1, ...
            more = {word: known[str(n)] for n, word in enumerate(found.labels) if str(n) in known}
            labels = replace(labels, classes={"-": _NO_CLASS, **more, **known})
        for row in self.rows_with(labels):
            has_none = isinstance(row, Pair) and row.label == _NO_CLASS
            if has_none and (labels is None or labels.has_classes):
                reason = "label '-': those who were asked did not agree on one"
                row = BadRow(row.number, reason, is_known=True)
            yield row

    def given(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield where each row is, good or bad, and {column: cell} as it stands; {} of what is no row."""
        for part in self.parts:
            reader, rows = part.open()
            if reader is not None:
                yield from ((reader.where(number), reader.given(row)) for number, row in rows)

    def has_labels(self) -> bool:
        """Return whether the first good row has a label. Raises InputError without a file or a layout."""
        for part in self.parts:
            reader, rows = part.open()
            if reader is not None:
                for number, row in rows:
                    with suppress(InputError):
                        if not isinstance(row, InputError):
                            return reader.cells(number, row).label is not None
        return False

    def _set(self) -> Union[SetFile, list[dict]]:
        return open_set(self.flag, self.name, self.split)


def _hash_all(digests: Iterator[str]) -> str:
    """Return the one of ``digests`` that there is, or that of all of them."""
    first, *others = digests
    return hashlib.sha256(" ".join([first, *others]).encode()).hexdigest() if others else first


def file_stamp(path: Path) -> tuple[int, int]:
    """Return what changes when the file at ``path`` is written to. Raises InputError if there is none."""
    check_pair_file(path)
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def check_unchanged(path: Path, stamp: tuple[int, int]) -> None:
    """Raise InputError when the file at ``path`` has another stamp by now."""
    if file_stamp(path) != stamp:
        raise InputError(f"{path} changed while it was read; run again when it is complete")


def read_pairs(path: Union[str, Path], num_classes: Optional[int]) -> Pairs:
    """Read pairs labelled 0 to num_classes - 1; None: without labels. Raises InputError naming file:line."""
    labels = None if num_classes is None else Labels.numbered(num_classes)
    return PairSource("pair_file", str(path), "train", labels).read()


def group_candidates(pairs: Pairs, labels: Optional[Labels], rules: RowRules) -> Pairs:
    """Return ``pairs`` with the query of each row, where ``labels`` are of candidates.

    Queries without a relevant candidate, and a query as its own negative, are left out where bad rows are.
    Raises InputError naming the first such row otherwise.
    """
    if labels is None or labels.target != RANKING:
        return pairs
    pairs = without_own_negatives(pairs, rules)
    queries = pairs.left if pairs.queries is None else pairs.queries
    unanswered = rows_without_positive(number_texts(queries), pairs.known_labels)

    def fault(row: int) -> str:
        return f"no candidate of the query {shown(queries[row])} has a label above 0"

    pairs = _without(pairs, unanswered, fault, "give it one, or leave such queries out", rules)
    return pairs.changed(groups=number_texts(pairs.left if pairs.queries is None else pairs.queries))


def without_own_negatives(pairs: Pairs, rules: RowRules) -> Pairs:
    """Return ``pairs`` without a text as its own negative: a row of label 0, or of pairs without labels.

    It is left out where bad rows are. Raises InputError naming the first such row otherwise.
    """
    may_be = range(len(pairs)) if pairs.labels is None else np.flatnonzero(pairs.labels == 0).tolist()
    own = np.array([row for row in may_be if pairs.left[row] == pairs.right[row]], dtype=np.int64)

    def fault(row: int) -> str:
        return f"the text {shown(pairs.left[row])} is its own negative"

    return _without(pairs, own, fault, "correct its label, or leave such rows out", rules)


def _without(
    pairs: Pairs, rows: np.ndarray, fault: Callable[[int], str], cure: str, rules: RowRules
) -> Pairs:
    """Return ``pairs`` without ``rows``, int64 ascending, which become bad ones; else raise InputError."""
    if not len(rows):
        return pairs
    reason = f"{pairs.where(int(rows[0]))}: {fault(int(rows[0]))}; {cure} with --on_bad_row skip"
    if not rules.skips:
        raise InputError(reason)
    kept = np.setdiff1d(np.arange(len(pairs)), rows)
    if not len(kept):
        raise InputError(f"{pairs.path}: none of its rows is left; the first: {reason}")
    places = np.setdiff1d(np.arange(len(pairs) + len(pairs.bad)), [row.place for row in pairs.bad])
    bad = [
        BadRow(pairs.number(row), f"{pairs.where(row)}: {fault(row)}", place)
        for row, place in zip(rows.tolist(), places[rows].tolist())
    ]
    return pairs.rows(kept).changed(bad=tuple(sorted([*pairs.bad, *bad], key=lambda row: row.place)))


def check_columns(sources: Sequence[Any]) -> None:
    """Raise one InputError with everything that the first rows of files leave open; the first one trains.

    Files may call their columns differently where their names tell the texts, and not otherwise.
    """
    given = [source for source in sources if isinstance(source, PairSource) and source.is_file]
    files: list[PairSource] = []
    errors: list[InputError] = []
    for source in given:
        try:
            files += source.parts
        except InputError as error:  # that are not there
            errors.append(error)
    errors = _unclear(files) + errors
    if not errors:
        errors = [fault for source in given for fault in _unlike(source.parts)]
    is_named = any(any(source.columns.by_role.values()) for source in files)
    if errors and is_named and not _unclear([replace(source, columns=Columns()) for source in files]):
        told = "; ".join(error.message for error in errors)
        flags = {"text_a": "", "text_b": "", "label": ""}
        raise OpenError(f"{told}; the files tell their columns without these flags", flags)
    if errors:
        raise one_error(errors)


def _unclear(files: Sequence[PairSource]) -> list[InputError]:
    """Return what the first rows of files leave open, each and beside those of the first one."""
    errors: list[InputError] = []
    first: Optional[tuple[str, Layout]] = None
    for source in files:
        try:
            reader, _ = source.open(source.labels is not None)
        except InputError as error:
            errors.append(error)
            continue
        layout = reader and reader.layout
        if source is files[0]:
            first = layout and layout.names and (source.name, layout) or None
        elif first and layout and layout.names and not (first[1].is_known and layout.is_known):
            ours = first[1].roles
            if any(layout.roles.get(role) != ours.get(role) for role in (LEFT, RIGHT)):
                fault = (
                    f"{source.name}:1: its columns {', '.join(layout.names)} are not those of {first[0]}, "
                    f"{', '.join(first[1].names)}; call them alike, and name the texts"
                )
                errors.append(OpenError(fault, {"text_a": ours[LEFT], "text_b": ours[RIGHT]}))
    return errors


def _unlike(parts: Sequence[PairSource]) -> Iterator[InputError]:
    """Yield an error where some of several files that are read as one have labels, and others have none."""
    if len(parts) > 1 and parts[0].labels is not None:
        readers = [(part.name, part.open(True)[0]) for part in parts]
        has = {reader.has_label: name for name, reader in readers if reader}
        if len(has) > 1:
            yield InputError(
                f"{has[False]} has no column of labels, and {has[True]} has one; label all or none"
            )


def read_all(sources: Sequence[Any]) -> list[Any]:
    """Return the pairs of each source. Raises one InputError with what is wrong with any of them."""
    found: list[Any] = []
    errors = []
    for source in sources:
        try:
            found.append(source.read())
        except InputError as error:
            errors.append(error)
    if errors:
        raise one_error(errors)
    return found


def check_of_matches(flag: str, pairs: Pairs, labels: Labels, train: Any = None) -> None:
    """Raise InputError unless ``pairs`` have both of two classes and none of them is a row of ``train``.

    ``flag``: that which asks for the AUC of matches on them; ``train``: the source of the training pairs.
    """
    if not labels.has_classes or len(labels.names) != 2:
        what = f"{len(labels.names)} classes" if labels.has_classes else labels.target
        raise InputError(f"--{flag} is for two classes, and this is a model for {what}; leave it out")
    check_defined("auc", pairs.known_labels, 2, pairs.path)
    if train is None:
        return
    given = [frozenset(texts) for texts in zip(pairs.left, pairs.right)]
    learned = {frozenset((row.left, row.right)) for row in replace(train, labels=labels).rows()}
    rows = [row for row, texts in enumerate(given) if texts in learned]
    if rows:
        raise InputError(
            f"{pairs.where(rows[0])}: this pair is trained on, as are {len(rows)} of {len(pairs)} of --{flag}"
            f"; give pairs of another domain, and none of --train_file {train.name}"
        )


def label_map_in(source: Any, labels: Labels, label_map: str = "", stops: bool = True) -> str:
    """Return ``label_map``, else the --label_map of the words that ``source`` has as labels, and log it.

    '' where they are not words, where ``labels`` are no numbered classes or have them, and of a set. Raises
    LabelQuestion, with the commands that answer it, where the words do not tell which of them is the match,
    and, where it ``stops``, if the characters that texts share say that it is the other class.
    """
    if not labels.has_classes or isinstance(source, PairSource) and not source.is_file:
        return label_map
    found = label_map or _words_in(source, labels)
    if not found and len(source.parts) > 1:
        each = {part.name: _words_in(part, labels) for part in source.parts}
        words, numbers = ([name for name in each if bool(each[name]) == one] for one in (True, False))
        if words and numbers:
            fault = (
                f"{words[0]} has the labels {each[words[0]]}, and {numbers[0]} has others; write them alike"
            )
            raise OpenError(fault, {"label_map": f"{each[words[0]]},0=0,1=1"})
    labels = parse_label_map(found) if found else labels
    compare_with_texts(source.name, _labelled_rows(source, labels), labels, bool(label_map), stops)
    return found


def _labelled_rows(source: Any, labels: Labels) -> Iterator[Pair]:
    """Yield the rows that have a label, up to a fault of their file, which is raised where they are read."""
    with suppress(InputError):
        for row in replace(source, labels=WORDS, rules=replace(source.rules, skips=True)).rows():
            yield row._replace(label=labels.class_of(row.label))


def _words_in(source: Any, labels: Labels) -> str:
    """Return the --label_map of the words of ``source``, '' where it has numbers. Raises LabelQuestion."""
    if labels.classes != Labels.numbered(len(labels.names)).classes:
        return ""
    rules = replace(source.rules, skips=True)
    words = (row.label for row in replace(source, labels=WORDS, rules=rules).rows())
    first = next((word for word in words if word != UNLABELLED), None)
    if first is None or labels.class_of(first) is not None:
        return ""
    counts = count_labels(chain([first], words))
    found = build_label_map(counts, source.rules.most_classes)
    if not found and are_class_names(counts) and not any(map(is_number, counts)):
        raise ask_for_match(source.name, counts, source.rules)
    if found:
        shown = ", ".join(
            f"{word} = {number}" for number, _, word in (part.partition("=") for part in found.split(","))
        )
        logger.info("%s: its labels are words: %s, as with --label_map %s", source.name, shown, found)
    return found


def labels_for(source: Any, label_map: str, stops: bool = True) -> Labels:
    """Return the classes that ``label_map`` names, else the words of a file, else 0 and 1.

    Where no more than two may be named the match is class 1, whatever a label map says of its name. Raises
    LabelQuestion as `label_map_in`.
    """
    found = label_map_in(source, Labels.numbered(2), label_map, stops)
    labels = parse_label_map(found) if found else Labels.numbered(2)
    if source.rules.most_classes == 2 and match_class(labels) == 0:
        logger.warning("--label_map %s: %s is the match, by its name", label_map, labels.names[0])
        return Labels.named({spelling: 1 - number for spelling, number in labels.classes.items()})
    return labels


class CheckedPairs:
    """The ``count`` good pairs of ``source``: checked and counted first, then read window by window.

    So a bad row at the end of a large file ends the command before a model has worked for it, and each
    reading holds a window at most. Rows that are left out are logged, and written to ``path``; ``left_out``
    holds the places, among all rows, of those that the last reading has left out. Raises InputError for a bad
    row that is not left out, and when no row is good.
    """

    def __init__(self, source: PairSource, path: Optional[Path]):
        self.source = source
        self.left_out: Deque[int] = deque()
        if len(source.parts) > 1:
            check_columns([source])
        with Rejects(source.name, path) as rejects:
            rows = source.rows(rejects)
            self._stamps = [(path, file_stamp(path)) for path in source.files]
            self.count = sum(1 for _ in rows)
            rejects.log(self.count)

    def windows(self, size: int) -> Iterator[Pairs]:
        """Yield the good pairs, ``size`` at a time. Raises InputError at the end for a changed file."""
        rows = self.source.rows(lambda row: self.left_out.append(row.place))
        yield from read_chunks(rows, size, self.source.name)
        for path, stamp in self._stamps:
            check_unchanged(path, stamp)
