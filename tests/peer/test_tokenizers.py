"""A folder's texts and pairs have the ids of its own tokenizer: every character, any string, any length."""

from random import Random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from peers.comparing import different_rows, rows_here  # noqa: E402
from peers.texts import WITH_SYMBOLS, assigned_characters, random_strings, sentences  # noqa: E402
from peers.tiny_models import SENTENCE_PIECE  # noqa: E402

# A folder as each library writes it, and one that brings the older file alone.
FOLDERS = {
    "bert": ("bert", {}, ()),
    "bert that keeps case": ("bert", {"lower_case": False}, ()),
    "electra by vocab.txt": ("electra", {"keep": ["vocab.txt"]}, ("tokenizer.json",)),
    "xlm-roberta": ("xlm-roberta", {}, ()),
    "xlm-roberta by sentencepiece": ("xlm-roberta", {"keep": [SENTENCE_PIECE]}, ("tokenizer.json",)),
}
# transformers 4 splits Unigram texts at spaces, transformers 5 and sentencepiece.bpe.model at this as well.
NEXT_LINE = "\x85"


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request, peer, tmp_path_factory):
    """A folder that the peer wrote."""
    family, settings, removed = FOLDERS[request.param]
    folder = peer.make(tmp_path_factory.mktemp("of") / family, family, **settings)
    for name in removed:
        (folder / name).unlink()
    return folder


def show(texts, found):
    """Describe the first differences."""
    return [(texts[number], ours, theirs) for number, ours, theirs in found[:5]]


def test_every_assigned_character_has_the_ids_of_the_folders_own_tokenizer(peer, folder):
    texts = [f"a{character}b" for character in assigned_characters()]
    found = different_rows(peer, folder, texts)
    assert not found, (len(found), show(texts, found))


def test_random_strings_have_the_ids_of_the_folders_own_tokenizer(peer, folder):
    texts = [*random_strings(), *WITH_SYMBOLS]
    found = different_rows(peer, folder, texts)
    assert not found, (len(found), show(texts, found))


def test_pairs_are_cut_to_any_length_as_by_the_folders_own_tokenizer(peer, folder):
    rng, texts = Random(1), [*sentences(60), *WITH_SYMBOLS, *random_strings(100)]
    pairs = [(rng.choice(texts), rng.choice(texts)) for _ in range(300)]
    pairs += [(text, text[::-1]) for text in texts] + [("订单" * n, "密码" * n) for n in range(12)]
    left, right = map(list, zip(*pairs))
    for max_length in (*range(8, 30), 41, 64):
        found = different_rows(peer, folder, left, right, max_length)
        assert not found, (max_length, len(found), show(pairs, found))


def test_pairs_have_the_token_types_of_the_folders_own_tokenizer(peer, folder):
    left, right = sentences(40), sentences(40, seed=1)
    rows = rows_here(folder, left, right, 20)
    batch = rows.batch(range(40))
    _, said = peer.ask("token_ids", folder=folder, texts=left, pairs=right, max_length=20)
    if said["types"].any():  # not those of a model of one type
        flat = batch.token_type_ids[batch.input_ids != rows.pad_id]
        assert flat.tolist() == said["types"].tolist()
