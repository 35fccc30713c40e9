"""Which GPUs this process may use, and an error where Paddle cannot use them."""

import os
from typing import Dict, NamedTuple

from ernie_pair.core.errors import InputError, MachineError, counted
from ernie_pair.core.installation import install_command
from ernie_pair.core.paddle_index import INDEX, ask_driver, choose_cuda
from ernie_pair.runtime.gpu.builds import Capability, installed_build, paddle_capability, words_of

# NVIDIA's driver on Linux; under WSL2 Windows' own device, which cards of other vendors have too.
DRIVER, DRIVER_OF_WINDOWS = "/dev/nvidiactl", ("/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1")
CHOSEN = "FLAGS_selected_gpus"  # set by Paddle's launcher for each process
BACKEND = "PADDLE_DISTRI_BACKEND"  # overrides Paddle's choice of the backend between processes
OLDEST = (6, 0)  # compute capability that a build of Paddle has code for
NO_CODE = "no kernel image"  # CUDA error 209


class Card(NamedTuple):
    """A GPU: ``number`` is its index among the visible ones, as in gpu:0."""

    number: int
    name: str
    capability: Capability

    def __str__(self) -> str:
        return f"GPU {self.number} ({self.name}, compute capability {words_of(self.capability)})"


def has_driver() -> bool:
    """Return whether an NVIDIA driver is loaded; needs no library."""
    return os.path.exists(DRIVER) or all(map(os.path.exists, DRIVER_OF_WINDOWS))


def count_cards() -> int:
    """Return how many GPUs Paddle sees."""
    import paddle

    return paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0


def peak_gpu_memory() -> int:
    """Return the peak of the GPU memory of this process, in bytes."""
    import paddle

    return int(paddle.device.cuda.max_memory_allocated())


def without_cards(processes: int) -> Dict[str, str]:
    """Return the variables with which Paddle's launcher starts ``processes`` that see no GPU."""
    return {BACKEND: "gloo", "CUDA_VISIBLE_DEVICES": ",".join(["-1"] * processes)}


def card_at(number: int) -> Card:
    """Return the GPU of this number among the visible ones."""
    from paddle.device import cuda

    return Card(number, str(cuda.get_device_name(number)), paddle_capability(number))


def choose_card(rank: int) -> Card:
    """Return the GPU that the launcher assigned to this process, or the first one without a launcher.

    Raises InputError when there is none for it, or none that this build of Paddle has code for.
    """
    import paddle

    if not paddle.is_compiled_with_cuda():
        raise InputError(
            f"--device gpu, but this Paddle is the CPU build; {install_command('gpu')}, or pass --device cpu"
        )
    chosen, count = os.environ.get(CHOSEN, "0").split(",")[0], count_cards()
    if count == 0:
        raise InputError(f"--device gpu, but {why_no_card()}, or pass --device cpu")
    if not chosen.isdecimal():
        raise InputError(f"{CHOSEN}={chosen[:40]} in the environment is not the number of a GPU; unset it")
    if int(chosen) >= count:
        raise InputError(
            f"rank {rank} should run on GPU {chosen}, but {count} are visible, counted from 0; start at most "
            f"{counted(count, 'process', 'processes')} on this machine, or check CUDA_VISIBLE_DEVICES"
        )
    return card_at(int(chosen))


def why_no_card() -> str:
    """Return why the GPU build of Paddle sees no GPU, and what to check."""
    if has_driver():
        return "an NVIDIA driver is loaded, but Paddle sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    return "no NVIDIA driver is loaded; install it (nvidia-smi shows it)"


def why_no_gpu() -> str:
    """Return why no GPU can be used, and what to do, without loading Paddle."""
    build = installed_build()
    if build is not None and not build.cuda:
        driver = "" if has_driver() else " and no NVIDIA driver is loaded"
        return f"there is no GPU to use: this Paddle is the CPU build{driver}; {install_command('gpu')}"
    return f"there is no GPU to use: {why_no_card()}"


def cure_without_code(capability: Capability) -> str:
    """Return where to install the build of Paddle that has code for a card, if there is one."""
    if capability < OLDEST:
        return "use another GPU (CUDA_VISIBLE_DEVICES)"
    index = f"{INDEX}/{choose_cuda(ask_driver()[0], capability)}/"
    return f"pip install --force-reinstall paddlepaddle-gpu==3.3.1 -i {index} has code for it"


def open_card(card: Card) -> None:
    """Run a first kernel on ``card``, Paddle's current device.

    This shows whether the build has code for the card. Raises InputError if it has none, MachineError for
    whatever else CUDA reports (the driver, a full card). Does nothing in static
    mode, where the first program does the same.
    """
    import paddle

    if not paddle.in_dynamic_mode():
        return
    try:
        (paddle.ones([8, 8]) + 1).sum().numpy()
    except (OSError, RuntimeError, MemoryError, ValueError, SystemError) as error:
        reason = summary_of(error)
        if NO_CODE in str(error):
            cure = cure_without_code(card.capability)
            raise InputError(f"Paddle has no code for {card}; {cure}, or pass --device cpu") from None
        raise MachineError(f"{card} cannot compute: {reason}; see ernie-pair doctor and nvidia-smi") from None


def summary_of(error: BaseException) -> str:
    """Return the line of a Paddle error that says what is wrong; otherwise its last line."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("---", "[", "(at "))]
    return said[-1][:300] if said else type(error).__name__
