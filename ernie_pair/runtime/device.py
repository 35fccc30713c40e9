"""The device of a run, and GPU kernels that give bit-identical results in every run.

When several threads add to one number by atomic operations, the order of the sum, and with it the last bit,
differs from run to run. Paddle does so in the gradient of an embedding, and may in cuDNN and flash attention;
a search for the fastest kernel may choose another kernel in each run. Each has a flag of Paddle's, which
must be set before the first kernel runs. What else is added in any order here adds zeros: the
gradient of the unused masked slots. A CPU has one order, whatever is set.
"""

import logging
import os
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Dict, Literal, Optional, Union

import numpy as np

from ernie_pair.core.cli.options import Options, speed_option
from ernie_pair.core.installation import version_of
from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.runtime.cpu import THREADS_VARIABLE, cpu_threads, describe_threads, math_path, pin_to_share
from ernie_pair.runtime.gpu import (
    BACKEND_VARIABLE,
    card_at,
    check_paddle_version,
    choose_card,
    has_driver,
    installed_build,
    open_card,
)
from ernie_pair.runtime.paddle_patches.core_settings import quiet_root_logger, set_math_threads, set_tf32
from ernie_pair.runtime.processes.world import World

VIEWS = "FLAGS_use_stride_kernel"


def start_device(device: str, world: World, precision: Optional[AmpFlags] = None, opens: bool = True) -> str:
    """Make ``cpu``, ``gpu`` or ``gpu:N`` Paddle's current device and return it in words; quiet PaddleNLP.

    ``precision``: the flags of a training. Float32 is computed in float32: TF32, Paddle's default, is off.
    Without ``opens`` a GPU is only chosen, and `open_device` runs the first kernel: for callers that fork
    processes in between. Raises InputError when Paddle has an unsupported version, or there is no GPU for
    this process, or none that supports what is asked; MachineError when it does not compute.
    """
    check_paddle_version()
    import paddle

    quiet_libraries()
    if device == "cpu":
        # A build for GPUs would use NCCL, which needs a GPU for each process.
        os.environ.update({BACKEND_VARIABLE: "gloo"} if world.size > 1 else {})
        paddle.set_device("cpu")
        # A transposed tensor of the dynamic graph is a copy at once: a view is copied where it is read, on a
        # CPU one number after another. With 4 layers of width 312 a step of plain pair training took 1.4 to
        # 1.7 s with views, and 0.8 to 0.9 without, with the same bits.
        if VIEWS not in os.environ:
            paddle.set_flags({VIEWS: False})
        start_threads()
        return f"cpu, {describe_threads()}, {math_path()}"
    card = choose_card(world.rank, device)
    if precision is not None:
        precision.refuse_on(card)
    paddle.set_device(f"gpu:{card.number}")
    set_tf32(False)
    if opens:
        open_card(card)
    return f"gpu:{card.number}, {card.name}"


def start_training_device(config, world: World, opens: bool = True) -> str:
    """Start the device of a training, with deterministic kernels if requested, and return it in words.

    ``config`` holds AmpFlags and ``device``; ``opens`` and the errors are those of
    `start_device`.
    """
    device = start_device(config.device, world, config, opens)
    set_deterministic(config.deterministic, config.device)
    return device


def open_device() -> None:
    """Run the first kernel on the GPU that `start_device` has chosen; nothing on a CPU. Same errors."""
    import paddle

    kind, _, number = paddle.device.get_device().partition(":")
    if kind == "gpu":
        open_card(card_at(int(number)))


def start_threads() -> None:
    """Give the math of this process its cores and threads; before the first parallel loop.

    The number given to Paddle holds only for the calling thread, and the static graph runs in others: theirs
    is what OpenMP finds in the environment when it first starts. The variable is restored for other readers.
    """
    pin_to_share()
    found = os.environ.get(THREADS_VARIABLE, "")
    os.environ[THREADS_VARIABLE] = str(cpu_threads())
    set_math_threads(cpu_threads())
    os.environ[THREADS_VARIABLE] = found or "1"  # as Paddle has set it


def default_device() -> str:
    """Return gpu if a driver is loaded and the installed Paddle can use it, else cpu; none is loaded.

    Without Paddle it is ONNX Runtime that must be a build for GPUs.
    """
    build = installed_build()
    can_use_gpus = build.cuda if build is not None else version_of("onnxruntime-gpu")
    return "gpu" if has_driver() and can_use_gpus else "cpu"


@dataclass(frozen=True, kw_only=True)
class DeviceFlag(Options):
    """The base of every command that computes in Paddle."""

    device: Literal["cpu", "gpu"] = speed_option(default_device(), help="where to run", usual=True)


@dataclass(frozen=True, kw_only=True)
class AskDeviceFlag(Options):
    """The base of a command that asks a model, trained or exported."""

    device: Literal["cpu", "gpu", "gpu:N"] = speed_option(default_device(), help="where to run", usual=True)


def quiet_libraries() -> None:
    """Silence PaddleNLP's log, which reports every file it opens, and Paddle's; a run shows its own lines."""
    quiet_root_logger()
    for name in ("paddlenlp", "PaddleNLP"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logger = getattr(sys.modules.get("paddlenlp.utils.log"), "logger", None)
    if logger is not None:
        logger.set_level("WARNING")


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


def set_seed(seed: int) -> None:
    """Seed the global generators of Python's random, of NumPy and of Paddle, on the CPU and on the GPU.

    For loops of one's own, `paddle.io.DataLoader` and new layers. PairTrainer and the other trainers draw
    from ``config.seed`` alone, whatever this is given. In several processes all get the same seed; add the
    rank where they are to differ. Raises what NumPy does for anything but a whole number below 2**32.
    """
    import paddle

    np.random.seed(seed)
    random.seed(int(seed))
    paddle.seed(int(seed))
