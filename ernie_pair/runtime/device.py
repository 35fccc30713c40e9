"""The device of a run."""

import logging
import os
import sys
from functools import partial
from typing import Optional

from ernie_pair.core.cli.options import devices_option
from ernie_pair.core.installation import version_of
from ernie_pair.runtime.amp_flags import AmpFlags
from ernie_pair.runtime.cpu_env import THREADS, cpu_threads, describe_threads, math_path, pin_to_share
from ernie_pair.runtime.deterministic import set_deterministic
from ernie_pair.runtime.gpu.builds import installed_build, refuse_other_paddles
from ernie_pair.runtime.gpu.cards import BACKEND, card_at, choose_card, has_driver, open_card
from ernie_pair.runtime.paddle_patches.core_settings import quiet_root_logger, set_math_threads, set_tf32
from ernie_pair.runtime.processes.world import World

VIEWS = "FLAGS_use_stride_kernel"


def start_device(device: str, world: World, precision: Optional[AmpFlags] = None, opens: bool = True) -> str:
    """Make ``cpu`` or ``gpu`` Paddle's current device and return what it is, in words; quiet PaddleNLP.

    ``precision``: the flags of a training, which may allow TF32; everything else computes float32 in float32.
    Without ``opens`` a GPU is only chosen, and `open_device` runs the first kernel: for callers that fork
    processes in between. Raises InputError when Paddle has an unsupported version, or there is no GPU for
    this process, or none that supports what is asked; MachineError when it does not compute.
    """
    refuse_other_paddles()
    import paddle

    quiet_libraries()
    if device == "cpu":
        # A build for GPUs would use NCCL, which needs a GPU for each process.
        os.environ.update({BACKEND: "gloo"} if world.size > 1 else {})
        paddle.set_device("cpu")
        # A transposed tensor of the dynamic graph is a copy at once: a view is copied where it is read, on a
        # CPU one number after another. With 4 layers of width 312 a step of plain pair training took 1.4 to
        # 1.7 s with views, and 0.8 to 0.9 without, with the same bits.
        if VIEWS not in os.environ:
            paddle.set_flags({VIEWS: False})
        start_threads()
        return f"cpu, {describe_threads()}, {math_path()}"
    card = choose_card(world.rank)
    if precision is not None:
        precision.refuse_on(card)
    paddle.set_device(f"gpu:{card.number}")
    set_tf32(precision is not None and precision.tf32)
    if opens:
        open_card(card)
    return f"gpu:{card.number}, {card.name}"


def start_training_device(config, world: World, opens: bool = True) -> str:
    """Start the device of a training, with deterministic kernels if requested, and return it in words.

    ``config`` holds AmpFlags, DeterministicFlags and ``device``; ``opens`` and the errors are those of
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
    found = os.environ.get(THREADS, "")
    os.environ[THREADS] = str(cpu_threads())
    set_math_threads(cpu_threads())
    os.environ[THREADS] = found or "1"  # as Paddle has set it


def default_device() -> str:
    """Return gpu if a driver is loaded and what is installed can use it, else cpu; no framework is loaded."""
    return "gpu" if has_driver() and can_use_gpus() else "cpu"


def can_use_gpus() -> bool:
    """Return whether the installed Paddle, or without one ONNX Runtime, is a build for GPUs."""
    build = installed_build()
    return bool(build.cuda) if build is not None else bool(version_of("onnxruntime-gpu"))


device_option = partial(devices_option, default_device(), help="where to run")


def quiet_libraries() -> None:
    """Silence PaddleNLP's log, which reports every file it opens, and Paddle's; a run shows its own lines."""
    quiet_root_logger()
    for name in ("paddlenlp", "PaddleNLP"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logger = getattr(sys.modules.get("paddlenlp.utils.log"), "logger", None)
    if logger is not None:
        logger.set_level("WARNING")
