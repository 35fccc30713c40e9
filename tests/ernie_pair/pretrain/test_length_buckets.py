"""Batches of similar length: less padding, and the same samples in every layout and after a restart."""

from dataclasses import replace

import numpy as np
import pytest
from pretrain_runs import assert_same_files
from tiny_pretrain import events, pretrain, write_corpus, write_model
from tiny_pretrain_data import opened

from data_tools.files.errors import InputError
from data_tools.samples.collate import BUCKETS, BucketedDataset, whole_windows
from ernie_pair.runtime.processes.world import World

STEPS = 2 * BUCKETS  # of 4 samples: two windows of buckets of 4


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("buckets")
    model = write_model(folder / "model")
    for number, name in enumerate("ab"):
        write_corpus(folder / name, model, seed=number)
    return folder


def padding(data):
    """The share of padding in all batches."""
    ids = [batch["input_ids"] for group in data.updates(0) for batch in group]
    return 1 - sum(np.count_nonzero(each) for each in ids) / sum(each.size for each in ids)


@pytest.mark.parametrize("given", ["a", "blend"])
@pytest.mark.parametrize("head", ["true", "false"])
def test_lengths_match_the_samples(world, given, head):
    sources = f"1 {world / 'a'} 2.0 {world / 'b'}" if given == "blend" else world / "a"
    train = opened(world, sources, max_steps=20, binary_head=head).datasets["train"]
    numbers = np.arange(80)
    assert train.lengths(numbers).tolist() == [len(train[number].input_ids) for number in range(80)]


def test_bucketing_reduces_padding_in_an_order_of_the_seed(world):
    plain, bucketed = (opened(world, max_steps=STEPS, bucket_size=size) for size in (0, 4))
    assert padding(bucketed) < 0.5 * padding(plain)
    lengths = np.arange(BUCKETS * 4)
    orders = [BucketedDataset(NumberedSamples(lengths), 4, seed) for seed in (1, 1, 2)]
    one, again, other = ([order[number] for number in range(len(lengths))] for order in orders)
    assert one == again != other


def test_each_window_contains_its_samples_exactly_once(world):
    train = opened(world, max_steps=STEPS, bucket_size=4).datasets["train"]
    assert len(train) == 2 * BUCKETS * 4
    lengths = train.lengths(np.arange(len(train)))
    order = BucketedDataset(NumberedSamples(lengths), 4, seed=1)
    for window in range(2):
        numbers = range(window * BUCKETS * 4, (window + 1) * BUCKETS * 4)
        assert sorted(order[number] for number in numbers) == list(numbers)
        first = [lengths[order[number]] for number in numbers[::4]]
        assert first != sorted(first)  # the buckets are not sorted by length


class NumberedSamples:
    """Stands in for a dataset: each sample is its own index."""

    def __init__(self, lengths):
        self.all_lengths = lengths

    def __len__(self):
        return len(self.all_lengths)

    def __getitem__(self, index):
        return index

    def lengths(self, indices):
        return self.all_lengths[indices]


def test_the_order_is_the_same_in_longer_and_resumed_runs(world):
    settings = {"bucket_size": 4, "max_steps": 40}
    updates = [batch["input_ids"] for group in opened(world, **settings).updates(0) for batch in group]
    longer = opened(world, **{**settings, "max_steps": 200})
    assert all(np.array_equal(one, other[0]["input_ids"]) for one, other in zip(updates, longer.updates(0)))
    resumed = [batch["input_ids"] for group in opened(world, **settings).updates(4 * 30) for batch in group]
    assert len(resumed) == 10 and all(map(np.array_equal, updates[30:], resumed))


def test_two_processes_read_the_same_samples_as_one(world):
    settings = {"bucket_size": 8, "max_steps": 30, "global_batch_size": 8}
    one = opened(world, **settings)
    two = opened(world, **{**settings, "micro_batch_size": 2, "dp_degree": 2})
    ranks = [replace(two, world=World(rank, 2)).updates(0) for rank in range(2)]
    for whole, *parts in zip(one.updates(0), *ranks):
        assert rows_of(whole) == rows_of(sum(parts, []))


def rows_of(batches):
    return sorted(tuple(row[row > 0].tolist()) for batch in batches for row in batch["input_ids"])


def test_bad_sizes_are_rounded_up_or_refused(world):
    assert whole_windows(1, 4) == BUCKETS * 4 and whole_windows(BUCKETS * 4, 4) == BUCKETS * 4
    assert whole_windows(17, 0) == 17
    with pytest.raises(InputError, match="bucket_size=2 is below micro_batch_size=4"):
        opened(world, bucket_size=2)


def test_resuming_a_bucketed_run_is_bit_identical(world):
    settings = {"decay_steps": 6, "warmup_rate": 0, "bucket_size": 4, "num_workers": 1}
    for output, steps in (("whole", 6), ("cut", 4), ("cut", 6)):
        pretrain(world, world / output, input_dir=world / "a", max_steps=steps, **settings)
    assert_same_files(world / "cut", world / "whole")
    cut, whole = ([e["loss"] for e in events(world / name, "train")] for name in ("cut", "whole"))
    assert cut == whole
