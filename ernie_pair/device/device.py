"""The device that a run stands on."""

import os
import sys

from data_tools.base.errors import InputError
from data_tools.base.installation import install_command
from ernie_pair.device.cpu_env import cpu_threads, math_path
from ernie_pair.device.paddle_patches.core_settings import set_math_threads
from ernie_pair.processes.world import World


def start_device(device: str, world: World) -> str:
    """Make ``cpu`` or ``gpu`` Paddle's current device and return what it is, in words.

    Raises InputError when a GPU is asked for and there is none for this process.
    """
    import paddle

    if device == "cpu":
        paddle.set_device("cpu")
        set_math_threads(cpu_threads())
        return f"cpu, {cpu_threads()} thread(s), {math_path()}"
    if not paddle.is_compiled_with_cuda():
        raise InputError(
            f"--device gpu, but this Paddle is the CPU build; {install_command('gpu')}, or pass --device cpu"
        )
    if paddle.device.cuda.device_count() == 0:
        raise InputError("--device gpu, but no GPU is visible; check the driver, or pass --device cpu")
    chosen = os.environ.get("FLAGS_selected_gpus", "0").split(",")[0]  # noqa: SIM112 - Paddle's
    if not chosen.isdecimal():
        raise InputError(f"FLAGS_selected_gpus={chosen[:40]} in the environment is no GPU's number; unset it")
    local = int(chosen)
    paddle.set_device(f"gpu:{local}")
    return f"gpu:{local}, {paddle.device.cuda.get_device_name(local)}"


def default_device() -> str:
    """Return gpu where an NVIDIA driver is loaded, else cpu; asks no framework, so it is cheap."""
    return "gpu" if os.path.exists("/dev/nvidiactl") else "cpu"


def quiet_libraries() -> None:
    """Silence PaddleNLP's log, which tells every file it opens; a run shows its own lines."""
    import logging

    for name in ("paddlenlp", "PaddleNLP"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logger = getattr(sys.modules.get("paddlenlp.utils.log"), "logger", None)
    if logger is not None:
        logger.set_level("WARNING")
