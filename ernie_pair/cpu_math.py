"""The CPU math settings that must stand in the environment before Paddle is loaded.

Paddle 2.6 carries an old MKL that picks a slow path on processors of other makers (measured: 97
against 237 GFLOP/s); MKL_DEBUG_CPU_TYPE names the path. A variable that the user has set stays.
"""

import os
from pathlib import Path

PATH_OF = {"avx512": "7", "avx2": "5"}


def prepare_cpu_math() -> None:
    """Choose the MKL path for this processor, and share the cores among the processes of a run."""
    facts = _processor_facts()
    if "GenuineIntel" not in facts:  # on its own maker's processors MKL chooses well by itself
        for feature, path in PATH_OF.items():
            if feature in facts:
                os.environ.setdefault("MKL_DEBUG_CPU_TYPE", path)
                break
    processes = int(os.environ.get("PADDLE_LOCAL_SIZE") or os.environ.get("PADDLE_TRAINERS_NUM") or 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))


def math_path() -> str:
    """Which path MKL takes, in words."""
    chosen = os.environ.get("MKL_DEBUG_CPU_TYPE")
    names = {path: feature for feature, path in PATH_OF.items()}
    return f"MKL {names.get(chosen, chosen)} (MKL_DEBUG_CPU_TYPE={chosen})" if chosen else "MKL's own choice"


def _processor_facts() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
