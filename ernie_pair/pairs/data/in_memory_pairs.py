"""Pairs given from Python: lists, generators, datasets of Hugging Face and Paddle, pandas DataFrames.

A list or a generator holds dictionaries or tuples; a dataset is map-style or iterable. Rows may be token ids.

[{"sentence1": "怎么开户", "sentence2": "如何开户", "label": 1}, ...]      keys as in `pair_records`
[("怎么开户", "如何开户", 1), ...]                                         or without the label

What can be read again is read when it is needed, a row at a time.
"""

import hashlib
import json
from collections.abc import Iterator as OneShot
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, Iterable, Iterator, NamedTuple, Optional, Sequence, TypeVar, Union

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.tables import LOOKED_AT
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.data.encoder_rows import no_label
from ernie_pair.pairs.data.pair_file import (
    WORDS,
    BadRow,
    Cells,
    KeyedRows,
    Pair,
    Pairs,
    Reject,
    bad_row,
    error_of_rows,
    good_rows,
    is_missing,
    label_value,
    labels_array,
    pairs_in,
    pairs_of,
    query_in,
    refuse_half,
    say_once,
    shown,
    with_words,
)
from ernie_pair.pairs.data.pair_records import LABEL, NAMES, RIGHT, Columns, RowRules, keys_of
from ernie_pair.pairs.data.pair_source import group_candidates

BEGINNING = 10_000  # rows that a stream is known by


Keys = tuple[str, ...]
One = TypeVar("One")  # a row
All = TypeVar("All")  # all rows


@dataclass(frozen=True)
class InMemoryPairs(Generic[One, All]):
    """Pairs given from Python, with the methods of `PairSource`; ``flag`` names their argument.

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
    def name(self) -> str:
        """Return the name of the argument, as the log and errors show it."""
        return self.flag

    def sha256(self) -> str:
        """Return the SHA-256 of all rows and their labels, in hex. Raises InputError naming a bad row."""
        return self._content()[1]

    def sha256_of_ends(self) -> str:
        """Return the SHA-256 of BEGINNING rows, for a stream not read whole. Raises InputError."""
        return self._hash_of(islice(self.rows(), BEGINNING))

    def rows(self, reject: Reject = lambda row: None) -> Iterator[One]:
        """Iterate over the good rows, read one at a time; call ``reject`` with each bad row left out.

        Raises InputError naming the row when bad rows are not left out, or when no row is good.
        """
        error_of = partial(error_of_rows, self.flag, self._words, self.rules)
        return good_rows(self.all_rows(), self.rules.skips, self.flag, reject, error_of)

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

    def _words(self) -> Iterator[Any]:
        """Return the rows with their labels as texts; none where they can be read only once."""
        return iter(()) if is_one_shot(self.examples) else replace(self, labels=WORDS).all_rows()

    def all_rows(self) -> Iterator[Union[One, BadRow]]:
        """Yield every row, good or bad, read one at a time."""
        raise NotImplementedError

    def _hash_of(self, rows: Iterable[One]) -> str:
        digest = hashlib.sha256(self.START)
        for row in rows:
            digest.update(json.dumps(self._facts(row)).encode() + b"\n")
        return digest.hexdigest()

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

    def all_rows(self) -> Iterator[Union[Pair, BadRow]]:
        """Yield every row, good or bad, read one at a time."""
        labels = self.labels and with_words(self.labels, self._words)
        given = examples_of(self.flag, self.examples)
        first = list(islice(given, LOOKED_AT))
        objects = [dict(row) for row in first if isinstance(row, Mapping)]
        keyed = KeyedRows(self.flag, self.columns, self.rules, labels, objects)
        is_unlabelled: Optional[bool] = None  # of tuples for an encoder, as the first one tells
        for number, example in enumerate(chain(first, given)):
            where = f"{self.flag}[{number}]"
            if isinstance(example, Mapping) and not is_token_row(example):
                yield from keyed.pairs_of(where, number, example)
                continue
            found: Union[Cells, InputError]
            try:
                found = self._cells_of_tuple(where, example)
                if is_unlabelled is None:
                    is_unlabelled = self.rules.of_encoders and found.label is None
                if is_unlabelled:
                    found = found._replace(label=no_label(where, "the third value", found.label))
            except InputError as error:
                found = error
            yield from pairs_in(where, number, found, labels)

    def _cells_of_tuple(self, where: str, example: Any) -> Cells:
        if is_token_row(example):
            raise InputError(
                f"{where}: token ids, and {self.flag} is read as pairs of texts; give texts alone"
            )
        if not isinstance(example, (tuple, list)) or len(example) not in (2, 3):
            raise InputError(
                f"{where}: {shown(example)} is not a pair; give a dictionary, (text, text, label) or "
                "(text, text)"
            )
        left, right, label = (*example, None)[:3]
        if isinstance(right, (list, tuple)) and not self.rules.of_encoders:
            raise InputError(f"{where}: {RIGHT} is {shown(right)}, not a text; train-embedding takes lists")
        for text in (left, right):
            refuse_half(where, "a text", text)
        return Cells(left, right, None if is_missing(label) else label, query_in({}, self.columns))


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

    def ids_and_head(self, where: str, row: Mapping) -> tuple[np.ndarray, int]:
        """Return ids int32 [tokens] without padding, and the first text's number. Raises InputError."""
        ids, tokenizer = _whole_numbers(where, "input_ids", row["input_ids"]), self.tokenizer
        types, mask, positions = (_beside(where, name, row.get(name), ids) for name in OF_IDS[1:])
        if positions is not None and (positions != np.arange(len(ids))).any():
            raise InputError(
                f"{where}: position_ids that are not 0, 1, 2, ... are not supported; leave them out"
            )
        real = np.flatnonzero(ids != tokenizer.pad_id)
        length = int(real[-1]) + 1 if len(real) else 0
        if mask is not None:
            if (mask != (np.arange(len(ids)) < mask.sum())).any():
                raise InputError(
                    f"{where}: attention_mask is not 1 of tokens and then 0 of padding; leave it out"
                )
            length = min(length, int(mask.sum()))
        ids = ids[:length]
        if length > self.max_seq_len:
            raise InputError(
                f"{where}: {length} tokens, more than --max_seq_len {self.max_seq_len}; cut the pair where "
                "it is tokenized, or raise --max_seq_len"
            )
        wrong = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
        if len(wrong):
            raise InputError(
                f"{where}: the id {wrong[0]} is outside of the vocabulary, of {tokenizer.vocab_size} tokens; "
                + CURE
            )
        head = self._head(where, ids, None if types is None else types[:length])
        return ids.astype(np.int32), head

    def _head(self, where: str, ids: np.ndarray, types: Optional[np.ndarray]) -> int:
        """Return how many ids are of the first text and the special tokens around it."""
        before, between, after = self.tokenizer.pair_specials
        if types is not None and self.token_types > 1:
            head = len(ids) - int((types == 1).sum())
            if head == len(ids) or (types != (np.arange(len(ids)) >= head)).any():
                raise InputError(
                    f"{where}: token_type_ids are not 0 of a first text and 1 of a second; {CURE}"
                )
        else:
            inside = [ids[1 + n : len(ids) - len(between) + n] for n in range(len(between))]
            found = np.flatnonzero(np.all([i == special for i, special in zip(inside, between)], axis=0))
            if len(found) != 1:
                raise InputError(
                    f"{where}: {len(found)} separators between the texts and no token_type_ids that tell "
                    "where the second begins; give token_type_ids"
                )
            head = int(found[0]) + 2
        ends = [*ids[:1], *ids[head - 1 : head - 1 + len(between)], *ids[-1:]]
        if ends != [*before, *between, *after]:
            form = [self.tokenizer.tokens[special] for special in (before[0], *between, after[0])]
            pair = f"{form[0]} a {' '.join(form[1:-1])} b {form[-1]}"
            raise InputError(f"{where}: the ids are not those of a pair, {pair}, in this vocabulary; {CURE}")
        return head

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

    def all_rows(self) -> Iterator[Union[TokenRow, BadRow]]:
        """Yield every row, good or bad, read one at a time."""
        labels = self.labels and with_words(self.labels, self._words)
        keys: Optional[Keys] = None
        for number, example in enumerate(examples_of(self.flag, self.examples)):
            where = f"{self.flag}[{number}]"
            if keys is None and isinstance(example, Mapping):
                keys = self._keys(where, list(map(str, example)))
                unread = [str(key) for key in example if key not in (*OF_IDS, keys[2])]
                if unread:
                    say_once(self.flag, f"not read: {', '.join(unread)}")
            row: Union[TokenRow, BadRow]
            try:
                row = self._row(where, number, example, keys, labels)
            except InputError as error:
                row = bad_row(number, error)
            yield row

    def _keys(self, where: str, first: list[str]) -> Keys:
        named = self.columns.label
        known = [key for key in first if key == named or key.lower() in NAMES[LABEL]]
        return keys_of(where, known, Columns(label=named))

    def _row(
        self, where: str, number: int, example: Any, keys: Optional[Keys], labels: Optional[Labels]
    ) -> TokenRow:
        if not is_token_row(example):
            raise InputError(
                f"{where}: {shown(example)} is no row of token ids, as the first one is; give one kind alone"
            )
        if isinstance(example, Mapping) and keys is not None:
            row: Mapping = example
            label: Any = example.get(keys[2])
        else:
            row = dict(zip(("input_ids", "token_type_ids"), example))
            label = example[2] if len(example) > 2 else None
        ids, head = self.form.ids_and_head(where, row)
        if labels is None:
            return TokenRow(ids, head, None)
        label = label.tolist() if hasattr(label, "tolist") else label
        while isinstance(label, (list, tuple)) and len(label) == 1:
            label = label[0]
        return TokenRow(ids, head, label_value(where, None if is_missing(label) else label, labels))


def _whole_numbers(where: str, name: str, value: Any) -> np.ndarray:
    """Return a list, an array or a tensor as int64 [n]. Raises InputError for anything else."""
    try:
        found = np.asarray(value)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.ndim > 1:
        raise InputError(
            f"{where}: {name} has the shape {list(found.shape)}; give the ids of one row, neither a batch "
            "nor what return_tensors makes"
        )
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iub":
        raise InputError(
            f"{where}: {name} is {shown(value)}, and no list, array or tensor of whole numbers; {CURE}"
        )
    return found.astype(np.int64)


def _beside(where: str, name: str, value: Any, ids: np.ndarray) -> Optional[np.ndarray]:
    """Return what a row has for each of its ids, int64 [n]; None where it has nothing."""
    if value is None:
        return None
    found = _whole_numbers(where, name, np.atleast_1d(value) if np.ndim(value) == 0 else value)
    if len(found) != len(ids):
        raise InputError(
            f"{where}: {len(found)} {name} for {len(ids)} input_ids; give one for each, and a row as a "
            "dictionary or as (input_ids, token_type_ids, label)"
        )
    return found


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
