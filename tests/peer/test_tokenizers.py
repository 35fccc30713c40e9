"""A folder's texts and pairs have the ids of its own tokenizer: every character, any string, any length."""

from random import Random

import numpy as np
import pytest
from other_libraries.client import LibraryError
from other_libraries.families import different_rows, rows_here
from other_libraries.texts import WITH_SYMBOLS, assigned_characters, random_strings, sentences
from other_libraries.tiny_models import SENTENCE_PIECE

# A folder as each library writes it, and one that brings the older file alone.
FOLDERS = {
    "bert": ("bert", {}, ()),
    "bert that keeps case": ("bert", {"lower_case": False}, ()),
    "electra by vocab.txt": ("electra", {"keep": ["vocab.txt"]}, ("tokenizer.json",)),
    "xlm-roberta": ("xlm-roberta", {}, ()),
    "xlm-roberta by sentencepiece": ("xlm-roberta", {"keep": [SENTENCE_PIECE]}, ("tokenizer.json",)),
}
# By sentencepiece.bpe.model alone transformers 5 splits here, as published tokenizer.json do, and 4 does not.
NEXT_LINE = "\x85"


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request, peer, tmp_path_factory):
    family, settings, removed = FOLDERS[request.param]
    folder = peer.make(tmp_path_factory.mktemp("of") / family, family, **settings)
    for name in removed:
        (folder / name).unlink()
    return folder


@pytest.fixture(scope="module")
def is_like_newest(peer, folder):
    """Whether the newest library cuts a text of the folder in the same way."""
    is_older = peer.versions["transformers"].startswith("4.")
    of_pieces_alone = (folder / SENTENCE_PIECE).is_file() and not (folder / "tokenizer.json").is_file()
    return lambda text: not (is_older and of_pieces_alone and NEXT_LINE in text)


def assert_same_ids(peer, folder, texts, pairs=None, max_length=64):
    different = different_rows(peer, folder, texts, pairs, max_length)
    shown = [(texts[number], pairs and pairs[number], *ids) for number, *ids in different[:5]]
    assert not different, (len(different), max_length, shown)


def test_every_assigned_character_has_the_ids_of_the_folder(peer, folder, is_like_newest):
    texts = [f"a{character}b" for character in assigned_characters()]
    assert_same_ids(peer, folder, list(filter(is_like_newest, texts)))


def test_random_strings_have_the_ids_of_the_folder(peer, folder, is_like_newest):
    texts = [*random_strings(), *WITH_SYMBOLS, *sentences()]
    assert_same_ids(peer, folder, list(filter(is_like_newest, texts)))


def test_pairs_are_cut_to_any_length_as_in_the_library(peer, folder, is_like_newest):
    rng = Random(1)
    texts = list(filter(is_like_newest, [*sentences(60), *WITH_SYMBOLS, *random_strings(100)]))
    pairs = [(rng.choice(texts), rng.choice(texts)) for _ in range(300)]
    pairs += [(text, text[::-1]) for text in texts] + [("订单" * n, "密码" * n) for n in range(12)]
    left, right = map(list, zip(*pairs))
    for max_length in (*range(8, 20), 29, 41, 64):
        assert_same_ids(peer, folder, left, right, max_length)


def test_pairs_have_the_token_types_of_the_library(peer, folder):
    left, right = sentences(40), sentences(40, seed=1)
    rows = rows_here(folder, left, right, 20)
    batch = rows.batch(range(40))
    _, said = peer.ask("token_ids", folder=folder, texts=left, pairs=right, max_length=20)
    if folder.name == "xlm-roberta":
        assert not said["types"].any()  # a model of one type
    else:
        inside = batch.input_ids != rows.pad_id
        assert batch.token_type_ids[inside].tolist() == said["types"].tolist()


# The processes of both libraries, and the tiny models that they write, which are like real ones.


def test_both_peers_are_the_expected_libraries(newest, pinned):
    assert newest.versions["transformers"].startswith("5.")
    assert newest.versions["sentence-transformers"].startswith("6.")
    assert pinned.versions["transformers"].startswith("5.")


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
    assert "vocab.txt" not in names[newest, "bert"]
    assert "vocab.txt" not in names[pinned, "bert"] and SENTENCE_PIECE not in names[pinned, "xlm-roberta"]
    kept = newest.make(tmp_path / "kept", "xlm-roberta", keep=[SENTENCE_PIECE])
    assert (kept / SENTENCE_PIECE).is_file()


def test_the_texts_to_compare_hold_what_cutting_depends_on():
    characters, strings = assigned_characters(), random_strings(2000)
    assert len(characters) > 140_000 and {"¥", "好", "\u0301", "\x00", "\ue000", "👍"} <= set(characters)
    joined = "".join(strings)
    assert {"[MASK]", "</s>"} <= {word for word in ("[MASK]", "</s>") if word in joined}
    assert strings == random_strings(2000) and {"\u200b", "\u3000", "\n"} <= set(joined)
