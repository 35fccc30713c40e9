import json

import pytest
from tiny_pair import write_model as write_pair_model
from tiny_pair import write_rows

from ernie_pair import PairTokenizer
from ernie_pair.checks.inspect_data import InspectConfig, inspect_data
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError


def inspect(world, *words, vocab_file=None, samples=80, given="text"):
    vocab = vocab_file or world / "model" / "vocab.txt"
    flags = ["--vocab_file", vocab, "--max_seq_len", 32, "--num_samples", samples, *words]
    inspect_data(
        parse_config(InspectConfig, list(map(str, ["--input_path", world / "data" / given, *flags])))
    )


def test_samples_are_shown_by_the_options_of_pretraining(world, capsys):
    inspect(world, "--show", 2)
    shown = capsys.readouterr().out
    assert shown.count("->") >= 2 and "sample 1:" in shown and "sample 2:" not in shown
    assert shown.startswith("{A->B}: A is masked, the model sees B in its place; _ is [MASK]")
    for line in ("mask rate", "shown instead", "masked levels", "[UNK]", "padding", "few masks", "by length"):
        assert line in shown
    inspect(world, "--binary_head", "false", "--masked_lm_prob", 0.4, "--geometric")
    assert "in order 0, swapped 0, no label 80" in capsys.readouterr().out


def test_output_receives_a_json_report_and_a_plot(world, tmp_path, capsys):
    inspect(world, "--output_dir", tmp_path)
    report = json.loads((tmp_path / "inspect.json").read_text(encoding="utf-8"))
    assert report["samples"] == 80 and abs(report["mask_rate"] - 0.15) < 0.05
    assert sum(report["lengths"].values()) == 80 and abs(sum(report["shown"].values()) - 1) < 1e-9
    assert (tmp_path / "inspect.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("words, message", [
    ("--geometric --max_ngrams 1", "raise max_ngrams"),
    ("--masking_fn nothing", "package.module:function"),
    ("--text_a q", "text_a q is for pairs, and .*text is a corpus; leave it out"),
])  # fmt: skip
def test_invalid_flags_and_another_vocabulary_are_refused(world, tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        inspect(world, *words.split())
    other = tmp_path / "vocab.txt"
    other.write_text((world / "model" / "vocab.txt").read_text(encoding="utf-8") + "甲\n", encoding="utf-8")
    with pytest.raises(InputError, match="another vocabulary"):
        inspect(world, vocab_file=other)


@pytest.mark.parametrize("given", [".", "text_ids.npy", "text_idx.npz"])
def test_the_input_may_be_a_corpus_folder_or_file(world, given, capsys):
    inspect(world, given=given)
    assert "60 documents" in capsys.readouterr().out


def show_pairs(folder, *words, rows=(("今天气", "明天", 1), ("他", "她", 0)), name="pairs.tsv"):
    write_rows(folder / name, rows)
    write_pair_model(folder / "model")
    words = ["--input_path", folder / name, "--vocab_file", folder / "model", "--max_seq_len", 8, *words]
    inspect_data(parse_config(InspectConfig, list(map(str, words))))


def test_a_file_of_pairs_is_shown_as_training_reads_it(tmp_path, capsys):
    show_pairs(tmp_path, "--show", 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "line 1, label 1: 8 tokens, nothing cut" and lines[4:] == [""]
    assert lines[1].split() == "tokens [CLS] 今 天 气 [SEP] 明 天 [SEP]".split()
    row = PairTokenizer(tmp_path / "model", 8)("今天气", "明天")
    assert lines[2].split()[1:] == list(map(str, row["input_ids"]))
    assert lines[3].split()[1:] == list(map(str, row["token_type_ids"]))
    show_pairs(tmp_path, rows=[("今天气候真", "明天")], name="pairs.csv.tsv")
    assert capsys.readouterr().out.startswith(
        "line 1, no label: 8 tokens, cut to 8 tokens, without 2 tokens of the first text (候 真)\n"
    )
    show_pairs(tmp_path, "--text_a", "甲", "--text_b", "乙", rows=[("乙", "x", "甲"), ("今", 1, "天")])
    assert "[CLS] 天 [SEP] 今 [SEP]" in capsys.readouterr().out


def test_a_vocabulary_alone_shows_pairs_too(tmp_path, capsys):
    show_pairs(tmp_path)
    by_model = capsys.readouterr().out
    show_pairs(tmp_path, "--vocab_file", tmp_path / "model" / "vocab.txt")
    assert capsys.readouterr().out == by_model


@pytest.mark.parametrize("words, message", [
    (("--seed", 3), "seed=3 is for a corpus, and .*pairs.tsv is a file of pairs; leave it out"),
    (("--masked_lm_prob", 0.5), "masked_lm_prob=0.5 is for a corpus"),
    (("--output_dir", "here"), "output_dir here is for a corpus"),
    (("--max_seq_len", 512), "max_seq_len=512 is more than the model's 128 positions"),
    (("--label", "没有"), "pairs.tsv:1: no column '没有'"),
])  # fmt: skip
def test_flags_that_do_not_fit_pairs_are_refused(tmp_path, words, message):
    with pytest.raises(InputError, match=message):
        show_pairs(tmp_path, *words)


def test_a_bad_pair_is_named_by_its_line(tmp_path):
    with pytest.raises(InputError, match="pairs.tsv:2: 1 column instead of 3"):
        show_pairs(tmp_path, rows=[("今", "天", 1), ("今",)])
    with pytest.raises(InputError, match="pairs.tsv:2: sentence2 is empty"):
        show_pairs(tmp_path, rows=[("今", "天", 1), ("今", " ", 1)])
