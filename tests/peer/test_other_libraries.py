"""The processes of both libraries answer, and the tiny models that they write are like real ones."""

import numpy as np
import pytest
from other_libraries.client import LibraryError
from other_libraries.texts import WITH_SYMBOLS, assigned_characters, random_strings
from other_libraries.tiny_models import SENTENCE_PIECE


def test_both_peers_are_the_expected_libraries(newest, pinned):
    assert newest.versions["transformers"].startswith("5.")
    assert newest.versions["sentence-transformers"].startswith("6.")
    assert pinned.versions["transformers"].startswith("4.")


def test_what_a_library_raises_is_the_peers_error(peer, tmp_path):
    with pytest.raises(LibraryError, match="OSError|ValueError|HFValidationError"):
        peer.rows(tmp_path / "absent", ["a"])
    assert len(peer.rows(peer.make(tmp_path / "bert", "bert"), ["a", "b"])) == 2  # it goes on


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_tiny_models_tell_texts_apart_and_are_reproducible(peer, tmp_path, family):
    folders = [peer.make(tmp_path / name, family) for name in "ab"]
    (_, one), (_, other) = (peer.ask("outputs", folder=folder, texts=WITH_SYMBOLS) for folder in folders)
    assert np.array_equal(one["last_hidden_state"], other["last_hidden_state"])
    assert np.median(np.ptp(one["last_hidden_state"][:, 0], axis=0)) > 1e-2


def test_a_folder_has_the_tokenizer_files_of_its_time(newest, pinned, tmp_path):
    names = {
        (peer, family): {path.name for path in peer.make(tmp_path / f"{number}-{family}", family).iterdir()}
        for number, peer in enumerate((newest, pinned))
        for family in ("bert", "xlm-roberta")
    }
    assert all("tokenizer.json" in found for found in names.values())
    assert "vocab.txt" in names[pinned, "bert"] and "vocab.txt" not in names[newest, "bert"]
    assert SENTENCE_PIECE in names[pinned, "xlm-roberta"]
    kept = newest.make(tmp_path / "kept", "xlm-roberta", keep=[SENTENCE_PIECE])
    assert (kept / SENTENCE_PIECE).is_file()


def test_the_texts_to_compare_hold_what_cutting_depends_on():
    characters, strings = assigned_characters(), random_strings(2000)
    assert len(characters) > 140_000 and {"¥", "好", "\u0301", "\x00", "\ue000", "👍"} <= set(characters)
    joined = "".join(strings)
    assert {"[MASK]", "</s>"} <= {word for word in ("[MASK]", "</s>") if word in joined}
    assert strings == random_strings(2000) and {"\u200b", "\u3000", "\n"} <= set(joined)
