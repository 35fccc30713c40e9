"""Files of new pairs: three formats, what they refuse, and pairs that the measuring files have."""

import pytest

from data_tools.base.errors import InputError
from ernie_pair.pair.data.pair_file import Pairs, read_pairs
from ernie_pair.pair.new_pairs.known_pairs import KnownPairs
from ernie_pair.pair.new_pairs.pair_writer import NewPair, refuse_ending, write_new_pairs

PAIRS = [NewPair('今"天,', "天气", "1", "near 0.5"), NewPair("大小", "多少", "0", "transitive lines 1 2")]


@pytest.mark.parametrize("ending", ["tsv", "csv", "json", "jsonl"])
def test_what_is_written_is_read_as_pairs(tmp_path, ending):
    path = tmp_path / f"new.{ending}"
    assert write_new_pairs(path, path, iter(PAIRS)) == 2
    read = read_pairs(path, 2)
    assert (read.left, read.right, read.known_labels.tolist()) == (
        ['今"天,', "大小"],
        ["天气", "多少"],
        [1, 0],
    )
    assert "transitive lines 1 2" in path.read_text(encoding="utf-8")


def test_a_tab_goes_into_json_lines_only(tmp_path):
    pair = PAIRS[0]._replace(left="今\t天")
    with pytest.raises(InputError, match="a tab or a line end, which no .tsv can hold; name the file .jsonl"):
        write_new_pairs(tmp_path / "x", tmp_path / "new.tsv", [pair])
    write_new_pairs(tmp_path / "new.jsonl", tmp_path / "new.jsonl", [pair])
    assert read_pairs(tmp_path / "new.jsonl", 2).left == ["今\t天"]


@pytest.mark.parametrize("name", ["new", "new.txt", "new.tsv.gz"])
def test_a_name_without_a_format_is_refused(name):
    with pytest.raises(InputError, match="name a file that ends with .tsv, .csv, .json, .jsonl"):
        refuse_ending("output_file", name)


def test_known_pairs_are_found_in_either_order_normalised():
    dev = Pairs(["怎么开户？"], ["如何 开户"], None, "")
    known = KnownPairs({"dev": dev, "test": Pairs(["ABC"], ["def"], None, "")})
    left, right = ["如何开户", "ａｂｃ！", "怎么开户", "今天"], ["怎么开户", "DEF", "别的", "明天"]
    assert known.unknown(left, right).tolist() == [False, False, True, True]
    assert known.dropped == {"dev": 1, "test": 1} and known.half_known == 1
    assert len(known.lines()) == 3 and KnownPairs({}).lines() == []
