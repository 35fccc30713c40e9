"""Which of Paddle's own indexes has the GPU build for this machine: PyPI has none of Paddle 3.3.

Needs the standard library alone: the scripts ask it before anything is installed.
"""

import os
import subprocess
from typing import Tuple

PADDLE_INDEX = "PADDLE_INDEX"  # names a mirror, or another CUDA
INDEX = "https://www.paddlepaddle.org.cn/packages/stable"
QUERY = ("nvidia-smi", "--query-gpu=driver_version,compute_cap", "--format=csv,noheader")
SECONDS = 60.0  # a machine with many cards takes some
# What Paddle's installation page asks of the driver: 450.80 for CUDA 11.8, 550.54 for CUDA 12.6. NVIDIA's
# release notes ask 580 for CUDA 13.0. Cards of 10.0 and above have code from CUDA 12.8 on.
DRIVER_OF_12, DRIVER_OF_13, BLACKWELL = 550, 580, (10, 0)


def paddle_index() -> str:
    """Return the address in PADDLE_INDEX, or that of Paddle for the driver and the first card here."""
    return os.environ.get(PADDLE_INDEX) or f"{INDEX}/{choose_cuda(*ask_driver())}/"


def choose_cuda(driver: int, capability: Tuple[int, int]) -> str:
    """Return the CUDA of the build for the first number of a driver's version; 0 where it is unknown."""
    if 0 < driver < DRIVER_OF_12:
        return "cu118"
    if capability < BLACKWELL:
        return "cu126"
    return "cu130" if driver >= DRIVER_OF_13 else "cu129"


def ask_driver() -> Tuple[int, Tuple[int, int]]:
    """Return the first number of the driver's version and the compute capability of the first card, or 0."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=SECONDS)
        version, capability = done.stdout.splitlines()[0].split(",")
        major, minor = capability.split(".")
        return int(version.partition(".")[0]), (int(major), int(minor))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return 0, (0, 0)
