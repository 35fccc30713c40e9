"""What this process may use of the machine: cores, instructions, memory, malloc, and the math settings.

Limits of a container are read from the control groups (cgroups v1 and v2) of the process. The math settings
must be in the environment before Paddle is loaded; a variable that the user has set is kept. Paddle includes
an old MKL that picks a slow path on processors of other vendors (measured: 97 against 237 GFLOP/s);
MKL_DEBUG_CPU_TYPE selects the path. MKL_CBWR=...,STRICT makes a product bit-identical for any number of
threads, so that any number of processes gives the same evaluation; measured, it costs nothing. KMP_BLOCKTIME
is how many milliseconds the idle threads of OpenMP spin: its default of 200 takes the processor from loaders.
"""

import ctypes
import os
import platform
import re
import sys
from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, NoReturn, Optional, Tuple

from ernie_pair.core.errors import InputError


def group_folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders that may hold a limit for this process by ``controller``, cpu or memory.

    They are those of its group and of the groups above it: each may set a limit, and the smallest counts.
    In a container the files of the group itself are at the top. ``root``: the root of the file system.
    """
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounts = (controller, controllers) if controllers else ("", "unified")
        for mount in (root / "sys/fs/cgroup" / name for name in dict.fromkeys(mounts)):
            group = mount / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def text_of(path: Path) -> str:
    """Return the content of a file; '' if it is missing or not readable."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


ROOT = Path("/")
V1_PERIOD, V1_QUOTA = "cpu.cfs_period_us", "cpu.cfs_quota_us"


class Share(NamedTuple):
    """The cores of one process of the run on this machine.

    ``cores``: those that it may run on; ``threads``: as many, or fewer under a cpu quota. ``is_own``:
    no other process of the run has these cores.
    """

    cores: List[int]
    threads: int
    is_own: bool


@cache  # pinning changes the mask, and the share is of the mask before
def cpu_share_of(local_rank: int, local_size: int) -> Share:
    """Return the share of the process ``local_rank`` of ``local_size`` on this machine.

    The cores are split into consecutive ranges, in the order of their memory nodes. If a quota limits the
    time of the process, or there are fewer cores than processes, all share all.
    """
    cores, quota = usable_cores(), cpu_quota()
    granted = len(cores)
    if quota is not None:  # the nearest number; several stay within it: beyond it Linux stops them all
        granted = max(1, int(quota / local_size) if local_size > 1 else int(quota + 0.5))
    if is_pinned_externally():
        return Share(cores, min(len(cores), granted), is_own=True)
    if quota is not None and quota < len(cores):
        return Share(cores, granted, is_own=local_size == 1)
    if len(cores) < local_size:
        return Share(cores, 1, is_own=False)
    first, last = (rank * len(cores) // local_size for rank in (local_rank, local_rank + 1))
    # All get the smallest share: ranks wait for each other, and their sums must not depend on who has more.
    return Share(cores[first:last], len(cores) // local_size, is_own=True)


def usable_cores() -> List[int]:
    """Return the cores of the affinity mask, ordered by memory node and physical core."""
    folders = sorted((ROOT / "sys/devices/system/node").glob("node[0-9]*"))
    listed = {int(folder.name[4:]): cores_in(text_of(folder / "cpulist")) for folder in folders}
    nodes = {core: node for node, cores in listed.items() for core in cores}

    def place_of(core: int) -> Tuple[int, int, int]:
        siblings = ROOT / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        return nodes.get(core, 0), min(cores_in(text_of(siblings)), default=core), core

    return sorted(os.sched_getaffinity(0), key=place_of)


def is_pinned_externally() -> bool:
    """Return whether a launched process is pinned by itself: its launcher has another affinity mask."""
    if "PADDLE_LOCAL_RANK" not in os.environ:
        return False
    try:
        return os.sched_getaffinity(0) != os.sched_getaffinity(os.getppid())
    except OSError:
        return False


def cpu_quota() -> Optional[float]:
    """Return how many cores' time the control groups of this process grant; None: no limit."""
    quotas = []
    for folder in group_folders("cpu", ROOT):
        version_2 = text_of(folder / "cpu.max").split()
        for words in version_2, [text_of(folder / name).strip() for name in (V1_QUOTA, V1_PERIOD)]:
            if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def cores_in(text: str) -> List[int]:
    """Return the cores of a list in Linux's notation, 0-3,8 for example."""
    runs = [re.fullmatch(r"(\d+)(?:-(\d+))?", part) for part in text.strip().split(",")]
    return [core for run in runs if run for core in range(int(run[1]), int(run[2] or run[1]) + 1)]


def listed_cores(cores: List[int]) -> str:
    """Return cores in Linux's notation, 0-3,8 for example."""
    parts: List[List[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in parts)


LEVELS = ("none", "avx2", "avx512", "avx512_bf16", "amx_bf16")  # in the order of their numbers in fused.h
LEVEL_ASKED = "ERNIE_PAIR_KERNELS_LEVEL"


def asked_level() -> str:
    """Return the highest of LEVELS that the environment allows. Raises InputError for anything else."""
    asked = os.environ.get(LEVEL_ASKED) or LEVELS[-1]
    if asked not in LEVELS:
        raise InputError(
            f"{LEVEL_ASKED}={asked[:40]} in the environment is not one of {', '.join(LEVELS)}; unset it"
        )
    return asked


def has_bf16(level: str) -> bool:
    """Return whether the processor itself computes products of bfloat16 at ``level``."""
    return LEVELS.index(level) >= LEVELS.index("avx512_bf16")


def why_no_bf16(offered: str) -> str:
    """Return why a processor that offers a level cannot compute products of bfloat16, in words, or ''."""
    if not has_bf16(offered):
        return "this processor has no AVX512-BF16"
    return "" if has_bf16(asked_level()) else f"{LEVEL_ASKED}={asked_level()} is set"


def raise_no_bf16(reason: str) -> NoReturn:
    """Raise InputError for --precision bf16: for ``reason`` it would be emulated, and slower than float32."""
    raise InputError(f"--precision bf16 needs a processor with AVX512-BF16 ({reason}); use --precision fp32")


CPU_INFO = Path("/proc/cpuinfo")
# What each level needs besides those below it, in Linux's names.
LEVEL_FEATURES = {
    "none": (),
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx512_bf16": ("avx512_bf16",),
    "amx_bf16": ("amx_tile", "amx_bf16"),
}


def cpu_level() -> str:
    """Return the highest of LEVELS here, or the environment's if lower; InputError for an unknown one."""
    return min(asked_level(), _offered_level(), key=LEVELS.index)


def check_bf16() -> None:
    """Raise InputError for --precision bf16 if the processor itself cannot compute products of bfloat16."""
    reason = why_no_bf16(_offered_level())
    if reason:
        raise_no_bf16(reason)


def processor_name() -> str:
    """Return the processor's name for itself; '' if Linux does not report it."""
    return _cpuinfo_value("model name")


def _cpuinfo_value(name: str) -> str:
    found = re.search(rf"^{name}\s*:(.*)$", text_of(CPU_INFO), re.M)
    return found[1].strip() if found else ""


def _offered_level() -> str:
    flags = set(_cpuinfo_value("flags").split())
    offered = LEVELS[0]
    for level, needed in LEVEL_FEATURES.items():
        if not flags.issuperset(needed):
            break
        offered = level
    return offered


# (the limit, its usage, the part of that which is cache and can be dropped at once: its name in memory.stat)
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
)


def free_memory() -> float:
    """Return the bytes that new processes may use; infinity if Linux does not report them."""
    found = re.search(r"MemAvailable:\s*(\d+) kB", text_of(ROOT / "proc/meminfo"))
    free = [int(found[1]) * 1024.0 if found else float("inf")]
    for folder, names in product(group_folders("memory", ROOT), MEMORY_FILES):
        limit, taken = (text_of(folder / name).strip() for name in names[:2])
        if limit.isdecimal() and taken.isdecimal():
            cached = re.search(rf"^{names[2]} (\d+)$", text_of(folder / "memory.stat"), re.M)
            free.append(max(0.0, float(limit) - float(taken) + float(cached[1] if cached else 0)))
    return min(free)


TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # as <malloc.h> numbers them
MALLOC_SETTINGS = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, ARENA_MAX: 1}
OTHER_ALLOCATOR = re.compile("malloc|hoard|scudo")  # jemalloc, tcmalloc, mimalloc


def keep_freed_memory() -> bool:
    """Let malloc keep freed memory for the next step; return whether it does.

    For processes that train on the fused kernels and then end: Paddle's own kernels gain nothing, and a
    process that reads data, answers requests or is a notebook would hold its peak memory for good. Nothing is
    changed if the C library is not glibc, if another allocator is preloaded, or if the user has set malloc's
    variables (MALLOC_..., GLIBC_TUNABLES).
    """
    if platform.libc_ver()[0] != "glibc" or is_chosen_by_user():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(name, value) == 1 for name, value in MALLOC_SETTINGS.items())


def is_chosen_by_user() -> bool:
    """Return whether the environment selects an allocator, or configures malloc."""
    return (
        OTHER_ALLOCATOR.search(os.environ.get("LD_PRELOAD", "")) is not None
        or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
        or any(name.startswith("MALLOC_") for name in os.environ)
    )


THREADS_VARIABLE, PROC_FOLDER = "OMP_NUM_THREADS", Path("/proc")
LAUNCHER = re.compile(r"paddle\.distributed|paddle/distributed|fleetrun|ernie_pair\.launcher")
MKL_PATHS = {"avx512": "7", "avx2": "5"}


def _user_threads() -> str:
    """Return the user's OMP_NUM_THREADS; empty: not set.

    Paddle sets it to 1 when it is loaded, unless it is set, and its launcher passes that 1 on. The
    environment that the launcher, or this process, was started with is still in /proc; if that cannot be
    read, the 1 is taken for the user's.
    """
    text = os.environ.get(THREADS_VARIABLE, "")
    if text != "1":
        return text
    if "PADDLE_TRAINER_ID" in os.environ:
        started_with = _environment_of_launcher()
    else:
        started_with = _environment_of("self") if "paddle" in sys.modules else None
    return text if started_with is None or THREADS_VARIABLE in started_with else ""


def _environment_of_launcher() -> Optional[Dict[str, str]]:
    """Return the environment that the launcher of this process was started with; None: unknown."""
    process = str(os.getppid())
    while process not in ("0", "1"):
        environment, words = _environment_of(process), text_of(PROC_FOLDER / process / "cmdline")
        if environment is None or "PADDLE_TRAINER_ID" not in environment:
            return environment if LAUNCHER.search(words) else None
        process = (
            text_of(PROC_FOLDER / process / "stat").rpartition(")")[2].split()[1]
        )  # a shell between the two
    return None


def _environment_of(process: str) -> Optional[Dict[str, str]]:
    """Return the environment that a process was started with, whatever it set later; None if not readable."""
    lines = [line.partition("=") for line in text_of(PROC_FOLDER / process / "environ").split("\0") if line]
    return {name: value for name, _, value in lines} or None


THREADS_ASKED = _user_threads()  # before Paddle is loaded


def prepare_cpu_math() -> None:
    """Choose the MKL path for this processor; call it before Paddle is loaded."""
    os.environ.setdefault("GLOG_minloglevel", "2")  # its C++ logs each program, and warns of itself
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    facts = text_of(PROC_FOLDER / "cpuinfo")
    feature = next((feature for feature in MKL_PATHS if feature in facts), None)
    if feature is None:
        return
    os.environ.setdefault("MKL_CBWR", f"{feature.upper()},STRICT")
    if "GenuineIntel" not in facts:  # on Intel's processors MKL chooses well by itself
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", MKL_PATHS[feature])


def restore_asked_threads() -> None:
    """Restore the user's OMP_NUM_THREADS, for processes that this one starts."""
    os.environ.pop(THREADS_VARIABLE, None)
    if THREADS_ASKED:
        os.environ[THREADS_VARIABLE] = THREADS_ASKED


def asked_threads() -> int:
    """Return the threads that the user has requested; 0: none."""
    first = THREADS_ASKED.split(",")[0].strip()  # the others are for nested loops
    return int(first) if re.fullmatch("[0-9]{1,9}", first) else 0


def cpu_threads() -> int:
    """Return the math threads of this process: OMP_NUM_THREADS of the user, or its share of the cores."""
    return asked_threads() or cpu_share().threads


def cpu_share() -> Share:
    """Return the cores of this process among those of the run on this machine."""
    size = _env_number("PADDLE_LOCAL_SIZE") or _env_number("PADDLE_TRAINERS_NUM") or 1
    rank = _env_number("PADDLE_LOCAL_RANK" if "PADDLE_LOCAL_SIZE" in os.environ else "PADDLE_TRAINER_ID")
    return cpu_share_of(min(rank, size - 1), size)


def _env_number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else 0


def math_path() -> str:
    """Return which path MKL uses, in words."""
    chosen = os.environ.get("MKL_DEBUG_CPU_TYPE")
    names = {path: feature for feature, path in MKL_PATHS.items()}
    return f"MKL {names.get(chosen, chosen)} (MKL_DEBUG_CPU_TYPE={chosen})" if chosen else "MKL's own choice"


BINDING_VARIABLES = ("KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


def pin_to_share() -> None:
    """Let every thread of this process run only on the cores of its share, if that share is its own.

    Does nothing for a process that is alone or pinned already, if the user has chosen how threads are
    bound, or if more threads are requested than the share has cores. Call it before the first
    parallel loop: the threads of OpenMP inherit the cores of the one that starts them.
    """
    share = cpu_share()
    wanted, crowded = set(share.cores), cpu_threads() > len(share.cores)
    if not share.is_own or crowded or any(name in os.environ for name in BINDING_VARIABLES):
        return
    if wanted < os.sched_getaffinity(0):
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended, or the machine does not allow pinning
                os.sched_setaffinity(int(thread), wanted)


def describe_threads() -> str:
    """Return the threads of this process and the cores that they run on, in words."""
    count, share, allowed = cpu_threads(), cpu_share(), sorted(os.sched_getaffinity(0))
    threads = f"{count} thread{'s' * (count > 1)}{f' ({THREADS_VARIABLE})' * bool(asked_threads())}"
    cores = f"core{'s' * (len(allowed) > 1)} {listed_cores(allowed)}"
    quota = cpu_quota()
    limit = f" with a cpu quota of {quota:g}" if quota is not None and quota < len(allowed) else ""
    return f"{threads}{' on' if share.is_own else ', a share of'} {cores}{limit}"
