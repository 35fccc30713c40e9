"""GPU kernels that give bit-identical results in every run.

When several threads add to one number by atomic operations, the order of the sum, and with it the last bit,
differs from run to run. Paddle does so in the gradient of an embedding, and may in cuDNN and flash attention;
a search for the fastest kernel may choose another kernel in each run. Each has a flag of Paddle's, which
must be set before the first kernel runs. What else is added in any order here adds zeros: the
gradient of the unused masked slots. A CPU has one order, whatever is set.
"""

import logging
import random
from contextlib import suppress
from numbers import Integral
from typing import Dict, Union

import numpy as np

from ernie_pair.core.errors import InputError

Flags = Dict[str, Union[bool, int]]

# A CPU build knows few of them.
DETERMINISTIC: Flags = {
    "FLAGS_embedding_deterministic": 1,  # 1 is the faster of two
    "FLAGS_cudnn_deterministic": True,  # flash attention uses it too
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_cublaslt_exhaustive_search_times": 0,
    "FLAGS_use_autotune": False,
}

logger = logging.getLogger(__name__)


def set_deterministic(is_wanted: bool, device: str) -> Flags:
    """Set Paddle's flags for ``device`` before its first kernel, log them, and return those that were set.

    Without ``is_wanted`` all stay as Paddle and the environment have them. On a CPU there is
    nothing to set.
    """
    if device == "cpu":
        return {}
    if not is_wanted:
        logger.info("--deterministic false: results may differ from run to run, and after a resume")
        return {}
    import paddle

    known: Flags = {}
    for name, value in DETERMINISTIC.items():
        with suppress(ValueError):  # of a flag that this build does not have
            paddle.get_flags(name)
            known[name] = value
    paddle.set_flags(known)
    logger.info("deterministic kernels: %s", ", ".join(f"{name}={int(v)}" for name, v in known.items()))
    return known


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
