"""What this process may use of the machine: its cores and instructions, its memory, and how malloc keeps it.

Limits of a container are read from the control groups (cgroups v1 and v2) of the process.
"""

import ctypes
import os
import platform
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Iterator, List, NamedTuple, NoReturn, Optional, Tuple

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
def share_of(local_rank: int, local_size: int) -> Share:
    """Return the share of the process ``local_rank`` of ``local_size`` on this machine.

    The cores are split into consecutive ranges, in the order of their memory nodes. If a quota limits the
    time of the process, or there are fewer cores than processes, all share all.
    """
    cores, quota = usable_cores(), cpu_quota()
    granted = len(cores)
    if quota is not None:  # the nearest number; several stay within it: beyond it Linux stops them all
        granted = max(1, int(quota / local_size) if local_size > 1 else int(quota + 0.5))
    if is_pinned_apart():
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


def is_pinned_apart() -> bool:
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


def refuse_bf16(reason: str) -> NoReturn:
    """Raise InputError for --precision bf16: for ``reason`` it would be emulated, and slower than float32."""
    raise InputError(f"--precision bf16 needs a processor with AVX512-BF16 ({reason}); use --precision fp32")


CPU_INFO = Path("/proc/cpuinfo")
# What each level needs besides those below it, in Linux's names.
NEEDS = {
    "none": (),
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "avx512_bf16": ("avx512_bf16",),
    "amx_bf16": ("amx_tile", "amx_bf16"),
}


def cpu_level() -> str:
    """Return the highest of LEVELS here, or the environment's if lower; InputError for an unknown one."""
    return min(asked_level(), _offered(), key=LEVELS.index)


def refuse_no_bf16() -> None:
    """Raise InputError for --precision bf16 if the processor itself cannot compute products of bfloat16."""
    reason = why_no_bf16(_offered())
    if reason:
        refuse_bf16(reason)


def processor_name() -> str:
    """Return the processor's name for itself; '' if Linux does not report it."""
    return _fact("model name")


def _fact(name: str) -> str:
    found = re.search(rf"^{name}\s*:(.*)$", text_of(CPU_INFO), re.M)
    return found[1].strip() if found else ""


def _offered() -> str:
    flags = set(_fact("flags").split())
    offered = LEVELS[0]
    for level, needed in NEEDS.items():
        if not flags.issuperset(needed):
            break
        offered = level
    return offered


# (the limit, its usage, the part of that which is cache and can be dropped at once: its name in memory.stat)
FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
)


def free_memory() -> float:
    """Return the bytes that new processes may use; infinity if Linux does not report them."""
    found = re.search(r"MemAvailable:\s*(\d+) kB", text_of(ROOT / "proc/meminfo"))
    free = [int(found[1]) * 1024.0 if found else float("inf")]
    for folder, names in product(group_folders("memory", ROOT), FILES):
        limit, taken = (text_of(folder / name).strip() for name in names[:2])
        if limit.isdecimal() and taken.isdecimal():
            cached = re.search(rf"^{names[2]} (\d+)$", text_of(folder / "memory.stat"), re.M)
            free.append(max(0.0, float(limit) - float(taken) + float(cached[1] if cached else 0)))
    return min(free)


TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # as <malloc.h> numbers them
SETTINGS = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, ARENA_MAX: 1}
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
    return all(mallopt(name, value) == 1 for name, value in SETTINGS.items())


def is_chosen_by_user() -> bool:
    """Return whether the environment selects an allocator, or configures malloc."""
    return (
        OTHER_ALLOCATOR.search(os.environ.get("LD_PRELOAD", "")) is not None
        or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
        or any(name.startswith("MALLOC_") for name in os.environ)
    )
