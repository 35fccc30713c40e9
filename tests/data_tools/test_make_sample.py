"""The built-in sample: its counts and labels, and that word overlap alone does not solve it."""

import hashlib
import re
from collections import Counter

import pytest

from data_tools.make_sample import SampleConfig, make_sample
from data_tools.text.sample import all_meanings, overlap, read_tables
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.errors import InputError

FILES = ("corpus.txt", "pairs/train.tsv", "pairs/dev.tsv", "pairs/test.tsv")


@pytest.fixture(scope="module")
def sample(module_path):
    make_sample(SampleConfig(output_dir=str(module_path)))
    return module_path


@pytest.fixture(scope="module")
def documents(sample):
    text = (sample / "corpus.txt").read_text(encoding="utf-8")
    return [document.split("\n") for document in text.rstrip("\n").split("\n\n")]


@pytest.fixture(scope="module")
def splits(sample):
    names = ("train", "dev", "test")
    return {name: _rows(sample / "pairs" / f"{name}.tsv") for name in names}


def _rows(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(a, b, int(label)) for a, b, label in (line.split("\t") for line in lines)]


def _all(splits):
    return [row for rows in splits.values() for row in rows]


# --- bytes


def test_the_default_sample_never_changes(sample):
    digest = hashlib.sha256(b"".join((sample / name).read_bytes() for name in FILES)).hexdigest()
    assert digest == "74b4eaed0c23771b683028499fcfa0d24deb6c4a113db695b22c2a1ceaa46eeb"


def test_another_seed_gives_another_sample(sample, tmp_path):
    make_sample(SampleConfig(output_dir=str(tmp_path), seed=7))
    for name in FILES:
        assert (tmp_path / name).read_bytes() != (sample / name).read_bytes()


# --- documents


def test_there_are_600_documents_of_four_to_nine_sentences(documents):
    assert len(documents) == 600
    assert {len(document) for document in documents} <= set(range(4, 10))
    assert len({"\n".join(document) for document in documents}) == 600


def test_no_template_placeholder_is_left_unfilled(documents, splits):
    texts = [sentence for document in documents for sentence in document]
    texts += [text for a, b, _ in _all(splits) for text in (a, b)]
    assert not [text for text in texts if re.search(r"[(){}|/\[\]\s?]", text)]


# --- pairs


def test_every_split_has_its_size_and_is_balanced(splits):
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 2800, "dev": 400, "test": 400}
    for rows in splits.values():
        assert Counter(label for *_, label in rows) == {0: len(rows) // 2, 1: len(rows) // 2}


def test_no_pair_repeats_in_either_order(splits):
    keys = Counter(frozenset((a, b)) for a, b, _ in _all(splits))
    assert max(keys.values()) == 1
    assert all(len(key) == 2 for key in keys)


def test_labels_follow_from_the_meanings(splits):
    meaning_of = _meaning_of()
    for a, b, label in _all(splits):
        assert (_undressed(a, meaning_of) == _undressed(b, meaning_of)) == (label == 1), (a, b)


def test_word_overlap_alone_scores_below_85_percent(splits):
    for rows in splits.values():
        assert _best_threshold_accuracy([(overlap(a, b), label) for a, b, label in rows]) < 0.85


def _best_threshold_accuracy(scored):
    def accuracy(threshold):
        right = sum((score >= threshold) == (label == 1) for score, label in scored) / len(scored)
        return max(right, 1 - right)

    return max(accuracy(score) for score, _ in scored)


def _meaning_of():
    meanings = all_meanings()
    return {sentence: meaning for meaning in meanings for sentence in meaning.sentences}


def _undressed(text, meaning_of):
    for opening in read_tables().around["openings"]:
        for closing in read_tables().around["closings"]:
            if text.startswith(opening) and text.endswith(closing):
                bare = text[len(opening) : len(text) - len(closing)]
                if bare in meaning_of:
                    return meaning_of[bare]
    raise AssertionError(f"{text} is not in the tables")


# --- the tables


@pytest.mark.parametrize("topic", read_tables().topics, ids=lambda topic: " ".join(topic.slots))
def test_a_topic_is_complete_and_its_wordings_share_slots(topic):
    assert set(topic.parts) == {"title", "steps", "rules", "failures", "tips"}
    assert len(topic.asks) >= 2
    for wordings in topic.asks:
        used = {frozenset(re.findall(r"\{(\w+)\}", wording)) for wording in wordings}
        assert len(wordings) >= 2
        assert len(used) == 1, wordings


def test_no_sentence_has_two_meanings():
    meanings = all_meanings()
    assert len(_meaning_of()) == sum(len(meaning.sentences) for meaning in meanings)


# --- the command


@pytest.mark.parametrize("pairs", [18, 40, 900])
def test_any_even_number_of_pairs_gives_three_balanced_splits(tmp_path, pairs):
    make_sample(SampleConfig(output_dir=str(tmp_path), documents=1, pairs=pairs))
    splits = {name: _rows(tmp_path / "pairs" / f"{name}.tsv") for name in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == pairs
    assert all(2 * sum(label for *_, label in rows) == len(rows) > 0 for rows in splits.values())


def test_invalid_flags_are_refused_with_a_hint():
    for flags, hint in (({"output_dir": " "}, "name the file or folder"), ({"pairs": 3601}, "use 3602")):
        with pytest.raises(InputError, match=hint):
            SampleConfig(**{"output_dir": "sample", **flags})


def test_too_many_pairs_are_refused_with_the_maximum(tmp_path):
    with pytest.raises(InputError, match=r"use at most \d{5,}") as refusal:
        make_sample(SampleConfig(output_dir=str(tmp_path), documents=1, pairs=10**8))
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    argv = ["--output_dir", str(tmp_path), "--documents", "3", "--pairs", "36"]
    with pytest.raises(SystemExit) as leaving:
        run_command(make_sample, SampleConfig, argv)
    assert leaving.value.code == 0
    assert capsys.readouterr().out == (
        f"wrote 3 documents to {tmp_path}/corpus.txt, 28 + 4 + 4 pairs to {tmp_path}/pairs\n"
    )
