"""The cores that this process may use, and its share of them among the processes of a run.

Three things limit them: the affinity mask (taskset, a container's set of cores), the cpu quota of the control
group (`docker run --cpus 2` leaves all cores visible), and the other processes of the run on this machine. A
"core" is what Linux schedules on, a hardware thread if a core has two.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional

from ernie_pair.device.control_groups import group_folders, text_of

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
    granted = len(cores) if quota is None else _threads_of(quota, local_size)
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
    nodes = _nodes()
    return sorted(os.sched_getaffinity(0), key=lambda core: (nodes.get(core, 0), _first_sibling(core), core))


def is_pinned_apart() -> bool:
    """Return whether a launched process has another affinity mask than its launcher.

    Then the processes have been pinned one by one, and its mask is its own.
    """
    if "PADDLE_LOCAL_RANK" not in os.environ:
        return False
    try:
        return os.sched_getaffinity(0) != os.sched_getaffinity(os.getppid())
    except OSError:
        return False


def cpu_quota() -> Optional[float]:
    """Return how many cores' time the control groups of this process grant; None: no limit."""
    quotas = [quota for folder in group_folders("cpu", ROOT) for quota in _quotas_in(folder)]
    return min(quotas, default=None)


def _quotas_in(folder: Path) -> Iterator[float]:
    for quota, period in (
        (text_of(folder / "cpu.max").split() + ["", ""])[:2],
        (text_of(folder / V1_QUOTA).strip(), text_of(folder / V1_PERIOD).strip()),
    ):
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            yield int(quota) / int(period)


def _nodes() -> Dict[int, int]:
    """Return the memory node of every core, as far as it is known."""
    folders = sorted((ROOT / "sys/devices/system/node").glob("node[0-9]*"))
    listed = {int(folder.name[4:]): cores_in(text_of(folder / "cpulist")) for folder in folders}
    return {core: node for node, cores in listed.items() for core in cores}


def _first_sibling(core: int) -> int:
    listed = cores_in(text_of(ROOT / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"))
    return min(listed, default=core)


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


def _threads_of(quota: float, local_size: int) -> int:
    """Return the threads of each of ``local_size`` processes under a cpu quota, at least one.

    A single process gets the nearest whole number; several together stay within the quota: beyond it Linux
    stops them all for the rest of each period.
    """
    return max(1, int(quota / local_size) if local_size > 1 else int(quota + 0.5))
