"""Files of new pairs: the formats, what they refuse, and pairs already in the dev or test file."""

import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.pairs.audit.new_pairs import KnownPairs, NewPair, write_new_pairs
from ernie_pair.pairs.data.pair_file import Pairs
from ernie_pair.pairs.data.pair_source import PairSource, read_pairs

PAIRS = [NewPair('今"天,', "天气", "1", "near 0.5"), NewPair("大小", "多少", "0", "transitive lines 1 2")]


@pytest.mark.parametrize("ending", ["tsv", "csv", "json", "jsonl", "xlsx", "parquet"])
def test_written_pairs_are_read_back(tmp_path, ending):
    path = tmp_path / f"new.{ending}"
    assert write_new_pairs(path, path, iter(PAIRS)) == 2
    read = read_pairs(path, 2)
    assert (read.left, read.right, read.known_labels.tolist()) == (
        ['今"天,', "大小"],
        ["天气", "多少"],
        [1, 0],
    )
    assert [row["origin"] for _, row in PairSource("train_file", str(path), "train", None).given()] == [
        "near 0.5",
        "transitive lines 1 2",
    ]


@pytest.mark.parametrize("left", ["今\r天", "今天\r", "\r,", '\r"', "今\n天"])
def test_line_ends_in_a_text_are_read_back_from_csv(tmp_path, left):
    path = tmp_path / "new.csv"
    write_new_pairs(path, path, [PAIRS[0]._replace(left=left), PAIRS[1]])
    read = read_pairs(path, 2)
    assert read.left == [left, "大小"] and read.known_labels.tolist() == [1, 0]
    assert path.read_bytes().endswith("大小,多少,0,transitive lines 1 2\n".encode())
    with pytest.raises(InputError, match="a tab or a line end, which no .tsv can hold"):
        write_new_pairs(tmp_path / "x", tmp_path / "new.tsv", [PAIRS[0]._replace(left=left)])


def test_known_pairs_match_after_normalising_in_either_order():
    dev = Pairs(["怎么开户？"], ["如何 开户"], None, "")
    known = KnownPairs({"dev": dev, "test": Pairs(["ABC"], ["def"], None, "")})
    left, right = ["如何开户", "ａｂｃ！", "怎么开户", "今天"], ["怎么开户", "DEF", "别的", "明天"]
    assert known.unknown(left, right).tolist() == [False, False, True, True]
    assert known.dropped == {"dev": 1, "test": 1} and known.half_known == 1
    assert len(known.lines()) == 3 and KnownPairs({}).lines() == []
