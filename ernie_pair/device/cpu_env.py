"""The CPU math settings that must stand in the environment before Paddle is loaded.

Paddle 2.6 carries an old MKL that picks a slow path on processors of other makers (measured: 97
against 237 GFLOP/s); MKL_DEBUG_CPU_TYPE names the path. MKL_CBWR=...,STRICT makes a product the same
to the last bit for any number of threads, so that any number of processes gives the same evaluation;
measured, it costs nothing. KMP_BLOCKTIME is how many milliseconds the idle threads of OpenMP spin: its
own 200 take the processor from loaders and checkpoints (measured, 2 cores: a save after a step 1.5
times as long, steps themselves a tenth slower than with 1). A variable that the user has set stays.
"""

import os
import re
from pathlib import Path

# Read before Paddle is loaded, because Paddle sets it to 1 where it is not set.
THREADS_ASKED = os.environ.get("OMP_NUM_THREADS", "")
PATH_OF = {"avx512": "7", "avx2": "5"}


def prepare_cpu_math() -> None:
    """Choose the MKL path for this processor; to be called before Paddle is loaded."""
    os.environ.setdefault("GLOG_minloglevel", "1")  # Paddle's C++ tells of every program it starts
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    facts = _processor_facts()
    feature = next((feature for feature in PATH_OF if feature in facts), None)
    if feature is None:
        return
    os.environ.setdefault("MKL_CBWR", f"{feature.upper()},STRICT")
    if "GenuineIntel" not in facts:  # on its own maker's processors MKL chooses well by itself
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", PATH_OF[feature])


def cpu_threads() -> int:
    """Return the math threads of this process: OMP_NUM_THREADS, or its share of the cores it may use."""
    if THREADS_ASKED.isdigit():
        return int(THREADS_ASKED)
    told = os.environ.get("PADDLE_LOCAL_SIZE") or os.environ.get("PADDLE_TRAINERS_NUM") or "1"
    processes = int(told) if re.fullmatch("[1-9][0-9]{0,8}", told) else 1  # `world` refuses what is no number
    return max(1, len(os.sched_getaffinity(0)) // processes)


def math_path() -> str:
    """Return which path MKL takes, in words."""
    chosen = os.environ.get("MKL_DEBUG_CPU_TYPE")
    names = {path: feature for feature, path in PATH_OF.items()}
    return f"MKL {names.get(chosen, chosen)} (MKL_DEBUG_CPU_TYPE={chosen})" if chosen else "MKL's own choice"


def _processor_facts() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
