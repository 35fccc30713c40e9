"""The options of pair training: how errors name them in Python and on the command line; NAME=MODEL words."""

import pytest

from ernie_pair import PairConfig
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.experiments import compare_starts
from ernie_pair.pairs.config.ask_config import parse_named_models
from ernie_pair.pairs.config.pair_config import TrainConfig

REQUIRED = ["--output_dir=o", "--model_name_or_path=m", "--train_file=t", "--dev_file=d"]


@pytest.mark.parametrize("settings, words", [
    ({"learning_rate": "5e-5"}, "learning_rate takes a number, not '5e-5'; correct it"),
    ({"batch_size": 0}, "batch_size=0 is below 1; use 1 or more"),
    ({"pooling": "max"}, "pooling takes one of cls, mean, cosine, not 'max'; correct it"),
    ({"streaming": True}, "streaming=True does not know the number of rows; pass max_steps"),
    ({"freeze": "encoder", "freeze_layers": 1},
     "freeze encoder freezes all layers, and freeze_layers=1 some; leave one of them out"),
])  # fmt: skip
def test_option_errors_in_python_do_not_mention_flags(settings, words):
    with pytest.raises(InputError) as caught:
        PairConfig("o", **settings)
    assert str(caught.value) == words


def test_a_custom_best_metric_is_allowed_only_from_python():
    assert PairConfig("o", best_metric="cost").best_metric == "cost"
    with pytest.raises(InputError, match="^best_metric takes one of loss, accuracy"):
        parse_config(TrainConfig, [*REQUIRED, "--best_metric=cost"])


EXAMPLE = 'write it as in --models "a=x b=y"'


@pytest.mark.parametrize(
    "text", ["a='my models/one' b=two", '"a=my models/one" b=two', r"a=my\ models/one  b=two"]
)
def test_a_path_with_spaces_can_be_quoted_or_escaped(text, monkeypatch):
    expected = {"a": "my models/one", "b": "two"}
    assert parse_named_models("models", text, EXAMPLE) == expected
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
