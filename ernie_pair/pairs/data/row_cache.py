"""Encoded pairs on disk: tokenised once, memory mapped, checked whenever they are opened.

CACHE/pairs-NAME.arrow   an Arrow stream: input_ids, head (see `EncodedPairs`), label
CACHE/pairs-NAME.json    its sha256 and the key it was made for; written last, so the two are whole
CACHE/pairs-NAME.lock    held by the process that makes them

NAME is a hash of all that the rows depend on: the content of the file, how it is read, the vocabulary, the
length. A changed file has other files here.
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Callable, Optional, Sequence, Union

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from data_tools.text.text_files import Place, plain_suffix
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.json_file import is_whole_number
from ernie_pair.core.files.keyed_cache import KeyedCache
from ernie_pair.inference.token_rows import EncodedPairs
from ernie_pair.pairs.data.encoded_pairs import encode_pairs
from ernie_pair.pairs.data.in_memory_pairs import TokenizedPairs
from ernie_pair.pairs.data.pair_file import BadRow, Pairs
from ernie_pair.pairs.data.pair_source import PairSource, read_all

VERSION = 4  # raised when the same file would give other rows
MAX_TOKENS = 2**31 - 1  # that one Arrow list counts
LOCK_SECONDS = 6 * 3600  # the kernel frees it when its holder dies

Check = Callable[[Sequence[Union[Pairs, EncodedPairs]]], None]


def cached_rows(
    cache_dir: Path,
    sources: Sequence[PairSource],
    tokenizer: AnyTokenizer,
    max_seq_len: int,
    check: Check = lambda found: None,
) -> list[EncodedPairs]:
    """Return the pairs of each source as token ids, memory mapped; encode those not in ``cache_dir``.

    Rows that are ids already, `TokenizedPairs`, are returned as they are, and held in memory.
    ``check`` is given each, pairs or encoded pairs with labels, before anything is written. Any number of
    processes may ask at once: one tokenises while it holds a lock, the others wait, and the next one does it
    when the first dies. Raises InputError for a bad row of any source, before anything is written;
    MachineError when the disk does not keep what is written.
    """
    caches = [
        None if isinstance(source, TokenizedPairs) else _cache_of(cache_dir, source, tokenizer, max_seq_len)
        for source in sources
    ]
    encoded = [None if cache is None else cache.read() for cache in caches]
    read = iter(read_all([source for source, rows in zip(sources, encoded) if rows is None]))
    found = [next(read) if rows is None else rows for rows in encoded]
    check(found)
    encode = partial(_encode, tokenizer, max_seq_len)
    return [
        cache.get(partial(encode, source, each), LOCK_SECONDS)
        if cache is not None and isinstance(each, Pairs)
        else each
        for cache, source, each in zip(caches, sources, found)
    ]


def _encode(tokenizer: AnyTokenizer, max_seq_len: int, source: PairSource, pairs: Pairs) -> EncodedPairs:
    encoded = encode_pairs(pairs, tokenizer, max_seq_len)
    if encoded.starts[-1] > MAX_TOKENS:
        raise InputError(f"--{source.flag} {source.name}: too large for memory; pass --streaming true")
    return encoded


def _cache_of(
    cache_dir: Path, source: PairSource, tokenizer: AnyTokenizer, max_seq_len: int
) -> KeyedCache[EncodedPairs]:
    labels, columns, rules = source.labels, asdict(source.columns), source.rules
    key: dict[str, object] = {
        "version": VERSION,
        "content": source.sha256(),
        "ending": ",".join(map(plain_suffix, source.files)) if source.is_file else "",
        "columns": {name: value for name, value in columns.items() if name != "query" or value},
        "rules": [rules.encoding, rules.skips, rules.of_encoders],
        "labels": labels and (labels.classes if labels.has_classes else labels.read_as),
        "vocabulary": tokenizer.sha256,
        "max_seq_len": max_seq_len,
    }
    if rules.place != Place():
        key["place"] = list(rules.place)
    if labels is not None and labels.are_optional:
        key["labels are optional"] = True
    return KeyedCache(cache_dir, key, _write, partial(_load, tokenizer), kind="pairs-", ending=".arrow")


def _write(rows: EncodedPairs, draft: Path) -> dict[str, object]:
    """Write the rows as one Arrow record batch, so that their ids lie side by side in the file."""
    import pyarrow as pa

    columns = {
        "input_ids": pa.ListArray.from_arrays(pa.array(rows.starts, pa.int32()), pa.array(rows.ids)),
        "head": pa.array(rows.heads, pa.int32()),
    }
    if rows.labels is not None:  # int64 of classes, float64 of scores
        columns["label"] = pa.array(rows.labels)
    if rows.groups is not None:
        columns["group"] = pa.array(rows.groups, pa.int64())
    table = pa.table(columns)
    with pa.OSFile(str(draft), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(rows)))
    bad = [list(row) for row in rows.bad]
    return {"sha256": sha256_of_file(draft), "rows": len(rows), "num_cut": rows.num_cut, "bad": bad}


def _load(tokenizer: AnyTokenizer, note: dict, path: Path) -> Optional[EncodedPairs]:
    import pyarrow as pa

    if not is_whole_number(note.get("num_cut"), 0):
        return None
    bad = tuple(BadRow(*row) for row in note["bad"])
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    (lists,) = table.column("input_ids").chunks
    heads = table.column("head").to_numpy()
    labels = table.column("label").to_numpy() if "label" in table.column_names else None
    starts = lists.offsets.to_numpy().astype(np.int64)
    ids, separators = lists.values.to_numpy(), len(tokenizer.pair_specials[1]) - 1
    rows = EncodedPairs(ids, starts, heads, labels, tokenizer.pad_id, note["num_cut"], bad, separators)
    rows.groups = table.column("group").to_numpy() if "group" in table.column_names else None
    return rows
