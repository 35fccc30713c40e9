"""Which Paddle flags are set for a GPU, with the installed Paddle and with a fake GPU build."""

import logging

import paddle
import pytest

from ernie_pair.runtime.deterministic import DETERMINISTIC, set_deterministic


@pytest.fixture
def gpu_build(monkeypatch):
    """The flags that a GPU build would have, at their defaults, in a dictionary."""
    found = dict.fromkeys(DETERMINISTIC, 0)

    def get_flags(name):
        if name not in found:
            raise ValueError(f"Flag {name} cannot get its value through this function.")
        return {name: found[name]}

    monkeypatch.setattr(paddle, "get_flags", get_flags)
    monkeypatch.setattr(paddle, "set_flags", found.update)
    return found


def test_on_a_gpu_all_flags_that_the_build_knows_are_set(gpu_build, caplog):
    del gpu_build["FLAGS_use_autotune"]
    with caplog.at_level(logging.INFO):
        assert set_deterministic(True, "gpu") == gpu_build
    assert gpu_build["FLAGS_embedding_deterministic"] == 1 and gpu_build["FLAGS_cudnn_deterministic"] is True
    assert "FLAGS_embedding_deterministic=1, FLAGS_cudnn_deterministic=1" in caplog.text


@pytest.mark.parametrize("is_wanted, device", [(False, "gpu"), (True, "cpu"), (False, "cpu")])
def test_no_flags_are_set_on_a_cpu_or_unless_requested(gpu_build, caplog, is_wanted, device):
    with caplog.at_level(logging.INFO):
        assert set_deterministic(is_wanted, device) == {}
    assert set(gpu_build.values()) == {0}
    assert ("--deterministic false" in caplog.text) == (device == "gpu")


def test_a_cpu_build_sets_only_the_flags_it_has():
    before = {name: paddle.get_flags(name)[name] for name in _known()}
    try:
        assert set(set_deterministic(True, "gpu")) == set(before)
    finally:
        paddle.set_flags(before)


def _known():
    for name in DETERMINISTIC:
        try:
            paddle.get_flags(name)
        except ValueError:
            continue
        yield name
