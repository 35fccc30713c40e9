"""The corpus files: what is written is read back, and damaged files are refused."""

import hashlib
import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest

from data_tools.corpus.format import Corpus, corpus_paths, id_dtype
from data_tools.corpus.writer import CorpusWriter
from data_tools.files.errors import InputError

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
    assert (corpus.num_documents, corpus.docs.tolist(), corpus.starts.tolist()) == (
        2,
        [0, 2, 3],
        [0, 2, 3, 6],
    )
    with pytest.raises(ValueError, match="read-only"):
        corpus.ids[0] = 1


def test_a_corpus_of_other_tools_needs_no_manifest(prefix, foreign):
    ours, theirs = Corpus(prefix), Corpus(foreign)
    assert not theirs.has_manifest and theirs.max_id == 9 and theirs.vocab_sha256 == ""
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
    assert id_dtype(17964) == np.uint16 and id_dtype(70000) == np.int32
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


@pytest.mark.parametrize(
    ("index", "what"),
    [
        ({"lens": np.array([2, 1, 4], np.int32)}, "7 tokens according to 'lens', 6 in foreign_ids.npy"),
        ({"lens": np.array([6, 0, 0], np.int32)}, "without tokens"),
        ({"lens": np.array([7, -2, 1], np.int32)}, "without tokens"),
        ({"docs": np.array([0, 3, 2, 3])}, "decreases"),
        ({"docs": np.array([1, 3])}, "does not begin with 0"),
        ({"docs": np.array([0, 2])}, "does not end at sentence 3"),
        ({"docs": np.array([], np.int64)}, "does not begin"),
        ({"sents": np.array([0, 2, 4, 6])}, "'sents' disagrees"),
        ({"lens": np.array([2.0, 1.0, 3.0])}, "'lens' is not a 1-D array of whole"),
        ({"docs": np.array([[0, 2, 3]])}, "'docs' is not a 1-D array of whole"),
        ({"extra": np.array([1])}, "something other"),
        ({"lens": np.zeros(1 << 16, np.int32)}, "something other"),
    ],
)
def test_an_inconsistent_index_is_refused(foreign, index, what):
    save(foreign, **index)
    with pytest.raises(InputError, match=rf"foreign_idx\.npz: .*{what}"):
        Corpus(foreign)


@pytest.mark.parametrize(
    "ids",
    [np.zeros((2, 3), np.uint16), np.zeros(6), np.zeros(6, bool), np.zeros(6, ">u2"), np.zeros(6, np.int64)],
)
def test_unsupported_id_arrays_are_refused(foreign, ids):
    np.save(f"{foreign}_ids.npy", ids)
    with pytest.raises(InputError, match=r"foreign_ids\.npy: holds no 1-D uint16"):
        Corpus(foreign)


class Payload:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


def test_a_pickle_in_place_of_the_ids_is_not_loaded(foreign):
    corpus_paths(foreign).ids.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(InputError, match="not a readable .npy"):
        Corpus(foreign)


@pytest.mark.parametrize("end", ["_ids.npy", "_idx.npz"])
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_refused(foreign, end, keep):
    path = foreign.with_name(foreign.name + end)
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(InputError, match=f"{path}: not a readable"):
        Corpus(foreign)


def test_a_flipped_bit_of_the_ids_is_found_by_the_full_check(prefix):
    path = corpus_paths(prefix).ids
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"tiny_ids\.npy is not the file .* make the corpus again"):
        Corpus(prefix, verify="full")


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


def test_a_broken_checksum_inside_the_index_is_refused(foreign):
    path = corpus_paths(foreign).idx
    with zipfile.ZipFile(path) as archive:
        place = archive.infolist()[0].header_offset + 170
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"foreign_idx\.npz"):
        Corpus(foreign)


def test_an_id_above_the_vocabulary_is_reported_with_its_place(foreign):
    Corpus(foreign).check_ids(10)
    with pytest.raises(InputError, match=r"id 9 at token 2 \(document 0, sentence 1\) is not below .* 9;"):
        Corpus(foreign).check_ids(9)


def test_a_negative_id_is_found(foreign):
    np.save(f"{foreign}_ids.npy", np.array([7, 8, 9, 5, -1, 7], np.int32))
    with pytest.raises(InputError, match=r"id -1 at token 4 \(document 1, sentence 2\)"):
        _ = Corpus(foreign).max_id
