import pytest

from data_tools.corpus.format import document_ranges
from data_tools.files.errors import InputError


def test_the_ranges_cover_every_document_once():
    ranges = document_ranges("949,50,1", 10000)
    assert [len(ranges[name]) for name in ("train", "valid", "test")] == [9490, 500, 10]
    assert [*ranges["train"], *ranges["valid"], *ranges["test"]] == list(range(10000))


def test_a_share_of_zero_is_an_empty_range():
    assert document_ranges("1,1,0", 10)["test"] == range(10, 10)


def test_an_empty_split_is_refused_with_a_suggested_split():
    with pytest.raises(InputError, match=r"no document for test out of 20; .* split 18,1,1"):
        document_ranges("949,50,1", 20)


@pytest.mark.parametrize("split", ["", "1,2", "a,b,c", "-1,2,3", "0,0,0", "0,1,1", "nan,1,1", "1,2,3,4"])
def test_invalid_split_weights_are_refused(split):
    with pytest.raises(InputError, match="three weights"):
        document_ranges(split, 100)
