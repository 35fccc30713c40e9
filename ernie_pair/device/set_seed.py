"""Seed what draws random numbers in a script of one's own."""

import random
from numbers import Integral

import numpy as np

from data_tools.base.errors import InputError

LARGEST_SEED = 2**32 - 1  # of NumPy's global generator


def set_seed(seed: int) -> None:
    """Seed the global generators of Python's random, of NumPy and of Paddle, on the CPU and on the GPU.

    For loops of one's own, `paddle.io.DataLoader` and new layers. PairTrainer and the other trainers draw
    from ``config.seed`` alone, whatever this is given. In several processes all get the same seed; add the
    rank where they are to differ. Raises InputError for anything but a whole number from 0 to 2**32 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed <= LARGEST_SEED:
        raise InputError(
            f"set_seed takes a whole number from 0 to {LARGEST_SEED}, not {seed!r:.60}; pass one"
        )
    import paddle

    random.seed(int(seed))
    np.random.seed(int(seed))
    paddle.seed(int(seed))
