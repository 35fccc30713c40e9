import pytest
from tiny_corpus import write_vocab


@pytest.fixture
def vocab_file(tmp_path):
    """The path of a small vocabulary, in the model folder that `tiny_corpus.make` reads."""
    return write_vocab(tmp_path)
