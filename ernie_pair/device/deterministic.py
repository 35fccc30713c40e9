"""Kernels of a GPU that give the same bits in every run.

Where several threads add to one number by atomic operations, the order of the sum, and with it the last bit,
is another in each run. Paddle does so in the gradient of an embedding, and may in cuDNN and flash attention;
a search for the fastest kernel may end with another kernel in each run. Each has a flag of Paddle's, which
has to stand before the first kernel runs. What else training here adds up in any order adds zeros: the
gradient of the filling masked slots. A CPU has one order, whatever is set.
"""

import logging
from typing import Dict, Union

Flags = Dict[str, Union[bool, int]]

# As Paddle 2.6 and 3.x know them; a CPU build knows few of them.
DETERMINISTIC: Flags = {
    "FLAGS_embedding_deterministic": 1,  # 1 is the faster one of two
    "FLAGS_cudnn_deterministic": True,  # flash attention goes by it too
    "FLAGS_cudnn_exhaustive_search": False,
    "FLAGS_cublaslt_exhaustive_search_times": 0,
    "FLAGS_use_autotune": False,
}

logger = logging.getLogger(__name__)


def set_deterministic(is_wanted: bool, device: str) -> Flags:
    """Set Paddle's flags for ``device`` before its first kernel, log them, and return those that were set.

    Where the same bits are not wanted, all stay as Paddle and the environment have them. On a CPU there is
    nothing to set.
    """
    if device == "cpu":
        return {}
    if not is_wanted:
        logger.info("--deterministic false: a run may give other bits each time, and so may a resumed one")
        return {}
    import paddle

    known = {name: value for name, value in DETERMINISTIC.items() if _is_known(name)}
    paddle.set_flags(known)
    logger.info("deterministic kernels: %s", ", ".join(f"{name}={int(v)}" for name, v in known.items()))
    return known


def _is_known(name: str) -> bool:
    """Return whether this build of Paddle has a flag of this name."""
    import paddle

    try:
        paddle.get_flags(name)
    except ValueError:
        return False
    return True
