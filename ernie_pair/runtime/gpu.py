"""The GPUs: which build of Paddle is installed, what a card can compute, which ones this process may use.

python -m ernie_pair.runtime.gpu               prints the visible GPUs in the form of --gpus, 0,1: for scripts
python -m ernie_pair.runtime.gpu NAME NUMBER   runs a check: CUDA may kill or hang the process that asks

The build and the capability of the first card are found without importing Paddle.
"""

import ctypes
import json
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ernie_pair.core.errors import InputError, MachineError, counted
from ernie_pair.core.installation import (
    INDEX,
    PADDLE_RANGE,
    ask_driver,
    ask_smi,
    choose_cuda,
    install_command,
    is_tested_paddle,
    training_extra,
)
from ernie_pair.runtime.cpu import text_of

CUDA_LIBRARY = "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR

Capability = Tuple[int, int]

# The lowest whose units compute in the type.
MIN_CAPABILITY: Dict[str, Capability] = {"float32": (0, 0), "float16": (7, 0), "bfloat16": (8, 0)}


def words_of(capability: Capability) -> str:
    """Return a compute capability as NVIDIA writes it: 8.6."""
    return "{}.{}".format(*capability)


def _open_driver() -> Any:
    """Return NVIDIA's driver, ready for questions; None without one."""
    try:
        driver = ctypes.CDLL(CUDA_LIBRARY)
    except OSError:
        return None
    return None if driver.cuInit(0) else driver


def check_gpus(numbers: Iterable[int], flag: str) -> None:
    """Raise InputError for a number that none of the GPUs has which CUDA shows; no library is loaded."""
    driver, count = _open_driver(), ctypes.c_int()
    if driver is not None:
        driver.cuDeviceGetCount(ctypes.byref(count))
    if max(numbers) >= count.value:
        raise InputError(
            f"{flag}: CUDA shows {counted(count.value, 'GPU')} here, counted from 0; name those, or see "
            "nvidia-smi and CUDA_VISIBLE_DEVICES"
        )


def ask_gpu_memory() -> Dict[int, Tuple[int, int]]:
    """Return {number: (bytes in use, bytes)} of the GPUs, as nvidia-smi counts them, that it knows it of."""
    found = {}
    for number, fields in enumerate(ask_smi("memory.used,memory.total", seconds=5)):
        with suppress(ValueError):  # [N/A], or a line about a failure
            used, total = map(int, fields)
            found[number] = used << 20, total << 20
    return found


@lru_cache(maxsize=1)
def gpu_capability() -> Optional[Capability]:
    """Return the compute capability of the first visible GPU, as (8, 0); None if there is none.

    It asks NVIDIA's driver directly: flags are read before Paddle is loaded.
    """
    driver, device, values = _open_driver(), ctypes.c_int(), []
    if driver is None or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    return values[0], values[1]


def paddle_capability(number: Optional[int] = None) -> Capability:
    """Return the compute capability of a visible GPU as reported by Paddle; None: of its current one."""
    import paddle

    major, minor = paddle.device.cuda.get_device_capability(number)
    return major, minor


def check_gpu_capability(found: Capability, dtype: str, flag: str, hint: str) -> None:
    """Raise InputError if a GPU of the capability ``found`` is too old for ``dtype``.

    Paddle would warn and compute in float32. ``flag``: what requires the type; ``hint``: what to do instead.
    """
    least = MIN_CAPABILITY[dtype]
    if found < least:
        raise InputError(
            f"{flag} needs a GPU of compute capability {words_of(least)}, this one has {words_of(found)}; "
            f"{hint}"
        )


class Build(NamedTuple):
    """A build of Paddle: ``cuda`` is the version that it was built for, '' for a CPU build."""

    version: str
    cuda: str
    folder: Path  # of the package


def installed_build() -> Optional[Build]:
    """Return the build of Paddle that would be imported; None: there is none."""
    try:
        spec = find_spec("paddle")
    except (ValueError, ModuleNotFoundError):  # a module without a spec replaces it, or a finder hides it
        spec = None
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    facts = dict(re.findall(r"^(\w+) *= *'(.*)'$", text_of(folder / "version" / "__init__.py"), re.M))
    cuda = facts.get("cuda_version", "False")
    return Build(facts.get("full_version", ""), "" if cuda == "False" else cuda, folder)


def paddle_version() -> str:
    """Return the version of the Paddle that would be imported, '' if there is none or it is unknown."""
    build = installed_build()
    return build.version if build is not None else ""


def check_paddle_version() -> None:
    """Raise InputError if a Paddle is installed that this package does not support; none is imported."""
    version = paddle_version()
    if version and not is_tested_paddle(version):
        hint = install_command(training_extra())
        raise InputError(f"Paddle {version} is not supported, {PADDLE_RANGE} is; {hint}")


# NVIDIA's driver on Linux; under WSL2 Windows' own device, which cards of other vendors have too.
DRIVER, DRIVER_OF_WINDOWS = "/dev/nvidiactl", ("/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1")
SELECTED_GPUS = "FLAGS_selected_gpus"  # set by Paddle's launcher for each process
BACKEND_VARIABLE = "PADDLE_DISTRI_BACKEND"  # overrides Paddle's choice of the backend between processes
OLDEST_CAPABILITY = (6, 0)  # compute capability that a build of Paddle has code for
NO_KERNEL_IMAGE = "no kernel image"  # CUDA error 209


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
    return {BACKEND_VARIABLE: "gloo", "CUDA_VISIBLE_DEVICES": ",".join(["-1"] * processes)}


def card_at(number: int) -> Card:
    """Return the GPU of this number among the visible ones."""
    from paddle.device import cuda

    return Card(number, str(cuda.get_device_name(number)), paddle_capability(number))


def number_of(device: str) -> int:
    """Return N of gpu:N; of gpu that of the launcher for this process, or 0. Raises InputError for others."""
    kind, _, asked = device.partition(":")
    given = os.environ.get(SELECTED_GPUS, "").split(",")[0]
    number = asked or given or "0"
    if given and number != given:
        raise InputError(
            f"--device {device}, but the launcher gives this process gpu:{given}; pass --device gpu"
        )
    if kind != "gpu" or not number.isdecimal():
        raise InputError(f"--device {device} is none of cpu, gpu and gpu:N; use one of them")
    return int(number)


def choose_card(rank: int, device: str = "gpu") -> Card:
    """Return the GPU that ``device`` is, see `number_of`.

    Raises InputError when there is none for it, or none that this build of Paddle has code for.
    """
    chosen = number_of(device)
    import paddle

    if not paddle.is_compiled_with_cuda():
        raise InputError(
            f"--device gpu, but this Paddle is the CPU build; {install_command('gpu')}, or pass --device cpu"
        )
    count = count_cards()
    if count == 0:
        raise InputError(f"--device gpu, but {why_no_card()}, or pass --device cpu")
    if chosen >= count and device != "gpu":
        raise InputError(f"--device {device}, but {counted(count, 'GPU')} are visible, counted from 0")
    if chosen >= count:
        raise InputError(
            f"rank {rank} should run on GPU {chosen}, but {count} are visible, counted from 0; start at most "
            f"{counted(count, 'process', 'processes')} on this machine, or check CUDA_VISIBLE_DEVICES"
        )
    return card_at(chosen)


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


def hint_without_code(capability: Capability) -> str:
    """Return where to install the build of Paddle that has code for a card, if there is one."""
    if capability < OLDEST_CAPABILITY:
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
        if NO_KERNEL_IMAGE in str(error):
            hint = hint_without_code(card.capability)
            raise InputError(f"Paddle has no code for {card}; {hint}, or pass --device cpu") from None
        raise MachineError(f"{card} cannot compute: {reason}; see ernie-pair doctor and nvidia-smi") from None


def summary_of(error: BaseException) -> str:
    """Return the line of a Paddle error that says what is wrong; otherwise its last line."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("---", "[", "(at "))]
    return said[-1][:300] if said else type(error).__name__


MAX_OUTPUT = 300  # characters of the last output of a process


class Finding(NamedTuple):
    """The result of a check: ``faults``, empty when all is well, and ``facts`` to report."""

    faults: List[str]
    facts: Dict[str, Any]


def check_kernels(number: int) -> Finding:
    """Run the kernels of a training step on the GPU ``number``, -1: on the CPU, and compare with numpy."""
    import paddle

    from ernie_pair.runtime.gpu_kernels import compare_kernels
    from ernie_pair.runtime.paddle_patches.core_settings import set_tf32

    capability = None if number < 0 else paddle_capability(number)
    paddle.set_device("cpu" if number < 0 else f"gpu:{number}")
    set_tf32(False)
    results = compare_kernels(capability)
    errors = {name: error if math.isfinite(error) else math.inf for name, (error, _) in results.items()}
    return Finding([fault for _, fault in results.values() if fault], {"errors": errors})


def list_cards(number: int) -> Finding:
    """Return all GPUs that Paddle sees; that there is none is a fault. ``number`` has no effect."""
    from paddle.device import cuda

    cards: List[Dict[str, Any]] = []
    for place in range(count_cards()):
        about = cuda.get_device_properties(place)
        capability, memory = [about.major, about.minor], round(about.total_memory / 1e9, 1)
        cards.append({"name": about.name, "capability": capability, "memory_gb": memory})
    return Finding([] if cards else [why_no_gpu()], {"cards": cards})


CHECKS: Dict[str, Callable[[int], Finding]] = {"kernels": check_kernels, "cards": list_cards}


def run_check(name: str, number: int = 0, seconds: float = 120) -> Finding:
    """Return the finding of CHECKS[name] on the GPU ``number``, from a separate process.

    If it ends without an answer, or takes more than ``seconds``, that is a fault of one line.
    """
    from ernie_pair.core.run_module import python_words  # for this process alone

    words = [*python_words(), "-m", "ernie_pair.runtime.gpu", name, str(number)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=seconds)
    except subprocess.TimeoutExpired:
        return Finding([f"{name}: no answer within {seconds:.0f} s"], {})
    try:
        answer = json.loads(done.stdout)
        return Finding(answer["faults"], answer["facts"])
    except (ValueError, KeyError, TypeError):
        code = done.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    # A library that is not found is the cause; Paddle's own last lines are about the signal.
    of_library = [line for line in said if "cannot open" in line or "ould not load" in line]
    errors = [line for line in said if "rror" in line]
    last = (of_library or errors or said or ["no output"])[-1][:MAX_OUTPUT]
    return Finding([f"{name}: the process {how}: {last}"], {})


def main() -> None:
    """Write the finding of a check, or print the visible GPUs. Raises InputError if there are none."""
    if sys.argv[1:]:
        answer = os.dup(1)  # standard output is for the finding alone
        os.dup2(2, 1)
        finding = CHECKS[sys.argv[1]](int(sys.argv[2]))
        with os.fdopen(answer, "w", encoding="utf-8") as file:
            json.dump(finding._asdict(), file)
        return
    from ernie_pair.runtime.paddle_patches.launcher import visible_gpus

    if not count_cards():
        raise InputError(f"{why_no_card()}, or set DEVICE=cpu")
    print(",".join(visible_gpus()))


if __name__ == "__main__":
    from ernie_pair.core.cli.cli import exit_code_of

    sys.exit(exit_code_of(main))
