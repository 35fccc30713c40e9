import pytest
from tiny_pair import write_model
from tiny_pair_job import write_files


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The files of `tiny_job`."""
    return write_files(tmp_path_factory.mktemp("tiny"))
