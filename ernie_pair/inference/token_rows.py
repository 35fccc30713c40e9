"""Pairs of texts as token ids: shared by training, evaluation and exported models.

A row is [CLS] a [SEP] b [SEP], or what the tokenizer of the model puts around two texts. Its token types are
the numbers of the segments: 0 up to the first separator, 1 after it, and 2 for a second separator between the
texts. A model with a single token type ignores them.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.cli.options import Options, speed_option
from ernie_pair.core.errors import InputError
from ernie_pair.models.spec import ModelSpec
from ernie_pair.models.tokenizers import read_tokenizer

SPECIALS_PER_PAIR = 3  # [CLS] a [SEP] b [SEP]
SEPARATOR = 2  # the segment of a second separator
CHUNK = 4096  # pairs tokenized at a time
WINDOW = 1 << 16  # pairs that are sorted by length together
OVERLAP_HELP = (
    "texts longer than the model reads are read in windows that share so many tokens, and the best of "
)
OVERLAP_HELP += "them counts and is returned; 0: as the index was made, otherwise such texts are cut"


class Batch(NamedTuple):
    """Rows of a batch, int64, padded to the longest of them."""

    input_ids: np.ndarray  # [B, S]
    token_type_ids: np.ndarray  # [B, S]
    labels: Optional[np.ndarray]  # [B]; for ranking [B, 2]: the label, and the number of the query
    teacher_logits: Optional[np.ndarray] = None  # float32 [B, C], for distillation


class BatchRules(NamedTuple):
    """Which batches suit a model: their size in tokens, and how their shape is rounded up."""

    most_tokens: int = 0  # per batch, including padding; 0: any number
    length_step: int = 1  # lengths are multiples of it, except for the longest that the model takes
    rounds_rows: bool = False  # numbers of rows are powers of two
    rows: int = 0  # at most, per batch; 0: as many as are asked for

    def padded(self, length: int) -> int:
        """Return the length that a row of ``length`` tokens takes in a batch."""
        return -(-length // self.length_step) * self.length_step

    def holding(self, tokens: int) -> "BatchRules":
        """Return them with at most ``tokens`` per batch, and any number of rows; 0: as they are."""
        return self._replace(most_tokens=tokens, rows=tokens) if tokens else self


@dataclass(frozen=True, kw_only=True)
class BatchTokensFlag(Options):
    """A part of the flags of commands that ask a model for many texts."""

    batch_tokens: int = speed_option(
        0,
        help="most tokens in one forward pass, rows times the longest of them, in place of a number of rows; "
        "0: what suits the device",
        unit="tokens",
        at_least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.batch_tokens:
            return
        for item in fields(self):
            if item.name == "batch_size" and getattr(self, item.name) != item.default:
                raise InputError("--batch_size and --batch_tokens exclude each other; give one of them")
        if not any(getattr(self, item.name) for item in fields(self) if item.metadata["reads"] == "MODEL"):
            raise InputError("--batch_tokens is for a model, and none is given; leave it out")


class Reading(NamedTuple):
    """How the texts of N rows were read, special tokens not counted."""

    tokens: np.ndarray  # int64 [N], after truncation
    unknown: np.ndarray  # int64 [N], of these the ones that stand for what the vocabulary lacks
    cut: np.ndarray  # bool [N]: whether there were more tokens

    def part(self, which: slice) -> "Reading":
        """Return it for some of the rows."""
        return Reading(*(values[which] for values in self))


class EncodedPairs:
    """Encoded pairs. Row i is ids[starts[i]:starts[i + 1]]; its first ``heads[i]`` tokens are of type 0.

    ``separators`` more tokens follow, of the type SEPARATOR, and the rest is of type 1.
    ``ids`` int32 [tokens], ``starts`` int64 [rows + 1], ``heads`` [rows], ``labels`` [rows] or None.
    ``num_cut`` of them were longer and have been truncated; ``bad`` are rows of the file that were left out.
    ``groups`` int64 [rows]: the query that each is a candidate of, if candidates are ranked.
    """

    def __init__(
        self,
        ids,
        starts,
        heads,
        labels: Optional[np.ndarray],
        pad_id: int,
        num_cut: int = 0,
        bad=(),
        separators: int = 0,
    ):
        self.ids, self.starts, self.heads, self.labels, self.pad_id = ids, starts, heads, labels, pad_id
        self.lengths, self.num_cut, self.bad, self.separators = np.diff(starts), num_cut, bad, separators
        self.cut: Optional[np.ndarray] = None  # bool [rows]: which `encode_texts` has truncated
        self.orders: Optional[EncodedPairs] = None  # the pairs in both orders, if both are scored
        self.teacher_logits: Optional[np.ndarray] = None  # float32 [rows, C], for distillation
        self.groups: Optional[np.ndarray] = None
        # What makes a batch of rows in place of ``padded``: the data_collator of a user.
        self.collator: Optional[Callable[[EncodedPairs, np.ndarray], Batch]] = None

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def known_labels(self) -> np.ndarray:
        """Return the labels of rows that were encoded with them."""
        assert self.labels is not None
        return self.labels

    def reading(self, tokenizer: AnyTokenizer, rows: int) -> Reading:
        """Return how the first ``rows`` were read by ``tokenizer``, of rows that `encode_texts` made."""
        assert self.cut is not None
        unknown = np.cumsum(np.concatenate([[0], self.ids == tokenizer.unk_id]), dtype=np.int64)
        ends = self.starts[: rows + 1]
        specials = sum(map(len, tokenizer.pair_specials))
        return Reading(self.lengths[:rows] - specials, np.diff(unknown[ends]), self.cut[:rows])

    def features(self, rows: np.ndarray) -> List[Dict[str, Any]]:
        """Return ``rows``, int64 [B] row numbers, as dictionaries of input_ids, token_type_ids and labels.

        The former are lists of the numbers of a row, without padding; labels, one number, if there are any.
        A second separator is of type 0, as all is in a model that has one.
        """
        found: List[Dict[str, Any]] = []
        for row in rows.tolist():
            ids, head = self.ids[self.starts[row] : self.starts[row + 1]].tolist(), int(self.heads[row])
            second = 0 if self.separators else 1
            found.append({"input_ids": ids, "token_type_ids": [0] * head + [second] * (len(ids) - head)})
            if self.labels is not None:
                found[-1]["labels"] = self.labels[row].item()
        return found

    def batch(self, rows: np.ndarray, length: int = 0) -> Batch:
        """Return a batch of ``rows``, int64 [B] row numbers, as ``collator`` or else ``padded`` makes it."""
        return self.padded(rows, length) if self.collator is None else self.collator(self, rows)

    def padded(self, rows: np.ndarray, length: int = 0) -> Batch:
        """Return a batch of ``rows``, int64 [B] row numbers, padded to the longest, or to ``length``."""
        lengths = self.lengths[rows]
        columns = np.arange(max(lengths.max(), length))
        inside = columns < lengths[:, None]
        places = np.where(inside, self.starts[rows][:, None] + columns, 0)
        input_ids = np.where(inside, self.ids[places], self.pad_id).astype(np.int64)
        heads = self.heads[rows][:, None]
        types = (inside & (columns >= heads)).astype(np.int64)
        if self.separators:
            types[inside & (columns >= heads) & (columns < heads + self.separators)] = SEPARATOR
        of_rows = (None if a is None else a[rows] for a in (self.labels, self.teacher_logits))
        return Batch(input_ids, types, *of_rows)


def open_tokenizer(
    vocab_file: Path, spec: ModelSpec, max_seq_len: int, of_pairs: bool = True
) -> AnyTokenizer:
    """Open the tokenizer of a model of pairs, or of single texts. Raises InputError if it does not fit."""
    tokenizer = read_tokenizer(vocab_file, spec)
    if tokenizer.vocab_size > spec.vocab_size:
        raise InputError(
            f"{vocab_file} has {tokenizer.vocab_size} tokens, its model takes {spec.vocab_size}; "
            "give the vocabulary of this model"
        )
    if tokenizer.pad_id != spec.pad_id:
        raise InputError(
            f"{vocab_file}:{tokenizer.pad_id + 1}: {tokenizer.tokens[tokenizer.pad_id]} has the id "
            f"{tokenizer.pad_id}, config.json says pad_token_id {spec.pad_id}; make them agree"
        )
    if of_pairs and spec.token_types > 1 and not tokenizer.has_segments:
        raise InputError(
            f"{vocab_file}: it gives both texts of a pair one token type, and config.json says "
            f"type_vocab_size {spec.token_types}, so that it cannot tell them apart; take another model"
        )
    if max_seq_len > spec.max_positions:
        raise InputError(
            f"--max_seq_len {max_seq_len} is more than the model's {spec.max_positions} positions; "
            f"use {spec.max_positions}"
        )
    return tokenizer


def encode_texts(
    left: Sequence[str],
    right: Sequence[str],
    labels: Optional[np.ndarray],
    tokenizer: AnyTokenizer,
    max_seq_len: int,
) -> EncodedPairs:
    """Encode the pairs (left[i], right[i]) as token ids, truncated to ``max_seq_len`` (see ``kept_lengths``).

    ``labels`` int64 [N] or None. A text without any token, for example a zero-width space, takes no place:
    [CLS] [SEP] b [SEP], as in PaddleNLP and transformers.
    """
    rows: List[np.ndarray] = []
    heads: List[int] = []
    cut, is_fast = [], tokenizer.truncation == "fast"
    before, between, after = tokenizer.pair_specials
    room = max_seq_len - len(before) - len(between) - len(after)
    for first in range(0, len(left), CHUNK):
        chunk = slice(first, first + CHUNK)
        for a, b in zip(tokenizer.encode_batch(left[chunk]), tokenizer.encode_batch(right[chunk])):
            num_a, num_b = kept_lengths(len(a), len(b), room, is_fast)
            cut.append(num_a + num_b < len(a) + len(b))
            rows.append(np.array([*before, *a[:num_a], *between, *b[:num_b], *after], dtype=np.int32))
            heads.append(len(before) + num_a + 1)
    sizes = np.array(heads, dtype=np.int64)
    encoded = _encoded(rows, sizes, labels, tokenizer, sum(cut), len(between) - 1)
    encoded.cut = np.array(cut, dtype=bool)
    return encoded


def encode_single_texts(texts: Sequence[str], tokenizer: AnyTokenizer, max_seq_len: int) -> EncodedPairs:
    """Encode each of ``texts`` as [CLS] text [SEP], of token type 0, truncated to ``max_seq_len`` tokens."""
    rows: List[np.ndarray] = []
    before, after = tokenizer.text_specials
    num_cut, room = 0, max_seq_len - len(before) - len(after)
    for first in range(0, len(texts), CHUNK):
        for ids in tokenizer.encode_batch(texts[first : first + CHUNK]):
            num_cut += len(ids) > room
            rows.append(np.array([*before, *ids[:room], *after], dtype=np.int32))
    return _encoded(rows, np.array(list(map(len, rows)), dtype=np.int64), None, tokenizer, num_cut)


def _encoded(
    rows: List[np.ndarray], heads: np.ndarray, labels, tokenizer: AnyTokenizer, num_cut: int, separators=0
) -> EncodedPairs:
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    ids = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
    return EncodedPairs(ids, starts, heads, labels, tokenizer.pad_id, num_cut, (), separators)


def windows_of(
    text: str, tokenizer: AnyTokenizer, tokens_of: Callable[[str], int], room: int, overlap: int
) -> List[Tuple[int, int]]:
    """Return the parts of a text that a model reads one by one: (begin, end) in its characters, in order.

    ``tokens_of`` counts those of a part, of which ``room`` are read; of a text that fits there is one window.
    Otherwise the first is what is read of the whole text, and neighbours share ``overlap`` tokens, below
    ``room``, the last two more. A window is cut into tokens anew, and shortened until it fits.
    """
    if tokens_of(text) <= room:
        return [(0, len(text))]
    _, starts, ends = (each.tolist() for each in tokenizer.tokenize(text))
    found: List[Tuple[int, int]] = []
    first, last, count = -1, 0, len(starts)
    while last < count:
        first = max(first + 1, min(last - overlap, count - room))
        last = min(first + room, count)
        begin = min(starts[first], found[-1][1]) if found else 0
        while (more := tokens_of(text[begin : ends[last - 1]]) - room) > 0 and last > first + 1:
            last = max(last - more, first + 1)
        found.append((begin, ends[last - 1] if last < count else len(text)))
    return found


def exchange_texts(batch: Batch) -> Batch:
    """Return ``batch`` with the texts of each row exchanged: [CLS] b [SEP] a [SEP], truncated as before."""
    types, columns = batch.token_type_ids, np.arange(batch.input_ids.shape[1])
    heads = (types > 0).argmax(axis=1)[:, None]  # each row has a second text, if only its [SEP]
    ends = heads + (types > 0).sum(axis=1, keepdims=True)
    separators = int((types[0] == SEPARATOR).sum())  # the same in all rows
    new_heads = 1 + ends - heads - separators
    first, second = columns - new_heads - separators + 1, columns + heads + separators - 1
    places = np.where(columns < new_heads, second, first)
    is_separator = (columns >= new_heads) & (columns < new_heads + separators)
    places = np.where(is_separator, columns - new_heads + heads, places)
    places = np.where((columns == 0) | (columns >= ends), columns, places)
    exchanged = np.take_along_axis(batch.input_ids, places, axis=1)
    new_types = ((columns >= new_heads) & (columns < ends)).astype(np.int64)
    new_types[is_separator] = SEPARATOR
    return batch._replace(input_ids=exchanged, token_type_ids=new_types)


def kept_lengths(left: int, right: int, room: int, is_fast: bool = False) -> Tuple[int, int]:
    """Return how many tokens of each text fit into ``room``.

    The longer text loses a token until both fit; when they are equally long the second loses it. (PaddleNLP's
    longest_first does the same.) ``is_fast``: as the library `tokenizers` does it, where the shorter text
    keeps half of an odd room rounded down, the first one of two that are equally long.
    """
    if is_fast and left + right > room:
        shorter = min(left, right, room // 2)
        return (shorter, room - shorter) if left <= right else (room - shorter, shorter)
    left = min(left, max(room - right, (room + 1) // 2))
    return left, min(right, room - left)


def evaluation_batches(
    lengths: np.ndarray,
    batch_size: int,
    rules: BatchRules = BatchRules(),  # noqa: B008
) -> List[np.ndarray]:
    """Return batches of row numbers, int64 [at most batch_size] each, that hold every row once.

    Rows of similar length are together; the batches are the same for any number of processes. They are formed
    within a WINDOW of the file, so that reading it window by window gives the same predictions.
    """
    batches = []
    for begin in range(0, len(lengths), WINDOW):
        by_length = begin + np.argsort(lengths[begin : begin + WINDOW], kind="stable")
        first, most = 0, rules.rows or batch_size
        while first < len(by_length):
            next_lengths, size = lengths[by_length[first : first + most]], most  # ascending
            while rules.most_tokens and size > 1:  # then the power of two that most_tokens allows
                longest = int(next_lengths[min(size, len(next_lengths)) - 1])
                if size * rules.padded(longest) <= rules.most_tokens:
                    break
                size = 1 << ((size - 1).bit_length() - 1)
            batches.append(by_length[first : first + size])
            first += size
    return batches
