"""Commands that open a trained model work for a user whose home cannot be written."""

import pytest
from children import python
from tiny_pair import write_pairs
from tiny_ship import write_trained

from ernie_pair.core.run_module import python_words


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_trained(tmp_path_factory.mktemp("models") / "trained")


@pytest.mark.parametrize("home", ["/dev/null", "~", "/proc"])  # a file, none, and one that root cannot write
def test_a_trained_model_predicts(home, model, tmp_path):
    pairs = write_pairs(tmp_path / "pairs.tsv", 5)
    places = ["--model_path", model, "--input_file", pairs, "--output_file", "predictions.tsv"]
    words = [*python_words()[1:], "-m", "ernie_pair", "predict", *places]
    done = python(*words, cwd=tmp_path, HOME=home, COLD="1")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "pairs.tsv", "predictions.tsv", ".predictions.tsv.made.json"
    }  # fmt: skip
