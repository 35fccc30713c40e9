"""Names and models in one flag, paths with blanks among them."""

import pytest

from data_tools.base.errors import InputError
from ernie_pair.pair.compare import compare_starts
from ernie_pair.pair.config.named_models import parse_named_models
from ernie_pair.pair.config.pair_config import TrainConfig
from ernie_pair.pair.distill.compare_models import models_in

EXAMPLE = 'write it as in --models "a=x b=y"'


@pytest.mark.parametrize(
    "text",
    ["a='my models/one' b=two", '"a=my models/one" b=two', r"a=my\ models/one  b=two"],
)
def test_a_path_with_blanks_stands_in_quotes(text, monkeypatch):
    expected = {"a": "my models/one", "b": "two"}
    assert parse_named_models("models", text, EXAMPLE) == expected == models_in(text)
    monkeypatch.setattr(compare_starts, "_open_start", lambda name, path, scratch: (name, path))
    files = {"train_file": "t.tsv", "dev_file": "d.tsv"}
    train = TrainConfig(model_name_or_path="m", output_dir="out", **files)
    assert dict(compare_starts._open_starts(text, train)) == expected


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a=my models/one", "models/one is no new NAME=MODEL"),
        ("a='my models", "a quote, or a backslash, has no counterpart"),
        ("a=x 'b c=y'", "b c=y is no new NAME=MODEL"),
        ("a=", "a= is no new NAME=MODEL"),
    ],
)
def test_words_that_are_no_models_are_named(text, reason):
    with pytest.raises(InputError) as caught:
        parse_named_models("models", text, EXAMPLE)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
