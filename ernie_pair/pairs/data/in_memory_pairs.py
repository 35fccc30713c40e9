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
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Sequence, Union

import numpy as np

from data_tools.text.columns import LOOKED_AT
from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.models.labels import RANKING, Labels
from ernie_pair.pairs.data.pair_file import (
    BadRow,
    Reject,
    RowReader,
    checked_rows,
    collect_pairs,
    is_missing,
    label_value,
    labels_array,
    say_once,
    shown,
)
from ernie_pair.pairs.data.pair_records import LABEL, NAMES, ROLES, Columns, RowRules, find_keys
from ernie_pair.pairs.data.pair_source import PairSource, Source, group_candidates

BEGINNING = 10_000  # rows that a stream is known by


@dataclass(frozen=True)
class GivenPairs(Source):
    """Pairs of texts given from Python; ``flag`` names their argument.

    Equal pairs have equal hashes, however they were given. Errors name the row, counted from 0.
    """

    flag: str
    examples: Iterable
    labels: Optional[Labels]
    columns: Columns = Columns()
    rules: RowRules = RowRules()
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
        return self._hash_rows(islice(self.rows(), BEGINNING))

    def read(self) -> Any:
        """Return all rows, `Pairs` or of ids `EncodedPairs`, read once for all calls. Raises InputError."""
        return self._content()[0]

    def check_rereadable(self) -> None:
        """Raise InputError when the rows can be read only once: streaming reads them in each epoch."""
        if is_one_shot(self.examples):
            raise InputError(
                f"streaming reads {self.flag} once per epoch, and an iterator or generator can be read once; "
                "give a list, a Dataset or an IterableDataset, or leave streaming out"
            )

    def words(self) -> Iterator[Any]:
        """Yield the rows with their labels as texts; none where they can be read only once."""
        return iter(()) if is_one_shot(self.examples) else super().words()

    def open(self, needs_label: bool = False) -> tuple[Optional[RowReader], Iterator[tuple[int, Any]]]:
        """Return what reads the rows, None where there are none, and the rows as {key: value}."""
        first, rows = self._beginning()
        if not first:
            return None, iter(())
        begin = [(number, self._as_object(number, example)) for number, example in first]
        objects = [(number, row) for number, row in begin if isinstance(row, dict)]
        objects = objects or [(0, dict.fromkeys(ROLES[:2], ""))]  # none is a pair: each row says what it is
        reader = RowReader(self.flag, self.where, objects, self.columns, self.rules, needs_label)
        if not any(isinstance(example, Mapping) for _, example in first):
            reader.said = ""  # tuples have no columns
        return reader, ((number, self._as_object(number, example)) for number, example in rows)

    def _beginning(self) -> tuple[list[tuple[int, Any]], Iterator[tuple[int, Any]]]:
        """Return the first rows with their numbers, and all of them."""
        rows = enumerate(iterate_examples(self.flag, self.examples))
        first = list(islice(rows, LOOKED_AT))
        return first, chain(first, rows if len(first) == LOOKED_AT else ())  # Paddle asks no ended one again

    def _as_object(self, number: int, example: Any) -> Union[dict, InputError]:
        """Return a mapping, or (text, text) or (text, text, label), as {key: value}; else what is wrong."""
        if is_token_row(example):
            told = f"token ids, and {self.flag} is read as pairs of texts; give texts alone"
            return InputError(f"{self.where(number)}: {told}")
        if isinstance(example, Mapping):
            return dict(example)
        if not isinstance(example, (tuple, list)) or len(example) not in (2, 3):
            told = f"{shown(example)} is not a pair; give a dictionary, (text, text, label) or (text, text)"
            return InputError(f"{self.where(number)}: {told}")
        keys = [self.columns.by_role[role] or role for role in ROLES]
        return dict(zip(keys, example if not is_missing(example[-1]) else example[:2]))

    def _content(self) -> tuple[Any, str]:
        # No cached_property: until Python 3.12 all instances share its lock, and a loader of Paddle whose
        # collate_fn reads pairs would wait for it in a thread of its own, for which this one waits.
        kept = vars(self).get("_kept")
        if kept is None:
            bad: list[BadRow] = []
            rows = list(self.rows(bad.append))
            sha256 = self._hash_rows(rows)
            kept = vars(self)["_kept"] = self._collect(rows, bad, sha256), sha256
        return kept

    def _hash_rows(self, rows: Iterable[Any]) -> str:
        digest = hashlib.sha256(self.START)
        for row in rows:
            digest.update(json.dumps(self._facts(row)).encode() + b"\n")
        return digest.hexdigest()

    def _collect(self, rows: list[Any], bad: list[BadRow], sha256: str) -> Any:
        found = collect_pairs(rows, bad, self.labels is not None, sha256, self.flag)
        return group_candidates(found, self.labels, self.rules)

    def _facts(self, row: Any) -> list[object]:
        return [row.left, row.right, row.label, *([row.query] if row.query else [])]


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
        given = {name: _whole_numbers(name, row[name]) for name in OF_IDS[1:] if row.get(name) is not None}
        for name, array in given.items():
            if len(array) != len(ids):
                raise InputError(
                    f"{len(array)} {name} for {len(ids)} input_ids; give one for each, and a row as a "
                    "dictionary or as (input_ids, token_type_ids, label)"
                )
        real, places = np.flatnonzero(ids != tokenizer.pad_id), np.arange(len(ids))
        length = int(real[-1]) + 1 if len(real) else 0
        if (given.get("position_ids", places) != places).any():
            raise InputError("position_ids are not 0, 1, 2, ...; leave them out")
        mask = given.get("attention_mask")
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
        types = given.get("token_type_ids")
        return ids.astype(np.int32), self._head(ids, None if types is None else types[:length])

    def _head(self, ids: np.ndarray, types: Optional[np.ndarray]) -> int:
        """Return how many ids are of the first text and the special tokens around it. Raises InputError."""
        before, between, after = self.tokenizer.pair_specials
        if types is not None and self.token_types > 1:
            head = len(ids) - int((types == 1).sum())
            if head == len(ids) or (types != (np.arange(len(ids)) >= head)).any():
                raise InputError(f"token_type_ids are not 0 of a first text and 1 of a second; {CURE}")
        else:
            inside = [ids[1 + n : len(ids) - len(between) + n] for n in range(len(between))]
            found = np.flatnonzero(np.all([i == special for i, special in zip(inside, between)], axis=0))
            if len(found) != 1:
                told = "no token_type_ids that tell where the second begins; give token_type_ids"
                raise InputError(f"{len(found)} separators between the texts and {told}")
            head = int(found[0]) + 2
        if [*ids[:1], *ids[head - 1 : head - 1 + len(between)], *ids[-1:]] != [*before, *between, *after]:
            form = [self.tokenizer.tokens[special] for special in (before[0], *between, after[0])]
            pair = f"{form[0]} a {' '.join(form[1:-1])} b {form[-1]}"
            raise InputError(f"the ids are not those of a pair, {pair}, in this vocabulary; {CURE}")
        return head

    def encoded(self, rows: Sequence[TokenRow], bad: Sequence[BadRow] = ()) -> EncodedPairs:
        """Return ``rows``, of which there is one at least, side by side."""
        starts = np.cumsum([0, *(len(row.ids) for row in rows)], dtype=np.int64)
        heads = np.array([row.head for row in rows], dtype=np.int64)
        labels = None if rows[0].label is None else labels_array([row.label for row in rows])
        ids, separators = np.concatenate([row.ids for row in rows]), len(self.tokenizer.pair_specials[1]) - 1
        return EncodedPairs(ids, starts, heads, labels, self.tokenizer.pad_id, 0, tuple(bad), separators)


@dataclass(frozen=True)
class TokenizedPairs(GivenPairs):
    """Pairs as rows of ids, as ``form`` says."""

    form: TokenForm = field(kw_only=True)
    START = b"token ids\n"

    def all_rows(self) -> Iterator[Union[TokenRow, BadRow]]:
        """Yield every row, good or bad, read one at a time. Raises InputError for an unclear label."""
        first, rows = self._beginning()
        number, row = next(((n, row) for n, row in first if isinstance(row, Mapping)), (0, {}))
        names, named = list(map(str, row)), self.columns.label
        known = [key for key in names if key == named or key.lower() in NAMES[LABEL]]
        *_, key = find_keys(self.where(number), known, Columns(label=named))
        unread = [name for name in names if name not in (*OF_IDS, key)]
        if unread:
            say_once(self.flag, f"not read: {', '.join(unread)}")
        labels = self.labels_in_rows()
        return checked_rows(rows, self.where, lambda _, example: [self._row(example, key, labels)])

    def windows(self, size: int, reject: Reject) -> Iterator[EncodedPairs]:
        """Yield the good rows, ``size`` at a time; see ``rows``."""
        rows = self.rows(reject)
        while part := list(islice(rows, size)):
            yield self.form.encoded(part)

    def _collect(self, rows: list[TokenRow], bad: list[BadRow], sha256: str) -> EncodedPairs:
        return self.form.encoded(rows, bad)

    def _facts(self, row: TokenRow) -> list[object]:
        return [row.ids.tolist(), row.head, row.label]

    def _row(self, example: Any, key: str, labels: Optional[Labels]) -> TokenRow:
        if not is_token_row(example):
            raise InputError(
                f"{shown(example)} is no row of token ids, as the first one is; give one kind alone"
            )
        row: Mapping = example
        if not isinstance(example, Mapping):
            row = dict(zip(("input_ids", "token_type_ids", key), example))
        ids, head = self.form.ids_and_head(row)
        if labels is None:
            return TokenRow(ids, head, None)
        label: Any = row.get(key)
        label = label.tolist() if hasattr(label, "tolist") else label
        while isinstance(label, (list, tuple)) and len(label) == 1:
            label = label[0]
        return TokenRow(ids, head, label_value(None if is_missing(label) else label, labels))


AnySource = Union[PairSource, GivenPairs, TokenizedPairs]
# A file, several in a list or with commas between, a folder, a set such as lcqmc, a Hugging Face dataset,
# a DataFrame, or dictionaries or (text, text, label) from a list, a generator or any other iterable; rows may
# be token ids, see `TokenizedPairs`.
PairDataset = Union[str, Path, Iterable]
# {part of the data: the argument of Python that gives it}
ARGUMENTS = {
    "train": "train_dataset", "dev": "eval_dataset", "test": "dataset", "unlabelled": "unlabelled_dataset",
    "negatives": "negatives",
}  # fmt: skip


def array_of(value: Any) -> np.ndarray:
    """Return ``value`` as an array; an empty one for what is none, such as lists of several lengths."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        return np.zeros(0, object)


def _whole_numbers(name: str, value: Any) -> np.ndarray:
    """Return a list, an array or a tensor as int64 [n]. Raises InputError for anything else."""
    found = array_of(value)
    if found.ndim > 1:
        raise InputError(
            f"{name} has the shape {list(found.shape)}; give the ids of one row, neither a batch "
            "nor what return_tensors makes"
        )
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iub":
        raise InputError(f"{name} is {shown(value)}, and no list, array or tensor of whole numbers; {CURE}")
    return found.astype(np.int64)


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
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, (str, Path)) for one in given):
        given = ",".join(map(str, given))
    if isinstance(given, (str, Path)):
        return PairSource.of(config, f"{split}_file", labels, name=os.path.expanduser(given))
    argument, columns, rules = ARGUMENTS[split] + number, Columns.of(config), RowRules.of(config)
    first, rows = split_first(given, argument)
    if form is None or not any(map(is_token_row, first)):
        return GivenPairs(argument, rows, labels, columns, rules)
    if labels is not None and labels.target == RANKING:
        raise InputError(f"ranking tells queries by their texts, and {argument} holds token ids; give texts")
    return TokenizedPairs(argument, rows, labels, columns, rules, form=form())


def split_first(dataset: Any, argument: str = "dataset") -> tuple[Any, Any]:
    """Return the first row as a list (a file: itself), and the whole; go on with these two."""
    if isinstance(dataset, (str, Path)):
        return dataset, dataset
    examples = iterate_examples(argument, dataset)
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
    ids = array_of(example[0])
    return ids.size > 0 and ids.dtype.kind in "iu"


def held(examples):
    """Return something that can be read again: ``examples`` itself, or a list of what an iterator gives."""
    return list(iter(examples)) if is_one_shot(examples) else examples


def iterate_examples(flag: str, examples: Any) -> Iterator:
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
