"""Sample maps: which text makes which sample; cached on disk, where a damaged or foreign one is rebuilt."""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time

import numpy as np
import pytest
from bad_arrays import Payload
from children import output_of
from places import ROOT
from tiny_pretrain import events, flags, opened, write_corpus, write_model
from waiting import until

from data_tools.corpus.format import corpus_paths
from data_tools.samples import sample_map, split_datasets
from data_tools.samples.masking import MaskingFlags
from data_tools.samples.sample_map import build_sample_map, cached_sample_map, cut_documents, rows_fit
from data_tools.samples.split_datasets import dataset_of
from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import locked
from ernie_pair.core.files.keyed_cache import mix, mix_range

ALWAYS, NEVER = 2**64 - 1, 0
# Of `random_corpus`(2), for VERSION 1.
PINNED = [[26, 28], [176, 178], [118, 121], [48, 50], [80, 82], [189, 191]]


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


def test_a_map_is_built_without_the_compiled_helper(monkeypatch):
    docs, lens = random_corpus(3)
    rows = build(docs, lens, 40)
    monkeypatch.setattr(sample_map, "_helpers", None)
    assert np.array_equal(build(docs, lens, 40), rows)


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


def test_each_seed_and_epoch_has_its_order_and_short_targets():
    docs, lens = np.arange(61), np.full(60, 9, np.int32)  # each sentence is a document, and so a row
    maps = [build(docs, lens, 120, short_seq_prob=1.0, seed=seed) for seed in (5, 6)]
    epochs = np.concatenate(maps).reshape(4, 60, 3)
    assert len({tuple(rows[:, 0]) for rows in epochs}) == 4
    assert len({tuple(rows[np.argsort(rows[:, 0]), 2]) for rows in epochs}) == 4


def test_exactly_the_requested_number_of_rows_is_built():
    docs, lens = random_corpus(1)
    assert [len(build(docs, lens, count)) for count in (0, 1, 7, 500)] == [0, 1, 7, 500]


def test_a_longer_map_begins_with_the_shorter_one():
    docs, lens = random_corpus(2)
    assert np.array_equal(build(docs, lens, 40), build(docs, lens, 400)[:40])


def test_the_same_input_gives_the_rows_of_earlier_versions():
    """Else a resumed run would read other samples: raise VERSION with what is pinned here."""
    docs, lens = random_corpus(2)
    rows = build(docs, lens, 6, target_length=12)
    assert (sample_map.VERSION, rows[:, :2].tolist()) == (1, PINNED)


def test_short_targets_occur_with_the_given_probability():
    docs = np.arange(0, 40002, 2)
    rows = build(docs, np.full(docs[-1], 5, np.int32), 20000, short_seq_prob=0.1)
    assert abs((rows[:, 2] < 61).mean() - 0.1) < 0.01
    assert rows[:, 2].min() >= 2


def test_a_corpus_without_sentences_is_refused():
    with pytest.raises(InputError, match="no sentence"):
        build(np.array([0, 0]), np.empty(0, np.int32))


# Sample maps on disk

ROWS = np.arange(9000).reshape(-1, 3)


def cached(folder, key="k", build=lambda: ROWS, fits=lambda rows: True):
    return cached_sample_map(folder, {"key": key}, build, fits)


def in_a_child(action):
    child = os.fork()
    if not child:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                os._exit(exit_code_of(lambda: action() and 0))
        except BaseException:
            os._exit(99)
    return child


def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at_line(number):
    """Kill this process at the ``number``-th line that it executes of the code that writes the cache."""
    names = ("keyed_cache", "atomic_files")
    modules = ["data_tools.samples.sample_map", *(f"ernie_pair.core.files.{name}" for name in names)]
    files = tuple(sys.modules[name].__file__ for name in modules)
    lines = iter(range(1, number + 1))

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(lines) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5], ids="one in {}".format)
def test_a_build_killed_at_any_line_is_redone_by_the_next_run(tmp_path, every):
    for number in range(1, 1000, every):
        folder = tmp_path / str(number)

        def build_until(number=number, folder=folder):
            kill_at_line(number)
            cached(folder)

        status = status_of(in_a_child(build_until))
        assert np.array_equal(cached(folder), ROWS)
        assert {path.suffix for path in folder.iterdir()} == {".npy", ".json", ".lock"}
        if status != -signal.SIGKILL:
            break
    assert status == 0 and number > 40


def test_two_concurrent_processes_build_only_once(tmp_path):
    for number in range(10):
        folder, meeting = tmp_path / str(number), multiprocessing.get_context("fork").Barrier(2)

        def build(folder=folder):
            with open(folder / "built", "a") as notes:
                notes.write("x")
            return ROWS

        def ask(folder=folder, meeting=meeting, build=build):
            meeting.wait()
            assert np.array_equal(cached(folder, build=build), ROWS)

        assert [status_of(child) for child in [in_a_child(ask), in_a_child(ask)]] == [0, 0]
        assert (folder / "built").read_text() == "x"


def test_a_waiter_builds_when_the_building_process_dies(tmp_path):
    def build_for_ever():
        (tmp_path / "building").touch()
        signal.pause()

    builder = in_a_child(lambda: cached(tmp_path, build=build_for_ever))
    until((tmp_path / "building").exists)
    waiter = in_a_child(lambda: cached(tmp_path) is not None)
    time.sleep(0.1)
    os.kill(builder, signal.SIGKILL)
    assert status_of(builder) == -signal.SIGKILL and status_of(waiter) == 0
    assert np.array_equal(cached(tmp_path, build=pytest.fail), ROWS)


def test_waiting_for_a_hung_builder_ends_with_exit_code_5(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.setattr(sample_map, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr("ernie_pair.core.files.atomic_files.NOTICE_SECONDS", 0.1)
    cached(tmp_path)
    (lock,) = tmp_path.glob("*.lock")
    for path in (*tmp_path.glob("*.npy"), *tmp_path.glob("*.json")):
        path.unlink()
    with locked(lock, seconds=0):
        assert exit_code_of(lambda: cached(tmp_path)) == 5
    assert f"{lock}: another process holds it; wait for that, or stop it" in capsys.readouterr().err
    assert "waiting for the process that holds" in caplog.text


@pytest.mark.parametrize("content", [b"", b"pid 999999999 host elsewhere\n", bytes(4096)])
def test_a_stale_lock_file_has_no_effect(tmp_path, content):
    cached(tmp_path)
    (lock,) = tmp_path.glob("*.lock")
    (rows,) = tmp_path.glob("*.npy")
    rows.unlink()
    lock.write_bytes(content)
    with locked(lock, seconds=0) as alone:
        assert alone
    assert np.array_equal(cached(tmp_path), ROWS)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_concurrent_builders_are_safe_without_file_locks(tmp_path, monkeypatch, number):
    def no_locks(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    save = np.save

    def meet(file, rows, **settings):
        """Another process builds from start to end while this one writes."""
        monkeypatch.setattr(np, "save", save)
        cached(tmp_path)
        save(file, rows, **settings)

    monkeypatch.setattr(np, "save", meet)
    assert np.array_equal(cached(tmp_path), ROWS)
    assert not list(tmp_path.glob("*.draft"))


def test_other_lock_errors_are_reported(tmp_path, monkeypatch, capsys):
    def failing(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", failing)
    assert exit_code_of(lambda: cached(tmp_path)) == 5
    assert capsys.readouterr().err.startswith("error: Input/output error")


def saved(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return lambda content: file.getvalue()


def flipped(place):
    def flip(content):
        content = bytearray(content)
        content[place] ^= 1
        return bytes(content)

    return flip


DAMAGES = {
    "empty": lambda content: b"",
    "cut in the header": lambda content: content[:50],
    "cut by a byte": lambda content: content[:-1],
    "one more byte": lambda content: content + b"\0",
    "random bytes": lambda content: np.random.default_rng(0).bytes(5000),
    "a bit of the header": flipped(30),
    "a bit of the middle": flipped(60),
    "the last bit": flipped(-1),
    "another shape": saved(ROWS.reshape(-1, 9).astype(np.uint32)),
    "another type": saved(ROWS.astype(np.float64)),
    "a pickle": saved(np.array([Payload()], dtype=object)),
    "other JSON": lambda content: b"[]",
    "deep JSON": lambda content: b"[" * 100_000,
}


@pytest.mark.parametrize("kind", [".npy", ".json"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cache_is_built_again_with_one_warning(tmp_path, caplog, damage, kind):
    fresh = np.array(cached(tmp_path))  # a copy: damage in place would crash a reader of the mapped file
    (path,) = tmp_path.glob(f"*{kind}")
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        again = cached(tmp_path)
    assert np.array_equal(again, fresh) and again.dtype == fresh.dtype
    assert [record.message for record in caplog.records] == [
        f"{path.with_suffix('.npy')} is damaged or unfinished and is built again"
    ]
    assert np.array_equal(cached(tmp_path, build=pytest.fail), fresh)


@pytest.mark.parametrize("kind", [".npy", ".json"])
def test_an_incomplete_cache_is_built_again_beside_its_readers(tmp_path, kind):
    old = cached(tmp_path)
    next(tmp_path.glob(f"*{kind}")).unlink()
    cached(tmp_path, build=lambda: ROWS + 1)
    assert np.array_equal(old, ROWS) and np.array_equal(cached(tmp_path), ROWS + 1)


def test_a_cache_file_that_holds_another_key_is_not_used(tmp_path):
    cached(tmp_path, "one")
    (rows,), (note,) = tmp_path.glob("*.npy"), tmp_path.glob("*.json")
    kept = {path.suffix: path.read_bytes() for path in (rows, note)}
    for path in (rows, note):
        path.unlink()
    cached(tmp_path, "two", build=lambda: ROWS + 1)
    for path in (*tmp_path.glob("*.npy"), *tmp_path.glob("*.json")):
        path.write_bytes(kept[path.suffix])
    assert np.array_equal(cached(tmp_path, "two", build=lambda: ROWS + 1), ROWS + 1)


def test_another_format_version_has_another_file_name(tmp_path, monkeypatch):
    cached(tmp_path)
    monkeypatch.setattr(sample_map, "VERSION", sample_map.VERSION + 1)
    cached(tmp_path)
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_a_write_that_cannot_be_read_back_gives_exit_code_5(tmp_path, monkeypatch, capsys):
    save = np.save

    def forgetting(file, rows, **settings):
        save(file, rows, **settings)
        file.file.seek(-1, os.SEEK_END)
        file.file.write(b"\7")

    monkeypatch.setattr(np, "save", forgetting)
    assert exit_code_of(lambda: cached(tmp_path)) == 5
    assert "cannot be read back as written" in capsys.readouterr().err


@pytest.mark.parametrize("most_bytes", [0, 100, 4096, 36_000])
def test_a_full_disk_gives_exit_code_5_and_no_partial_cache(tmp_path, most_bytes):
    def build():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        cached(tmp_path)

    assert status_of(in_a_child(build)) == 5
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert np.array_equal(cached(tmp_path), ROWS)


def test_an_impossible_cache_folder_gives_exit_code_5(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert exit_code_of(lambda: cached(tmp_path / "file")) == 5
    assert exit_code_of(lambda: cached(tmp_path / "file" / "cache")) == 5
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and all("not a folder; choose another output path" in line for line in errors)


# The content of the rows

DOCS, LENS = np.array([0, 4, 8, 30]), np.full(30, 5, np.int32)
SETTINGS = {"num_samples": 40, "target_length": 20}
ALL = range(3)


def built(documents=ALL):
    return build_sample_map(DOCS, LENS, documents, short_seq_prob=0.5, seed=1, min_sentences=2, **SETTINGS)


def fit(rows, documents=ALL):
    sentences = range(*DOCS[[documents.start, documents.stop]].tolist())
    return rows_fit(rows, num_rows=40, sentences=sentences, target_length=20)


@pytest.mark.parametrize("documents", [ALL, range(1), range(1, 3)])
def test_built_rows_are_valid_for_their_split(documents):
    assert fit(built(documents), documents)


@pytest.mark.parametrize("documents", [range(1), range(1, 3)])
def test_rows_of_another_split_are_not_valid(documents):
    assert not fit(built(), documents)


@pytest.mark.parametrize(
    "row", [(28, 31, 20), (-1, 2, 20), (5, 5, 20), (6, 5, 20), (0, 2, 21), (0, 2, 1), (2**32, 2**32 + 1, 20)]
)
@pytest.mark.parametrize("place", [0, 17, 39])
def test_an_out_of_range_row_causes_the_map_to_be_rebuilt(tmp_path, caplog, row, place):
    rows = cached(tmp_path, build=built, fits=fit)
    assert not len(caplog.records)
    edited = rows.astype(np.int64)
    edited[place] = row
    (path,), (note,) = tmp_path.glob("*.npy"), tmp_path.glob("*.json")
    np.save(path, edited)
    words = json.loads(note.read_bytes())
    words["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    note.write_text(json.dumps(words))
    assert np.array_equal(cached(tmp_path, fits=lambda rows: True, build=pytest.fail), edited)
    assert np.array_equal(cached(tmp_path, build=built, fits=fit), built())
    assert len(caplog.records) == 1


def test_a_wrong_number_of_rows_is_not_valid(monkeypatch):
    monkeypatch.setattr("ernie_pair.core.files.arrays._CHUNK", 7)
    assert fit(built()) and not fit(built()[:-1]) and not fit(np.concatenate([built(), built()[:1]]))


def test_too_many_samples_are_refused_before_they_are_made():
    with pytest.raises(InputError, match="asks for 2147483648 samples, more than 2147483647; use fewer"):
        build(DOCS, LENS, 2**31)


# The data of a run


@pytest.fixture(scope="module")
def world(module_path):
    model = write_model(module_path / "model")
    write_corpus(module_path / "a", model)
    write_corpus(module_path / "same size", model)
    paths = corpus_paths(module_path / "same size" / "text")
    ids = np.load(paths.ids)
    ids[0] += 1
    np.save(paths.ids, ids)
    paths.manifest.unlink()
    return module_path


def test_each_split_and_each_corpus_has_a_seed_of_its_own(world, tmp_path):
    """Else the masks of validation are those of training, and equal texts of two corpora have equal masks."""
    data = opened(world, f"1 {world / 'a'} 1 '{world / 'same size'}'", output_dir=tmp_path, split="60,20,20")
    parts = [part for dataset in data.datasets.values() for part in dataset.datasets]
    assert len(parts) == len({part.seed for part in parts}) == 6
    assert not np.array_equal(parts[0].sample_map, parts[1].sample_map)  # of sentences of equal lengths


def test_text_that_is_inspected_is_cut_and_masked_by_its_seed(world, tmp_path):
    data = opened(world, world / "a", output_dir=tmp_path)
    given = data.corpora[0], range(60), data.tokenizer, MaskingFlags()
    sets = [dataset_of(*given, num_samples=20, max_seq_len=32, seed=seed) for seed in (1, 2)]
    assert [each.seed for each in sets] == [1, 2]
    assert not np.array_equal(*(each.sample_map for each in sets))


def test_the_cache_key_covers_every_setting_that_affects_rows(world, tmp_path, monkeypatch):
    keys = []
    monkeypatch.setattr(
        split_datasets,
        "cached_sample_map",
        lambda folder, key, build, fits: (keys.append(json.dumps(key, sort_keys=True)), build())[1],
    )
    for changes in (
        {},
        {"input_dir": world / "same size"},
        {"split": "70,20,10"},
        {"binary_head": "false"},
        {"short_seq_prob": 0.101},
        {"short_seq_prob": 0.104},
        {"seed": 7},
        {"max_seq_len": 24},
        {"max_steps": 7},
        {"micro_batch_size": 3},
    ):
        opened(world, output_dir=tmp_path, **changes)
    train = keys[::3]
    assert len(train) == 10 and len(set(train)) == 10
    assert len(set(keys[:3])) == 3


def test_the_corpus_folder_is_never_written_to(world, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in (world / "a").iterdir()}
    folder_before = (world / "a").stat().st_mtime_ns
    opened(world, output_dir=tmp_path / "out")
    assert {path.name: path.stat().st_mtime_ns for path in (world / "a").iterdir()} == before
    assert (world / "a").stat().st_mtime_ns == folder_before
    assert len(list((tmp_path / "out" / "cache").glob("*.npy"))) == 3


def test_a_run_on_damaged_ids_does_not_start(world, tmp_path):
    paths = corpus_paths(write_corpus(tmp_path / "data", world / "model") / "text")
    content = bytearray(paths.ids.read_bytes())
    content[-2] ^= 1
    paths.ids.write_bytes(content)
    with pytest.raises(InputError, match=r"text_ids\.npy is not the file"):
        opened(world, output_dir=tmp_path / "out", input_dir=tmp_path / "data")


def test_batches_with_nothing_to_mask_have_finite_losses(world, tmp_path):
    (tmp_path / "data").mkdir()
    sep = WordPiece.from_file(world / "model" / "vocab.txt").sep_id
    np.save(tmp_path / "data" / "text_ids.npy", np.full(180, sep, np.uint16))
    np.savez(tmp_path / "data" / "text_idx.npz", lens=np.full(60, 3), docs=np.arange(0, 61, 2))
    words = flags(world / "model", tmp_path / "data", tmp_path / "out", max_steps=2)
    output_of(ROOT / "scripts" / "run_pretrain_static.py", *words)
    found = events(tmp_path / "out")
    assert {event["lm_loss"] for event in found} == {0} and all(np.isfinite(e["sop_loss"]) for e in found)
