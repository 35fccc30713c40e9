"""Bad pairs given to whole commands: a one-line error with file and line, exit code 2, no files left.

The rows H1 to H10 and H14 of the fault table. Evaluation by several processes (H11), resuming in an
epoch (H12), a kill while the best model is written (H13), base weights (H15) and ties of the best metric
(H16) are tested in test_pair_job, ranks/test_pair_ranks, faults/, test_pair_model and test_pair_run.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_pair import VOCAB, write_model, write_pairs

from data_tools.options.cli import exit_code_of
from data_tools.text.wordpiece import WordPiece
from ernie_pair.inference.token_rows import evaluation_batches
from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.source import open_model
from ernie_pair.pair.config.ask_config import EvaluateConfig, PredictConfig
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.data.encoded_pairs import encode_pairs
from ernie_pair.pair.data.pair_file import read_pairs
from ernie_pair.pair.train.train_pair import train_pair
from ernie_pair.score.evaluation.evaluate_pair import evaluate_pair
from ernie_pair.score.evaluation.predict_pair import predict_pair

GOOD = "今天\t明天\t0"


@pytest.fixture
def config(tmp_path):
    return TrainConfig(
        model_name_or_path=str(write_model(tmp_path / "model")),
        model_type="ernie",
        from_scratch=True,
        train_file=str(write_pairs(tmp_path / "train.tsv", 20)),
        dev_file=str(write_pairs(tmp_path / "dev.tsv", 9, seed=1)),
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        batch_size=4,
        device="cpu",
    )


@pytest.fixture
def model(tmp_path):
    """The folder of an untrained model."""
    folder = tmp_path / "asked"
    (tmp_path / "trained").mkdir()
    source = open_model(str(write_model(folder)), model_type="ernie", from_scratch=True)
    build_classifier(source, seed=0, dropout=0.0).write(tmp_path / "trained", source.vocab_file)
    return str(tmp_path / "trained")


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


H1_COLUMNS = {"1": "今天 明天 0", "2": "今天\t明天", "4": "今天\t明天\t0\t0"}
H3_LABELS = ["2", "-1", "1.5", "", "yes", "１", " 1", "1 ", "01", "nan", "True"]
H4_QUOTES = {"embedded tab": '"今\t天"\t明天\t0'}
H5_EMPTY = {
    "no a": "\t明天\t0",
    "no b": "今天\t\t0",
    "blank a": " \u3000\t明天\t0",
    "blank b": "今天\t\xa0\t0",
}
BAD_LINES = {
    **{f"H1 {name} columns": (line, " instead of 3") for name, line in H1_COLUMNS.items()},
    **{
        f"H3 label {label!r}": (f"今天\t明天\t{label}", f"label {label!r} is not one of 0, 1")
        for label in H3_LABELS
    },
    **{f"H4 {name}": (line, "4 columns instead of 3") for name, line in H4_QUOTES.items()},
    **{f"H5 {name}": (line, "is empty; fill it in or remove the row") for name, line in H5_EMPTY.items()},
    "H6 lone CR": ("今\r天\t明天\t0", "CR inside the line"),
    "H6 blank": ("", "the line is blank"),
}


@pytest.mark.parametrize("line, reason", BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize("mark, end", [("", "\n"), ("\ufeff", "\r\n")], ids=["plain", "BOM and CRLF"])
@pytest.mark.parametrize("flag", ["train_file", "dev_file"])
def test_a_bad_line_ends_training_with_its_line_number(
    tmp_path, config, capfd, line, reason, mark, end, flag
):
    path = write(tmp_path / "bad.tsv", mark + end.join([GOOD, GOOD, line, GOOD, ""]))
    error = refused(lambda: train_pair(replace(config, **{flag: path})), capfd)
    assert error.startswith(f"error: {path}:3: ") and reason in error
    assert not (tmp_path / "out").exists()


H6_BYTES = {
    "one bad byte": (b"\xe4\xbb\x8a\xff\t\xe5\xa4\xa9\t0", "byte 4 of the line is 0xff"),
    "GBK": ("今天是个好日子\t明天也是\t0".encode("gbk"), "it looks like GB18030: pass --encoding gb18030"),
    "a cut character": ("今天\t明天\t".encode()[:-2], "is cut short"),
}


@pytest.mark.parametrize("line, reason", H6_BYTES.values(), ids=H6_BYTES)
def test_undecodable_bytes_are_reported_with_their_position(tmp_path, config, capfd, line, reason):
    path = write(tmp_path / "bad.tsv", f"{GOOD}\n".encode() + line + b"\n")
    error = refused(lambda: train_pair(replace(config, train_file=path)), capfd)
    assert error.startswith(f"error: {path}:2: not UTF-8 (") and reason in error


def test_utf_16_is_recognised(tmp_path, config, capfd):
    path = write(tmp_path / "bad.tsv", f"{GOOD}\n".encode("utf-16"))
    error = refused(lambda: train_pair(replace(config, train_file=path)), capfd)
    assert error.startswith(f"error: {path}:1: ") and "iconv -f UTF-16 -t UTF-8" in error


H2_HEADERS = {
    "absent": ("", "{a}\t{b}\t{c}"),
    "present": ("text_a\ttext_b\tlabel", "{a}\t{b}\t{c}"),
    "reordered": ("label\ttitle\tquery", "{c}\t{b}\t{a}"),
}


@pytest.mark.parametrize("header, line", H2_HEADERS.values(), ids=H2_HEADERS)
def test_a_header_is_never_read_as_a_row(tmp_path, config, capfd, header, line):
    rows = [line.format(a="今天", b="明天气" if n % 2 else "昨", c=n % 2) for n in range(6)]
    path = write(tmp_path / "some.tsv", "\n".join([header] * bool(header) + rows) + "\n")
    assert exit_code_of(lambda: train_pair(replace(config, train_file=path))) == 0
    assert f"{path}: 6 pairs (3 of class 0, 3 of class 1), 7.0 tokens" in capfd.readouterr().err


@pytest.mark.parametrize("header", ["text_a\tscore\tlabel", "left\tright\tsimilar", "text_a\ttext_b\tscore"])
def test_an_unknown_header_is_refused(tmp_path, config, capfd, header):
    path = write(tmp_path / "some.tsv", f"{header}\n{GOOD}\n")
    error = refused(lambda: train_pair(replace(config, train_file=path)), capfd)
    assert error.startswith(f"error: {path}:1: ") and "header" in error


def test_quotes_bom_and_nul_do_not_merge_rows(tmp_path, config, capfd):
    rows = ['"今天\t明天"\t1', '今""天\t"明天\t0', "今\x00天\t明\u2028天\x85\t1", "' 今\t天 '\t0"]
    path = write(tmp_path / "some.tsv", "\ufeff" + "\r\n".join(rows))
    assert exit_code_of(lambda: train_pair(replace(config, train_file=path))) == 0
    assert f"{path}: 4 pairs (2 of class 0, 2 of class 1)" in capfd.readouterr().err
    assert read_pairs(path, 2).left == ['"今天', '今""天', "今\x00天", "' 今"]


H7_CLASSES = {
    "one class": ("1\n1\n", "0\n1\n", "train: {train} has no pair of class 0; is it the right file?"),
    "unseen in training": (
        "1\n1\n",
        "0\n0\n1\n",
        "dev: 2 rows (66.67 %) with a label that no training pair has",
    ),
    "one class in dev": ("0\n1\n", "1\n", "dev: {dev} has no pair of class 0"),
}
H9_REPEATS = {
    "repeated": (
        ["今天\t明天\t1"] * 3 + ["上\t下\t0"],
        ["左\t右\t1"],
        "train: 2 rows (50.00 %) repeating an earlier",
    ),
    "shared": (
        ["今天\t明天\t1", "上\t下\t0"],
        ["明 天\t今天\t1", "左\t右\t0"],
        "dev: 1 row (50.00 %) with a pair of the training",
    ),
    "two labels": (
        ["今天\t明天\t1", "今天\t明天。\t0"],
        ["左\t右\t1"],
        "train: 2 rows (100.00 %) with a pair that has two",
    ),
}


@pytest.mark.parametrize("train, dev, warning", H7_CLASSES.values(), ids=H7_CLASSES)
def test_missing_classes_give_a_warning_with_counts(tmp_path, config, capfd, train, dev, warning):
    paths = {}
    for name, labels in (("train", train), ("dev", dev)):
        rows = [f"{'今天气'[:n % 3 + 1]}{name}\t明{n}\t{label}" for n, label in enumerate(labels.split())]
        paths[name] = write(tmp_path / f"{name}.tsv", "\n".join(rows) + "\n")
    assert (
        exit_code_of(lambda: train_pair(replace(config, train_file=paths["train"], dev_file=paths["dev"])))
        == 0
    )
    assert warning.format(**paths) in capfd.readouterr().err


@pytest.mark.parametrize("train, dev, warning", H9_REPEATS.values(), ids=H9_REPEATS)
def test_repeats_and_leaks_give_a_warning_with_counts(tmp_path, config, capfd, train, dev, warning):
    paths = [
        write(tmp_path / name, "\n".join(rows) + "\n") for name, rows in (("a.tsv", train), ("b.tsv", dev))
    ]
    assert exit_code_of(lambda: train_pair(replace(config, train_file=paths[0], dev_file=paths[1]))) == 0
    assert warning in capfd.readouterr().err


H8_FILES = {
    "empty": ("", "it holds no pairs; give at least one"),
    "a mark alone": ("\ufeff", "it holds no pairs"),
    "a header alone": ("text_a\ttext_b\tlabel\n", "it holds no pairs"),
    "missing": (None, "no such file; give a .tsv"),
    "a folder": ("folder", "a folder; give a file"),
}


@pytest.mark.parametrize("flag", ["train_file", "dev_file"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("content, reason", H8_FILES.values(), ids=H8_FILES)
def test_a_file_without_pairs_is_refused(tmp_path, config, capfd, flag, streaming, content, reason):
    path = tmp_path / "some.tsv"
    if content == "folder":
        path.mkdir()
    elif content is not None:
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
    assert [(row.count("今"), row.count("天"), len(row)) for row in tokens] == [
        (7, 6, 16),
        (1, 12, 16),
        (1, 1, 5),
    ]


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("num_rows", [1, 40, 41])
def test_ranks_together_evaluate_every_row_once(num_rows, ranks):
    lengths = np.random.default_rng(num_rows).integers(5, 30, size=num_rows)
    batches = evaluation_batches(lengths, 4)
    dealt = [row for rank in range(ranks) for rows in batches[rank::ranks] for row in rows]
    assert sorted(dealt) == list(range(num_rows))


@pytest.mark.parametrize(
    "labels", [[], ["0", "1", "0"], ["", "", ""], ["?", "9", "-1"]], ids=["none", "good", "empty", "strange"]
)
def test_each_row_gets_its_prediction_with_or_without_labels(tmp_path, model, labels):
    texts = [("今天", "明天" * 9), ("上", "下"), ("左右", "大小")]
    rows = ["\t".join([*pair, *labels[n : n + 1]]) for n, pair in enumerate(texts)]
    path, out = write(tmp_path / "test.tsv", "\n".join(rows)), tmp_path / "predictions.tsv"
    predict_pair(PredictConfig(model, path, str(out), batch_size=2, device="cpu"))
    alone = []
    for number, row in enumerate(rows):
        one = write(tmp_path / "one.tsv", row + "\n")
        predict_pair(PredictConfig(model, one, str(tmp_path / "one.out"), device="cpu", overwrite=True))
        alone.append((tmp_path / "one.out").read_text().splitlines()[1].replace("0\t", f"{number}\t", 1))
    assert out.read_text().splitlines() == ["index\tprediction", *alone]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_blank_line_is_rejected_before_predicting(tmp_path, model, capfd, number):
    lines = ["今天\t明天"] * 3
    lines.insert(number - 1, "")
    path, out = write(tmp_path / "test.tsv", "\n".join(lines) + "\n"), tmp_path / "predictions.tsv"
    error = refused(lambda: predict_pair(PredictConfig(model, path, str(out), device="cpu")), capfd)
    assert f"{path}:{number}: the line is blank; remove it, so that rows and lines agree" in error
    assert not out.exists()


def test_evaluation_reports_the_line_without_a_label(tmp_path, model, capfd):
    path = write(
        tmp_path / "test.json", '{"query": "今", "title": "天", "label": 1}\n{"query": "今", "title": "天"}\n'
    )
    asked = EvaluateConfig(model, path, str(tmp_path / "m.json"), device="cpu")
    assert f"{path}:2: no label; each row needs one of 0, 1" in refused(lambda: evaluate_pair(asked), capfd)
