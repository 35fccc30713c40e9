import pytest
from tiny_pair import write_model

from data_tools.text.wordpiece import WordPiece


@pytest.fixture
def tokenizer(tmp_path):
    return WordPiece.from_file(write_model(tmp_path / "model") / "vocab.txt")
