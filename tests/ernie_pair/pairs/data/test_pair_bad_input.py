"""Bad pairs given to whole commands: a one-line error with file and line, exit code 2, no files left.

Which rows are bad is tested in test_pair_data and test_pair_csv.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_pair import VOCAB, train_config
from tiny_ship import write_trained

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.evaluation.predict_pair import predict_pair
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pairs.data.encoded_pairs import encode_pairs
from ernie_pair.pairs.data.pair_file import read_pairs
from ernie_pair.pairs.train.train_pair import train_pair

GOOD = "今天\t明天\t0"


@pytest.fixture
def config(tmp_path):
    return train_config(tmp_path, max_steps=1, batch_size=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of an untrained model."""
    return str(write_trained(tmp_path_factory.mktemp("model") / "trained"))


def refused(action, capfd):
    """The command's single error line."""
    capfd.readouterr()
    assert exit_code_of(action) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


BAD_LINES = {
    "columns": ("今天 明天 0", "1 column instead of 3"),
    "label": ("今天\t明天\t甲", "label '甲' is not one of 0, 1"),
    "empty": ("今天\t\xa0\t0", "sentence2 is empty; fill it in or remove the row"),
    "GBK": (
        "今天是个好日子\t明天也是\t0".encode("gbk"),
        "it looks like GB18030, and lines before it like UTF-8: write all",
    ),
}


@pytest.mark.parametrize("line, reason", BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize("flag", ["train_file", "dev_file"])
def test_a_bad_line_ends_training_with_its_line_number(tmp_path, config, capfd, line, reason, flag):
    line = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path / "bad.tsv", f"{GOOD}\n{GOOD}\n".encode() + line + f"\n{GOOD}\n".encode())
    error = refused(lambda: train_pair(replace(config, **{flag: path})), capfd)
    assert error.startswith(f"error: {path}:3: ") and reason in error
    assert not (tmp_path / "out").exists()


WARNINGS = {
    "one class": (
        ["a\tb1\t1", "a\tb2\t1"],
        ["c\td1\t0", "c\td2\t1"],
        "train: {train} has no pair of class 0; is it",
    ),
    "unseen": (
        ["a\tb1\t1"],
        ["c\td1\t0", "c\td2\t1"],
        "dev: 1 row (50.00 %) with a label that no training pair has",
    ),
    "one class in dev": (["a\tb1\t0", "a\tb2\t1"], ["c\td1\t1"], "dev: {dev} has no pair of class 0"),
    "repeated": (["a\tb\t1"] * 3 + ["c\td\t0"], ["e\tf\t1"], "train: 2 rows (50.00 %) repeating an earlier"),
    "shared": (
        ["今天\t明天\t1", "c\td\t0"],
        ["明 天\t今天\t1", "e\tf\t0"],
        "dev: 1 row (50.00 %) with a pair of the",
    ),
    "two labels": (
        ["a\tb\t1", "a\tb。\t0"],
        ["c\td\t1"],
        "train: 2 rows (100.00 %) with a pair that has two",
    ),
}


@pytest.mark.parametrize("train, dev, warning", WARNINGS.values(), ids=WARNINGS)
def test_what_the_audit_finds_is_a_warning_with_counts(tmp_path, config, capfd, train, dev, warning):
    paths = {
        name: write(tmp_path / f"{name}.tsv", "\n".join(rows) + "\n")
        for name, rows in (("train", train), ("dev", dev))
    }
    changed = replace(config, train_file=paths["train"], dev_file=paths["dev"])
    assert exit_code_of(lambda: train_pair(changed)) == 0
    assert warning.format(**paths) in capfd.readouterr().err


@pytest.mark.parametrize("flag", ["train_file", "dev_file"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("content, reason", [("text_a\ttext_b\tlabel\n", "it holds"), (None, "no such file")])
def test_a_file_without_pairs_is_refused(tmp_path, config, capfd, flag, streaming, content, reason):
    path = tmp_path / "some.tsv"
    if content is not None:
        write(path, content)
    changes = {flag: str(path), "streaming": streaming}
    error = refused(lambda: train_pair(replace(config, **changes)), capfd)
    assert error.startswith(f"error: {path}: {reason}")
    assert not (tmp_path / "out").exists()


def test_a_huge_pair_is_truncated_and_keeps_both_texts(tmp_path, config, capfd):
    long = [f"{'今' * 200_000}\t{'天' * 150_000}\t1", f"今\t{'天' * 350_000}\t0", "今\t天\t1"]
    path = write(tmp_path / "long.tsv", "\n".join(long) + "\n")
    assert exit_code_of(lambda: train_pair(replace(config, train_file=path, max_seq_len=16))) == 0
    assert f"{path}: cut to --max_seq_len: 2 pairs" in capfd.readouterr().err
    tokenizer = WordPiece.from_file(Path(config.model_name_or_path) / "vocab.txt")
    rows = encode_pairs(read_pairs(path, 2), tokenizer, 16)
    tokens = [[VOCAB[index] for index in row if index] for row in rows.batch(np.arange(3)).input_ids]
    kept = [(row.count("今"), row.count("天"), len(row)) for row in tokens]
    assert kept == [(7, 6, 16), (1, 12, 16), (1, 1, 5)]


@pytest.mark.parametrize(
    "labels", [[], ["0", "1", "0"], ["", "", ""], ["?", "9", "-1"]], ids=["none", "good", "empty", "strange"]
)
def test_each_row_gets_its_prediction_with_or_without_labels(tmp_path, model, labels):
    texts = [("今天", "明天" * 9), ("上", "下"), ("左右", "大小")]
    rows = ["\t".join([*pair, *labels[n : n + 1]]) for n, pair in enumerate(texts)]
    path, out = write(tmp_path / "test.tsv", "\n".join(rows)), tmp_path / "predictions.tsv"
    predict_pair(PredictConfig(model, path, str(out), batch_size=2, device="cpu", columns="answers"))
    alone = []
    for number, row in enumerate(rows):
        one = write(tmp_path / "one.tsv", row + "\n")
        flags = {"device": "cpu", "overwrite": True, "columns": "answers"}
        predict_pair(PredictConfig(model, one, str(tmp_path / "one-answer.tsv"), **flags))
        alone.append(
            (tmp_path / "one-answer.tsv").read_text().splitlines()[1].replace("0\t", f"{number}\t", 1)
        )
    assert out.read_text().splitlines() == ["index\tprediction", *alone]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_blank_line_is_rejected_before_predicting(tmp_path, model, capfd, number):
    lines = ["今天\t明天"] * 3
    lines.insert(number - 1, "")
    path, out = write(tmp_path / "test.tsv", "\n".join(lines) + "\n"), tmp_path / "predictions.tsv"
    error = refused(lambda: predict_pair(PredictConfig(model, path, str(out), device="cpu")), capfd)
    assert f"{path}:{number}: the line is blank; remove it, so that rows and lines agree" in error
    assert not out.exists()
