import multiprocessing

import numpy as np
import pytest

from data_tools.files.errors import InputError
from data_tools.files.keyed_cache import mix, mix_range
from data_tools.samples import sample_map
from data_tools.samples.sample_map import build_sample_map, cached_sample_map, cut_documents

ALWAYS, NEVER = 2**64 - 1, 0


def random_corpus(seed):
    rng = np.random.default_rng(seed)
    sentences = rng.integers(0, 9, size=rng.integers(1, 60))
    docs = np.concatenate([[0], np.cumsum(sentences)]).astype(np.int64)
    return docs, rng.integers(1, 40, size=docs[-1]).astype(np.int32)


def build(docs, lens, num_samples=50, **changes):
    settings = {"target_length": 61, "short_seq_prob": 0.2, "seed": 5, "min_sentences": 2, **changes}
    return build_sample_map(docs, lens, range(len(docs) - 1), num_samples=num_samples, **settings)


def test_the_docstring_example_holds():
    docs, lens = np.array([0, 2, 3, 6], np.int64), np.full(6, 4, np.int32)
    assert cut_documents(docs, lens, 8, NEVER, 0, 2).tolist() == [[0, 2, 8], [2, 3, 8], [3, 6, 8]]


@pytest.mark.skipif(sample_map._helpers is None, reason="helper not compiled; run: pip install -e .")
@pytest.mark.parametrize("seed", range(60))
def test_the_compiled_map_equals_the_python_map(seed):
    docs, lens = random_corpus(seed)
    settings = (int(seed % 3 * 17 + 5), [NEVER, ALWAYS, 2**61, 2**63][seed % 4], seed * 2**57, 1 + seed % 3)
    compiled = sample_map._helpers.cut_documents(docs, lens, *settings)
    assert np.array_equal(compiled, cut_documents(docs, lens, *settings))


@pytest.mark.skipif(sample_map._helpers is None, reason="helper not compiled; run: pip install -e .")
def test_the_compiled_map_refuses_documents_outside_the_corpus():
    with pytest.raises(ValueError, match="outside"):
        sample_map._helpers.cut_documents(np.array([0, 9]), np.ones(3, np.int32), 8, 0, 0, 2)


def test_the_vectorised_hash_equals_the_scalar_one():
    start = 2**64 - 3
    assert mix_range(start, 6).tolist() == [mix((start + i) % 2**64) for i in range(6)]


@pytest.mark.parametrize("seed", range(10))
def test_an_epoch_holds_every_sentence_once(seed):
    docs, lens = random_corpus(seed)
    rows = cut_documents(docs, lens, 30, 2**62, seed, 2)
    assert np.concatenate([np.arange(first, end) for first, end, _ in rows]).tolist() == list(
        range(len(lens))
    )


def test_a_document_of_one_sentence_is_a_sample_of_its_own():
    rows = build(np.array([0, 1, 2, 3]), np.full(3, 5, np.int32), num_samples=3)
    assert sorted(rows[:, :2].tolist()) == [[0, 1], [1, 2], [2, 3]]


def test_exactly_the_requested_number_of_rows_is_built():
    docs, lens = random_corpus(1)
    assert [len(build(docs, lens, count)) for count in (0, 1, 7, 500)] == [0, 1, 7, 500]


def test_a_longer_map_begins_with_the_shorter_one():
    docs, lens = random_corpus(2)
    assert np.array_equal(build(docs, lens, 40), build(docs, lens, 400)[:40])


def test_short_targets_occur_with_the_given_probability():
    docs = np.arange(0, 40002, 2)
    rows = build(docs, np.full(docs[-1], 5, np.int32), 20000, short_seq_prob=0.1)
    assert abs((rows[:, 2] < 61).mean() - 0.1) < 0.01
    assert rows[:, 2].min() >= 2


def test_another_seed_gives_another_order():
    docs, lens = random_corpus(3)
    assert not np.array_equal(build(docs, lens, seed=5), build(docs, lens, seed=6))


def test_a_corpus_without_sentences_is_refused():
    with pytest.raises(InputError, match="no sentence"):
        build(np.array([0, 0]), np.empty(0, np.int32))


def cached(folder, key, build):
    return cached_sample_map(folder, key, build, fits=lambda rows: True)


def test_the_cache_builds_once_per_key(tmp_path):
    built = []

    def rows():
        built.append(1)
        return np.array([[0, 1, 8]])

    first = cached(tmp_path, {"seed": 1}, rows)
    again = cached(tmp_path, {"seed": 1}, rows)
    cached(tmp_path, {"seed": 2}, rows)
    assert np.array_equal(first, again) and len(built) == 2


def ask(folder, results):
    rows = cached(folder, {"k": 1}, lambda: np.arange(3000).reshape(-1, 3))
    results.put(int(rows.sum()))


def test_many_processes_may_use_the_cache_at_once(tmp_path):
    results = multiprocessing.Queue()
    askers = [multiprocessing.Process(target=ask, args=(tmp_path, results)) for _ in range(6)]
    for process in askers:
        process.start()
    assert {results.get(timeout=60) for _ in askers} == {sum(range(3000))}
    for process in askers:
        process.join()
