"""Corpora in Megatron's layout are read like our own; damaged ones are refused."""

import pickle
import struct

import numpy as np
import pytest

from data_tools.corpus.format import Corpus, MegatronCorpus, find_corpus, open_corpus
from data_tools.corpus.writer import CorpusWriter
from ernie_pair.core.errors import InputError

HEADER = struct.Struct("<9sQBQQ")
SENTENCES = {"lens": [2, 1, 3], "pointers": [0, 4, 6], "docs": [0, 2, 3]}


def index(magic=b"MMIDIDX\x00\x00", version=1, kind=8, counts=None, **arrays):
    values = {**SENTENCES, **arrays}
    num_sentences, num_bounds = counts or (len(values["lens"]), len(values["docs"]))
    content = HEADER.pack(magic, version, kind, num_sentences, num_bounds)
    for name, dtype in (("lens", "<i4"), ("pointers", "<i8"), ("docs", "<i8")):
        content += np.array(values[name], dtype).tobytes()
    return content


@pytest.fixture
def prefix(tmp_path):
    """Two documents, [[7 8] [9]] and [[5 6 7]]."""
    (tmp_path / "tiny.bin").write_bytes(np.array([7, 8, 9, 5, 6, 7], np.uint16).tobytes())
    (tmp_path / "tiny.idx").write_bytes(index())
    return tmp_path / "tiny"


def write_ours(prefix):
    with CorpusWriter(prefix, vocab_size=10) as writer:
        writer.add([[7, 8], [9]])
        writer.add([[5, 6, 7]])


def test_a_megatron_corpus_has_the_attributes_of_our_own(prefix, tmp_path):
    write_ours(tmp_path / "ours")
    theirs, ours = open_corpus(prefix), open_corpus(tmp_path / "ours")
    assert [type(corpus) for corpus in (theirs, ours)] == [MegatronCorpus, Corpus]
    for name in ("ids", "lens", "starts", "docs"):
        assert np.array_equal(getattr(theirs, name), getattr(ours, name))
        assert getattr(theirs, name).dtype == getattr(ours, name).dtype
    assert [sentence.tolist() for sentence in theirs] == [[7, 8], [9], [5, 6, 7]]
    assert (len(theirs), theirs.num_documents, theirs.max_id) == (3, 2, 9)
    assert (theirs.manifest, theirs.vocab_sha256, len(theirs.fingerprint)) == ({}, "", 64)
    with pytest.raises(ValueError, match="read-only"):
        theirs.ids[0] = 1


@pytest.mark.parametrize(("kind", "dtype"), [(1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8")])
def test_ids_may_have_any_integer_type(prefix, kind, dtype):
    width = np.dtype(dtype).itemsize
    prefix.with_suffix(".bin").write_bytes(np.array([7, 8, 9, 5, 6, 7], dtype).tobytes())
    prefix.with_suffix(".idx").write_bytes(index(kind=kind, pointers=[0, 2 * width, 3 * width]))
    assert open_corpus(prefix)[2].tolist() == [5, 6, 7]


def test_a_pickled_corpus_can_be_loaded_again(prefix):
    again = pickle.loads(pickle.dumps(open_corpus(prefix)))
    assert isinstance(again, MegatronCorpus) and again[0].tolist() == [7, 8]


def test_a_mapped_corpus_survives_its_replacement(prefix):
    corpus = open_corpus(prefix)
    other = prefix.with_suffix(".new")
    other.write_bytes(np.ones(6, np.uint16).tobytes())
    other.replace(prefix.with_suffix(".bin"))
    assert corpus[0].tolist() == [7, 8] and open_corpus(prefix)[0].tolist() == [1, 1]


def test_changed_content_changes_the_fingerprint(prefix):
    before = open_corpus(prefix).fingerprint
    prefix.with_suffix(".bin").write_bytes(np.array([7, 8, 9, 5, 6, 6], np.uint16).tobytes())
    assert open_corpus(prefix).fingerprint != before


def test_an_id_above_the_vocabulary_is_reported_with_its_place(prefix):
    open_corpus(prefix).check_ids(10)
    with pytest.raises(InputError, match=r"tiny\.bin: id 9 at token 2 \(document 0, sentence 1\)"):
        open_corpus(prefix).check_ids(9)


DAMAGED = {
    "another magic": (index(magic=b"MMIDIDY\x00\x00"), "not an index of Megatron's layout"),
    "empty": (b"", "not an index of Megatron's layout"),
    "cut in the header": (index()[:20], "20 bytes, where"),
    "cut short": (index()[:-1], "93 bytes, where .* take 94; damaged or cut short"),
    "too long": (index() + b"\0", "95 bytes, where .* take 94"),
    "counts beyond the file": (index(counts=(2**63, 3)), "94 bytes, where"),
    "another version": (index(version=2), "not an index of Megatron's layout"),
    "floating point": (index(kind=6), "not an index of Megatron's layout"),
    "an unknown kind": (index(kind=77), "not an index of Megatron's layout"),
    "more tokens than there are": (index(lens=[2, 1, 4]), r"7 tokens according to 'lens', 6 in tiny\.bin"),
    "a negative length": (index(lens=[2, -1, 5]), "a sentence without tokens"),
    "an empty sentence": (index(lens=[2, 0, 4]), "a sentence without tokens"),
    "a pointer outside": (index(pointers=[0, 4, 1 << 40]), "does not begin where the one before it ends"),
    "a negative pointer": (index(pointers=[-2, 4, 6]), "does not begin where the one before it ends"),
    "a document that begins late": (index(docs=[1, 3]), "does not begin with 0"),
    "a document that ends early": (index(docs=[0, 2]), "does not end at sentence 3"),
    "documents that go down": (index(docs=[0, 3, 2, 3]), "decreases"),
    "documents that wrap": (index(docs=[0, 2**63 - 1, -5, 3]), "decreases"),
    "no documents": (index(docs=[]), "does not begin with 0"),
}


@pytest.mark.parametrize(("content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_index_is_refused(prefix, content, message):
    prefix.with_suffix(".idx").write_bytes(content)
    with pytest.raises(InputError, match=rf"tiny\.idx: .*{message}"):
        open_corpus(prefix)


@pytest.mark.parametrize(("size", "message"), [(11, "5 in"), (10, "5 in"), (0, "0 in")])
def test_truncated_ids_are_refused(prefix, size, message):
    path = prefix.with_suffix(".bin")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=message):
        open_corpus(prefix)


@pytest.mark.parametrize("end", [".bin", ".idx"])
def test_a_missing_file_is_reported(prefix, end):
    prefix.with_suffix(end).unlink()
    with pytest.raises(InputError, match=rf"tiny\{end}: no such file"):
        open_corpus(prefix)
    with pytest.raises(InputError, match=r"no_ids\.npy: no such file; make the corpus"):
        open_corpus(prefix.with_name("no"))


def test_two_corpora_with_the_same_prefix_are_refused(prefix):
    write_ours(prefix)
    with pytest.raises(InputError, match=r"may be different corpora; move the unwanted one away"):
        open_corpus(prefix)


@pytest.mark.parametrize("given", [".", "tiny", "tiny.bin", "tiny.idx"])
def test_a_corpus_is_found_by_folder_prefix_or_file(prefix, tmp_path, given):
    assert find_corpus(prefix.parent / given, "--input_dir") == prefix
    (tmp_path / "our").mkdir()
    write_ours(tmp_path / "our" / "ours")
    for name in (".", "ours", "ours_ids.npy", "ours_idx.npz", "ours.manifest.json"):
        assert find_corpus(tmp_path / "our" / name, "--input_dir") == tmp_path / "our" / "ours"


@pytest.mark.parametrize("given", ["nowhere", "notes.txt", "_idx.npz"])
def test_a_path_that_is_not_a_corpus_is_refused_with_a_hint(prefix, given):
    (prefix.parent / "notes.txt").touch()
    with pytest.raises(InputError, match=f"domain_data .*{given} is not a folder with a corpus, nor"):
        find_corpus(prefix.parent / given, "--domain_data")


def test_two_corpora_in_one_folder_are_refused_and_listed(tmp_path):
    for name in ("a.idx", "b_idx.npz"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"found b_idx.npz, a.idx; give the PREFIX"):
        find_corpus(tmp_path, "--input_dir")
    assert find_corpus(tmp_path / "a", "--input_dir") == tmp_path / "a"


def test_a_folder_and_prefix_of_the_same_name_are_ambiguous(prefix, tmp_path):
    (tmp_path / "tiny").mkdir()
    assert find_corpus(prefix, "--input_dir") == prefix
    write_ours(tmp_path / "tiny" / "ours")
    with pytest.raises(InputError, match=r"found ours_idx.npz, tiny.bin, tiny.idx"):
        find_corpus(prefix, "--input_dir")
