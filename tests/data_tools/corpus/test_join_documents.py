"""Short documents are joined into longer ones as the options say, and every line is still counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_corpus import lines_of, make, stop_after

from data_tools.corpus import shards
from data_tools.corpus.format import Corpus
from data_tools.corpus.writer import Joining, join_documents


def joined(which, max_tokens, *documents):
    """Documents as tuples of sentence lengths -> how many sentences the joined ones have."""
    sizes, lens = np.array([len(d) for d in documents], np.int64), np.array(sum(documents, ()), np.int32)
    return join_documents(sizes, lens, Joining(which, max_tokens)).tolist()


@pytest.mark.parametrize("which, documents, sizes", [
    ("none", [(1,), (1,), (2, 2)], [1, 1, 2]),
    ("one_sentence", [(3,), (3,), (3,), (3,), (1, 1), (2,), (2,)], [3, 1, 2, 2]),
    ("short", [(3,), (3, 3), (3,), (1, 1), (2,), (10,), (9,), (1,)], [3, 4, 1, 1, 1]),
    ("short", [], []),
])  # fmt: skip
def test_documents_are_joined_while_they_fit(which, documents, sizes):
    assert joined(which, 9, *documents) == sizes


@given(
    st.sampled_from(["one_sentence", "short"]),
    st.integers(2, 12),
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), max_size=12),
)
def test_joining_loses_no_sentence_and_keeps_the_limit(which, max_tokens, documents):
    sizes = joined(which, max_tokens, *documents)
    lens, given_sizes = [n for d in documents for n in d], [len(d) for d in documents]
    bounds, own = np.append(0, np.cumsum(sizes)), set(np.append(0, np.cumsum(given_sizes)).tolist())
    assert sum(sizes) == len(lens) and set(bounds.tolist()) <= own
    for begin, end in zip(bounds, bounds[1:]):
        parts = own & set(range(begin, end))
        assert len(parts) == 1 or sum(lens[begin:end]) <= max_tokens
        assert len(parts) == 1 or which == "short" or len(parts) == end - begin


def test_joined_documents_are_written_and_counted(tmp_path, vocab_file, capsys):
    content = lines_of("我爱", "北京", " ", "天\n安", "学习") + b"\noops\n" + lines_of("门", "我")
    flags = {"join_documents": "one_sentence", "join_tokens": 4, "on_bad_line": "skip"}
    assert make(tmp_path, content, **flags) == [["我 爱", "北 京"], ["天", "安"], ["学 习", "门", "我"]]
    counts = Corpus(tmp_path / "out").manifest["counts"]
    parts = ("blank_lines", "rejected_lines", "documents", "empty_documents", "joined_documents")
    assert [counts[part] for part in parts] == [1, 1, 3, 1, 3]
    assert counts["lines"] == sum(counts[part] for part in parts) and counts["one_sentence_documents"] == 0
    assert Corpus(tmp_path / "out").manifest["arguments"]["join_documents"] == "one_sentence"
    assert "3 documents from 9 lines (1 blank, 1 without text, 0 of one sentence, 1 rejected, 3 joined" in (
        capsys.readouterr().err
    )


def test_joining_does_not_change_the_ids(tmp_path, vocab_file):
    content = lines_of("我爱", "北京。天", "安门")
    make(tmp_path, content, chinese=True)
    ids = (tmp_path / "out_ids.npy").read_bytes()
    made = make(tmp_path, content, chinese=True, join_documents="short", overwrite=True)
    assert made == [["我 爱", "北 京 。", "天", "安 门"]] and (tmp_path / "out_ids.npy").read_bytes() == ids


def test_documents_of_two_files_or_two_shards_are_not_joined(tmp_path, vocab_file, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "b.jsonl").write_bytes(lines_of("北京", "天"))
    flags = {"input_path": str(tmp_path / "data"), "join_documents": "short"}
    assert make(tmp_path, lines_of("我"), "data/a.jsonl", **flags) == [["我"], ["北 京", "天"]]
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    assert make(tmp_path, lines_of("我"), "data/a.jsonl", overwrite=True, **flags) == [
        ["我"],
        ["北 京"],
        ["天"],
    ]


def test_shards_made_with_other_joining_flags_are_not_used(tmp_path, vocab_file):
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, lines_of("我", "爱"), run_map=stop_after(1), join_documents="short")
    assert make(tmp_path, lines_of("我", "爱")) == [["我"], ["爱"]]
