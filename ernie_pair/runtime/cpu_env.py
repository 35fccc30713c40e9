"""The CPU math settings that must be in the environment before Paddle is loaded.

Paddle includes an old MKL that picks a slow path on processors of other vendors (measured: 97
against 237 GFLOP/s); MKL_DEBUG_CPU_TYPE selects the path. MKL_CBWR=...,STRICT makes a product bit-identical
for any number of threads, so that any number of processes gives the same evaluation;
measured, it costs nothing. KMP_BLOCKTIME is how many milliseconds the idle threads of OpenMP spin: its
default of 200 takes the processor from loaders and checkpoints (measured, 2 cores: a save after a step 1.5
times as long, steps themselves a tenth slower than with 1). A variable that the user has set is kept.
"""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Dict, Optional

from ernie_pair.runtime.cpu import Share, cpu_quota, listed_cores, share_of, text_of

THREADS, PROC = "OMP_NUM_THREADS", Path("/proc")
LAUNCHER = re.compile(r"paddle\.distributed|paddle/distributed|fleetrun|ernie_pair\.launcher")
PATH_OF = {"avx512": "7", "avx2": "5"}


def _asked_threads() -> str:
    """Return the user's OMP_NUM_THREADS; empty: not set.

    Paddle sets it to 1 when it is loaded, unless it is set, and its launcher passes that 1 on. The
    environment that the launcher, or this process, was started with is still in /proc; if that cannot be
    read, the 1 is taken for the user's.
    """
    text = os.environ.get(THREADS, "")
    if text != "1":
        return text
    if "PADDLE_TRAINER_ID" in os.environ:
        started_with = _environment_of_launcher()
    else:
        started_with = _environment_of("self") if "paddle" in sys.modules else None
    return text if started_with is None or THREADS in started_with else ""


def _environment_of_launcher() -> Optional[Dict[str, str]]:
    """Return the environment that the launcher of this process was started with; None: unknown."""
    process = str(os.getppid())
    while process not in ("0", "1"):
        environment, words = _environment_of(process), text_of(PROC / process / "cmdline")
        if environment is None or "PADDLE_TRAINER_ID" not in environment:
            return environment if LAUNCHER.search(words) else None
        process = text_of(PROC / process / "stat").rpartition(")")[2].split()[1]  # a shell between the two
    return None


def _environment_of(process: str) -> Optional[Dict[str, str]]:
    """Return the environment that a process was started with, whatever it set later; None if not readable."""
    lines = [line.partition("=") for line in text_of(PROC / process / "environ").split("\0") if line]
    return {name: value for name, _, value in lines} or None


THREADS_ASKED = _asked_threads()  # before Paddle is loaded


def prepare_cpu_math() -> None:
    """Choose the MKL path for this processor; call it before Paddle is loaded."""
    os.environ.setdefault("GLOG_minloglevel", "2")  # its C++ logs each program, and warns of itself
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    facts = text_of(PROC / "cpuinfo")
    feature = next((feature for feature in PATH_OF if feature in facts), None)
    if feature is None:
        return
    os.environ.setdefault("MKL_CBWR", f"{feature.upper()},STRICT")
    if "GenuineIntel" not in facts:  # on Intel's processors MKL chooses well by itself
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", PATH_OF[feature])


def restore_asked_threads() -> None:
    """Restore the user's OMP_NUM_THREADS, for processes that this one starts."""
    os.environ.pop(THREADS, None)
    if THREADS_ASKED:
        os.environ[THREADS] = THREADS_ASKED


def asked_threads() -> int:
    """Return the threads that the user has requested; 0: none."""
    first = THREADS_ASKED.split(",")[0].strip()  # the others are for nested loops
    return int(first) if re.fullmatch("[0-9]{1,9}", first) else 0


def cpu_threads() -> int:
    """Return the math threads of this process: OMP_NUM_THREADS of the user, or its share of the cores."""
    return asked_threads() or cpu_share().threads


def cpu_share() -> Share:
    """Return the cores of this process among those of the run on this machine."""
    size = _number("PADDLE_LOCAL_SIZE") or _number("PADDLE_TRAINERS_NUM") or 1
    rank = _number("PADDLE_LOCAL_RANK" if "PADDLE_LOCAL_SIZE" in os.environ else "PADDLE_TRAINER_ID")
    return share_of(min(rank, size - 1), size)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else 0


def math_path() -> str:
    """Return which path MKL uses, in words."""
    chosen = os.environ.get("MKL_DEBUG_CPU_TYPE")
    names = {path: feature for feature, path in PATH_OF.items()}
    return f"MKL {names.get(chosen, chosen)} (MKL_DEBUG_CPU_TYPE={chosen})" if chosen else "MKL's own choice"


CHOSEN_BY_USER = ("KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def pin_to_share() -> None:
    """Let every thread of this process run only on the cores of its share, if that share is its own.

    Does nothing for a process that is alone or pinned already, if the user has chosen how threads are
    bound, or if more threads are requested than the share has cores. Call it before the first
    parallel loop: the threads of OpenMP inherit the cores of the one that starts them.
    """
    share = cpu_share()
    wanted, crowded = set(share.cores), cpu_threads() > len(share.cores)
    if not share.is_own or crowded or any(name in os.environ for name in CHOSEN_BY_USER):
        return
    if wanted < os.sched_getaffinity(0):
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended, or the machine does not allow pinning
                os.sched_setaffinity(int(thread), wanted)


def describe_threads() -> str:
    """Return the threads of this process and the cores that they run on, in words."""
    count, share, allowed = cpu_threads(), cpu_share(), sorted(os.sched_getaffinity(0))
    threads = f"{count} thread{'s' * (count > 1)}{f' ({THREADS})' * bool(asked_threads())}"
    cores = f"core{'s' * (len(allowed) > 1)} {listed_cores(allowed)}"
    quota = cpu_quota()
    limit = f" with a cpu quota of {quota:g}" if quota is not None and quota < len(allowed) else ""
    return f"{threads}{' on' if share.is_own else ', a share of'} {cores}{limit}"
