"""The search space: ranges and lists, from flags and from a file, and one-line errors."""

from types import SimpleNamespace

import pytest

from ernie_pair.core.errors import InputError
from ernie_pair.experiments.config import SearchParamsConfig
from ernie_pair.experiments.study import Choice, Outcome, Range, Study, as_plan, space_of


def space(search="", text=None, tmp_path=None):
    path = ""
    if text is not None:
        (tmp_path / "space.yaml").write_text(text, encoding="utf-8")
        path = str(tmp_path / "space.yaml")
    flags = {"model_name_or_path": "m", "train_file": "t", "dev_file": "d", "output_dir": "o"}
    return space_of(SearchParamsConfig(**flags, search=search, space=path, device="cpu"))


def test_flags_and_file_give_the_same_search_space(tmp_path):
    said = "learning_rate=1e-5..1e-4:log dropout=0..0.3:0.1 batch_size=16,32 epochs=2..5 bucket=true,false"
    text = """
learning_rate: {low: 1e-5, high: 1.0e-4, log: true}
dropout: {low: 0.0, high: 0.3, step: 0.1}
batch_size: [16, 32]
epochs: {low: 2, high: 5}
bucket: [true, false]
"""
    expected = [
        Range("learning_rate", 1e-5, 1e-4, log=True),
        Range("dropout", 0.0, 0.3, step=0.1),
        Choice("batch_size", (16, 32)),
        Range("epochs", 2, 5),
        Choice("bucket", (True, False)),
    ]
    assert space(said) == space(text=text, tmp_path=tmp_path) == expected
    assert as_plan(expected)["learning_rate"] == "1e-05..0.0001:log"
    assert space("epochs=2..4:2") == [Range("epochs", 2, 4, step=2)]


@pytest.mark.parametrize(
    "said, reason",
    [
        ("", "search and space are empty: there is nothing to search"),
        ("learning_rate", "learning_rate has no values; write learning_rate=1e-5..1e-4:log"),
        ("lerning_rate=1,2", "is not a flag of train; did you mean learning_rate"),
        ("output_dir=a,b", "output_dir is not a flag to search"),
        ("seed=1,2", "seed is not a flag to search"),
        ("batch_size=16", "1 different value"),
        ("batch_size=16,16", "1 different value"),
        ("batch_size=16,x", "takes a whole number, not 'x'"),
        ("batch_size=0,16", "batch_size=0 is below 1"),
        ("dropout=0..1.5", "dropout=1.5 is not below 1"),
        ("dropout=0.3..0.1", "low 0.3 is not below high 0.1"),
        ("learning_rate=0..1:log", "log needs a low above 0"),
        ("dropout=0.25..0.5:0.5", "step 0.5 does not lie between 0 and 0.25"),
        ("epochs=2..4:3", "step 3 does not lie between 0 and 2"),
        ("epochs=2..4:0", "step 0 does not lie between 0 and 2"),
        ("pooling=cls..mean", "a flag that is no number has no range; list its values"),
        ("dropout=0..0.1 dropout=0.1,0.2", "dropout is given twice"),
    ],
)
def test_an_invalid_search_flag_is_reported(said, reason):
    with pytest.raises(InputError, match=reason):
        space(said)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "nothing to search in it"),
        ("dropout: 0.1", r"space.yaml:1: dropout has one value, and nothing to search"),
        ("a: 1\ndropout: {low: 0.1}", r"space.yaml:1: a: a is not a flag of train"),
        ("batch_size: [1, 2]\ndropout: {low: 0.1}", r"space.yaml:2: dropout: low or high is missing"),
        ("dropout: {low: 0, high: 1, by: 2}", "by is not one of low, high, log, step"),
        ("dropout: [[1], 2]", "dropout holds no single value"),
        ("dropout: {low: [0], high: 1}", "low holds no single value"),
        ("dropout: [0.1, 0.1\n", "space.yaml:.: not YAML"),
    ],
)
def test_an_invalid_space_file_is_reported_with_its_line(tmp_path, text, reason):
    with pytest.raises(InputError, match=reason):
        space(text=text, tmp_path=tmp_path)


def test_a_missing_space_file_is_reported(tmp_path):
    with pytest.raises(InputError, match="space .*none.yaml: .*give a YAML file"):
        flags = {"model_name_or_path": "m", "train_file": "t", "dev_file": "d", "output_dir": "o"}
        space_of(SearchParamsConfig(**flags, space=str(tmp_path / "none.yaml")))


@pytest.mark.parametrize("lower, best", [(True, 4), (False, 2)])
def test_the_best_trial_is_complete_and_the_first_of_equals(lower, best):
    values = [(1, "complete", 0.5), (2, "complete", 0.7), (3, "pruned", 0.9), (4, "complete", 0.0)]
    values += [(5, "complete", 0.7), (6, "complete", 0.0), (7, "failed", None)]
    outcomes = [Outcome(number, state, {}, value, {}) for number, state, value in values]
    study = SimpleNamespace(_config=SimpleNamespace(lower_is_better=lower), outcomes=lambda: outcomes)
    assert Study.best(study) == outcomes[best - 1]
