import pytest
from tiny_pair import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of an untrained model."""
    return write_model(tmp_path_factory.mktemp("model") / "model")
