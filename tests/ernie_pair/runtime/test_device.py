"""Tests of how a run starts its device."""

import numpy as np
import paddle
import pytest

from ernie_pair.runtime import device
from ernie_pair.runtime.device import VIEWS, start_device
from ernie_pair.runtime.processes.world import World


@pytest.fixture
def views():
    """Let Paddle transpose by views, as it does by default."""
    before = paddle.get_flags(VIEWS)
    paddle.set_flags({VIEWS: True})
    yield
    paddle.set_flags(before)


def transposed() -> paddle.Tensor:
    return paddle.ones([2, 3]).transpose([1, 0])


def test_a_transposed_tensor_is_copied_on_a_cpu(views, monkeypatch):
    monkeypatch.delenv(VIEWS, raising=False)
    monkeypatch.setattr(device, "start_threads", lambda: None)
    assert not transposed().is_contiguous(), "Paddle makes no views any more: the setting can go"
    start_device("cpu", World())
    assert transposed().is_contiguous()
    np.testing.assert_array_equal(transposed().numpy(), np.ones([3, 2]))


def test_views_requested_by_the_user_are_kept(views, monkeypatch):
    monkeypatch.setenv(VIEWS, "1")
    monkeypatch.setattr(device, "start_threads", lambda: None)
    start_device("cpu", World())
    assert not transposed().is_contiguous()
