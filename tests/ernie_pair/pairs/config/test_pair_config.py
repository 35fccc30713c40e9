"""The options of pair training: how errors name them in Python and on the command line."""

import pytest

from ernie_pair import PairConfig
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.pairs.config.pair_config import TrainConfig

REQUIRED = ["--output_dir=o", "--model_name_or_path=m", "--train_file=t", "--dev_file=d"]


@pytest.mark.parametrize("settings, words", [
    ({"learning_rate": "5e-5"}, "learning_rate takes a number, not '5e-5'; correct it"),
    ({"learning_rate": 0}, "learning_rate=0.0 is not above 0; use 5e-05, for example"),
    ({"batch_size": 0}, "batch_size=0 is below 1; use 1 or more"),
    ({"batch_size": True}, "batch_size takes a whole number, not True; correct it"),
    ({"batch_size": "64"}, "batch_size takes a whole number, not '64'; correct it"),
    ({"bucket": 1}, "bucket takes true or false, not 1; correct it"),
    ({"pooling": "max"}, "pooling takes one of cls, mean, not 'max'; correct it"),
    ({"dropout": float("nan")}, "dropout takes a number, not nan; correct it"),
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
