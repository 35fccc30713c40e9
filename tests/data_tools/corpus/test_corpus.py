"""The corpus files: what is written is read back, verified once, and damaged or hostile files are refused."""

import hashlib
import json
import pickle
import shutil
import struct
import zipfile

import numpy as np
import pytest
from bad_arrays import Payload

from data_tools.corpus import format as corpus_module
from data_tools.corpus.format import (
    Corpus,
    corpus_paths,
    document_ranges,
    id_dtype,
    open_corpus,
    open_verified,
)
from data_tools.corpus.writer import CorpusWriter
from ernie_pair.core.errors import InputError

DOCUMENTS = [[[7, 8], [9]], [[5, 6, 7]]]


def write(prefix, documents=DOCUMENTS, vocab_size=10, **about):
    with CorpusWriter(prefix, vocab_size=vocab_size, about=about) as writer:
        for sentences in documents:
            writer.add(sentences)
    return prefix


@pytest.fixture
def prefix(tmp_path):
    return write(tmp_path / "tiny")


@pytest.fixture
def foreign(tmp_path):
    """A corpus as PaddleNLP's tools write it: no manifest, no 'sents'."""
    save(tmp_path / "foreign", ids=np.array([7, 8, 9, 5, 6, 7], np.uint16))
    return tmp_path / "foreign"


def save(prefix, ids=None, **index):
    if ids is not None:
        np.save(f"{prefix}_ids.npy", ids)
    np.savez(
        f"{prefix}_idx.npz", **{"lens": np.array([2, 1, 3], np.int32), "docs": np.array([0, 2, 3]), **index}
    )


def test_the_stored_arrays_match_the_docstring_example(prefix):
    index = np.load(f"{prefix}_idx.npz")
    assert np.load(f"{prefix}_ids.npy").tolist() == [7, 8, 9, 5, 6, 7]
    assert (index["lens"].tolist(), index["lens"].dtype) == ([2, 1, 3], np.int32)
    assert (index["docs"].tolist(), index["docs"].dtype) == ([0, 2, 3], np.int64)
    assert (index["sents"].tolist(), index["sents"].dtype) == ([0, 2, 3, 6], np.int64)


def test_sentences_are_read_back_one_by_one(prefix):
    corpus = Corpus(prefix)
    assert [corpus[i].tolist() for i in range(len(corpus))] == [[7, 8], [9], [5, 6, 7]]
    assert corpus[-1].tolist() == [5, 6, 7]
    assert [corpus.num_documents, *corpus.docs, *corpus.starts] == [2, *(0, 2, 3), *(0, 2, 3, 6)]
    with pytest.raises(ValueError, match="read-only"):
        corpus.ids[0] = 1


def test_a_corpus_of_other_tools_needs_no_manifest(prefix, foreign):
    ours, theirs = Corpus(prefix), Corpus(foreign)
    assert not theirs.manifest and theirs.max_id == 9 and theirs.vocab_sha256 == ""
    assert [s.tolist() for s in theirs] == [s.tolist() for s in ours]


def test_the_manifest_has_the_counts_and_hashes_of_the_files(tmp_path):
    prefix = write(tmp_path / "tiny", vocab_sha256="abc", arguments={"chinese": True})
    manifest = json.loads((tmp_path / "tiny.manifest.json").read_text())
    sha256 = hashlib.sha256((tmp_path / "tiny_ids.npy").read_bytes()).hexdigest()
    assert manifest["sha256"]["ids"] == sha256
    assert manifest["bytes"]["ids"] == (tmp_path / "tiny_ids.npy").stat().st_size
    counts = {"tokens": 6, "sentences": 3, "documents": 2, "max_id": 9, "vocab_size": 10, "dtype": "uint16"}
    assert counts.items() <= manifest.items()
    assert Corpus(prefix).vocab_sha256 == "abc" and manifest["arguments"] == {"chinese": True}


def test_the_fingerprint_does_not_depend_on_the_manifest(prefix):
    with_manifest = Corpus(prefix, verify="full").fingerprint
    corpus_paths(prefix).manifest.unlink()
    assert Corpus(prefix).fingerprint == with_manifest


def test_add_and_extend_write_identical_files(tmp_path, prefix):
    with CorpusWriter(tmp_path / "other", vocab_size=10) as writer:
        writer.extend(np.array([7, 8, 9, 5, 6, 7]), np.array([2, 1, 3]), np.array([2, 1]))
    for one, other in zip(corpus_paths(prefix), corpus_paths(tmp_path / "other")):
        assert one.read_bytes() == other.read_bytes()


def test_ids_use_the_smallest_type_for_the_vocabulary(tmp_path):
    assert id_dtype(17964) == id_dtype(65_534) == np.uint16 and id_dtype(65_535) == np.int32
    assert Corpus(write(tmp_path / "wide", [[[69999]]], vocab_size=70000)).ids.tolist() == [69999]


@pytest.mark.parametrize("bad", [-1, 10, 70000])
def test_an_id_outside_the_vocabulary_is_never_written(tmp_path, bad):
    with pytest.raises(InputError, match=rf"id {bad} .* has 10 ids"):
        write(tmp_path / "tiny", [[[1, 2]], [[3, bad]]])
    assert not list(tmp_path.iterdir())


def test_an_error_midway_keeps_the_existing_corpus(prefix, tmp_path):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RuntimeError), CorpusWriter(prefix, vocab_size=10) as writer:
        writer.add([[1]])
        raise RuntimeError("stop")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_corpus_without_tokens_is_refused(tmp_path):
    with pytest.raises(InputError, match="no tokens"):
        write(tmp_path / "tiny", [])
    assert not list(tmp_path.iterdir())


def test_a_mapped_corpus_survives_its_replacement(prefix):
    corpus = Corpus(prefix)
    write(prefix, [[[1, 1, 1, 1]]])
    assert corpus[0].tolist() == [7, 8] and len(Corpus(prefix)) == 1


def test_a_pickled_corpus_holds_its_path_and_not_its_ids(prefix):
    blob = pickle.dumps(Corpus(prefix))
    assert len(blob) < 500 and pickle.loads(blob)[2].tolist() == [5, 6, 7]


@pytest.mark.parametrize("end", ["_ids.npy", "_idx.npz"])
def test_a_missing_file_is_reported(prefix, end):
    (path := prefix.with_name(prefix.name + end)).unlink()
    with pytest.raises(InputError, match=rf"{path}: no such file; make"):
        Corpus(prefix)


WRAPPING = np.array([2**62 + 1] * 4 + [2], np.int64)  # their sum is 6, modulo 2**64


@pytest.mark.parametrize(("index", "what"), [
    ({"lens": np.array([2, 1, 4], np.int32)}, "7 tokens according to 'lens', 6 in foreign_ids.npy"),
    ({"lens": np.array([6, 0, 0], np.int32)}, "a sentence without tokens"),
    ({"lens": np.array([0, 3, 3], np.int32)}, "a sentence without tokens"),
    ({"lens": WRAPPING, "docs": [0, 5]}, "a sentence without tokens"),
    ({"lens": np.array([2**64 - 1, 7], np.uint64), "docs": [0, 2]}, "a sentence without tokens"),
    ({"lens": np.array([7, -2, 1], np.int32)}, "without tokens"),
    ({"docs": np.array([0, 3, 2, 3])}, "decreases"),
    ({"docs": np.array([0, 2**64 - 1, 3], np.uint64)}, "'docs' decreases"),
    ({"docs": np.array([False, True])}, "does not hold lens and docs"),
    ({"lens": np.array([Payload()] * 3, dtype=object)}, "not a readable .npz"),
    ({"docs": np.array([1, 3])}, "does not begin with 0"),
    ({"docs": np.array([0, 2])}, "does not end at sentence 3"),
    ({"docs": np.array([], np.int64)}, "does not begin"),
    ({"sents": np.array([0, 2, 4, 6])}, "'sents' disagrees"),
    ({"lens": np.array([2.0, 1.0, 3.0])}, "does not hold lens and docs"),
    ({"docs": np.array([[0, 2, 3]])}, "does not hold lens and docs"),
    ({"extra": np.array([1])}, "does not hold lens and docs"),
    ({"lens": np.zeros(1 << 16, np.int32)}, "does not hold lens and docs"),
])  # fmt: skip
def test_an_inconsistent_index_is_refused(foreign, index, what):
    save(foreign, **index)
    with pytest.raises(InputError, match=rf"foreign_idx\.npz: .*{what}"):
        Corpus(foreign)


def test_ids_with_the_index_of_another_run_are_refused(tmp_path, prefix):
    other = write(tmp_path / "other", [[[1], [2, 3]], [[4, 5, 6]]])
    shutil.copy(corpus_paths(other).idx, corpus_paths(prefix).idx)
    with pytest.raises(InputError, match=r"tiny_idx\.npz is not the file"):
        Corpus(prefix)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', "[" * 100_000])
def test_a_broken_manifest_is_refused(prefix, text):
    corpus_paths(prefix).manifest.write_text(text)
    with pytest.raises(InputError, match=r"tiny\.manifest\.json.*: .*not a manifest"):
        Corpus(prefix)


def test_a_negative_id_is_found(foreign):
    np.save(f"{foreign}_ids.npy", np.array([7, 8, 9, 5, -1, 7], np.int32))
    with pytest.raises(InputError, match=r"id -1 at token 4 \(document 1, sentence 2\)"):
        _ = Corpus(foreign).max_id


OTHER_IDS = {
    "objects": np.array([Payload(), 1], dtype=object),
    "records": np.zeros(6, [("a", "<u2")]),
    "text": np.array(["1"] * 6),
    "no number of dimensions": np.array(5, np.uint16),
    "column-major": np.asfortranarray(np.zeros((2, 3), np.uint16)),
    **{dtype: np.zeros(6, dtype) for dtype in (">i4", ">u2", "|u1", "<f8", "|b1", "<i8")},
}


@pytest.mark.parametrize("ids", OTHER_IDS.values(), ids=OTHER_IDS)
def test_unsupported_id_types_are_refused_without_unpickling(foreign, ids):
    np.save(f"{foreign}_ids.npy", ids, allow_pickle=True)
    with pytest.raises(InputError, match=r"foreign_ids\.npy: (not a readable \.npy|holds no 1-D uint16)"):
        Corpus(foreign)


@pytest.mark.parametrize(
    "content", [b"", b"\x93NUMPY", pickle.dumps(Payload(), protocol=2), b"PK\x03\x04", bytes(80)]
)
@pytest.mark.parametrize("end", ["_ids.npy", "_idx.npz"])
def test_other_file_formats_are_refused_without_unpickling(foreign, content, end):
    foreign.with_name(f"foreign{end}").write_bytes(content)
    with pytest.raises(InputError, match=f"foreign{end}: not a readable"):
        Corpus(foreign)


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
def test_a_damaged_npy_header_is_refused_whatever_numpy_does(foreign, old, new):
    path = corpus_paths(foreign).ids
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(InputError, match=r"foreign_ids\.npy: not a readable \.npy \(.*\); make the corpus"):
        Corpus(foreign)


@pytest.mark.parametrize("missing", ["lens", "docs"])
def test_a_missing_array_of_the_index_is_reported(foreign, missing):
    arrays = {"lens": [2, 1, 3], "docs": [0, 2, 3]}
    del arrays[missing]
    np.savez(f"{foreign}_idx.npz", **arrays)
    with pytest.raises(InputError, match=r"foreign_idx\.npz: it does not hold lens and docs"):
        Corpus(foreign)


def test_a_zip_bomb_is_refused_without_reading_its_members(foreign, monkeypatch):
    with zipfile.ZipFile(f"{foreign}_idx.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("lens.npy", "w") as member:
            for _ in range(64):
                member.write(bytes(1 << 20))
        archive.writestr("docs.npy", b"")
    assert corpus_paths(foreign).idx.stat().st_size < 1 << 17
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_, **__: pytest.fail("a member was read"))
    with pytest.raises(InputError, match=r"foreign_idx\.npz: it does not hold lens and docs"):
        Corpus(foreign)


def test_duplicate_members_of_the_index_are_refused(foreign):
    with np.load(f"{foreign}_idx.npz") as index:
        lens = index["lens"]
    with zipfile.ZipFile(f"{foreign}_idx.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for _ in range(9):
            with archive.open("lens.npy", "w") as member:
                np.save(member, lens)
    with pytest.raises(InputError, match="does not hold lens and docs"):
        Corpus(foreign)


def test_an_array_declared_larger_than_memory_is_refused(foreign):
    member = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({10**17},), }}".ljust(117).encode() + b"\n"
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(member)) + member
    with zipfile.ZipFile(f"{foreign}_idx.npz", "w") as archive:
        archive.writestr("lens.npy", header + bytes(12))
        archive.writestr("docs.npy", header + bytes(12))
    with pytest.raises(InputError, match=r"foreign_idx\.npz: not a readable \.npz"):
        Corpus(foreign)


@pytest.mark.parametrize("name", ["foreign_ids.npy", "foreign_idx.npz"])
def test_bit_flips_and_truncation_never_read_out_of_bounds(foreign, name):
    """Damage that is not detected leaves a corpus that can be read to its end."""
    save(foreign, sents=np.array([0, 2, 3, 6]))
    path = foreign.with_name(name)
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
            corpus = Corpus(foreign)
            assert len(attempt) == len(content), "it was cut short"
            assert sum(map(len, corpus)) == 6 and [len(sentence) for sentence in corpus] == [2, 1, 3]
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 200


# Ids outside the vocabulary

MANY = (1 << 20) + 5  # more ids than are checked at a time


@pytest.mark.parametrize("place", [0, 1, MANY // 2, (1 << 20) - 1, 1 << 20, MANY - 1])
@pytest.mark.parametrize("bad", [70_000, -1])
def test_one_invalid_id_is_found_at_any_position(tmp_path, place, bad):
    ids = np.full(MANY, 3, np.int32)
    ids[place] = bad
    save(tmp_path / "c", ids, lens=np.full(MANY // 3, 3), docs=[0, 7, MANY // 3])
    sentence = place // 3
    where = rf"token {place} \(document {int(sentence >= 7)}, sentence {sentence}\)"
    with pytest.raises(InputError, match=rf"c_ids\.npy: id {bad} at {where} is not below .* 69999"):
        Corpus(tmp_path / "c").check_ids(69_999)


def test_an_invalid_id_is_found_despite_a_manifest(tmp_path):
    prefix = write(tmp_path / "c")
    Corpus(prefix).check_ids(10)
    with pytest.raises(InputError, match=r"id 9 at token 2 \(document 0, sentence 1\) is not below .* 9;"):
        Corpus(prefix).check_ids(9)


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
    path = corpus_paths(write(tmp_path / "c")).ids
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    Corpus(tmp_path / "c")
    with pytest.raises(InputError, match=r"c_ids\.npy is not the file .* make the corpus again"):
        Corpus(tmp_path / "c", verify="full")
    for _ in range(2):
        with pytest.raises(InputError, match=r"c_ids\.npy is not the file that .* describes"):
            open_verified(tmp_path / "c", tmp_path / "memory")


def test_a_corpus_is_hashed_once_and_again_after_a_change(tmp_path, full_checks):
    prefix, memory = write(tmp_path / "c"), tmp_path / "memory"
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
    prefix, memory = write(tmp_path / "c"), tmp_path / "memory"
    open_verified(prefix, memory)
    (note,) = memory.glob("*.verified.json")
    note.write_bytes(damage)
    open_verified(prefix, memory)
    open_verified(prefix, memory)
    assert full_checks == ["ids"] * 2


def test_without_a_manifest_no_verification_is_recorded(tmp_path, foreign, full_checks):
    open_verified(foreign, tmp_path / "memory")
    assert full_checks == [] and not (tmp_path / "memory").exists()


def test_a_rebuilt_corpus_has_a_new_fingerprint_when_reopened(tmp_path):
    prefix = write(tmp_path / "c")
    before = open_corpus(prefix)
    write(prefix, [[[7, 8], [9]], [[5, 6, 8]]])
    assert before[2].tolist() == [5, 6, 7]
    assert open_corpus(prefix).fingerprint != before.fingerprint


# Splits


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


@pytest.mark.parametrize("num_documents", [*range(3, 50), 187, 999, 1000])
def test_every_part_of_a_small_corpus_gets_a_document(num_documents):
    for split in ("1000000,1,1", "949,50,1"):
        ranges = document_ranges(split, num_documents)
        assert min(map(len, ranges.values())) >= 1 and len(ranges["train"]) >= num_documents * 0.3
        assert [*ranges["train"], *ranges["valid"], *ranges["test"]] == [*range(num_documents)]


def test_fewer_documents_than_parts_are_refused():
    with pytest.raises(InputError, match="asks for 3 parts of 2 documents; give more documents"):
        document_ranges("949,50,1", 2)
    assert document_ranges("1,1,0", 2) == {"train": range(1), "valid": range(1, 2), "test": range(2, 2)}
