"""Several NAME=MODEL words in one flag, including paths with spaces."""

import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.experiments import compare_starts
from ernie_pair.experiments.compare_models import models_in
from ernie_pair.pairs.config.ask_config import parse_named_models
from ernie_pair.pairs.config.pair_config import TrainConfig

EXAMPLE = 'write it as in --models "a=x b=y"'


@pytest.mark.parametrize(
    "text", ["a='my models/one' b=two", '"a=my models/one" b=two', r"a=my\ models/one  b=two"]
)
def test_a_path_with_spaces_can_be_quoted_or_escaped(text, monkeypatch):
    expected = {"a": "my models/one", "b": "two"}
    assert parse_named_models("models", text, EXAMPLE) == expected == models_in(text)
    monkeypatch.setattr(compare_starts, "open_model", lambda path, **more: None)
    files = {"train_file": "t.tsv", "dev_file": "d.tsv"}
    train = TrainConfig(model_name_or_path="m", output_dir="out", **files)
    assert {start.name: start.path for start in compare_starts._open_starts(text, train)} == expected


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a=my models/one", "models/one is not NAME=MODEL with a new name"),
        ("a='my models", "a quote, or a backslash, has no counterpart"),
        ("a=x 'b c=y'", "b c=y is not NAME=MODEL with a new name"),
        ("a=", "a= is not NAME=MODEL with a new name; "),
        ("大=x", "大=x is not NAME=MODEL with a new name (a name has only a to z, A to Z, 0 to 9, _ . and -"),
        ("a=x a=y", "a=y is not NAME=MODEL with a new name; "),
    ],
)
def test_invalid_name_model_words_are_reported(text, reason):
    with pytest.raises(InputError) as caught:
        parse_named_models("models", text, EXAMPLE)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
