from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from data_tools.corpus import mixture as blend
from data_tools.corpus.mixture import Blend, BlendedDataset, read_blend, turns
from ernie_pair.core.errors import InputError


def random_parts(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(1, rng.choice([2, 4, 12, 70]), size=rng.integers(1, 9)).astype(np.int64)


@pytest.mark.parametrize("seed", range(60))
def test_every_count_is_the_floor_or_ceil_of_its_share(seed):
    parts = random_parts(seed)
    given = (turns(parts)[:, None] == np.arange(len(parts))).cumsum(axis=0)
    share = np.arange(1, parts.sum() + 1)[:, None] * parts
    assert (given >= share // parts.sum()).all() and (given <= -(-share // parts.sum())).all()


@pytest.mark.skipif(blend.compiled_turns is None, reason="helper not compiled; run: pip install -e .")
@pytest.mark.parametrize("seed", range(60))
def test_the_compiled_turns_equal_the_python_turns(seed):
    parts = random_parts(seed)
    assert np.array_equal(blend.compiled_turns(parts), turns(parts))


@pytest.mark.skipif(blend.compiled_turns is None, reason="helper not compiled; run: pip install -e .")
@pytest.mark.parametrize("parts", [[0, 1], [-1, 3], [2**62, 1], [600000, 600000]])
def test_the_compiled_turns_refuse_parts_out_of_range(parts):
    with pytest.raises(ValueError, match="part"):
        blend.compiled_turns(np.array(parts))


def test_the_docstring_example_holds():
    corpora, own = Blend([Fraction(1), Fraction(2), Fraction(1)]).locate(range(8))
    assert corpora.tolist() == [1, 0, 1, 2, 1, 0, 1, 2]
    assert own.tolist() == [0, 0, 1, 0, 2, 1, 3, 1]


@pytest.mark.parametrize("seed", range(20))
def test_every_corpus_is_read_from_its_start_without_gaps(seed):
    mixed = Blend([Fraction(int(part)) for part in random_parts(seed)])
    corpora, own = mixed.locate(np.arange(1000))
    for corpus, count in enumerate(mixed.counts(1000)):
        assert own[corpora == corpus].tolist() == list(range(count))


def test_the_blend_repeats_with_its_period_at_huge_indices():
    mixed = Blend([Fraction(5), Fraction(7)])
    corpus, own = mixed.locate(3)
    far_corpus, far_own = mixed.locate(12 * 10**11 + 3)
    assert far_corpus == corpus and far_own == own + mixed.parts[corpus] * 10**11


def test_only_the_proportions_of_weights_matter():
    one, other = Blend([Fraction("0.5"), Fraction("0.7")]), Blend([Fraction(50), Fraction(70)])
    assert one.parts.tolist() == other.parts.tolist() == [5, 7]


def test_a_blended_dataset_follows_the_order_of_the_blend():
    mixed = BlendedDataset([["a0", "a1"], ["b0", "b1", "b2", "b3"]], Blend([Fraction(1), Fraction(2)]))
    assert [mixed[number] for number in range(6)] == ["b0", "a0", "b1", "b2", "a1", "b3"]
    assert len(mixed) == 6


def test_weights_are_read_exactly_and_folders_may_be_quoted():
    found = read_blend("5.1 data/a 7e-1 'my data/b'")
    assert found == [(Fraction(51, 10), Path("data/a")), (Fraction(7, 10), Path("my data/b"))]
    longer_than_a_file_name = " ".join(f"1 corpus{number:03d}" for number in range(60))
    assert read_blend(longer_than_a_file_name)[59] == (1, Path("corpus059"))
    assert read_blend("no such folder") == [(1, Path("no such folder"))]


@pytest.mark.parametrize("name", ["5", "ann's data", 'the "old" one', 'half a "', "5.0 a"])
def test_an_existing_folder_of_any_name_gets_weight_1(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_blend(name) == [(1, Path(name))]


@pytest.mark.parametrize("text, message", [
    ("5.0 data/a 7.0", "7.0 is no weight above 0 of a folder"),
    ("5.0", "5.0 is no weight above 0 of a folder"),
    ("5.0 data/a data/b 7.0", "data/b is no weight above 0"),
    ("0 data/a 1 data/b", "0 is no weight above 0"),
    ("1 data/a -2 data/b", "-2 is no weight above 0"),
    ("1 data/a nan data/b", "nan is no weight above 0"),
    ("inf data/a 1 data/b", "inf is no weight above 0"),
    ("1e999999999 data/a 1 data/b", "is no weight above 0"),
    ("1 data/a 1 data/a", "data/a is given twice"),
    ("1 'data/a", "No closing quotation"),
])  # fmt: skip
def test_malformed_blends_are_refused_in_one_line(text, message):
    with pytest.raises(InputError, match=message) as error:
        read_blend(text)
    assert "\n" not in str(error.value)


def test_unwieldy_weights_are_refused_suggesting_rounder_ones():
    with pytest.raises(InputError, match="76469134 samples.* round them, for example to 68 932"):
        Blend([Fraction(5234567), Fraction(71234567)])


@pytest.mark.parametrize("count", [256, 300])
def test_256_or_more_corpora_are_blended_exactly(count):
    mixed = Blend([Fraction(1 + number % 7) for number in range(count)])
    corpora, own = mixed.locate(np.arange(mixed.period))
    assert np.array_equal(np.bincount(corpora), mixed.parts) and corpora.max() == count - 1
    assert own[corpora == count - 1].tolist() == list(range(mixed.parts[-1]))


@pytest.mark.parametrize(("one", "other"), [("1e308", "1e-307"), ("1e-300", "1"), ("1.00000001", "1")])
def test_weights_far_apart_are_refused_with_a_short_message(one, other):
    with pytest.raises(InputError, match="round them, for example to") as caught:
        Blend([Fraction(one), Fraction(other)])
    assert len(str(caught.value)) < 300
