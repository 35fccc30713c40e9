"""prepare of raw text: the corpus of the recipe's two programs, in one command."""

import gzip
import json
from dataclasses import replace

import pytest

from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.prepare import PrepareConfig, prepare
from data_tools.trans_to_json import TransConfig, trans_to_json
from ernie_pair.core.errors import InputError

TEXT = "天地玄黄宇宙洪荒。\n日月盈昃\n\n辰宿列张寒来暑往秋收冬藏\n\n短\n"


def config_of(folder, input_path, **flags):
    return PrepareConfig(
        str(folder / input_path), str(folder / "out"), vocab_file=str(folder / "model" / "vocab.txt"), **flags
    )


@pytest.fixture
def folder(tmp_path):
    tokens = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *dict.fromkeys(TEXT.replace("\n", ""))]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "raw" / "b.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 2))
    return tmp_path


def arrays(folder, prefix):
    return [(folder / f"{prefix}_{end}").read_bytes() for end in ("ids.npy", "idx.npz")]


def test_raw_text_gives_the_corpus_of_the_two_programs(folder, capfd):
    prepare(config_of(folder, "raw", chinese=True, min_doc_length=5, seed=7))
    trans_to_json(TransConfig(str(folder / "raw"), str(folder / "two"), min_doc_length=5, seed=7))
    vocab = str(folder / "model" / "vocab.txt")
    create_pretraining_data(
        CreateConfig(str(folder / "two.jsonl"), str(folder / "two"), vocab_file=vocab, chinese=True)
    )
    assert arrays(folder, "out") == arrays(folder, "two")
    assert (folder / "out.jsonl").read_bytes() == (folder / "two.jsonl").read_bytes()
    before = (folder / "out_ids.npy").stat()
    capfd.readouterr()
    prepare(config_of(folder, "raw", chinese=True, min_doc_length=5, seed=7))
    assert capfd.readouterr().err.count("nothing to do") == 2
    assert (folder / "out_ids.npy").stat().st_mtime_ns == before.st_mtime_ns


def test_its_own_json_lines_among_raw_text_are_no_input(folder):
    config = PrepareConfig(
        str(folder / "raw"), str(folder / "raw" / "c"), vocab_file=str(folder / "model" / "vocab.txt")
    )
    prepare(config)
    first = arrays(folder / "raw", "c")
    prepare(config)
    assert arrays(folder / "raw", "c") == first


def test_json_lines_are_known_by_what_they_hold(folder):
    line = json.dumps({"text": "天地玄黄"}, ensure_ascii=False)
    (folder / "mine.data").write_text(f"{line}\n", encoding="utf-8")
    prepare(config_of(folder, "mine.data"))
    (folder / "out.jsonl").write_text(f"{line}\n", encoding="utf-8")
    prepare(config_of(folder, "out.jsonl", overwrite=True))  # beside the corpus, as `trans_to_json` wrote it


@pytest.mark.parametrize(
    "flag, value", [("min_doc_length", 1), ("doc_spliter", "-"), ("no_shuffle", True), ("seed", 1)]
)
def test_a_flag_of_raw_text_is_refused_for_json_lines(folder, flag, value):
    (folder / "a.jsonl").write_text('{"text": "天地"}\n', encoding="utf-8")
    with pytest.raises(InputError, match=f"{flag}[ =]{value} is for raw text, and .*a.jsonl holds documents"):
        prepare(config_of(folder, "a.jsonl", **{flag: value}))


def test_raw_text_and_documents_are_read_together(folder):
    (folder / "raw" / "c.jsonl").write_text('{"text": "天地玄黄\\n宇宙洪荒"}\n', encoding="utf-8")
    (folder / "raw" / "d.csv").write_text("text,题目\n辰宿列张寒来暑往,宇宙洪荒天地玄黄\n", encoding="utf-8")
    each = ",".join(str(folder / "raw" / name) for name in ("a.txt", "b.txt.gz", "c.jsonl", "d.csv"))
    found, flags = [], {"min_doc_length": 0, "overwrite": True, "text_column": "text"}
    for path in ("raw", each):
        config = replace(config_of(folder, "raw", **flags), input_path=path)
        prepare(replace(config, input_path=str(folder / path)) if path == "raw" else config)
        lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
        found.append(sorted(json.loads(line)["text"] for line in lines))
    assert found[0] == found[1] and len(found[0]) == 3 + 5 + 2
    assert {"天地玄黄\n宇宙洪荒", "辰宿列张寒来暑往"} < {*found[0]}


def test_json_lines_of_a_user_are_never_replaced(folder):
    (folder / "out.jsonl").write_text("mine", encoding="utf-8")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="out.jsonl exists and is not what prepare made of raw text"):
            prepare(config_of(folder, "raw", overwrite=overwrite))
    assert (folder / "out.jsonl").read_text(encoding="utf-8") == "mine"
    (folder / "out.jsonl").unlink()
    for seed in (1, 2):
        prepare(config_of(folder, "raw", overwrite=True, seed=seed))
