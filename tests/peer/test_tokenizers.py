"""A folder's texts and pairs have the ids of its own tokenizer: every character, any string, any length."""

from random import Random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from other_libraries.families import different_rows, rows_here  # noqa: E402
from other_libraries.texts import WITH_SYMBOLS, assigned_characters, random_strings, sentences  # noqa: E402
from other_libraries.tiny_models import SENTENCE_PIECE  # noqa: E402

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
    """A folder that the peer wrote."""
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


def refuse_differences(peer, folder, texts, pairs=None, max_length=64):
    found = different_rows(peer, folder, texts, pairs, max_length)
    shown = [(texts[number], pairs and pairs[number], ours, theirs) for number, ours, theirs in found[:5]]
    assert not found, (len(found), max_length, shown)


def test_every_assigned_character_has_the_ids_of_the_folder(peer, folder, is_like_newest):
    texts = [f"a{character}b" for character in assigned_characters()]
    refuse_differences(peer, folder, list(filter(is_like_newest, texts)))


def test_random_strings_have_the_ids_of_the_folder(peer, folder, is_like_newest):
    texts = [*random_strings(), *WITH_SYMBOLS, *sentences()]
    refuse_differences(peer, folder, list(filter(is_like_newest, texts)))


def test_pairs_are_cut_to_any_length_as_in_the_library(peer, folder, is_like_newest):
    rng = Random(1)
    texts = list(filter(is_like_newest, [*sentences(60), *WITH_SYMBOLS, *random_strings(100)]))
    pairs = [(rng.choice(texts), rng.choice(texts)) for _ in range(300)]
    pairs += [(text, text[::-1]) for text in texts] + [("订单" * n, "密码" * n) for n in range(12)]
    left, right = map(list, zip(*pairs))
    for max_length in (*range(8, 20), 29, 41, 64):
        refuse_differences(peer, folder, left, right, max_length)


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
