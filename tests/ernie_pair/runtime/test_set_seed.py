"""set_seed: the three global generators repeat what they drew."""

import random

import numpy as np
import paddle
import pytest

from data_tools.files.errors import InputError
from ernie_pair import set_seed


def drawn(seed):
    set_seed(seed)
    of_layer = paddle.nn.Linear(3, 3).weight.numpy().tolist()
    return random.random(), np.random.random(), paddle.rand([3]).tolist(), of_layer


def test_a_seed_repeats_what_each_library_draws():
    first = drawn(7)
    assert drawn(np.int64(7)) == first
    assert all(one != other for one, other in zip(first, drawn(8)))


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, "7", None])
def test_a_seed_that_is_no_such_number_is_refused(seed):
    random.seed(3)
    before = random.getstate()
    with pytest.raises(InputError, match="set_seed takes a whole number from 0 to 4294967295, not "):
        set_seed(seed)
    assert random.getstate() == before
