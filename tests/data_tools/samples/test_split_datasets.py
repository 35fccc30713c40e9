"""Batches and windows of buckets, against their description in numpy."""

from types import SimpleNamespace

import numpy as np
import pytest

from data_tools.samples.split_datasets import BUCKETS, BucketedDataset, collate, whole_windows


class Numbered(list):
    """A dataset each sample of which is its own number."""

    def __init__(self, lengths):
        super().__init__(range(len(lengths)))
        self.all_lengths = lengths

    def lengths(self, numbers):
        return self.all_lengths[numbers]


def test_a_bucket_holds_neighbours_in_length_of_its_window():
    lengths, size = np.random.default_rng(0).integers(5, 400, 2 * 3 * BUCKETS), 3
    orders = []
    for seed in (1, 1, 2):
        dataset = BucketedDataset(Numbered(lengths), size, seed)
        orders.append([dataset[index] for index in range(len(dataset))])
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        windows = np.array(order).reshape(2, BUCKETS, size)
        for number, window in enumerate(windows):
            own = np.arange(number * BUCKETS * size, (number + 1) * BUCKETS * size)
            assert np.array_equal(np.sort(window.ravel()), own)
            sorted_buckets = np.sort(lengths[own]).reshape(BUCKETS, size).tolist()
            found = np.sort(lengths[window], axis=1).tolist()
            assert sorted(found) == sorted_buckets != found
        assert not np.array_equal(windows[0] + BUCKETS * size, windows[1])


def test_the_order_of_buckets_is_that_of_earlier_versions():
    """A run that they began goes on with the samples that it has not seen."""
    dataset = BucketedDataset(Numbered(np.full(2 * BUCKETS, 9)), 1, seed=1)
    first, second = np.reshape([dataset[index] for index in range(2 * BUCKETS)], (2, BUCKETS))
    assert first[:8].tolist() == [55, 43, 47, 45, 4, 60, 53, 32]
    assert not np.array_equal(second - BUCKETS, first)


@pytest.mark.parametrize("size", [1, 3])
def test_samples_are_rounded_up_to_whole_windows(size):
    window = BUCKETS * size
    for count in (0, 1, window - 1, window, window + 1, 5 * window):
        found = whole_windows(count, size)
        assert found % window == 0 and count <= found < count + window
        assert whole_windows(count, 0) == count


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_is_its_samples_with_padding(seed):
    rng = np.random.default_rng(seed)
    samples = []
    for length in rng.integers(4, 30, 3):
        masked = np.sort(rng.choice(length, rng.integers(0, 9) if seed else 0))
        ids, types = rng.integers(5, 99, length), np.full(length, 1)
        labels, ngrams = rng.integers(5, 99, len(masked)), None if seed % 2 else masked * 7
        samples.append(SimpleNamespace(
            input_ids=ids, token_type_ids=types, masked_positions=masked, masked_labels=labels,
            sop_label=int(rng.integers(-1, 2)), ngram_labels=ngrams, decoder_mask=None,
        ))  # fmt: skip
    batch = collate(samples, pad_id=3, max_seq_len=26)
    longest = max(len(sample.input_ids) for sample in samples)
    rounded = -(-longest // 8) * 8
    length = rounded if rounded <= 26 else max(26, longest)
    assert batch["input_ids"].shape == (3, length) and ("ngram_labels" in batch) == (seed % 2 == 0)
    at = 0
    for row, sample in enumerate(samples):
        size, stop = len(sample.input_ids), at + len(sample.masked_positions)
        assert batch["input_ids"][row].tolist() == [*sample.input_ids, *[3] * (length - size)]
        assert batch["token_type_ids"][row].tolist() == [1] * size + [0] * (length - size)
        assert (batch["masked_positions"][at:stop] == row * length + sample.masked_positions).all()
        assert (batch["masked_lm_labels"][at:stop] == sample.masked_labels).all()
        assert seed % 2 or (batch["ngram_labels"][at:stop] == sample.ngram_labels).all()
        at = stop
    assert batch["next_sentence_labels"].tolist() == [sample.sop_label for sample in samples]
    slots = max(8, -(-at // 8) * 8)
    for name, filler in (("masked_positions", 0), ("masked_lm_labels", -1), ("ngram_labels", -1)):
        if name in batch:
            assert len(batch[name]) == slots and (batch[name][at:] == filler).all()
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}
