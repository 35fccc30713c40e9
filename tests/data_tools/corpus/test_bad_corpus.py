"""Corpora and sample maps that are damaged, hostile or of another run: refused by file name, or rebuilt."""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import logging
import multiprocessing
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import time
import zipfile
from fractions import Fraction

import numpy as np
import pytest
from places import ROOT
from tiny_pretrain import events, flags, write_corpus, write_model
from tiny_pretrain_data import opened

from data_tools.corpus import format as corpus_module
from data_tools.corpus.format import Corpus, corpus_paths, document_ranges, open_corpus, open_verified
from data_tools.corpus.mixture import Blend
from data_tools.corpus.writer import CorpusWriter
from data_tools.files.errors import InputError
from data_tools.files.file_lock import locked
from data_tools.options.cli import exit_code_of
from data_tools.samples import sample_map, split_datasets
from data_tools.samples.sample_map import build_sample_map, cached_sample_map, rows_fit
from data_tools.text.wordpiece import WordPiece

# The files of a corpus


def write(prefix, ids=(7, 8, 9, 5, 6, 7), lens=(2, 1, 3), docs=(0, 2, 3), **more):
    """A corpus as PaddleNLP's tools write it, without a manifest."""
    np.save(f"{prefix}_ids.npy", np.asarray(ids, getattr(ids, "dtype", np.uint16)))
    arrays = {"lens": lens, "docs": docs, **more}
    np.savez(f"{prefix}_idx.npz", **{name: np.asarray(array) for name, array in arrays.items()})
    return prefix


def write_ours(prefix, *documents):
    with CorpusWriter(prefix, vocab_size=70_000) as writer:
        for document in documents or ([[7, 8], [9]], [[5, 6, 7]]):
            writer.add(document)
    return prefix


MANY = (1 << 20) + 5  # more ids than are checked at a time


@pytest.mark.parametrize("place", [0, 1, MANY // 2, (1 << 20) - 1, 1 << 20, MANY - 1])
@pytest.mark.parametrize("bad", [70_000, -1])
def test_one_invalid_id_is_found_at_any_position(tmp_path, place, bad):
    ids = np.full(MANY, 3, np.int32)
    ids[place] = bad
    write(tmp_path / "c", ids, lens=np.full(MANY // 3, 3), docs=[0, 7, MANY // 3])
    sentence = place // 3
    where = rf"token {place} \(document {int(sentence >= 7)}, sentence {sentence}\)"
    with pytest.raises(
        InputError, match=rf"c_ids\.npy: id {bad} at {where} is not below the vocabulary size 69999"
    ):
        Corpus(tmp_path / "c").check_ids(69_999)


def test_an_invalid_id_is_found_despite_a_manifest(tmp_path):
    prefix = write_ours(tmp_path / "c")
    Corpus(prefix).check_ids(10)
    with pytest.raises(InputError, match=r"id 9 at token 2 \(document 0, sentence 1\) is not below .* 9;"):
        Corpus(prefix).check_ids(9)


class Payload:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


OTHER_IDS = {
    "objects": np.array([Payload(), 1], dtype=object),
    "records": np.zeros(6, [("a", "<u2")]),
    "text": np.array(["1"] * 6),
    "big-endian": np.zeros(6, ">i4"),
    "one byte": np.zeros(6, np.uint8),
    "no number of dimensions": np.array(5, np.uint16),
    "column-major": np.asfortranarray(np.zeros((2, 3), np.uint16)),
}


@pytest.mark.parametrize("ids", OTHER_IDS.values(), ids=OTHER_IDS)
def test_unsupported_id_types_are_refused_without_unpickling(tmp_path, ids):
    prefix = write(tmp_path / "c")
    np.save(f"{prefix}_ids.npy", ids, allow_pickle=True)
    with pytest.raises(InputError, match=r"c_ids\.npy: (not a readable \.npy|holds no 1-D uint16)"):
        Corpus(prefix)


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", pickle.dumps(Payload(), protocol=2), b"PK\x03\x04", bytes(80)]
)
@pytest.mark.parametrize("end", ["_ids.npy", "_idx.npz"])
def test_other_file_formats_are_refused_without_unpickling(tmp_path, content, end):
    prefix = write(tmp_path / "c")
    prefix.with_name(f"c{end}").write_bytes(content)
    with pytest.raises(InputError, match=f"c{end}: not a readable"):
        Corpus(prefix)


HEADERS = {
    "a bracket left open": (b"'shape': (6,)", b"'shape': (6, "),
    "more than there is": (b"(6,), ", b"(99,),"),
    "more than any memory": (b"(6,), }            ", b"(999999999999999,)}"),
    "less than nothing": (b"(6,), ", b"(-6,),"),
    "no dictionary": (b"{'descr'", b"['descr'"),
    "no such type": (b"'<u2'", b"'<q9'"),
    "a call": (b"'<u2'", b"id(1)"),
}


@pytest.mark.parametrize(("old", "new"), HEADERS.values(), ids=HEADERS)
def test_a_damaged_npy_header_is_refused_whatever_numpy_does(tmp_path, old, new):
    path = corpus_paths(write(tmp_path / "c")).ids
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(InputError, match=r"c_ids\.npy: not a readable \.npy \(.*\); make the corpus again"):
        Corpus(tmp_path / "c")


WRAPPING = np.array([2**62 + 1] * 4 + [2], np.int64)  # their sum is 6, modulo 2**64
BROKEN = {
    "lengths that wrap": ({"lens": WRAPPING, "docs": [0, 5]}, "a sentence without tokens"),
    "unsigned lengths that wrap": (
        {"lens": np.array([2**64 - 1, 7], np.uint64), "docs": [0, 2]},
        "a sentence without tokens",
    ),
    "a first sentence without tokens": ({"lens": [0, 3, 3]}, "a sentence without tokens"),
    "a last sentence without tokens": ({"lens": [3, 3, 0]}, "a sentence without tokens"),
    "documents that wrap": ({"docs": np.array([0, 2**64 - 1, 3], np.uint64)}, "'docs' decreases"),
    "documents beyond the sentences": ({"docs": [0, 9, 3]}, "'docs' decreases"),
    "truth values": ({"docs": np.array([False, True])}, "'docs' is not a 1-D array of whole numbers"),
    "a table": ({"lens": np.ones((2, 3), np.int32)}, "'lens' is not a 1-D array of whole numbers"),
    "objects": ({"lens": np.array([Payload()] * 3, dtype=object)}, "not a readable .npz"),
}


@pytest.mark.parametrize(("arrays", "what"), BROKEN.values(), ids=BROKEN)
def test_an_inconsistent_index_is_refused(tmp_path, arrays, what):
    prefix = write(tmp_path / "c", **arrays)
    with pytest.raises(InputError, match=rf"c_idx\.npz: {what}"):
        Corpus(prefix)


@pytest.mark.parametrize("missing", ["lens", "docs"])
def test_a_missing_array_of_the_index_is_reported(tmp_path, missing):
    prefix = write(tmp_path / "c")
    arrays = {"lens": [2, 1, 3], "docs": [0, 2, 3]}
    del arrays[missing]
    np.savez(f"{prefix}_idx.npz", **arrays)
    with pytest.raises(InputError, match=rf"c_idx\.npz: has no '{missing}'; make the corpus again"):
        Corpus(prefix)


def test_a_zip_bomb_is_refused_without_reading_its_members(tmp_path, monkeypatch):
    prefix = write(tmp_path / "c")
    with zipfile.ZipFile(f"{prefix}_idx.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("lens.npy", "w") as member:
            for _ in range(64):
                member.write(bytes(1 << 20))
        archive.writestr("docs.npy", b"")
    assert (tmp_path / "c_idx.npz").stat().st_size < 1 << 17
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_, **__: pytest.fail("a member was read"))
    with pytest.raises(InputError, match=r"c_idx\.npz: contains something other than lens, docs, sents"):
        Corpus(prefix)


def test_duplicate_members_of_the_index_are_refused(tmp_path):
    prefix = write(tmp_path / "c")
    with np.load(f"{prefix}_idx.npz") as index:
        lens = index["lens"]
    with zipfile.ZipFile(f"{prefix}_idx.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for _ in range(9):
            with archive.open("lens.npy", "w") as member:
                np.save(member, lens)
    with pytest.raises(InputError, match="contains something other"):
        Corpus(prefix)


def test_an_array_declared_larger_than_memory_is_refused(tmp_path):
    prefix = write(tmp_path / "c")
    member = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({10**17},), }}".ljust(117).encode() + b"\n"
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(member)) + member
    with zipfile.ZipFile(f"{prefix}_idx.npz", "w") as archive:
        archive.writestr("lens.npy", header + bytes(12))
        archive.writestr("docs.npy", header + bytes(12))
    with pytest.raises(InputError, match=r"c_idx\.npz: not a readable \.npz"):
        Corpus(prefix)


@pytest.mark.parametrize("name", ["c_ids.npy", "c_idx.npz"])
def test_bit_flips_and_truncation_never_read_out_of_bounds(tmp_path, name):
    """Damage that is not detected leaves a corpus that can be read to its end."""
    prefix = write(tmp_path / "c", sents=[0, 2, 3, 6])
    path = tmp_path / name
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    damaged = [content[:length] for length in rng.integers(len(content), size=60)]
    for place, bit in zip(rng.integers(len(content), size=240), rng.integers(8, size=240)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << bit
        damaged.append(bytes(flipped))
    refused = 0
    for attempt in damaged:
        path.write_bytes(attempt)
        try:
            corpus = Corpus(prefix)
            assert sum(map(len, corpus)) == 6 and [len(sentence) for sentence in corpus] == [2, 1, 3]
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 200


# Verified once


@pytest.fixture
def full_checks(monkeypatch):
    """One item for each time that the ids were hashed."""
    checks, check = [], corpus_module._check_hashes

    def spy(*arguments):
        checks.extend(name for name in arguments[-1] if name == "ids")
        return check(*arguments)

    monkeypatch.setattr(corpus_module, "_check_hashes", spy)
    return checks


def test_a_flipped_bit_is_found_at_the_first_use(tmp_path):
    path = corpus_paths(write_ours(tmp_path / "c")).ids
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    Corpus(tmp_path / "c")
    for _ in range(2):
        with pytest.raises(InputError, match=r"c_ids\.npy is not the file that .* describes"):
            open_verified(tmp_path / "c", tmp_path / "memory")


def test_a_corpus_is_hashed_once_and_again_after_a_change(tmp_path, full_checks):
    prefix, memory = write_ours(tmp_path / "c"), tmp_path / "memory"
    assert [open_verified(prefix, memory)[1].tolist() for _ in range(3)] == [[9]] * 3
    assert full_checks == ["ids"]
    path = corpus_paths(prefix).ids
    content = path.read_bytes()
    path.write_bytes(content)
    open_verified(prefix, memory)
    assert full_checks == ["ids"] * 2
    path.write_bytes(content[:-1] + b"\1")
    with pytest.raises(InputError, match="is not the file"):
        open_verified(prefix, memory)


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"[" * 100_000, b"\xff"], ids=["empty", "other", "deep", "no text"]
)
def test_a_damaged_verification_record_means_hashing_again(tmp_path, full_checks, damage):
    prefix, memory = write_ours(tmp_path / "c"), tmp_path / "memory"
    open_verified(prefix, memory)
    (note,) = memory.glob("*.verified.json")
    note.write_bytes(damage)
    open_verified(prefix, memory)
    open_verified(prefix, memory)
    assert full_checks == ["ids"] * 2


def test_without_a_manifest_no_verification_is_recorded(tmp_path, full_checks):
    open_verified(write(tmp_path / "c"), tmp_path / "memory")
    assert full_checks == [] and not (tmp_path / "memory").exists()


def test_a_rebuilt_corpus_has_a_new_fingerprint_when_reopened(tmp_path):
    prefix = write_ours(tmp_path / "c")
    before = open_corpus(prefix)
    write_ours(prefix, [[7, 8], [9]], [[5, 6, 8]])
    assert before[2].tolist() == [5, 6, 7]
    assert open_corpus(prefix).fingerprint != before.fingerprint


# Sample maps on disk

ROWS = np.arange(9000).reshape(-1, 3)


def cached(folder, key="k", build=lambda: ROWS, fits=lambda rows: True):
    return cached_sample_map(folder, {"key": key}, build, fits)


def in_a_child(action):
    """The id of a child process that runs ``action``."""
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
    names = ("samples.sample_map", "files.keyed_cache", "files.atomic_files", "files.file_lock")
    files = tuple(sys.modules[f"data_tools.{name}"].__file__ for name in names)
    lines = iter(range(1, number + 1))

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(lines) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def test_a_build_killed_at_any_line_is_redone_by_the_next_run(tmp_path):
    for number in range(1, 1000):
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
    for number in range(50):
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


def until(happened):
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


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
    monkeypatch.setattr("data_tools.files.file_lock.NOTICE_SECONDS", 0.1)
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
def test_an_incomplete_cache_is_built_again(tmp_path, kind):
    cached(tmp_path)
    next(tmp_path.glob(f"*{kind}")).unlink()
    assert np.array_equal(cached(tmp_path), ROWS)


def test_a_reader_keeps_the_old_map_when_it_is_replaced(tmp_path):
    old = cached(tmp_path)
    next(tmp_path.glob("*.json")).unlink()
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
    monkeypatch.setattr("data_tools.samples.sample_map._CHUNK", 7)
    assert fit(built()) and not fit(built()[:-1]) and not fit(np.concatenate([built(), built()[:1]]))


def test_too_many_samples_are_refused_before_they_are_made():
    with pytest.raises(InputError, match="asks for 2147483648 samples, more than 2147483647; use fewer"):
        build_sample_map(
            DOCS,
            LENS,
            range(3),
            num_samples=2**31,
            target_length=20,
            short_seq_prob=0,
            seed=1,
            min_sentences=2,
        )


# The data of a run


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    model = write_model(folder / "model")
    write_corpus(folder / "a", model)
    write_corpus(folder / "same size", model)
    paths = corpus_paths(folder / "same size" / "text")
    ids = np.load(paths.ids)
    ids[0] += 1
    np.save(paths.ids, ids)
    paths.manifest.unlink()
    return folder


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


def test_a_damaged_map_of_a_run_is_built_again(world, tmp_path, caplog):
    first = [opened(world, output_dir=tmp_path).datasets["train"][number].input_ids for number in range(24)]
    for path in (tmp_path / "cache").glob("*.npy"):
        os.truncate(path, path.stat().st_size - 4)
    with caplog.at_level(logging.WARNING):
        again = opened(world, output_dir=tmp_path).datasets["train"]
    assert all(np.array_equal(ids, again[number].input_ids) for number, ids in enumerate(first))
    assert caplog.text.count("is damaged or unfinished") == 3


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
    write(tmp_path / "data" / "text", ids=[sep] * 180, lens=[3] * 60, docs=range(0, 61, 2))
    words = flags(world / "model", tmp_path / "data", tmp_path / "out", max_steps=2)
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "run_pretrain_static.py", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = events(tmp_path / "out")
    assert {event["lm_loss"] for event in found} == {0} and all(np.isfinite(e["sop_loss"]) for e in found)


# Splits and blends


@pytest.mark.parametrize("num_documents, sizes", [(10000, [9490, 500, 10]), (1000, [949, 50, 1])])
def test_the_ranges_cover_every_document_once(num_documents, sizes):
    ranges = document_ranges("949,50,1", num_documents)
    assert [len(ranges[name]) for name in ("train", "valid", "test")] == sizes
    assert [*ranges["train"], *ranges["valid"], *ranges["test"]] == list(range(num_documents))


def test_a_share_of_zero_is_an_empty_range():
    assert document_ranges("1,1,0", 10)["test"] == range(10, 10)


NO_SPLITS = (
    " 1,2 a,b a,b,c -1,2 -1,2,3 0,0,0 0,1,1 1,2,3,4 inf,1,1 1e308,1e308,1e308 1,1,nan nan,1,1 1;1;1 1,,1"
).split(" ")


@pytest.mark.parametrize("split", NO_SPLITS)
def test_an_invalid_split_is_refused(split):
    with pytest.raises(InputError, match=r"is not three weights for train,valid,test; write for example"):
        document_ranges(split, 100)


@pytest.mark.parametrize("num_documents", [*range(1, 50), 999, 1000])
def test_the_split_suggested_for_few_documents_works(num_documents):
    with pytest.raises(InputError, match="leaves no document for") as caught:
        document_ranges("1000000,1,1", num_documents)
    proposed = caught.value.message.rsplit("--split ", 1)[1]
    ranges = document_ranges(proposed, num_documents)
    assert len(ranges["train"]) >= num_documents * 0.8 or num_documents < 20
    assert sum(map(len, ranges.values())) == num_documents
    with pytest.raises(InputError, match=r"no document for test out of 20; .* split 18,1,1"):
        document_ranges("949,50,1", 20)


@pytest.mark.parametrize("count", [256, 300])
def test_256_or_more_corpora_are_blended_exactly(count):
    mixed = Blend([Fraction(1 + number % 7) for number in range(count)])
    corpora, own = mixed.locate(np.arange(mixed.period))
    assert np.array_equal(np.bincount(corpora), mixed.parts) and corpora.max() == count - 1
    assert own[corpora == count - 1].tolist() == list(range(mixed.parts[-1]))


def test_more_than_65536_corpora_are_refused():
    with pytest.raises(InputError, match="65537 corpora, more than 65536; join some"):
        Blend([Fraction(1)] * 65_537)


@pytest.mark.parametrize(("one", "other"), [("1e308", "1e-307"), ("1e-300", "1"), ("1.00000001", "1")])
def test_weights_far_apart_are_refused_with_a_short_message(one, other):
    with pytest.raises(InputError, match="round them, for example to") as caught:
        Blend([Fraction(one), Fraction(other)])
    assert len(str(caught.value)) < 300
