"""Pair files, their rows of token ids, and the batches made from them; without paddle."""

from itertools import islice

import numpy as np
import pytest
from tiny_pair import VOCAB, write_model, write_pairs

from ernie_pair import PairConfig
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import BatchRules, evaluation_batches, kept_lengths, open_tokenizer
from ernie_pair.models.labels import Labels
from ernie_pair.models.spec import read_spec
from ernie_pair.pairs.data.encoded_pairs import encode_pairs, training_steps
from ernie_pair.pairs.data.pair_source import read_pairs
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.schedule import BatchOrder

ALONE = World()


def read(tmp_path, content, name="pairs.tsv", num_classes=2):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return read_pairs(path, num_classes)


def test_more_classes_allow_more_labels(tmp_path):
    assert read(tmp_path, "左\t右\t2\n", num_classes=3).labels.tolist() == [2]
    assert Labels.numbered(2).class_of(np.float32(1)) == Labels.numbered(2).class_of(np.int8(1)) == 1
    assert Labels.named({"1.0": 0, "1": 1}).class_of("1.0") == 0


@pytest.fixture
def rows(tmp_path, tokenizer):
    return encode_pairs(read_pairs(write_pairs(tmp_path / "toy.tsv", 37), 2), tokenizer, 64)


def test_a_row_is_cls_a_sep_b_sep(tmp_path, tokenizer):
    batch = encode_pairs(read(tmp_path, "今天\t你好他\t1\n你\t我\t0\n"), tokenizer, 64).batch(
        np.array([0, 1])
    )
    tokens = [[VOCAB[index] for index in row] for row in batch.input_ids]
    assert tokens[0] == ["[CLS]", "今", "天", "[SEP]", "你", "好", "他", "[SEP]"]
    assert tokens[1] == ["[CLS]", "你", "[SEP]", "我", "[SEP]", "[PAD]", "[PAD]", "[PAD]"]
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert batch.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    "left, right, room", [(a, b, r) for a in range(7) for b in range(7) for r in (2, 5, 6)]
)
def test_truncation_cuts_the_longer_text_or_on_a_tie_the_second(left, right, room):
    kept = [left, right]
    while sum(kept) > room:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert kept_lengths(left, right, room) == tuple(kept)


def test_both_texts_keep_a_token_at_the_smallest_length(tmp_path, tokenizer):
    rows = encode_pairs(read(tmp_path, f"{'今' * 5000}\t{'天' * 9000}\t1\n"), tokenizer, 5)
    assert [VOCAB[i] for i in rows.ids] == ["[CLS]", "今", "[SEP]", "天", "[SEP]"]


def order_of(epoch, seed=5, num_rows=37, batch_size=8, bucket=True):
    lengths = np.random.default_rng(9).integers(5, 40, size=num_rows)
    return BatchOrder(lengths, seed, batch_size, bucket).rows_at(epoch * num_rows, num_rows).tolist()


@pytest.mark.parametrize("bucket", [True, False])
@pytest.mark.parametrize("batch_size", [1, 8, 36, 37, 50, 100])
@pytest.mark.parametrize("epoch", range(4))
def test_an_epoch_takes_every_row_once(epoch, batch_size, bucket):
    assert sorted(order_of(epoch, batch_size=batch_size, bucket=bucket)) == list(range(37))


@pytest.mark.parametrize("bucket", [True, False])
def test_each_epoch_and_seed_has_a_different_order(bucket):
    orders = [order_of(epoch, seed, bucket=bucket) for epoch in (0, 1) for seed in (5, 6)]
    assert len(set(map(tuple, orders))) == 4


def padding(lengths, batches):
    widths = [lengths[rows].max() * len(rows) for rows in batches]
    return 1 - lengths[np.concatenate(batches)].sum() / sum(widths)


@pytest.mark.parametrize("num_rows, batch_size", [(3000, 16), (1000, 7)])
def test_buckets_group_similar_lengths_in_random_order(num_rows, batch_size):
    lengths = np.random.default_rng(0).integers(10, 60, size=num_rows)

    def batches_of(bucket):
        stream = BatchOrder(lengths, 1, batch_size, bucket).batches(0)
        return list(islice(stream, 2 * num_rows // batch_size))

    plain, bucketed = batches_of(bucket=False), batches_of(bucket=True)
    assert padding(lengths, bucketed) < 0.06 < 0.3 < padding(lengths, plain)
    mean_lengths = [lengths[rows].mean() for rows in bucketed]
    steps = np.abs(np.diff(mean_lengths))
    assert steps.mean() > 10  # not one long ramp
    assert abs(np.corrcoef(mean_lengths, np.arange(len(bucketed)))[0, 1]) < 0.2
    assert len(set(map(frozenset, bucketed))) == len(bucketed)  # the next epoch has other batches


def updates_of(rows, count, world=ALONE, consumed=0, batch_size=8):
    stream = training_steps(rows, PairConfig("out", seed=3, batch_size=batch_size), world, consumed)
    return [batch.input_ids for batches in islice(stream, count) for batch in batches]


def strip(batches):
    return [row[row > 0].tolist() for batch in batches for row in batch]


def test_a_reopened_stream_continues_as_if_never_closed(rows):
    whole = updates_of(rows, 12)
    again = updates_of(rows, 5) + updates_of(rows, 7, consumed=5 * 8)
    assert strip(whole) == strip(again)


def test_slices_of_two_ranks_form_the_batch_of_one_process(rows):
    one = updates_of(rows, 6, batch_size=8)
    two = [updates_of(rows, 6, World(rank, 2), batch_size=4) for rank in (0, 1)]
    assert strip(one) == strip([batch for both in zip(*two) for batch in both])


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_evaluation_covers_every_row_once_sorted_by_length(batch_size):
    lengths = np.random.default_rng(0).integers(5, 40, size=33)
    batches = evaluation_batches(lengths, batch_size)
    assert sorted(np.concatenate(batches).tolist()) == list(range(33))
    assert (np.diff(lengths[np.concatenate(batches)]) >= 0).all()


@pytest.mark.parametrize("batch_size", [1, 5, 64])
@pytest.mark.parametrize("rules", [BatchRules(256), BatchRules(300, 8), BatchRules(16)])
def test_evaluation_batches_respect_the_token_limit(batch_size, rules):
    lengths = np.random.default_rng(1).integers(5, 40, size=500)
    batches = evaluation_batches(lengths, batch_size, rules)
    assert np.array_equal(np.concatenate(batches), np.argsort(lengths, kind="stable"))
    for rows in batches:
        tokens = len(rows) * rules.padded(int(lengths[rows].max()))
        assert len(rows) == 1 or (tokens <= rules.most_tokens and len(rows) <= batch_size)
    assert batch_size < 64 or rules.most_tokens < 64 or max(map(len, batches)) > 8


@pytest.mark.parametrize(
    "changes, length, reason",
    [
        ({"vocab_size": 9}, 64, "tokens, its model takes 9; give the vocabulary"),
        ({"vocab_size": "many"}, 64, 'vocab_size is "many", and takes a whole number'),
        ({"pad_token_id": 3}, 64, r"vocab\.txt:1: \[PAD\] has the id 0"),
        ({}, 129, "max_seq_len=129 is more than the model's 128 positions; use 128"),
    ],
)
def test_a_vocabulary_that_does_not_fit_its_model_is_refused(tmp_path, changes, length, reason):
    folder = write_model(tmp_path / "model", **changes)
    files = folder / "config.json", folder / "vocab.txt"
    with pytest.raises(InputError, match=reason):
        open_tokenizer(files[1], read_spec(*files), length)
