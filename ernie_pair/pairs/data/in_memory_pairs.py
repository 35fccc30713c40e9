"""Pairs given from Python: lists, generators, datasets of Hugging Face and Paddle, pandas DataFrames.

A list or a generator holds dictionaries or tuples; a dataset is map-style or iterable. Rows may be token ids.

[{"sentence1": "怎么开户", "sentence2": "如何开户", "label": 1}, ...]      keys as in `pair_records`
[("怎么开户", "如何开户", 1), ...]                                         or without the label

What can be read again is read when it is needed, a row at a time.
"""

import hashlib
import json
import os
from collections.abc import Iterator as OneShot
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Callable, Generic, Iterable, Iterator, NamedTuple, Optional, Sequence, TypeVar, Union

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.tables import LOOKED_AT
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.models.labels import RANKING, Labels
from ernie_pair.pairs.data.encoder_rows import no_label
from ernie_pair.pairs.data.pair_file import (
    BadRow,
    Cells,
    Pair,
    Pairs,
    Reject,
    RowReader,
    checked_rows,
    is_missing,
    label_value,
    labels_array,
    pairs_of,
    pairs_of_cells,
    refuse_half,
    say_once,
    shown,
)
from ernie_pair.pairs.data.pair_records import LABEL, NAMES, RIGHT, Columns, RowRules, keys_of
from ernie_pair.pairs.data.pair_source import PairSource, Source, group_candidates

BEGINNING = 10_000  # rows that a stream is known by

Keys = tuple[str, ...]
Make = Callable[[int, Any], Iterable[Any]]  # what makes good rows of an example and its number
One = TypeVar("One")  # a row
All = TypeVar("All")  # all rows


@dataclass(frozen=True)
class InMemoryPairs(Source, Generic[One, All]):
    """Pairs given from Python; ``flag`` names their argument.

    Equal pairs have equal hashes, however they were given. Errors name the row, counted from 0.
    """

    flag: str
    examples: Iterable
    labels: Optional[Labels]
    columns: Columns
    rules: RowRules
    is_file = False
    START = b""  # what hashes begin with

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return the name of the argument, as the log and errors show it."""
        return self.flag

    def where(self, number: int) -> str:
        """Return how an error names a row, counted from 0."""
        return f"{self.flag}[{number}]"

    def sha256(self) -> str:
        """Return the SHA-256 of all rows and their labels, in hex. Raises InputError naming a bad row."""
        return self._content()[1]

    def sha256_of_ends(self) -> str:
        """Return the SHA-256 of BEGINNING rows, for a stream not read whole. Raises InputError."""
        return self._hash_of(islice(self.rows(), BEGINNING))

    def read(self) -> All:
        """Return all rows, read once for all calls. Raises InputError naming a bad row."""
        return self._content()[0]

    def refuse_one_shot(self) -> None:
        """Raise InputError when the rows can be read only once: streaming reads them in each epoch."""
        if is_one_shot(self.examples):
            raise InputError(
                f"streaming reads {self.flag} once per epoch, and an iterator or generator can be read once; "
                "give a list, a Dataset or an IterableDataset, or leave streaming out"
            )

    def words(self) -> Iterator[Any]:
        """Yield the rows with their labels as texts; none where they can be read only once."""
        return iter(()) if is_one_shot(self.examples) else super().words()

    def all_rows(self) -> Iterator[Union[One, BadRow]]:
        """Yield every row, good or bad, read one at a time."""
        labels = self.labels_in_rows()
        rows = enumerate(examples_of(self.flag, self.examples))
        first = list(islice(rows, LOOKED_AT))
        rest = rows if len(first) == LOOKED_AT else ()  # Paddle asks no ended iterator again
        yield from checked_rows(chain(first, rest), self.where, self._reader(first, labels))

    def _content(self) -> tuple[All, str]:
        # No cached_property: until Python 3.12 all instances share its lock, and a loader of Paddle whose
        # collate_fn reads pairs would wait for it in a thread of its own, for which this one waits.
        kept = vars(self).get("_kept")
        if kept is None:
            bad: list[BadRow] = []
            rows = list(self.rows(bad.append))
            sha256 = self._hash_of(rows)
            kept = vars(self)["_kept"] = self._collect(rows, bad, sha256), sha256
        return kept

    def _hash_of(self, rows: Iterable[One]) -> str:
        digest = hashlib.sha256(self.START)
        for row in rows:
            digest.update(json.dumps(self._facts(row)).encode() + b"\n")
        return digest.hexdigest()

    def _reader(self, first: Sequence[tuple[int, Any]], labels: Optional[Labels]) -> Make:
        """Return what makes good rows of an example, as the ``first`` ones tell."""
        raise NotImplementedError

    def _collect(self, rows: list[One], bad: list[BadRow], sha256: str) -> All:
        raise NotImplementedError

    def _facts(self, row: One) -> list[object]:
        raise NotImplementedError


@dataclass(frozen=True)
class GivenPairs(InMemoryPairs[Pair, Pairs]):
    """Pairs of texts."""

    columns: Columns = Columns()
    rules: RowRules = RowRules()

    def _collect(self, rows: list[Pair], bad: list[BadRow], sha256: str) -> Pairs:
        found = pairs_of(rows, bad, self.labels is not None, sha256, self.flag)
        return group_candidates(found, self.labels, self.rules)

    def _facts(self, row: Pair) -> list[object]:
        return [row.left, row.right, row.label, *([row.query] if row.query else [])]

    def _reader(self, first: Sequence[tuple[int, Any]], labels: Optional[Labels]) -> Make:
        def open_rows(objects: list[tuple[int, dict]]) -> RowReader:
            needs_label = labels is not None
            opened = RowReader(self.flag, self.where, objects, self.columns, self.rules, needs_label)
            opened.tell()
            return opened

        objects = [(n, dict(row)) for n, row in first if _is_object(row)]
        reader = open_rows(objects) if objects else None
        is_unlabelled: Optional[bool] = None  # of tuples for an encoder, as the first one tells

        def make(number: int, example: Any) -> list[Pair]:
            nonlocal reader, is_unlabelled
            if _is_object(example):
                reader = reader or open_rows([(number, dict(example))])
                return pairs_of_cells(number, reader.cells(number, dict(example)), labels)
            cells = self._cells_of_tuple(example)
            if is_unlabelled is None:
                is_unlabelled = self.rules.of_encoders and cells.label is None
            if is_unlabelled:
                cells = cells._replace(label=no_label("the third value", cells.label))
            return pairs_of_cells(number, cells, labels)

        return make

    def _cells_of_tuple(self, example: Any) -> Cells:
        if is_token_row(example):
            raise InputError(f"token ids, and {self.flag} is read as pairs of texts; give texts alone")
        if not isinstance(example, (tuple, list)) or len(example) not in (2, 3):
            raise InputError(
                f"{shown(example)} is not a pair; give a dictionary, (text, text, label) or " "(text, text)"
            )
        left, right, label = (*example, None)[:3]
        if isinstance(right, (list, tuple)) and not self.rules.of_encoders:
            raise InputError(f"{RIGHT} is {shown(right)}, not a text; train-embedding takes lists")
        for text in (left, right):
            refuse_half("a text", text)
        return Cells(left, right, None if is_missing(label) else label, "" if self.columns.query else None)


def _is_object(example: Any) -> bool:
    """Return whether a row has keys, and is not one of token ids."""
    return isinstance(example, Mapping) and not is_token_row(example)


OF_IDS = ("input_ids", "token_type_ids", "attention_mask", "position_ids")  # keys of a row of ids
CURE = "make the ids with the tokenizer of the model, which is trainer.tokenizer"


class TokenRow(NamedTuple):
    """A pair as ids int32 [tokens], ``head`` of them of the first text; ``label`` as of a `Pair`."""

    ids: np.ndarray
    head: int
    label: Union[int, float, None]


class TokenForm(NamedTuple):
    """What rows of ids must be: those that ``tokenizer`` makes of pairs, of at most ``max_seq_len`` tokens.

    ``token_types``: how many the model tells apart.
    """

    tokenizer: AnyTokenizer
    max_seq_len: int
    token_types: int

    def ids_and_head(self, row: Mapping) -> tuple[np.ndarray, int]:
        """Return ids int32 [tokens] without padding, and the first text's number. Raises InputError."""
        ids, tokenizer = _whole_numbers("input_ids", row["input_ids"]), self.tokenizer
        types, mask, positions = (_beside(name, row.get(name), ids) for name in OF_IDS[1:])
        real, places = np.flatnonzero(ids != tokenizer.pad_id), np.arange(len(ids))
        length = int(real[-1]) + 1 if len(real) else 0
        if positions is not None and (positions != places).any():
            raise InputError("position_ids are not 0, 1, 2, ...; leave them out")
        if mask is not None:
            if (mask != (places < mask.sum())).any():
                raise InputError("attention_mask is not 1 of tokens and then 0 of padding; leave it out")
            length = min(length, int(mask.sum()))
        ids = ids[:length]
        if length > self.max_seq_len:
            raise InputError(
                f"{length} tokens, more than --max_seq_len {self.max_seq_len}; cut the pair where "
                "it is tokenized, or raise --max_seq_len"
            )
        wrong = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
        if len(wrong):
            raise InputError(
                f"the id {wrong[0]} is outside of the vocabulary, of {tokenizer.vocab_size} tokens; " + CURE
            )
        head, fault = self._head(ids, None if types is None else types[:length])
        if fault:
            raise InputError(f"{fault}")
        return ids.astype(np.int32), head

    def _head(self, ids: np.ndarray, types: Optional[np.ndarray]) -> tuple[int, str]:
        """Return how many ids are of the first text and the special tokens around it, and what is wrong."""
        before, between, after = self.tokenizer.pair_specials
        if types is not None and self.token_types > 1:
            head = len(ids) - int((types == 1).sum())
            if head == len(ids) or (types != (np.arange(len(ids)) >= head)).any():
                return 0, f"token_type_ids are not 0 of a first text and 1 of a second; {CURE}"
        else:
            inside = [ids[1 + n : len(ids) - len(between) + n] for n in range(len(between))]
            found = np.flatnonzero(np.all([i == special for i, special in zip(inside, between)], axis=0))
            if len(found) != 1:
                told = "no token_type_ids that tell where the second begins; give token_type_ids"
                return 0, f"{len(found)} separators between the texts and {told}"
            head = int(found[0]) + 2
        ends = [*ids[:1], *ids[head - 1 : head - 1 + len(between)], *ids[-1:]]
        if ends == [*before, *between, *after]:
            return head, ""
        form = [self.tokenizer.tokens[special] for special in (before[0], *between, after[0])]
        pair = f"{form[0]} a {' '.join(form[1:-1])} b {form[-1]}"
        return 0, f"the ids are not those of a pair, {pair}, in this vocabulary; {CURE}"

    def encoded(self, rows: Sequence[TokenRow], bad: Sequence[BadRow] = ()) -> EncodedPairs:
        """Return ``rows``, of which there is one at least, side by side."""
        starts = np.cumsum([0, *(len(row.ids) for row in rows)], dtype=np.int64)
        heads = np.array([row.head for row in rows], dtype=np.int64)
        labels = None if rows[0].label is None else labels_array([row.label for row in rows])
        ids, separators = np.concatenate([row.ids for row in rows]), len(self.tokenizer.pair_specials[1]) - 1
        return EncodedPairs(ids, starts, heads, labels, self.tokenizer.pad_id, 0, tuple(bad), separators)


@dataclass(frozen=True)
class TokenizedPairs(InMemoryPairs[TokenRow, EncodedPairs]):
    """Pairs as rows of ids, as ``form`` says."""

    form: TokenForm
    START = b"token ids\n"

    def windows(self, size: int, reject: Reject) -> Iterator[EncodedPairs]:
        """Yield the good rows, ``size`` at a time; see ``rows``."""
        rows = self.rows(reject)
        while part := list(islice(rows, size)):
            yield self.form.encoded(part)

    def _collect(self, rows: list[TokenRow], bad: list[BadRow], sha256: str) -> EncodedPairs:
        return self.form.encoded(rows, bad)

    def _facts(self, row: TokenRow) -> list[object]:
        return [row.ids.tolist(), row.head, row.label]

    def _reader(self, first: Sequence[tuple[int, Any]], labels: Optional[Labels]) -> Make:
        keys: Optional[Keys] = None
        number, row = next(((n, row) for n, row in first if isinstance(row, Mapping)), (0, {}))
        if row:
            names, named = list(map(str, row)), self.columns.label
            known = [key for key in names if key == named or key.lower() in NAMES[LABEL]]
            keys = keys_of(self.where(number), known, Columns(label=named))
            unread = [key for key in names if key not in (*OF_IDS, keys[2])]
            if unread:
                say_once(self.flag, f"not read: {', '.join(unread)}")
        return lambda number, example: [self._row(example, keys, labels)]

    def _row(self, example: Any, keys: Optional[Keys], labels: Optional[Labels]) -> TokenRow:
        if not is_token_row(example):
            raise InputError(
                f"{shown(example)} is no row of token ids, as the first one is; give one kind alone"
            )
        if isinstance(example, Mapping) and keys is not None:
            row: Mapping = example
            label: Any = example.get(keys[2])
        else:
            row = dict(zip(("input_ids", "token_type_ids"), example))
            label = example[2] if len(example) > 2 else None
        ids, head = self.form.ids_and_head(row)
        if labels is None:
            return TokenRow(ids, head, None)
        label = label.tolist() if hasattr(label, "tolist") else label
        while isinstance(label, (list, tuple)) and len(label) == 1:
            label = label[0]
        return TokenRow(ids, head, label_value(None if is_missing(label) else label, labels))


AnySource = Union[PairSource, GivenPairs, TokenizedPairs]
# A file, a set such as lcqmc, a Hugging Face dataset, a DataFrame, or dictionaries or (text, text, label)
# from a list, a generator or any other iterable; rows may be token ids, see `TokenizedPairs`.
PairDataset = Union[str, Path, Iterable]
# {part of the data: the argument of Python that gives it}
ARGUMENTS = {
    "train": "train_dataset", "dev": "eval_dataset", "test": "dataset", "unlabelled": "unlabelled_dataset",
    "negatives": "negatives",
}  # fmt: skip


def _whole_numbers(name: str, value: Any) -> np.ndarray:
    """Return a list, an array or a tensor as int64 [n]. Raises InputError for anything else."""
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.ndim > 1:
        raise InputError(
            f"{name} has the shape {list(found.shape)}; give the ids of one row, neither a batch "
            "nor what return_tensors makes"
        )
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iub":
        raise InputError(f"{name} is {shown(value)}, and no list, array or tensor of whole numbers; {CURE}")
    return found.astype(np.int64)


def _beside(name: str, value: Any, ids: np.ndarray) -> Optional[np.ndarray]:
    """Return what a row has for each of its ids, int64 [n]; None where it has nothing."""
    if value is None:
        return None
    found = _whole_numbers(name, np.atleast_1d(value) if np.ndim(value) == 0 else value)
    if len(found) != len(ids):
        raise InputError(
            f"{len(found)} {name} for {len(ids)} input_ids; give one for each, and a row as a "
            "dictionary or as (input_ids, token_type_ids, label)"
        )
    return found


def open_source(
    config: Any,
    split: str,
    given: PairDataset,
    labels: Optional[Labels],
    form: Optional[Callable[[], TokenForm]] = None,
    number: str = "",
) -> AnySource:
    """Return ``given`` as the source of the pairs of ``split``, a key of ARGUMENTS.

    ``form``: called for what rows of token ids must be; without it they are refused. ``number`` ends the name
    of the argument, of several. Raises InputError for ids whose texts are needed.
    """
    if isinstance(given, (str, Path)):
        return PairSource.of(config, f"{split}_file", labels, name=os.path.expanduser(given))
    argument, columns, rules = ARGUMENTS[split] + number, Columns.of(config), RowRules.of(config)
    first, rows = split_first(given, argument)
    if form is None or not any(map(is_token_row, first)):
        return GivenPairs(argument, rows, labels, columns, rules)
    if labels is not None and labels.target == RANKING:
        raise InputError(f"ranking tells queries by their texts, and {argument} holds token ids; give texts")
    return TokenizedPairs(argument, rows, labels, columns, rules, form())


def split_first(dataset: Any, argument: str = "dataset") -> tuple[Any, Any]:
    """Return the first row as a list (a file: itself), and the whole; go on with these two."""
    if isinstance(dataset, (str, Path)):
        return dataset, dataset
    examples = examples_of(argument, dataset)
    first = list(islice(examples, 1))
    return first, chain(first, examples) if is_one_shot(dataset) else dataset


def is_one_shot(examples: object) -> bool:
    """Return whether ``examples`` can be read only once: an iterator, or PaddleNLP's IterDataset of one."""
    return isinstance(examples, OneShot) or isinstance(getattr(examples, "data", None), OneShot)


def is_token_row(example: Any) -> bool:
    """Return whether ``example`` is a row of token ids: a mapping with input_ids, or a tuple of arrays."""
    if isinstance(example, Mapping):
        return "input_ids" in example
    is_tuple = isinstance(example, (tuple, list)) and len(example) in (2, 3)
    if not is_tuple or isinstance(example[0], str) or not hasattr(example[0], "__len__"):
        return False
    try:
        ids = np.asarray(example[0])
    except (TypeError, ValueError):  # lists of several lengths
        return False
    return ids.size > 0 and ids.dtype.kind in "iu"


def held(examples):
    """Return something that can be read again: ``examples`` itself, or a list of what an iterator gives."""
    return list(iter(examples)) if is_one_shot(examples) else examples


def examples_of(flag: str, examples: Any) -> Iterator:
    """Iterate over the dictionaries or tuples of ``examples``; over a dataset without __iter__ by index.

    Raises InputError when it is a dictionary or not iterable, or a DataFrame or a table of Arrow with two
    columns of one name.
    """
    if isinstance(examples, Mapping):
        parts = ", ".join(map(str, examples))
        raise InputError(f"{flag} is a dictionary ({parts}); give one of its parts")
    is_frame, is_arrow = hasattr(examples, "itertuples"), hasattr(examples, "to_pylist")
    if is_frame or is_arrow:
        names = list(examples.columns if is_frame else getattr(examples, "column_names", ()))
        if len(set(names)) < len(names):
            raise InputError(
                f"{flag} has two columns of one name in {', '.join(map(str, names))}; rename one"
            )
        if is_arrow:
            return iter(examples.to_pylist())
        rows = examples.itertuples(index=False, name=None)
        is_named = any(isinstance(name, str) for name in names)
        return (dict(zip(names, row)) for row in rows) if is_named else rows
    kind = type(examples)
    is_map_style = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    try:
        if hasattr(kind, "__iter__") or not is_map_style:
            return iter(examples)
    except (TypeError, NotImplementedError):
        if not is_map_style:
            raise InputError(
                f"{flag} is a {kind.__name__}; give a file, a list, a dataset or a DataFrame"
            ) from None
    # By its length: the index of a dataset of Paddle need not end with an IndexError.
    return map(examples.__getitem__, range(len(examples)))
