"""The data of pretraining: blends, masks, vocabularies, workers, and batches of similar length."""

import multiprocessing
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pretrain_runs import assert_same_files
from tiny_pretrain import CHARACTERS, SPEC, events, flags, opened, pretrain, write_corpus, write_model
from waiting import until

from data_tools.corpus.mixture import BlendedDataset
from data_tools.corpus.twin_vocab import with_twins
from data_tools.corpus.writer import CorpusWriter
from data_tools.samples.split_datasets import BUCKETS
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError, LostProcessError
from ernie_pair.pretraining import data as loader
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.pretraining.data import Loader, count_workers, open_pretrain_data
from ernie_pair.runtime.cpu import Share
from ernie_pair.runtime.processes.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    model = write_model(folder / "model")
    for number, name in enumerate("ab"):
        write_corpus(folder / name, model, seed=number)
    return folder


def blended(world, **changes):
    return opened(world, f"1 {world / 'a'} 2.0 {world / 'b'}", **changes)


def test_a_blend_reads_its_corpora_in_exact_proportion(world):
    data = blended(world, max_steps=30)
    train = data.datasets["train"]
    assert [len(part) for part in train.datasets] == [40, 80]
    corpora, own = data.blend.locate(np.arange(120))
    for number in range(0, 120, 7):
        sample = train.datasets[corpora[number]][int(own[number])]
        assert np.array_equal(train[number].input_ids, sample.input_ids)


def test_a_blend_resumes_and_begins_like_a_shorter_run(world):
    updates = [batch["input_ids"] for group in blended(world).updates(0) for batch in group]
    resumed = [batch["input_ids"] for group in blended(world).updates(4 * 4) for batch in group]
    assert len(updates) == 6 and all(map(np.array_equal, updates[4:], resumed))
    short, long = blended(world).datasets["train"], blended(world, max_steps=50).datasets["train"]
    assert all(np.array_equal(short[number].input_ids, long[number].input_ids) for number in range(24))


@pytest.mark.parametrize("parts", ["a", "ab"])
def test_an_epoch_reads_every_sentence_about_once(world, parts):
    """With equal weights and corpora of similar size, two corpora are used up at about the same time."""
    data = opened(world, " ".join(f"1 {world / name}" for name in parts), max_steps=200)
    train = data.datasets["train"]
    datasets = train.datasets if len(parts) > 1 else [train]
    exact = 0
    for corpus, dataset in zip(data.corpora, datasets):
        sentences = corpus.docs[48]  # --split 80,10,10 of 60 documents
        rows = np.asarray(dataset.sample_map)
        exact += int(np.searchsorted(np.cumsum(rows[:, 1] - rows[:, 0]), sentences)) + 1
    assert data.samples_per_epoch == pytest.approx(exact, rel=0.05)


def test_an_epoch_counts_each_corpus_by_its_weight(world):
    data = blended(world)
    parts = [SimpleNamespace(sample_map=np.array([[0, sentences, 9]])) for sentences in (1, 4)]
    data = replace(data, datasets={"train": BlendedDataset(parts, data.blend)})
    mean = 1 / 3 * 1 + 2 / 3 * 4  # sentences in a sample
    assert data.samples_per_epoch == pytest.approx(sum(c.docs[48] for c in data.corpora) / mean)


def test_other_weights_or_corpora_change_the_fingerprint(world, tmp_path):
    third = write_corpus(tmp_path / "c", world / "model", seed=2)
    blends = [f"2 {world / 'a'} 1 {world / 'b'}", f"1 {world / 'a'} 2.0 {third}"]
    data = [blended(world), opened(world), *(opened(world, blend) for blend in blends)]
    assert len({each.fingerprint for each in data}) == 4
    assert opened(world).fingerprint == opened(world).corpora[0].fingerprint


def test_without_the_sop_head_samples_have_one_segment(world):
    data = opened(world, binary_head="false", short_seq_prob=0)
    batch = next(data.updates(0))[0]
    assert (batch["next_sentence_labels"] == -1).all() and not batch["token_type_ids"].any()
    samples = [data.datasets["train"][number] for number in range(24)]
    assert max(len(sample.input_ids) for sample in samples) == 32
    assert {int((sample.input_ids == 2).sum()) for sample in samples} == {1}
    with_head, without = opened(world), opened(world, binary_head="false")
    rows = [data.datasets["train"].sample_map for data in (with_head, without)]
    assert not np.array_equal(*rows)


def hide_the_second(tokens, rule, rng, marks):
    ids = rule.base_ids[tokens]
    label = ids[1:2].copy()
    ids[1] = rule.mask_id
    return ids, np.array([1]), label


def test_a_custom_masking_function_is_used(world):
    data = opened(world, masking_fn=f"{__name__}:hide_the_second")
    batch = next(data.updates(0))[0]
    assert (batch["input_ids"][:, 1] == 3).all() and (batch["masked_lm_labels"] >= 0).sum() == 4


@pytest.mark.parametrize(
    "flag, value", [("input_dir", "5.0 a 7.0"), ("input_dir", "1 none 2 a"), ("masking_fn", "x")]
)
def test_data_that_cannot_be_read_are_refused(world, flag, value):
    changes = {flag: value}
    with pytest.raises(InputError):
        opened(world, changes.pop("input_dir", None), **changes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model without twin tokens, and a corpus built with its vocabulary extended by them."""
    folder = tmp_path_factory.mktemp("plain")
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, "word", "[UNK]"]
    write_model(folder / "model", vocab_size=len(tokens))
    (folder / "model" / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens), encoding="utf-8")
    write_model(folder / "extended")
    more = with_twins(WordPiece(tokens)).tokens
    assert more == [*tokens, *(f"##{character}" for character in CHARACTERS)]
    (folder / "extended" / "vocab.txt").write_text("".join(f"{t}\n" for t in more), encoding="utf-8")
    with_marks(folder / "a", WordPiece(more))
    return folder


def with_marks(folder, tokenizer):
    """Every second character is a twin."""
    rng = np.random.default_rng(0)
    with CorpusWriter(
        folder / "text", vocab_size=tokenizer.vocab_size, about={"vocab_sha256": tokenizer.sha256}
    ) as w:
        for _ in range(60):
            ids = rng.integers(4, 4 + len(CHARACTERS), (4, 8))
            ids[:, 1::2] = tokenizer.continuation_ids[ids[:, 1::2]]
            w.add(ids.tolist())


@pytest.mark.parametrize("vocab_of", ["model", "extended"])
def test_corpus_twin_tokens_need_no_rows_in_the_model(plain, vocab_of):
    rows = len(CHARACTERS) + 6
    words = list(map(str, flags(plain / "model", plain / "a", plain / "output" / vocab_of)))
    tokenizer = WordPiece.from_file(plain / vocab_of / "vocab.txt")
    spec = SPEC.replace(vocab_size=rows)
    data = open_pretrain_data(parse_config(PretrainConfig, words), World(0, 1), tokenizer, spec)
    assert data.corpora[0].max_id >= rows
    for group in data.updates(0):
        assert all(batch["input_ids"].max() < rows > batch["masked_lm_labels"].max() for batch in group)


def test_a_vocabulary_or_model_that_does_not_fit_is_refused(world):
    with pytest.raises(InputError, match=r"53 tokens and the model 28 rows: '\[UNK\]', line 53, has none"):
        opened(world, spec=SPEC.replace(vocab_size=28))
    with pytest.raises(InputError, match="the model 20 rows"):
        opened(world, spec=SPEC.replace(vocab_size=20))
    one_type = SPEC.replace(type_vocab_size=1)
    with pytest.raises(InputError, match="use binary_head=False"):
        opened(world, spec=one_type)
    assert opened(world, spec=one_type, binary_head="false")
    assert opened(world, spec=SPEC.replace(type_vocab_size=0))
    with pytest.raises(InputError, match=r"\[PAD\] is token 0 of vocab.txt, .* masks its pad_token_id 5"):
        opened(world, spec=SPEC.replace(pad_token_id=5))


# --- batches made ahead of time by workers


BATCHES = [range(first, first + 3) for first in range(0, 60, 3)]


class Squares:
    """Unless ``has_all``, item 31 raises IndexError and item 32 kills the process that asks for it."""

    def __init__(self, has_all=True):
        self.has_all = has_all

    def __getitem__(self, index):
        if index == 31 and not self.has_all:
            raise IndexError("item 31")
        if index == 32 and not self.has_all:
            os.kill(os.getpid(), signal.SIGKILL)
        return index * index


@pytest.mark.parametrize("asked, cores, started", [(0, 1, 0), (2, 1, 1), (2, 8, 2), (9, 4, 4)])
def test_workers_are_limited_to_the_cores_of_the_process(asked, cores, started, monkeypatch, caplog):
    monkeypatch.setattr(loader, "cpu_share", lambda: Share(list(range(cores)), cores, is_own=True))
    with caplog.at_level("INFO"):
        assert count_workers(asked) == started
    assert ("as many as this process has cores" in caplog.text) is (started < asked)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_come_in_order_from_any_number_of_workers(num_workers):
    with Loader(Squares(), list, num_workers) as loader:
        for _ in range(2):  # the workers are reused
            assert list(loader.batches(BATCHES)) == [[index * index for index in each] for each in BATCHES]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_is_raised_in_place_of_its_batch(num_workers):
    with Loader(Squares(has_all=False), list, num_workers) as loader:
        batches = loader.batches(BATCHES)
        assert [next(batches) for _ in range(10)][-1] == [27 * 27, 28 * 28, 29 * 29]
        with pytest.raises(IndexError, match="item 31"):
            next(batches)


def test_killed_and_late_workers_are_reported_and_ended(monkeypatch):
    dying = [[0], [1], [32], [2]]
    with Loader(Squares(has_all=False), list, 1) as one, pytest.raises(LostProcessError):
        list(one.batches(dying))
    monkeypatch.setattr(loader, "START_SECONDS", 0.0)  # nobody waits for the others
    late = Loader(Squares(), list, 2)
    with pytest.raises(LostProcessError, match="not all 2 loader processes have started within 0 s; lower"):
        late.__enter__()
    until(lambda: not multiprocessing.active_children(), seconds=20)


class Processes:
    """A dataset whose items say which process made them, and whether it has seen a later change."""

    said = "before"

    def __getitem__(self, index):
        return os.getpid(), self.said


def test_all_processes_are_forked_before_the_first_batch():
    """Nothing this process does after entering the context, such as opening a GPU, affects the workers."""
    dataset = Processes()
    with Loader(dataset, list, 3) as loader:
        children = set(multiprocessing.active_children())
        Processes.said = dataset.said = "after"
        made = [one for batch in loader.batches(BATCHES) for one in batch]
        assert len(children) == 3 and set(multiprocessing.active_children()) == children
    pids, said = map(set, zip(*made))
    assert said == {"before"} and pids <= {child.pid for child in children}


# --- batches of similar length


STEPS = 2 * BUCKETS  # of 4 samples: two windows of buckets of 4


def padding(data):
    ids = [batch["input_ids"] for group in data.updates(0) for batch in group]
    return 1 - sum(np.count_nonzero(each) for each in ids) / sum(each.size for each in ids)


@pytest.mark.parametrize("given", ["a", "blend"])
@pytest.mark.parametrize("head", ["true", "false"])
def test_lengths_match_the_samples(world, given, head):
    sources = f"1 {world / 'a'} 2.0 {world / 'b'}" if given == "blend" else world / "a"
    train = opened(world, sources, max_steps=20, binary_head=head).datasets["train"]
    numbers = np.arange(80)
    assert train.lengths(numbers).tolist() == [len(train[number].input_ids) for number in range(80)]


def test_bucketing_reduces_padding(world):
    plain, bucketed = (opened(world, max_steps=STEPS, bucket_size=size) for size in (0, 4))
    assert padding(bucketed) < 0.5 * padding(plain)


def test_the_order_is_the_same_in_longer_and_resumed_runs(world):
    settings = {"bucket_size": 4, "max_steps": 40}
    updates = [batch["input_ids"] for group in opened(world, **settings).updates(0) for batch in group]
    longer = opened(world, **{**settings, "max_steps": 200})
    assert all(np.array_equal(one, other[0]["input_ids"]) for one, other in zip(updates, longer.updates(0)))
    resumed = [batch["input_ids"] for group in opened(world, **settings).updates(4 * 30) for batch in group]
    assert len(resumed) == 10 and all(map(np.array_equal, updates[30:], resumed))


def test_the_order_is_that_of_the_seed(world, monkeypatch):
    seeds = []
    monkeypatch.setattr(loader, "BucketedDataset", lambda dataset, size, seed: seeds.append(seed))
    for seed in (1, 2):
        opened(world, bucket_size=4, seed=seed)._loader("train", num_workers=0)
    assert seeds == [1, 2]


def test_two_processes_read_the_same_samples_as_one(world):
    settings = {"bucket_size": 8, "max_steps": 30, "global_batch_size": 8}
    one = opened(world, **settings)
    two = opened(world, **{**settings, "micro_batch_size": 2, "dp_degree": 2})
    ranks = [replace(two, world=World(rank, 2)).updates(0) for rank in range(2)]
    for whole, *parts in zip(one.updates(0), *ranks):
        assert rows_of(whole) == rows_of(sum(parts, []))


def rows_of(batches):
    return sorted(tuple(row[row > 0].tolist()) for batch in batches for row in batch["input_ids"])


def test_windows_are_whole_and_small_buckets_refused(world):
    assert len(opened(world, max_steps=65, bucket_size=4).datasets["train"]) == 2 * BUCKETS * 4
    with pytest.raises(InputError, match="bucket_size=2 is below micro_batch_size=4"):
        opened(world, bucket_size=2)


def test_resuming_a_bucketed_run_is_bit_identical(world):
    settings = {"decay_steps": 6, "warmup_rate": 0, "bucket_size": 4, "num_workers": 1}
    for output, steps in (("whole", 6), ("cut", 4), ("cut", 6)):
        pretrain(world, world / output, input_dir=world / "a", max_steps=steps, **settings)
    assert_same_files(world / "cut", world / "whole")
    cut, whole = ([e["loss"] for e in events(world / name, "train")] for name in ("cut", "whole"))
    assert cut == whole
