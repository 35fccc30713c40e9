import json

import pytest
from tiny_pretrain import write_corpus, write_model

from data_tools.base.cli import parse_config
from data_tools.base.errors import InputError
from ernie_pair.pretrain.inspect_data import InspectConfig, inspect_data


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    write_corpus(folder / "data", write_model(folder / "model"))
    return folder


def inspect(world, *words, vocab_file=None, samples=80, given="text"):
    vocab = vocab_file or world / "model" / "vocab.txt"
    flags = ["--vocab_file", vocab, "--max_seq_len", 32, "--samples", samples, *words]
    inspect_data(parse_config(InspectConfig, list(map(str, [world / "data" / given, *flags]))))


def test_the_terminal_shows_marked_samples_and_the_report(world, capsys):
    inspect(world, "--show", 2)
    shown = capsys.readouterr().out
    assert shown.count("->") >= 2 and "sample 1:" in shown and "sample 2:" not in shown
    assert shown.startswith("{A->B}: A is masked, the model sees B in its place; _ is [MASK]")
    for line in ("mask rate", "shown instead", "masked levels", "[UNK]", "padding", "few masks", "by length"):
        assert line in shown


def test_output_receives_a_json_report_and_a_plot(world, tmp_path, capsys):
    inspect(world, "--output", tmp_path)
    report = json.loads((tmp_path / "inspect.json").read_text(encoding="utf-8"))
    assert report["samples"] == 80 and abs(report["mask_rate"] - 0.15) < 0.05
    assert sum(report["lengths"].values()) == 80 and abs(sum(report["shown"].values()) - 1) < 1e-9
    assert (tmp_path / "inspect.png").read_bytes().startswith(b"\x89PNG")


def test_pretraining_options_are_respected(world, capsys):
    inspect(world, "--binary_head", "false", "--masked_lm_prob", 0.4, "--geometric")
    assert "in order 0, swapped 0, no label 80" in capsys.readouterr().out


def test_another_vocabulary_is_refused(world, tmp_path):
    other = tmp_path / "vocab.txt"
    other.write_text((world / "model" / "vocab.txt").read_text(encoding="utf-8") + "甲\n", encoding="utf-8")
    with pytest.raises(InputError, match="another vocabulary"):
        inspect(world, vocab_file=other)


@pytest.mark.parametrize(
    "words, message",
    [
        ("--level_weights 1", "level_weights '1': not three numbers of 0 or more"),
        ("--masked_lm_prob 1", "masked_lm_prob=1.0 is not below 1"),
        ("--short_seq_prob 1", "short_seq_prob=1.0 is not below 1"),
        ("--geometric --favor_longer_ngram", "two distributions"),
        ("--geometric --max_ngrams 1", "raise max_ngrams"),
        ("--masking_fn nothing", "package.module:function"),
    ],
)
def test_invalid_flags_are_refused(world, words, message):
    with pytest.raises(InputError, match=message):
        inspect(world, *words.split())


def test_zero_samples_is_refused(world):
    with pytest.raises(InputError, match="samples=0 is below 1"):
        inspect(world, samples=0)


@pytest.mark.parametrize("given", [".", "text_ids.npy", "text_idx.npz"])
def test_the_input_may_be_a_corpus_folder_or_file(world, given, capsys):
    inspect(world, given=given)
    assert "60 documents" in capsys.readouterr().out
