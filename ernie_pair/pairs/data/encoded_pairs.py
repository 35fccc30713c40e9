"""Pairs as token ids, and the batches that training takes from them: of rows in memory, or of a stream.

Which rows make a batch follows from numbers alone, so that any process, and any restart, finds the same ones.

A stream is never all in memory: a row waits in a buffer of --shuffle_buffer rows until a draw takes it, and
its place goes to the next row of the file. Pools of batches are then tokenised and sorted by length, as
`BatchOrder` does. The rows of an epoch are laid end to end behind those of the epoch before, without a seam:
a pool may hold rows of both. To go on from row n, the first n are read and left out.

A user's data_collator makes batches in place of the padding of this package. It is called with the rows of a
micro-batch, [{"input_ids": [...], "token_type_ids": [...], "labels": 1}, ...], and returns {"input_ids":
[B, S], ...} of arrays or tensors. Which rows these are is settled before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer, open_vocabulary
from ernie_pair.core.errors import InputError
from ernie_pair.inference.pair_tokenizer import PairTokenizer, show_pair
from ernie_pair.inference.token_rows import Batch, EncodedPairs, encode_texts
from ernie_pair.models.labels import UNLABELLED
from ernie_pair.models.spec import CONFIG, ModelSpec
from ernie_pair.pairs.data.in_memory_pairs import TokenizedPairs, array_of
from ernie_pair.pairs.data.pair_file import FILE, Pair, Pairs, labels_array
from ernie_pair.pairs.data.pair_source import WORDS, PairSource
from ernie_pair.pairs.data.rejected import StreamedRejects
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.schedule import POOL_BATCHES, BatchOrder, alike

_POOLS = 1  # sets the draws of the pools apart from those of the buffer
DataCollator = Callable[[list[dict[str, Any]]], Mapping]
KEYS = ("input_ids", "token_type_ids", "attention_mask", "labels", "label")


def encode_pairs(pairs: Pairs, tokenizer: AnyTokenizer, max_seq_len: int) -> EncodedPairs:
    """Encode every pair as token ids, cut to ``max_seq_len`` tokens (see ``kept_lengths``)."""
    rows = encode_texts(pairs.left, pairs.right, pairs.labels, tokenizer, max_seq_len)
    rows.bad, rows.groups = pairs.bad, pairs.groups
    return rows


def join_rows(parts: Sequence[EncodedPairs]) -> EncodedPairs:
    """Return the rows of all ``parts``, one after the other; of a part without labels UNLABELLED ones."""
    if len(parts) == 1 and parts[0].labels is not None:
        return parts[0]
    labels = [np.full(len(p), UNLABELLED, np.int64) if p.labels is None else p.labels for p in parts]
    lengths = np.concatenate([part.lengths for part in parts])
    return EncodedPairs(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        np.concatenate([part.heads for part in parts]),
        np.concatenate(labels),
        parts[0].pad_id,
        sum(part.num_cut for part in parts),
        separators=parts[0].separators,
    )


@dataclass(frozen=True)
class UserCollator:
    """Makes the batches of the model ``spec`` with ``function``; see `EncodedPairs.collator`."""

    function: DataCollator
    spec: ModelSpec

    def __call__(self, rows: EncodedPairs, picked: np.ndarray) -> Batch:
        """Return the batch of the rows ``picked``, int64 [B]; raises InputError when it cannot be used."""
        arrays = _arrays_of(self.function(rows.features(picked)))
        ids, types, spec = arrays["input_ids"], arrays.get("token_type_ids"), self.spec
        if ids.ndim != 2 or len(ids) != len(picked) or ids.shape[1] > spec.max_positions:
            wanted = f"{len(picked)} rows of at most {spec.max_positions} tokens"
            raise _refused(f"input_ids of the shape {list(ids.shape)}", wanted)
        if ((ids < 0) | (ids >= spec.vocab_size)).any():
            raise _refused("ids outside of the vocabulary", f"ids below {spec.vocab_size}")
        own = rows.padded(picked, ids.shape[1])
        is_own = np.array_equal(ids, own.input_ids)
        within = np.arange(ids.shape[1]) < rows.lengths[picked][:, None]
        is_repadded = ids.shape == own.input_ids.shape and np.array_equal(ids[within], own.input_ids[within])
        real = within if is_own else ids != rows.pad_id
        if is_repadded and not is_own or (real[:, 1:] > real[:, :-1]).any() or not real[:, 0].all():
            wanted = f"tokens and then padding of this model, the id {rows.pad_id}"
            raise _refused("padding in front of tokens, or of another id", wanted)
        for name, array in (("attention_mask", real), ("labels", own.labels), ("label", own.labels)):
            found = arrays.get(name)
            if found is None:
                continue
            if array is None or found.size != array.size or not np.allclose(found.ravel(), array.ravel()):
                raise _refused(f"other {name} than those of the rows", "them as they were given, or none")
        if is_own and (types is None or spec.token_types < 2):
            return own._replace(input_ids=ids)
        # A model with one type reads none of them; --symmetric tells the two texts by 0 and 1.
        known = range(max(2, spec.token_types))
        if types is None or types.shape != ids.shape or not np.isin(types, known).all():
            raise _refused(
                "other input_ids and no token_type_ids that fit", "both, the segments being 0 or 1"
            )
        if spec.has_match and not types.any():
            raise _refused("token_type_ids of one text", "1 for the second text: match embeddings need both")
        return own._replace(input_ids=ids, token_type_ids=types)


def _arrays_of(returned: Any) -> dict[str, np.ndarray]:
    if not isinstance(returned, Mapping) or "input_ids" not in returned or not {*KEYS}.issuperset(returned):
        found = ", ".join(map(str, returned)) if isinstance(returned, Mapping) else type(returned).__name__
        raise _refused(
            found or "nothing", f"a dictionary of input_ids, and of {', '.join(KEYS[1:])} if wanted"
        )
    arrays = {}
    for key, value in returned.items():
        array = array_of(value)
        if array.dtype.kind not in ("iubf" if "label" in key else "iub"):
            raise _refused(f"{key} that are no array of whole numbers", "rows of one length: pad them")
        arrays[key] = array.astype(np.int64) if array.dtype.kind in "iub" else array
    return arrays


def _refused(what: str, wanted: str) -> InputError:
    return InputError(f"data_collator returned {what}; return {wanted}")


def training_steps(
    rows: EncodedPairs, config, world: World, consumed: int, candidates: Optional[list[np.ndarray]] = None
) -> Iterator[list[Batch]]:
    """Yield the micro-batches of this rank for every step, without end, from row ``consumed`` on.

    A step takes ``config.pairs_per_step`` rows of the stream of `BatchOrder`: the same rows however they are
    divided over ranks and micro-batches. ``config``: a `PairConfig`. ``candidates`` are rows that stand
    together, see ``training_groups``: each of them counts as one row, and all of it is in one micro-batch.
    """
    lengths = rows.lengths
    if candidates is not None:
        lengths = np.array([lengths[each].max() for each in candidates])
    order = BatchOrder(lengths, config.seed, config.pairs_per_step(world.size), config.bucket)
    for numbers in order.batches(consumed):
        parts = split_among_ranks(numbers, world, config.gradient_accumulation_steps)
        if candidates is None:
            yield [rows.batch(part) for part in parts]
            continue
        batches = []
        for part in parts:
            together = [candidates[number] for number in part]
            picked = np.concatenate(together)
            queries = np.repeat(np.arange(len(together)), [len(each) for each in together])
            labels = np.stack([rows.known_labels[picked], queries], axis=1)
            batches.append(rows.batch(picked)._replace(labels=labels))
        yield batches


def split_among_ranks(numbers: np.ndarray, world: World, accumulation_steps: int) -> list[np.ndarray]:
    """Return this rank's share of the row ``numbers`` of a step, int64 [N], one array per micro-batch.

    Each array is a slice, so that rows of like length stay together. The slices of one micro-batch lie side
    by side, so that no rank has all the long rows. Rows 0 to 7, two ranks, two micro-batches: rank 0 has [0
    1] and [4 5], rank 1 has [2 3] and [6 7].
    """
    return np.split(numbers, world.size * accumulation_steps)[world.rank :: world.size]


def streamed_steps(
    source: PairSource,
    tokenizer: AnyTokenizer,
    config: Any,
    world: World,
    consumed: int,
    rejects: Optional[StreamedRejects] = None,
    collator: Optional[UserCollator] = None,
) -> Iterator[list[Batch]]:
    """Yield the micro-batches of this rank for every step, without end, from row ``consumed`` on.

    The rows of a step are the same however they are divided over ranks and micro-batches. ``config``: a
    `PairConfig`; ``collator`` makes the batches. Raises InputError naming file:line when a row is bad.
    """
    size = config.pairs_per_step(world.size)
    pool_size = size * (POOL_BATCHES if config.bucket else 1)  # rows that are tokenised and sorted together
    first_pool, done = divmod(consumed, pool_size)
    drawn = shuffled(source, config.seed, config.shuffle_buffer, rejects)
    stream = islice(drawn, first_pool * pool_size, None)
    for pool in count(first_pool):
        rows = list(islice(stream, pool_size))
        if isinstance(source, TokenizedPairs):
            encoded = source.form.encoded(rows)
        else:
            labels = labels_array([row.label for row in rows])
            texts = [row.left for row in rows], [row.right for row in rows]
            encoded = encode_texts(*texts, labels, tokenizer, config.max_seq_len)
        encoded.collator = collator
        batches = np.arange(pool_size).reshape(-1, size)
        if config.bucket:
            batches = alike(batches.ravel(), encoded.lengths, size)
            batches = batches[np.random.default_rng([config.seed, pool, _POOLS]).permutation(len(batches))]
        for picked in batches[done // size :]:
            parts = split_among_ranks(picked, world, config.gradient_accumulation_steps)
            yield [encoded.batch(part) for part in parts]
        done = 0


def shuffled(
    source: PairSource, seed: int, buffer: int, rejects: Optional[StreamedRejects] = None
) -> Iterator[Pair]:
    """Yield the rows of all epochs, shuffled in a buffer; ``rejects`` gets what the first leaves out."""
    for epoch in count():
        rng = np.random.default_rng([seed, epoch])
        waiting: list[Pair] = []
        for row in source.rows() if epoch or rejects is None else source.rows(rejects):
            if len(waiting) < buffer:
                waiting.append(row)
                continue
            place = int(rng.integers(len(waiting)))
            yield waiting[place]
            waiting[place] = row
        if not epoch and rejects is not None:
            rejects.log()
        yield from (waiting[place] for place in rng.permutation(len(waiting)))


def shown_pairs(config: Any, tokenizer: AnyTokenizer) -> Iterator[str]:
    """Yield label, tokens, ids, segments and cuts of the first pairs. InputError names file:line."""
    source = PairSource.of(config, "input_path", WORDS)
    for pair in islice(source.rows(), config.show):
        label = "no label" if pair.label == UNLABELLED else f"label {pair.label}"
        shown = show_pair(tokenizer, pair.left, pair.right, config.max_seq_len)
        yield f"line {pair.number % FILE}, {label}: {shown}\n"


def open_pair_tokenizer(path: str, max_seq_len: int) -> AnyTokenizer:
    """Open the tokenizer of a model folder as training does, or a file of it as it is for a corpus.

    Raises InputError when it is damaged, or the model has fewer positions than ``max_seq_len``.
    """
    if (Path(path) / CONFIG).is_file():
        return PairTokenizer(path, max_seq_len).tokenizer
    return open_vocabulary(path)
