"""Encoded pairs cached on disk, and streamed pairs; without paddle."""

import threading
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_pair import CHARACTERS, VOCAB, write_pairs

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError
from ernie_pair.models.labels import Labels
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.pairs.data import row_cache
from ernie_pair.pairs.data.encoded_pairs import encode_pairs, shuffled, streamed_steps
from ernie_pair.pairs.data.pair_file import Pair
from ernie_pair.pairs.data.pair_records import Columns, RowRules
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.pairs.data.row_cache import cached_rows
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.schedule import POOL_BATCHES

TWO = Labels.numbered(2)


@pytest.fixture
def source(tmp_path):
    return source_of(write_pairs(tmp_path / "train.tsv", 60))


def source_of(path, labels=TWO, columns=Columns()):  # noqa: B008
    return PairSource("train_file", str(path), "train", labels, columns)


def open_rows(tmp_path, source, tokenizer, length=64):
    (rows,) = cached_rows(tmp_path / "cache", [source], tokenizer, length)
    return rows


def same(first, second):
    columns = ("ids", "starts", "heads", "labels", "lengths")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in columns)


def names_in(folder, ending="*"):
    return sorted(path.name for path in folder.glob(f"*{ending}"))


def test_cached_rows_are_memory_mapped_and_equal_encoded_ones(tmp_path, source, tokenizer):
    rows = open_rows(tmp_path, source, tokenizer, length=9)
    encoded = encode_pairs(source.read(), tokenizer, 9)
    assert same(rows, encoded) and rows.num_cut == encoded.num_cut > 0
    ours, theirs = (made.batch(np.array([7, 3, 59])) for made in (rows, encoded))
    assert all(np.array_equal(one, other) for one, other in zip(ours, theirs))
    (table,) = names_in(tmp_path / "cache", ".arrow")
    assert not rows.ids.flags.owndata and table in Path("/proc/self/maps").read_text()


def test_a_second_run_tokenises_and_reads_nothing(tmp_path, source, tokenizer, monkeypatch):
    first = open_rows(tmp_path, source, tokenizer)
    monkeypatch.setattr(row_cache, "encode_pairs", None)
    monkeypatch.setattr(PairSource, "read", None)
    assert same(first, open_rows(tmp_path, source, tokenizer))


def test_unlabelled_pairs_are_cached_without_labels(tmp_path, tokenizer):
    path = write_pairs(tmp_path / "test.tsv", 9, labels=False)
    assert open_rows(tmp_path, source_of(path, labels=None), tokenizer).labels is None


def test_the_cache_key_covers_everything_rows_depend_on(tmp_path, source, tokenizer, monkeypatch):
    content = Path(source.name).read_text()
    other_pieces = WordPiece([*VOCAB[:4], *VOCAB[:3:-1]])
    (tmp_path / "other.tsv").write_text(content[:-2] + "0\n")
    (tmp_path / "same.tsv").write_text(content)
    (tmp_path / "header.tsv").write_text("text_a\ttext_b\tlabel\n" + content)
    line = '{"text_a": "\\u4eca", "text_b": "\\u5929", "b": "\\u6c14", "label": 0}\n'
    (tmp_path / "x.jsonl").write_text(line)
    open_rows(tmp_path, source, tokenizer)
    open_rows(tmp_path, source_of(tmp_path / "same.tsv"), tokenizer)
    open_rows(tmp_path, source_of(source.name, Labels.numbered(2)), tokenizer)
    assert len(names_in(tmp_path / "cache", ".arrow")) == 1
    open_rows(tmp_path, source, tokenizer, length=32)
    open_rows(tmp_path, source, other_pieces)
    open_rows(tmp_path, source_of(source.name, Labels.numbered(3)), tokenizer)
    open_rows(tmp_path, source_of(source.name, None), tokenizer)
    open_rows(tmp_path, source_of(tmp_path / "other.tsv"), tokenizer)
    open_rows(tmp_path, source_of(tmp_path / "header.tsv"), tokenizer)
    open_rows(tmp_path, source_of(tmp_path / "x.jsonl"), tokenizer)
    open_rows(tmp_path, source_of(tmp_path / "x.jsonl", columns=Columns(text_b="b")), tokenizer)
    rules = RowRules(encoding="gb18030"), RowRules(skips=True)
    for rule in rules:
        open_rows(tmp_path, replace(source_of(tmp_path / "x.jsonl"), rules=rule), tokenizer)
    for ending in ("tsv", "csv"):
        (tmp_path / f"both.{ending}").write_text("今,天\t明,气\n")
        open_rows(tmp_path, source_of(tmp_path / f"both.{ending}", None), tokenizer)
    monkeypatch.setattr(row_cache, "VERSION", row_cache.VERSION + 1)
    open_rows(tmp_path, source, tokenizer)
    assert len(names_in(tmp_path / "cache", ".arrow")) == 14


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "table flipped": (".arrow", flip),
    "table cut": (".arrow", lambda path: path.write_bytes(path.read_bytes()[:-9])),
    "table empty": (".arrow", lambda path: path.write_bytes(b"")),
    "table gone": (".arrow", lambda path: path.unlink()),
    "note flipped": (".json", flip),
    "note empty": (".json", lambda path: path.write_bytes(b"")),
    "note of another": (".json", lambda path: path.write_text('{"key": {}, "sha256": ""}')),
    "note a list": (".json", lambda path: path.write_text("[]")),
    "note gone": (".json", lambda path: path.unlink()),
}


@pytest.mark.parametrize("ending, damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cache_is_rebuilt_with_a_warning(tmp_path, source, tokenizer, caplog, ending, damage):
    first = encode_pairs(source.read(), tokenizer, 64)
    open_rows(tmp_path, source, tokenizer)
    (path,) = (tmp_path / "cache").glob(f"*{ending}")
    damage(path)
    had_table = bool(names_in(tmp_path / "cache", ".arrow"))
    assert same(open_rows(tmp_path, source, tokenizer), first)
    warned = [record.message for record in caplog.records]
    assert len(warned) == had_table
    assert all("is damaged or unfinished and is built again" in line for line in warned)
    assert not names_in(tmp_path / "cache", ".draft")


def test_concurrent_readers_tokenise_only_once(tmp_path, source, tokenizer, monkeypatch):
    calls, found, all_have_read = [], [], threading.Barrier(4, timeout=20)
    read_alone = PairSource.read

    def read(self):
        all_have_read.wait()  # so none of them has found the rows of another
        return read_alone(self)

    def encode(*args):
        calls.append(args)
        return encode_pairs(*args)

    monkeypatch.setattr(PairSource, "read", read)
    monkeypatch.setattr(row_cache, "encode_pairs", encode)
    ask = [
        threading.Thread(target=lambda: found.append(open_rows(tmp_path, source, tokenizer)))
        for _ in range(4)
    ]
    for thread in ask:
        thread.start()
    for thread in ask:
        thread.join()
    assert len(calls) == 1 and len(found) == 4
    assert all(same(rows, found[0]) for rows in found)


def test_a_bad_row_in_any_source_leaves_no_cache(tmp_path, source, tokenizer):
    (tmp_path / "bad.tsv").write_text("今\t天\t1\n今\t天\t7\n")
    with pytest.raises(InputError, match=r"bad\.tsv:2: label '7'"):
        cached_rows(tmp_path / "cache", [source, source_of(tmp_path / "bad.tsv")], tokenizer, 64)
    assert not (tmp_path / "cache").exists()


def test_a_file_with_too_many_tokens_must_be_streamed(tmp_path, source, tokenizer, monkeypatch):
    monkeypatch.setattr(row_cache, "MAX_TOKENS", 100)
    with pytest.raises(InputError, match="too large for memory; pass streaming=True"):
        open_rows(tmp_path, source, tokenizer)
    assert not names_in(tmp_path / "cache", ".arrow")


CONFIG = PairConfig("output", seed=3, batch_size=8, shuffle_buffer=16, max_seq_len=64)


@pytest.mark.parametrize("buffer", [1, 16, 60, 1000])
def test_each_stream_epoch_has_every_row_in_a_new_order(source, buffer):
    stream = shuffled(source, 3, buffer)
    epochs = [[row.number for row in islice(stream, 60)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(1, 61)) for epoch in epochs)
    if buffer > 1:
        assert len(set(map(tuple, epochs))) == 3 and epochs[0] != sorted(epochs[0])
        other = shuffled(source, 4, buffer)
        assert [row.number for row in islice(other, 60)] != epochs[0]
    if 1 < buffer < 60:  # the last place of the buffer is drawn too: its first row need not wait for the end
        assert min(epoch.index(buffer) for epoch in epochs) < 60 - buffer


def updates(source, tokenizer, count, consumed=0, world=World(), **changes):  # noqa: B008
    config = replace(CONFIG, batch_size=8 // world.size, **changes)
    return list(islice(streamed_steps(source, tokenizer, config, world, consumed), count))


def strip(batches):
    return [
        (row[row > 0].tolist(), int(label))
        for (batch,) in batches
        for row, label in zip(batch.input_ids, batch.labels)
    ]


def test_each_pool_of_a_stream_has_its_batches_in_another_order(source, tokenizer):
    steps = updates(source, tokenizer, 2 * POOL_BATCHES)
    lengths = [batch.input_ids.shape[1] for (batch,) in steps]
    ranks = [np.argsort(np.argsort(lengths[begin : begin + POOL_BATCHES])) for begin in (0, POOL_BATCHES)]
    assert abs(np.corrcoef(*ranks)[0, 1]) < 0.5


def test_no_two_draws_of_a_stream_have_one_seed(source, tokenizer, monkeypatch):
    """Neither those of two epochs or two pools, nor those of a pool and an epoch."""
    keys, default_rng = [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda key: (keys.append(tuple(key)), default_rng(key))[1])
    updates(source, tokenizer, 2 * POOL_BATCHES + 1)
    assert len(keys) == len(set(keys)) > 3 and {key[0] for key in keys} == {CONFIG.seed}


@pytest.mark.parametrize("bucket", [True, False])
@pytest.mark.parametrize("cut", [1, 7, 49, 50, 51, 113])
def test_a_reopened_stream_continues_as_if_never_closed(source, tokenizer, cut, bucket):
    whole = updates(source, tokenizer, 120, bucket=bucket)
    rest = updates(source, tokenizer, 120 - cut, consumed=cut * 8, bucket=bucket)
    assert strip(rest) == strip(whole)[cut * 8 :]


def test_two_processes_together_read_the_rows_of_one(source, tokenizer):
    one = strip(updates(source, tokenizer, 60))
    two = [updates(source, tokenizer, 60, world=World(rank, 2)) for rank in (0, 1)]
    assert [len(batch.labels) for (batch,) in two[0]] == [4] * 60
    assert strip([batch for both in zip(*two) for batch in both]) == one


def test_bucketed_stream_batches_hold_similar_lengths(source, tokenizer):
    def padding(bucket):
        ids = [batch.input_ids for (batch,) in updates(source, tokenizer, 100, bucket=bucket)]
        return np.mean([np.mean(rows == 0) for rows in ids])

    assert padding(bucket=True) < 0.04 < 0.2 < padding(bucket=False)


def test_a_stream_never_reads_far_ahead(tokenizer):
    read = []

    class Endless(SimpleNamespace):
        def rows(self):
            for number in range(1, 10**6):
                read.append(number)
                yield Pair(number, CHARACTERS[number % 9], CHARACTERS[: 1 + number % 5], number % 2)

    assert len(updates(Endless(), tokenizer, 150)) == 150
    assert len(read) == 3 * 8 * POOL_BATCHES + CONFIG.shuffle_buffer


def test_a_bad_row_ends_the_stream_when_it_is_reached(tmp_path, tokenizer):
    path = write_pairs(tmp_path / "train.tsv", 900)
    path.write_text(path.read_text().replace("\t1\n", "\t甲\n").replace("\t甲\n", "\t1\n", 400))
    number = 1 + [line[-1] for line in path.read_text().splitlines()].index("甲")
    stream = streamed_steps(source_of(path), tokenizer, CONFIG, World(), 0)
    assert number > 800 and len(list(islice(stream, 50))) == 50
    with pytest.raises(InputError, match=rf"train\.tsv:{number}: label '甲' is not one of 0, 1"):
        list(islice(stream, 500))


def test_a_text_without_tokens_takes_no_place(tmp_path, tokenizer):
    (tmp_path / "a.tsv").write_text("\u200b\t今\t1\n\u0301\t\u200b\u200d\t0\n", encoding="utf-8")
    rows = encode_pairs(source_of(tmp_path / "a.tsv").read(), tokenizer, 64)
    tokens = [[VOCAB[index] for index in row] for row in rows.batch(np.array([0, 1])).input_ids]
    assert tokens == [["[CLS]", "[SEP]", "今", "[SEP]"], ["[CLS]", "[SEP]", "[SEP]", "[PAD]"]]
